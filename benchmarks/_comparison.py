"""Runs of a command of the experiments with several settings, with tests against the first."""

from argparse import ArgumentParser
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from experiments.reproduce.outcomes import holm

from ._report import Row
from ._runs import per_seed, run, scores


def check_names(
    parser: ArgumentParser, flag: str, names: Iterable[str], known: Collection[str]
) -> None:
    """Ends the program with an error message unless all names that a flag has are known."""
    for name in names:
        if name not in known:
            parser.error(f"{flag} takes some of {', '.join(known)}, got {name}")


def check_seeds(parser: ArgumentParser, n_seeds: int) -> None:
    """Ends the program with an error message unless there are enough seeds for a test over them."""
    if n_seeds < 2:
        parser.error(f"--seeds must be at least 2, which a test over seeds takes, got {n_seeds}")


def measure(
    command: str, get_flags: Callable[[str, Path], list[str]], folders: dict[str, Path], about: Row,
    *, metric: str, n_seeds: int, data: Path,
) -> tuple[list[Row], list[Row]]:  # fmt: skip
    """Runs a command with each setting; completed runs are not repeated.

    Args:
      command: Training command: ``python -m experiments.COMMAND``.
      get_flags: ``get_flags(way, data)`` returns the flags of a setting, except for its seeds and
        folder.
      folders: Run directory of each setting.
      about: First columns of the rows.
      metric: Metric to compare.
      n_seeds: Number of seeds, at least 2.
      data: Folder of the datasets, which the rows name ``DATASETS``.

    Returns:
      A row for each setting, with its metrics, flags and :func:`compare`; and a row for each seed.
    """
    rows, by_way = [], {}
    for way, folder in folders.items():
        seeds = ["--seeds", str(n_seeds)]
        run(command, [*get_flags(way, data), *seeds], folder)
        by_way[way] = seed_rows = per_seed(folder)
        flags = " ".join([*get_flags(way, Path("DATASETS")), *seeds])
        rows.append(
            {**about, "way": way, "seeds": len(seed_rows), **scores(folder), "flags": flags}
        )
    compare(rows, [[row[metric] for row in seed_rows] for seed_rows in by_way.values()])
    return rows, [
        {**about, "way": way, **row} for way, seed_rows in by_way.items() for row in seed_rows
    ]


def compare(rows: Sequence[Row], scores: Sequence[Sequence[float]]) -> None:
    """Adds to each row its ``gain`` over the first, and the p-value ``p``.

    The p-value comes from a two-sided paired t-test over seeds, adjusted by Holm's method.

    Args:
      rows: Row of each method.
      scores: Score of each seed, by method.
    """
    baseline, *others = map(np.asarray, scores)
    p = [float(stats.ttest_rel(method_scores, baseline).pvalue) for method_scores in others]
    for row, method_scores, adjusted_p in zip(rows[1:], others, holm(p), strict=True):
        row["gain"], row["p"] = float(np.mean(method_scores - baseline)), adjusted_p
