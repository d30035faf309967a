"""The run directory: what is in it, written so that no file is ever half there."""

import csv
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import crl_jax
from crl_jax import data, models, train

from ._config import Config, from_json, to_json
from ._locks import hold
from ._ranges import read_json, shorten
from .encoders import ENCODERS

CONFIG, HISTORY, METRICS, CURVES = "config.json", "history.jsonl", "metrics.json", "curves.png"
SWEEP, SEEDS = "sweep.csv", "metrics_by_seed.json"
CHECKPOINT, MODEL = "checkpoint", "model.npz"
RECOMMENDER = "recommender.npz"


def create(folder: Path, config: Config) -> None:
    """Writes the configuration of a new run, in a folder that :func:`claim` holds."""
    device = jax.devices()[0]
    environment = {
        "crl_jax": crl_jax.__version__,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.platform}: {device.device_kind}",
    }
    config = replace(config, output=replace(config.output, out=folder.absolute()))
    write_json(folder / CONFIG, {**to_json(config), "environment": environment})


@contextmanager
def claim(folder: Path, advice: str) -> Iterator[None]:
    """Makes the folder of a new run and holds it, see :func:`occupy`.

    Raises:
      ValueError: If there is a run in it already, with ``advice``, or it is no directory.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; name a directory.")
    folder.mkdir(parents=True, exist_ok=True)
    with occupy(folder):
        if (folder / CONFIG).exists():
            raise ValueError(f"--out {folder} holds a run already{advice}")
        yield


@contextmanager
def occupy(folder: Path) -> Iterator[None]:
    """Keeps other processes out of a run directory.

    Raises:
      ValueError: If another process is at work in it.
    """
    with hold(folder / ".lock", busy=f"another process is at work in {folder}; let it end first."):
        yield


def open_run(folder: Path) -> Config:
    """Reads the configuration of the run in ``folder``.

    Raises:
      ValueError: If there is no run in it, or its configuration is damaged.
    """
    path = folder / CONFIG
    try:
        stored = read_json(path)
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no run: there is no {path}.") from None
    return from_json(stored, path)


def write_json(path: Path, content: Any) -> None:
    """Writes JSON, atomically."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_history(path: Path, lines: list[dict[str, Any]]) -> None:
    """Replaces the history, atomically; :func:`append_history` goes on from there."""
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def append_history(path: Path, line: dict[str, Any]) -> None:
    """Adds one line to the history."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def write_sweep(path: Path, points: list[dict[str, float]], choice: train.Choice) -> None:
    """Writes the table of a grid: its numbers, the validation score and which was chosen."""
    rows = (
        [*point.values(), choice.scores[i], choice.best_epochs[i], int(i == choice.point)]
        for i, point in enumerate(points)
    )
    write_csv(path, [*points[0], "valid_ndcg@20", "best_epoch", "chosen"], rows)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Writes a table, atomically."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    partial.replace(path)


@dataclass(frozen=True)
class Model:
    """What recommending needs.

    Attributes:
      tables: Vectors of users and items whose inner products are the scores, leading axis
        ``seeds``.
      known: Training and validation part, with the original ids.
      test: Test part.
      trained_on: Parts that it learned from: train, valid, test.
    """

    tables: models.Tables
    known: data.Interactions
    test: data.Interactions
    trained_on: tuple[str, ...]


def save_model(folder: Path, model: Model, config: Config) -> None:
    """Saves what recommending needs."""
    tree = {
        "tables": jax.device_get(model.tables)._asdict(),
        "user_ids": model.known.user_ids,
        "item_ids": model.known.item_ids,
        "indptr": model.known.indptr,
        "items": model.known.items,
        "test_indptr": model.test.indptr,
        "test_items": model.test.items,
    }
    meta = {"encoder": config.encoding.encoder, "trained_on": list(model.trained_on)}
    train.save_checkpoint(folder / CHECKPOINT / MODEL, tree, meta)


def load_model(folder: Path) -> Model:
    """Reads what :func:`save_model` wrote.

    Raises:
      ValueError: If there is no trained model in ``folder``, or it is damaged.
    """
    path = folder / CHECKPOINT / MODEL
    try:
        stored, meta = train.load_checkpoint(path)
    except FileNotFoundError:
        hint = "its training is not finished" if (folder / CONFIG).exists() else "it holds no run"
        raise ValueError(f"{folder} has no trained model: {hint}.") from None
    _check_names(path, stored, meta)
    try:
        known, test = (
            data.Interactions(
                indptr=stored[f"{prefix}indptr"],
                items=stored[f"{prefix}items"],
                user_ids=stored["user_ids"],
                item_ids=stored["item_ids"],
            )
            for prefix in ("", "test_")
        )
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: expected the interactions of a run, got: {error}") from None
    tables = models.Tables(stored["tables/users"], stored["tables/items"])
    n_seeds, dim = (tables.users.shape[0], tables.users.shape[-1]) if tables.users.ndim else (0, 0)
    for name, table, rows in zip(tables._fields, tables, (known.n_users, known.n_items)):
        wanted = max(n_seeds, 1), rows, max(dim, 1)
        if table.shape != wanted or table.dtype != np.float32:
            raise ValueError(
                f"{path}: expected tables/{name} as float32{list(wanted)}, "
                f"got {table.dtype}{list(table.shape)}."
            )
    return Model(tables, known, test, tuple(meta["trained_on"]))


def _check_names(path: Path, stored: dict[str, Any], meta: Any) -> None:
    wanted = [
        "indptr", "item_ids", "items", "tables/items", "tables/users", "test_indptr",
        "test_items", "user_ids",
    ]  # fmt: skip
    if sorted(stored) != wanted:
        raise ValueError(f"{path}: expected the arrays {wanted}, got {sorted(stored)}.")
    if not isinstance(meta, dict) or meta.get("encoder") not in ENCODERS:
        known = ", ".join(ENCODERS)
        raise ValueError(f"{path}: expected an encoder among {known}, got {shorten(meta)}.")
    parts = meta.get("trained_on")
    if not isinstance(parts, list) or not all(part in ("train", "valid", "test") for part in parts):
        raise ValueError(f"{path}: expected the parts it was trained on, got {shorten(parts)}.")


def write_text(path: Path, text: str) -> None:
    """Writes a text, atomically."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
