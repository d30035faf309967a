"""The run directory: what is in it, written so that no file is ever half there."""

import csv
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import crl_jax
from crl_jax import data, train

from ._config import Config, from_json, to_json

CONFIG, HISTORY, METRICS, CURVES = "config.json", "history.jsonl", "metrics.json", "curves.png"
SWEEP, SEEDS = "sweep.csv", "metrics_by_seed.json"
CHECKPOINT, MODEL = "checkpoint", "model.npz"


def create(folder: Path, config: Config) -> None:
    """Makes a run directory with its configuration.

    Raises:
      ValueError: If there is a run in it already, or it is no directory.
    """
    claim(folder, f": go on with it by --resume {folder}, or name another directory.")
    device = jax.devices()[0]
    environment = {
        "crl_jax": crl_jax.__version__,
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.platform}: {device.device_kind}",
    }
    write_json(folder / CONFIG, {**to_json(config), "environment": environment})


def claim(folder: Path, advice: str) -> None:
    """Makes the folder of a new run.

    Raises:
      ValueError: If there is a run in it already, with ``advice``, or it is no directory.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; name a directory.")
    if (folder / CONFIG).exists():
        raise ValueError(f"--out {folder} holds a run already{advice}")
    folder.mkdir(parents=True, exist_ok=True)


def open_run(folder: Path) -> Config:
    """Reads the configuration of the run in ``folder``.

    Raises:
      ValueError: If there is no run in it, or its configuration is damaged.
    """
    path = folder / CONFIG
    try:
        stored = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no run: there is no {path}.") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: expected JSON, got {error.msg}.") from None
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
      params: Parameters, leading axis ``seeds``.
      known: Training and validation part, with the original ids.
      test: Test part.
      trained_on: Parts that the parameters learned from: train, valid, test.
    """

    params: Any
    known: data.Interactions
    test: data.Interactions
    trained_on: tuple[str, ...]


def save_model(folder: Path, model: Model, config: Config) -> None:
    """Saves what recommending needs."""
    tree = {
        "params": jax.device_get(model.params),
        "user_ids": model.known.user_ids,
        "item_ids": model.known.item_ids,
        "indptr": model.known.indptr,
        "items": model.known.items,
        "test_indptr": model.test.indptr,
        "test_items": model.test.items,
    }
    meta = {"dim": config.training.dim, "encoder": "mf", "trained_on": list(model.trained_on)}
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
    params = {
        name.removeprefix("params/"): array
        for name, array in stored.items()
        if name.startswith("params/")
    }
    if "test_items" not in stored:
        raise ValueError(
            f"{path} was written without the test part, which says what users have: train anew."
        )
    known, test = (
        data.Interactions(
            indptr=stored[f"{prefix}indptr"],
            items=stored[f"{prefix}items"],
            user_ids=stored["user_ids"],
            item_ids=stored["item_ids"],
        )
        for prefix in ("", "test_")
    )
    return Model(params, known, test, tuple(meta["trained_on"]))


def write_text(path: Path, text: str) -> None:
    """Writes a text, atomically."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
