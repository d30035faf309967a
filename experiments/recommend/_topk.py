"""Recommendations of a finished run, with the user and item ids of its training data."""

import csv
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from crl_jax import data, metrics, models

from .._files import named
from .._program import program
from .._ranges import option_group, parse_flags
from .._rundir import make_out_for
from .._screen import output, plain
from ._saved import RankingModel, load_model, score_fn_and_params

_CHECKED = 256
"""Number of users whose approximate top-k items are compared with the exact ones."""
_AT_ONCE = 1 << 16
"""Number of users whose recommendations are held in memory at a time."""


@option_group
class TopK:
    """Print the top-k unseen items of a user, or write those of every user to a file."""

    run: Path
    """Run directory of a finished training."""
    user: str | None = None
    """Id of a user of the training data."""
    all: bool = False
    """Recommend to every user; needs --out."""
    k: int = 10
    """Number of items per user."""
    include_test_items: bool = False
    """Do not mask the items of the test set, for an evaluation of the recommendations."""
    seed_index: int = 0
    """Index of the seed whose model recommends, from 0."""
    approximate: float | None = None
    """Expected recall of jax.lax.approx_max_k, a faster top-k selection on TPUs; by default the
    selection is exact. The measured recall for a sample of users is printed."""
    out: Path | None = None
    """Output file for the recommendations, .parquet or .csv."""


def main(arguments: list[str]) -> None:
    """Runs the subcommand ``topk`` with its flags.

    Raises:
      ValueError: If flags contradict each other, or the run or the user does not exist.
    """
    options = parse_flags(
        TopK, program("recommend topk"), None, arguments, (tyro.conf.FlagCreatePairsOff,)
    )
    if options.all == (options.user is not None):
        raise ValueError("Give one of --user ID and --all.")
    if options.all and options.out is None:
        raise ValueError("--all needs --out FILE.parquet or FILE.csv.")
    if options.out is not None and options.out.suffix not in (".parquet", ".csv"):
        raise ValueError(f"--out must end in .parquet or .csv, got {options.out}.")
    if options.out is not None:
        make_out_for(options.out)
    if options.k < 1:
        raise ValueError(f"--k must be at least 1, got {options.k}.")
    if options.approximate is not None and not 0 < options.approximate <= 1:
        raise ValueError(f"--approximate must lie in (0, 1], got {options.approximate}.")
    model = load_model(options.run)
    if not 0 <= options.seed_index < model.n_seeds:
        raise ValueError(
            f"--seed-index must lie in [0, {model.n_seeds}), got {options.seed_index}."
        )
    if options.include_test_items and "test" in model.trained_on:
        raise ValueError(
            f"--include-test-items: the model in {options.run} was trained on its test "
            "part, which cannot evaluate it."
        )
    known = model.known if options.include_test_items else data.union(model.known, model.test)
    learned = model.select_seed(options.seed_index)
    if isinstance(learned, models.Tables):
        learned = models.Tables(*map(jnp.asarray, learned))
    if options.user is None:
        users = np.arange(known.n_users)
    else:
        users = np.array([known.user_index(options.user)])
    console = output()
    if options.approximate is not None:
        sample = users[np.linspace(0, len(users) - 1, min(_CHECKED, len(users))).astype(int)]
        approximate, exact = (
            recommend(learned, known, sample, options.k, target)[0]
            for target in (options.approximate, None)
        )
        share = metrics.top_k_recall(approximate, exact)
        console.print(f"approximate: {share:.2%} of the best items found, for {len(sample)} users")
    lists = _recommend_in_batches(learned, known, users, options)
    if options.out is None:
        (own,) = lists
        _print(console, str(options.user), own.items[0], own.scores[0], known)
        if own.items[0, -1] < 0:
            console.print(f"only {np.sum(own.items[0] >= 0)} items are left to recommend")
    else:
        counts = _write(options.out, lists, known)
        where = plain(options.out)
        console.print(f"{counts.rows:,} recommendations for {len(users):,} users in {where}")
        if counts.short:
            console.print(f"fewer than {options.k} items are left for {counts.short:,} of them")


class Lists(NamedTuple):
    """Recommendations for a batch of users, padded with item -1 if fewer than k items are left.

    Attributes:
      users: User indices, ``[n]``.
      items: Item indices, ``[n, k]``, in descending order of score.
      scores: Scores of the items, ``[n, k]``.
    """

    users: np.ndarray
    items: np.ndarray
    scores: np.ndarray


def _recommend_in_batches(
    learned: RankingModel, known: data.Interactions, users: np.ndarray, options: TopK
) -> Iterator[Lists]:
    """Yields the recommendations of all users in batches.

    Raises:
      ValueError: If scores are NaN.
    """
    for first in range(0, len(users), _AT_ONCE):
        batch = users[first : first + _AT_ONCE]
        items, scores = recommend(learned, known, batch, options.k, options.approximate)
        if np.isnan(scores).any():
            raise ValueError(
                f"The model of --seed-index {options.seed_index} in {options.run} diverged: its "
                "scores are not numbers."
            )
        yield Lists(batch, items, scores)


def recommend(
    learned: RankingModel,
    known: data.Interactions,
    users: np.ndarray,
    k: int,
    recall_target: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the top-k items of each user that are not in ``known``, padded with -1."""
    items, scores = metrics.recommend(
        *score_fn_and_params(learned), users, known, k=k, recall_target=recall_target
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


class ListStatistics(NamedTuple):
    """Statistics of the written recommendations.

    Attributes:
      rows: Number of rows, each with a user, a rank, an item and its score.
      short: Number of users with fewer items than requested.
    """

    rows: int
    short: int


def _write(path: Path, parts: Iterable[Lists], known: data.Interactions) -> ListStatistics:
    """Writes a row for each user and rank, atomically, with one batch in memory at a time."""
    counts = []

    def columns() -> Iterator[dict[str, np.ndarray]]:
        for users, items, scores in parts:
            is_valid = items >= 0
            counts.append((is_valid.sum(), np.sum(~is_valid[:, -1])))
            yield {
                "user": known.user_ids[np.repeat(users, is_valid.sum(axis=1))],
                "rank": np.broadcast_to(np.arange(1, items.shape[1] + 1), items.shape)[is_valid],
                "item": known.item_ids[items[is_valid]],
                "score": scores[is_valid],
            }

    with (
        named(path),
        tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch,
    ):
        write = _parquet if path.suffix == ".parquet" else _csv
        write(Path(scratch), columns()).replace(path)
    return ListStatistics(*(int(count) for count in np.sum(counts, axis=0)))


def _csv(scratch: Path, parts: Iterable[dict[str, np.ndarray]]) -> Path:
    path = scratch / "whole.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for index, columns in enumerate(parts):
            if index == 0:
                writer.writerow(columns)
            writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return path


def _parquet(scratch: Path, parts: Iterable[dict[str, np.ndarray]]) -> Path:
    import polars

    paths, path = [], scratch / "whole.parquet"
    try:
        for index, columns in enumerate(parts):
            paths.append(scratch / f"{index}.parquet")
            polars.DataFrame(columns).write_parquet(paths[-1])
        polars.scan_parquet(paths).sink_parquet(path)
    except polars.exceptions.PolarsError as error:  # such as for a full disk
        raise OSError(f"--out cannot be written: {error}.") from error
    return path
