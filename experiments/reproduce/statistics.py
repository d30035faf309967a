"""Tables 3.1, 4.1, 5.1 and 6.2: statistics of the datasets."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from crl_jax import data

from .._program import flag
from .._rundir import write_csv, write_text
from .contrastive import BUDGETS
from .data import (
    check_datasets,
    find_datasets,
    image_sets,
    image_source,
    is_yahoo,
    load_datasets,
    load_folder,
    load_problem,
)
from .methods import Problem
from .tables import published
from .targets import Job, Options, Target

_RATED = ("ml-100k", "ml-1m", "yahoo-r3")
_IMAGES = tuple(data.IMAGE_SETS)
_METHOD = "data"
"""Method of the published statistics, which have no encoder."""


def _check(options: Options, names: Collection[str]) -> None:
    """Raises ``ValueError`` if datasets are unknown, or for flags of trainings."""
    check_datasets(options, names)
    for name in ("seeds", "epochs"):
        if getattr(options, name) != getattr(Options, name):
            raise ValueError(f"{options.target} trains nothing: omit {flag(name)}.")


def load_rated_datasets(options: Options, console: Console) -> list[Problem]:
    """Loads each dataset with ratings, with the clean test part of chapter 3.

    Raises:
      ValueError: If a requested dataset is missing or has no ratings, or none is found.
    """
    problems = []
    for folder in find_datasets(options, console, _RATED):
        pairs = folder / "pairs.txt"
        loaded = data.load(pairs) if pairs.is_file() else load_folder(folder)
        logs = [part for _, part in loaded.parts()] if isinstance(loaded, data.Split) else [loaded]
        if any(log.ratings is None for log in logs):
            if options.datasets:
                raise ValueError(f"--data {folder} must have ratings.")
            console.print(f"skipped, because it has no ratings: {folder.name}")
            continue
        problems.append(load_problem(loaded, 3.0 if is_yahoo(folder) else None, str(folder)))
    if not problems:
        raise ValueError(f"--data {options.data} must have a dataset with ratings.")
    return problems


def interaction_statistics(problem: Problem) -> dict[str, float]:
    """Returns the statistics of a split; the density is that of both parts."""
    n_users, n_items = problem.train.n_users, problem.train.n_items
    n = len(problem.train) + len(problem.test)
    return {
        "users": n_users,
        "items": n_items,
        "interactions": n,
        "train": len(problem.train),
        "test": len(problem.test),
        "density": n / (n_users * n_items),
    }


def image_statistics(source: str) -> dict[str, float]:
    """Returns the statistics of a set of images; unlabelled ones belong to the training part."""
    parts = data.load_images(source)
    train = [part for part in (parts.train, parts.unlabelled) if part is not None]
    n = sum(map(len, train))
    return {
        "classes": len(parts.train.classes),
        "size": parts.train.images.shape[1],
        "train": n,
        "test": len(parts.test),
        "labelled": sum(int(np.sum(part.labels >= 0)) for part in train) / n,
    }


def _make_interactions(job: Job) -> None:
    _write(
        job,
        {Path(problem.folder).name: interaction_statistics(problem) for problem in job.problems},
    )


def _make_images(job: Job) -> None:
    names = image_sets(job.options, _IMAGES)
    _write(job, {name: image_statistics(image_source(job.options, name)) for name in names})


def _write(job: Job, statistics: Mapping[str, Mapping[str, float]]) -> None:
    """Prints the statistics next to the published ones, and writes Markdown and CSV."""
    columns = list(next(iter(statistics.values())))
    known = {name: published(job.number, name, "").get(_METHOD, {}) for name in statistics}
    table = Table(title=job.title, title_justify="left")
    table.add_column("dataset")
    for column in columns:
        table.add_column(column, justify="right")
    cells = [
        [name, *(_cell(column, values[column], known[name]) for column in columns)]
        for name, values in statistics.items()
    ]
    for line in cells:
        table.add_row(*line)
    job.console.print(table)
    path = job.options.out / f"{job.options.target}.csv"
    lines = [["dataset", *columns], ["---"] * (1 + len(columns)), *cells]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    write_text(path.with_suffix(".md"), f"# {job.title}\n\nIn parentheses: published.\n\n{text}\n")
    rows: list[list[Any]] = [
        [name, column, values[column], known[name].get(column, "")]
        for name, values in statistics.items()
        for column in columns
    ]
    write_csv(path, ["dataset", "statistic", "value", "published"], rows)
    job.console.print(f"results in {path.with_suffix('')}.md, .csv")


def _cell(column: str, value: float, known: Mapping[str, float]) -> str:
    def shown(number: float) -> str:
        return f"{number:.2%}" if column in ("density", "labelled") else f"{number:,.0f}"

    return shown(value) + (f" ({shown(known[column])})" if column in known else "")


def _target(
    title: str,
    names: Sequence[str],
    load: Callable[[Options, Console], list[Problem]],
    make: Callable[[Job], None] = _make_interactions,
) -> Target:
    return Target(
        title=title,
        load=load,
        make=make,
        data=f"a folder of {', '.join(names)}; missing ones are skipped",
        time="under 1 min, measured (no training)",
        flags=("datasets",),
        settings=("published",),
        check=partial(_check, names=names),
    )


TARGETS: Mapping[str, Target] = {
    "table-3.1": _target("datasets with ratings", _RATED, load_rated_datasets),
    "table-4.1": _target("datasets of the samplers", _RATED, partial(load_datasets, names=_RATED)),
    "table-5.1": _target("datasets of the losses", tuple(BUDGETS), load_datasets),
    "table-6.2": _target("sets of images", _IMAGES, lambda options, console: [], _make_images),
}
