"""Loading of datasets: given parts, random parts, or a clean test part of the ratings."""

import dataclasses
from collections.abc import Collection
from pathlib import Path

import numpy as np
from rich.console import Console

from crl_jax import data

from .contrastive import BUDGETS
from .methods import Problem
from .targets import Options


def is_yahoo(folder: Path) -> bool:
    """Whether a folder has the files of Yahoo!-R3 as distributed."""
    return any(folder.glob("ydata-ymusic-rating-study-*"))


def load_folder(folder: Path) -> data.Interactions | data.HeldOutSplit:
    """Loads interactions; of Yahoo!-R3 as distributed, those of the 5,400 users in the test part.

    Its training part has 10,000 further users, which the published statistics exclude.
    """
    pairs = folder / "pairs.txt"
    loaded = data.load(str(pairs if pairs.is_file() else folder))
    if not (is_yahoo(folder) and isinstance(loaded, data.Split)):
        return loaded
    mask = loaded.test.degrees > 0
    index, ids = np.cumsum(mask) - 1, loaded.test.user_ids[mask]

    def select_users(part: data.Interactions) -> data.Interactions:
        part = part.select(mask[part.users])
        return data.Interactions.from_arrays(
            index[part.users], part.items, ratings=part.ratings, user_ids=ids,
            item_ids=part.item_ids,
        )  # fmt: skip

    return data.HeldOutSplit(train=select_users(loaded.train), test=select_users(loaded.test))


def load_parts(options: Options, console: Console) -> list[Problem]:
    """Loads the training and the test part of a folder.

    Yahoo!-R3 as distributed is split again, and a folder with ``pairs.txt`` has no split: a random
    fifth of the interactions is the test part.

    Raises:
      ValueError: If there is no test part, or if there is a validation part.
    """
    if is_yahoo(options.data) or (options.data / "pairs.txt").is_file():
        console.print(f"A random fifth of the interactions of {options.data} is the test part.")
        return [load_cut(options.data)]
    loaded = data.load(str(options.data))
    if not isinstance(loaded, data.Split):
        raise ValueError(f"--data {options.data} must hold a training and a test part.")
    if loaded.valid is not None:
        raise ValueError(
            f"--data {options.data} must not have a validation part, only training and test."
        )
    return [Problem(loaded.train, loaded.test, str(options.data))]


def check_datasets(options: Options, names: Collection[str] = tuple(BUDGETS)) -> None:
    """Raises ``ValueError`` unless all --datasets are known and --dataset is not given."""
    _check_names(options, names)
    if options.dataset is not None:
        raise ValueError("--dataset is for a single dataset; use --datasets.")


def _check_names(options: Options, names: Collection[str]) -> None:
    for name in options.datasets:
        if name not in names:
            known = ", ".join(names)
            raise ValueError(f"--datasets takes some of {known}, got {name!r}.")


def image_sets(options: Options, names: Collection[str]) -> list[str]:
    """Returns the sets of images of ``--datasets``, by default those in the folder.

    Raises:
      ValueError: If a set is not in ``names``, or none is found.
    """
    _check_names(options, names)
    present = [name for name in names if (options.data / name).exists()]
    if not (options.datasets or present):
        raise ValueError(
            f"{options.data} has none of the folders {', '.join(names)}; --datasets downloads the "
            "named ones."
        )
    return list(dict.fromkeys(options.datasets or present))


def image_source(options: Options, name: str) -> str:
    """Returns the folder of a set of images, or its name, which downloads it."""
    folder = options.data / name
    return str(folder) if folder.exists() else name


def load_datasets(
    options: Options, console: Console, names: Collection[str] = tuple(BUDGETS)
) -> list[Problem]:
    """Loads each dataset of ``--data``, with a random fifth of all interactions as the test part.

    Args:
      options: The flags.
      console: Output console.
      names: Names of the supported datasets.

    Raises:
      ValueError: If a requested dataset is missing, or no dataset is found.
    """
    return [load_cut(folder) for folder in find_datasets(options, console, names)]


def find_datasets(options: Options, console: Console, names: Collection[str]) -> list[Path]:
    """Returns the folders of ``--datasets``, by default those that exist; names missing ones.

    Raises:
      ValueError: If a requested dataset is missing, or no dataset is found.
    """
    present = [name for name in names if (options.data / name).is_dir()]
    missing = [name for name in options.datasets or names if name not in present]
    if missing and (options.datasets or not present):
        raise ValueError(
            f"--data must be a folder of datasets with {', '.join(missing)} in it, "
            f"got {options.data}."
        )
    if missing:
        console.print(
            f"skipped, because they are not in --data {options.data}: {', '.join(missing)}"
        )
    wanted = dict.fromkeys(options.datasets or present)  # each once
    return [options.data / name for name in wanted]


