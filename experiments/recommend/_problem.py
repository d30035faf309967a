"""Data of a run: loading, and splits into training, validation and test sets."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from crl_jax import data, metrics

from .._program import flag, rename_arguments
from .._study import OnStage
from ._options import DataOptions

_MAX_GRADES = 11
"""Maximum number of distinct values of a rating scale, such as 0 to 10; play counts have more."""

_VALIDATED, _FRACTIONS = 5000, (0.1, 0.25)
"""Default number of validation interactions, and the bounds of their fraction."""
OnRead = Callable[[Any, float], None]
"""Callback ``on_read(path, share)``, called with the fraction of a file that has been read."""


@dataclass(frozen=True)
class Problem:
    """Data of a run.

    Attributes:
      train: Training set.
      valid: Validation set, for early stopping and the selection among the points of a sweep. None
        with ``--valid-fraction 0``.
      test: Test set, evaluated once, at the end. With ``--test-rating`` the relevant interactions
        of the test part.
      known: Union of training and validation set, masked when the test set is evaluated.
      tau_plus: The true rate of false negatives, if the data are simulated; else None.
      columns: Columns that were read from each file, and those that were not.
      exposed: All interactions of the test part, with ``--test-rating``; else None.
      cold: Interactions of the items held out by ``--cold-items``, which the vocabulary of other
        parts lacks; else None.
    """

    train: data.Interactions
    valid: data.Interactions | None
    test: data.Interactions
    known: data.Interactions
    tau_plus: float | None = None
    columns: tuple[data.Columns, ...] = ()
    exposed: data.Interactions | None = None
    cold: data.Interactions | None = None

    @property
    def n_rows(self) -> int:
        """Number of users and items."""
        return self.known.n_users + self.known.n_items

    @cached_property
    def layout(self) -> metrics.EvalLayout:
        """Layout of the evaluation on the test set, in which known items are masked."""
        with rename_arguments(test="the test part", train="the training part"):
            return metrics.eval_layout(self.known, self.test)

    @cached_property
    def valid_layout(self) -> metrics.EvalLayout:
        """Layout of the evaluation on the validation set, in which training items are masked."""
        assert self.valid is not None
        return metrics.eval_layout(self.train, self.valid)

    @cached_property
    def exposed_layout(self) -> metrics.EvalLayout | None:
        """Layout of the evaluation among each user's items of the test part; see ``exposed``."""
        if self.exposed is None:
            return None
        with rename_arguments(test="the test part", train="the training part"):
            return metrics.eval_layout(self.known, self.test, candidates=self.exposed)

    def exposed_metrics(
        self, score_fn: metrics.ScoreFn, params: Any, ks: tuple[int, ...], mesh: Mesh | None = None
    ) -> dict[str, float]:
        """Returns the mean metrics among exposed items, prefixed; none without ``--test-rating``.

        Arguments are those of :func:`crl_jax.metrics.evaluate`.
        """
        if self.exposed_layout is None:
            return {}
        values = metrics.evaluate(score_fn, params, self.exposed_layout, ks=ks, mesh=mesh)
        summary = metrics.summarize(values)
        return {f"exposed_{n}": x for n, x in summary.items() if not n.startswith("coverage")}

    @cached_property
    def cold_layouts(self) -> dict[str, metrics.EvalLayout]:
        """Layouts of cold items among each other and among all items, which follow the others."""
        if self.cold is None:
            return {}
        whole = data.ColdItemSplit(_pairs(self.known), _pairs(self.cold)).over_all_items()
        unknown = self.cold.select(np.zeros(len(self.cold), bool))
        return {
            "cold": metrics.eval_layout(unknown, self.cold),
            "cold_all": metrics.eval_layout(whole.train, whole.test),
        }

    def parts_for(self, phase: str, final_training: str) -> tuple[str, ...]:
        """Returns the names of the data parts that a phase trains on."""
        if phase in ("search", "tune") or (phase == "final" and final_training == "train"):
            return ("train",)
        before_test = ("train",) if self.valid is None else ("train", "valid")
        return before_test if phase == "final" else (*before_test, "test")

    def union(self, parts: tuple[str, ...]) -> data.Interactions:
        """Returns the union of the named parts."""
        if parts == self.parts_for("final", "train+valid"):
            return self.known
        first, *others = (_pairs(getattr(self, name)) for name in parts)
        return data.union(first, *others) if others else first

    def held_out(self, part: data.Interactions) -> data.Interactions | None:
        """Returns the held-out interactions of a training on ``part``, or None.

        The history reports the rate at which they are sampled as negatives.
        """
        if part is self.known:
            return self.test
        if part is not self.train or self.valid is None:
            return None
        return data.union(_pairs(self.valid), _pairs(self.test))


