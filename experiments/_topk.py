"""Recommendations from a finished run, in the ids of the data it was trained on."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from crl_jax import data, metrics, models

from ._program import program
from ._saved import load_model
from ._screen import output, plain

_CHECKED = 256
"""Users whose approximate items are compared with the exact ones."""


@dataclass(frozen=True)
class TopK:
    """Print the best items that a user does not have yet, or write them for every user."""

    run: Path
    """Run directory of a finished training."""
    user: str | None = None
    """A user, by the id of the training data."""
    all: bool = False
    """Every user; needs --out."""
    k: int = 10
    """Number of items per user."""
    keep_test: bool = False
    """Let items of the test part through, to judge the recommendations by them."""
    seed_index: int = 0
    """Which of the run's seeds recommends, counted from 0."""
    approximate: float | None = None
    """Select by jax.lax.approx_max_k, which on a TPU is expected to find this share of the best
    items and takes less time. What share it found of some users' is printed."""
    out: Path | None = None
    """A .parquet or .csv file to write the recommendations to."""


def main(arguments: list[str]) -> None:
    """Runs ``topk`` with its flags.

    Raises:
      ValueError: If the flags do not fit together, or the run, or the user does not exist.
    """
    options = tyro.cli(
        TopK, prog=program("recommend topk"), args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )  # fmt: skip
    if options.all == (options.user is not None):
        raise ValueError("Give one of --user ID and --all.")
    if options.all and options.out is None:
        raise ValueError("--all needs --out FILE.parquet or FILE.csv.")
    if options.out is not None and options.out.suffix not in (".parquet", ".csv"):
        raise ValueError(f"--out must end in .parquet or .csv, got {options.out}.")
    if options.k < 1:
        raise ValueError(f"--k must be at least 1, got {options.k}.")
    if options.approximate is not None and not 0 < options.approximate <= 1:
        raise ValueError(f"--approximate must lie in (0, 1], got {options.approximate}.")
    model = load_model(options.run)
    n_seeds = len(model.tables.users)
    if not 0 <= options.seed_index < n_seeds:
        raise ValueError(f"--seed-index must lie in [0, {n_seeds}), got {options.seed_index}.")
    if options.keep_test and "test" in model.trained_on:
        raise ValueError(
            f"--keep-test: the model in {options.run} was trained on its test part, which cannot "
            "judge it."
        )
    known = model.known if options.keep_test else data.union(model.known, model.test)
    tables = models.Tables(*(table[options.seed_index] for table in model.tables))
    if options.user is None:
        users = np.arange(known.n_users)
    else:
        users = np.array([known.user_index(options.user)])
    items, scores = recommend(tables, known, users, options.k, options.approximate)
    if np.isnan(scores).any():
        raise ValueError(
            f"The model of --seed-index {options.seed_index} in {options.run} diverged: its scores "
            "are not numbers."
        )
    console, short = output(), items[:, -1] < 0
    if options.approximate is not None:
        some = np.linspace(0, len(users) - 1, min(_CHECKED, len(users))).astype(int)
        exact, _ = recommend(tables, known, users[some], options.k)
        share = metrics.share_found(items[some], exact)
        console.print(f"approximate: {share:.2%} of the best items found, for {len(some)} users")
    if options.out is None:
        _print(console, str(options.user), items[0], scores[0], known)
        if short[0]:
            console.print(f"only {np.sum(items[0] >= 0)} items are left to recommend")
    else:
        written = _write(options.out, users, items, scores, known)
        where = plain(options.out)
        console.print(f"{written:,} recommendations for {len(users):,} users in {where}")
        if short.any():
            console.print(f"fewer than {options.k} items are left for {short.sum():,} of them")


def recommend(
    tables: models.Tables,
    known: data.Interactions,
    users: np.ndarray,
    k: int,
    recall_target: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The k best items of each user that are not among the ``known``; -1 where there are fewer."""
    items, scores = metrics.recommend(
        models.inner_scores, tables, users, known, k=k, recall_target=recall_target
    )
    return np.asarray(items), np.asarray(scores)


def _print(
    console: Console, user: str, items: np.ndarray, scores: np.ndarray, known: data.Interactions
) -> None:
    table = Table(title=plain(f"User {user}"))
    for name in ("rank", "item", "score"):
        table.add_column(name, justify="right")
    for rank, (item, score) in enumerate(zip(items, scores, strict=True), 1):
        if item >= 0:
            table.add_row(str(rank), plain(known.item_ids[item]), f"{score:.4f}")
    console.print(table)


def _write(
    path: Path, users: np.ndarray, items: np.ndarray, scores: np.ndarray, known: data.Interactions
) -> int:
    """Writes one row per user and rank, atomically; returns the number of rows."""
    there = items >= 0
    columns = {
        "user": known.user_ids[np.repeat(users, there.sum(axis=1))],
        "rank": (np.broadcast_to(np.arange(1, items.shape[1] + 1), items.shape)[there]),
        "item": known.item_ids[items[there]],
        "score": scores[there],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    if path.suffix == ".parquet":
        import polars

        polars.DataFrame(columns).write_parquet(partial)
    else:
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    partial.replace(path)
    return int(there.sum())