def load_cut(folder: Path) -> Problem:
    """Merges all interactions of a folder, and splits a random fifth as the test part."""
    pairs = folder / "pairs.txt"
    if is_yahoo(folder):
        log = load_folder(folder)
        log = data.union(*(part for _, part in log.parts())) if isinstance(log, data.Split) else log
    else:
        log = data.load(pairs if pairs.is_file() else folder, merge=True)
    cut = data.split_by_ratio(dataclasses.replace(log, ratings=None, timestamps=None))
    return Problem(cut.train, cut.test, str(folder))


def load_rated(options: Options, console: Console) -> list[Problem]:
    """Loads a clean test part and a noisy training part for each split."""
    loaded = load_folder(options.data)
    if options.test_rating is None and isinstance(loaded, data.Split):
        console.print(
            f"The parts of {options.data} are merged, and half of the interactions with the top "
            "rating are the test part; --test-rating uses the given test part."
        )
    return [
        load_problem(loaded, options.test_rating, str(options.data), split)
        for split in range(options.splits)
    ]


def load_problem(
    loaded: data.Interactions | data.HeldOutSplit,
    test_rating: float | None,
    folder: str,
    split: int = 0,
) -> Problem:
    """Creates the clean test set and the noisy training part of chapter 3.

    Args:
      loaded: Interactions with ratings. Parts are merged and split again, unless ``test_rating``
        is given.
      test_rating: Minimum rating of the test interactions, which come from the given test part,
        such as the random-exposure part of Yahoo!-R3, where it is 3.
      folder: Source of the data.
      split: Random seed of the split.

    Raises:
      ValueError: If there are no ratings, or no eligible test interactions.
    """
    if test_rating is None:
        if isinstance(loaded, data.Split):
            loaded = data.union(*(part for _, part in loaded.parts()))
        if loaded.ratings is None:
            raise ValueError(
                f"--data {folder} has no ratings, from which chapter 3 takes its reliable test "
                "part and evaluates the confidence; --data movielens:1m downloads MovieLens 1M "
                "with its ratings."
            )
        cut = data.split_top_rated(loaded, seed=split)
        return Problem(cut.train, cut.test, folder)
    if not isinstance(loaded, data.Split) or loaded.test.ratings is None:
        raise ValueError(f"--test-rating needs a test part with ratings in {folder}.")
    known = [part for name, part in loaded.parts() if name != "test"]
    chosen = loaded.test.select(loaded.test.ratings >= test_rating)
    if not len(chosen):
        raise ValueError(f"--test-rating {test_rating:g}: no test interaction is rated as high.")
    return Problem(data.union(*known), chosen, folder)


def check_confidence_ratings(problem: Problem) -> None:
    """Raises ``ValueError`` unless the ratings allow an evaluation of the confidence."""
    ratings = problem.train.ratings
    if ratings is None or (ratings > 1).all() or not (ratings > 1).any():
        raise ValueError(
            f"--data {problem.folder} needs training ratings of 1 and above 1, to evaluate the "
            "confidence."
        )


def with_noise(problem: Problem, rate: float) -> Problem:
    """Adds false positives to the training part.

    Rankings are scored as without noise: the added items are not masked, and may be recommended.

    Args:
      problem: The data.
      rate: Number of false positives, as a share of the training interactions. They are drawn
        uniformly from the user-item pairs that are in neither part.
    """
    log, n_items = problem.train, problem.train.n_items
    count = round(rate * len(log))
    if not count:
        return problem
    free = np.ones((log.n_users, n_items), bool)
    for part in (log, problem.test):
        free[part.users, part.items] = False
    pairs = np.flatnonzero(free.ravel())
    if count > len(pairs):
        raise ValueError(f"`rate` must leave pairs to draw from, {len(pairs)}, got {count}.")
    samples = np.random.default_rng((0, 1)).choice(pairs, count, replace=False)
    added = data.Interactions.from_arrays(
        samples // n_items, samples % n_items, user_ids=log.user_ids, item_ids=log.item_ids
    )
    bare = dataclasses.replace(log, ratings=None, timestamps=None)  # to match the added ones
    return dataclasses.replace(problem, train=data.union(bare, added), masked=log)