def _pairs(part: data.Interactions) -> data.Interactions:
    """Returns the interactions without ratings and timestamps, which some parts may lack."""
    return replace(part, ratings=None, timestamps=None)


def describe_parts(parts: tuple[str, ...]) -> str:
    """Returns a readable list of data parts."""
    words = {"train": "training", "valid": "validation", "test": "test"}
    return " + ".join(words[part] for part in parts) + " data"


def source_name(options: DataOptions) -> str:
    """Returns a short name of the data: of a folder its name, of a file also that of its folder."""
    path = Path(options.data)
    if not path.exists():
        return options.data
    return path.resolve().name if path.is_dir() else "/".join(path.resolve().parts[-2:])


def load_problem(
    options: DataOptions, on_stage: OnStage = lambda _: None, on_read: OnRead | None = None
) -> Problem:
    """Loads the data, and splits off the test set, unless it is given, and the validation set.

    Args:
      options: The flags.
      on_stage: See :data:`OnStage`.
      on_read: See :data:`OnRead`.

    Raises:
      ValueError: If the data do not match the flags, or the training set, the validation set or the
        test set is empty.
    """
    loaded, columns, tau_plus = _load(options, on_stage, on_read)
    on_stage("splitting")
    loaded, cold = _hold_out_items(loaded, options)
    with rename_arguments(k="--leave-last-k", seed="--split-seed", data=f"--data {options.data}"):
        split = loaded if isinstance(loaded, data.Split) else _cut_test(loaded, options)
    exposed = None
    if options.test_rating is not None:
        exposed, split = split.test, _filter_by_rating(split, options)
    elif options.min_rating is None and options.split != "clean":
        _warn_of_ratings(split.train)
    train, valid, test = split.train, split.valid, split.test
    known = train
    fraction = options.valid_fraction
    if fraction is None:
        fraction = min(max(_VALIDATED / max(len(train), 1), _FRACTIONS[0]), _FRACTIONS[1])
    if valid is not None and not fraction:
        raise ValueError(
            f"--valid-fraction 0: --data {options.data} has its own validation part, which would "
            "be used."
        )
    if valid is None and fraction:
        how = "time" if options.split == "time" else "ratio"
        cut = data.with_validation(train, valid=fraction, seed=options.split_seed, how=how)
        assert cut.valid is not None
        train, valid = cut.train, cut.valid
    elif valid is not None:
        known = data.union(train, valid)
    problem = Problem(train, valid, test, known, tau_plus, columns, exposed, cold)
    _check(problem, options)
    return problem


def _load(
    options: DataOptions, on_stage: OnStage, on_read: OnRead | None
) -> tuple[data.Interactions | data.HeldOutSplit, tuple[data.Columns, ...], float | None]:
    """Returns the interactions or their split, the columns read, and the true τ⁺ if known."""
    kwargs = options.arguments()
    if options.data == "simulated":
        if kwargs or options.test_data is not None:
            unused = flag(next(iter(kwargs), "test_data"))
            raise ValueError(f"--data simulated does not use {unused}; omit it.")
        on_stage("simulating")
        simulated = data.simulate()
        return simulated.interactions, (), simulated.tau_plus
    if options.test_rating is not None:  # ratings are selected after the split
        kwargs.pop("min_rating", None)
    name = source_name(options)
    on_stage(f"reading {name}")
    kwargs["progress"] = on_read
    if options.test_data is not None:
        if options.split is not None:
            raise ValueError(f"--test-data gives the test part; omit --split {options.split}.")
        columns = data.columns(options.data, **kwargs) + data.columns(options.test_data, **kwargs)
        return data.read_split(Path(options.data), options.test_data, **kwargs), (*columns,), None
    columns = tuple(data.columns(options.data, **kwargs))
    resplit = options.split is not None and len(columns) > 1
    if resplit:
        warnings.warn(
            f"--split {options.split} merges the given parts of {name} and splits them again; "
            "without it, the given test part is used.",
            stacklevel=2,
        )
    return data.load(options.data, merge=resplit, **kwargs), columns, None


def _hold_out_items(
    loaded: data.Interactions | data.HeldOutSplit, options: DataOptions
) -> tuple[data.Interactions | data.HeldOutSplit, data.Interactions | None]:
    """Splits off the interactions of cold items."""
    if options.cold_items is None:
        return loaded, None
    if isinstance(loaded, data.Split):
        raise ValueError(
            f"--cold-items holds items out of all interactions, but --data {options.data} has a "
            "test part: name a --split, which merges its parts."
        )
    with rename_arguments(fraction="--cold-items"):
        cut = data.hold_out_items(loaded, fraction=options.cold_items, seed=options.split_seed)
    return cut.train, cut.test


def _cut_test(loaded: data.Interactions, options: DataOptions) -> data.HeldOutSplit:
    seed = options.split_seed
    if options.split == "time" and loaded.timestamps is None:
        raise ValueError(f"--split time needs timestamps; --data {options.data} has none.")
    match options.split or "ratio":
        case "ratio":
            return data.split_by_ratio(loaded, test=options.test_fraction, seed=seed)
        case "time":
            return data.split_by_time(loaded, test=options.test_fraction)
        case "leave_k_out":
            by_time = loaded.timestamps is not None
            return data.leave_k_out(loaded, k=options.leave_last_k, seed=None if by_time else seed)
        case "clean":
            return data.split_top_rated(loaded, seed=seed)


def _filter_by_rating(split: data.HeldOutSplit, options: DataOptions) -> data.HeldOutSplit:
    """Selects the test interactions by ``--test-rating``, and all others by ``--min-rating``."""
    parts = dict(split.parts())
    for name, part in split.parts():
        which = "test_rating" if name == "test" else "min_rating"
        if (least := getattr(options, which)) is None:
            continue
        if part.ratings is None:
            raise ValueError(
                f"{flag(which)} {least:g} needs ratings; the {name} part of --data {options.data} "
                f"has none: name their column by --rating-col, or omit {flag(which)}."
            )
        parts[name] = part.select(part.ratings >= least)
        if not len(parts[name]):
            raise ValueError(
                f"{flag(which)} {least:g}: the highest rating in the {name} part of --data "
                f"{options.data} is {part.ratings.max():g}."
            )
    return data.HeldOutSplit(**parts)


def _warn_of_ratings(train: data.Interactions) -> None:
    """Warns that interactions of every rating are positives."""
    if train.ratings is None or not len(train):
        return
    grades = np.unique(train.ratings)
    low, high = grades[0], grades[-1]
    if low == high:
        return
    if len(grades) <= _MAX_GRADES:
        middle, minimum = (low + high) / 2, grades[grades >= low + 0.7 * (high - low)][0]
        share = np.mean(train.ratings < middle)
        text = f"every rating counts as a positive: {share:.1%} are below {middle:g}"
        text, minimum = f"{text} on a scale of {low:g} to {high:g}", f" {minimum:g}"
    else:
        text = "every interaction counts as a positive, whatever the value of its rating"
        text, minimum = f"{text}, {low:g} to {high:g} with median {np.median(train.ratings):g}", ""
    warnings.warn(
        f"{text}. If low values are dislikes, use --min-rating{minimum}; if they are not, as in "
        f"play counts, --min-rating {low:.9g} keeps all without this warning.",
        data.DataWarning,
        stacklevel=2,
    )


def _check(problem: Problem, options: DataOptions) -> None:
    for name in ("train", "valid", "test"):
        part = getattr(problem, name)
        if part is not None and not len(part):
            raise ValueError(f"--data {options.data} has no interactions in its {name} part.")
    degrees = problem.train.degrees
    if not ((degrees > 0) & (degrees < problem.train.n_items)).any():
        raise ValueError(
            f"--data {options.data}: every user has all items or none, which leaves no negatives."
        )
