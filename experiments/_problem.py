"""The data of a run: read, and cut into what is learned from, chosen by and scored on."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crl_jax import data

from ._flags import spoken
from ._options import DataOptions
from ._program import flag

# The flags that say how files are read.
_READING = (
    "user_col", "item_col", "rating_col", "time_col", "format", "delimiter", "header", "quote_char",
    "encoding", "min_rating",
)  # fmt: skip
OnStage = Callable[[str], None]
"""``on_stage(what)``, called with what is being done from now on."""

OnRead = Callable[[Any, float], None]
"""``on_read(path, share)``, called with how much of a file has been read."""


def unseen(_: str) -> None:
    """The :data:`OnStage` of those who do not look."""


@dataclass(frozen=True)
class Problem:
    """The data of a run.

    Attributes:
      train: Training part.
      valid: Validation part: decides when to stop and among the points of a sweep. None under
        ``--valid 0``.
      test: Test part: scored once, at the end.
      known: Training and validation part together: what is masked when the test set is scored.
      tau_plus: The true rate of false negatives, where the data are simulated.
      columns: Which columns were read of each file, and which were not.
    """

    train: data.Interactions
    valid: data.Interactions | None
    test: data.Interactions
    known: data.Interactions
    tau_plus: float | None = None
    columns: tuple[data.Columns, ...] = ()

    def learned(self, phase: str, refit: str) -> tuple[str, ...]:
        """The parts, by name, that a phase learns from under ``--refit``."""
        if phase == "search" or (phase == "final" and refit == "none"):
            return ("train",)
        before_test = ("train",) if self.valid is None else ("train", "valid")
        return before_test if phase == "final" else (*before_test, "test")

    def joined(self, parts: tuple[str, ...]) -> data.Interactions:
        """Those parts together."""
        if parts == self.learned("final", "valid"):
            return self.known
        first, *others = (_pairs(getattr(self, name)) for name in parts)
        return data.union(first, *others) if others else first

    def held_out(self, part: data.Interactions) -> data.Interactions | None:
        """What a model of ``part`` must not see; the history tells how often it is sampled."""
        if part is self.known:
            return self.test
        if part is not self.train or self.valid is None:
            return None
        return data.union(_pairs(self.valid), _pairs(self.test))


def _pairs(part: data.Interactions) -> data.Interactions:
    """The interactions without ratings and times, which not every part may have."""
    return replace(part, ratings=None, timestamps=None)


def named(parts: tuple[str, ...]) -> str:
    """Parts of the data as a person reads them."""
    words = {"train": "training", "valid": "validation", "test": "test"}
    return " + ".join(words[part] for part in parts) + " data"


def source_name(options: DataOptions) -> str:
    """The data by a short name: of a path the last part, of a file its folder too."""
    path = Path(options.data)
    if not path.exists():
        return options.data
    return path.resolve().name if path.is_dir() else "/".join(path.resolve().parts[-2:])


def load_problem(
    options: DataOptions, on_stage: OnStage = unseen, on_read: OnRead | None = None
) -> Problem:
    """Reads the data, and cuts the test part, unless it is given, and the validation part.

    Args:
      options: The flags.
      on_stage: See :data:`OnStage`.
      on_read: See :data:`OnRead`.

    Raises:
      ValueError: If the data are not as the flags say, or leave nothing to learn or to score.
    """
    loaded, columns, tau_plus = _load(options, on_stage, on_read)
    on_stage("splitting")
    with spoken(k="--leave-k", seed="--split-seed", data=f"--data {options.data}"):
        split = loaded if isinstance(loaded, data.Split) else _cut_test(loaded, options)
    train, valid, test = split.train, split.valid, split.test
    if test is None:
        raise ValueError(f"--data {options.data} has no test part; name one with --test-data.")
    known = train
    if valid is not None and not options.valid:
        raise ValueError(
            f"--valid 0: --data {options.data} has a validation part of its own, which decides."
        )
    if valid is None and options.valid:
        how = "time" if options.split == "time" else "ratio"
        cut = data.with_validation(train, valid=options.valid, seed=options.split_seed, how=how)
        assert cut.valid is not None
        train, valid = cut.train, cut.valid
    elif valid is not None:
        known = data.union(train, valid)
    problem = Problem(train, valid, test, known, tau_plus, columns)
    _check(problem, options)
    return problem


def _load(
    options: DataOptions, on_stage: OnStage, on_read: OnRead | None
) -> tuple[data.Interactions | data.Split, tuple[data.Columns, ...], float | None]:
    """The interactions or parts, the columns they were read from, and the true τ⁺ if known."""
    given: dict[str, Any] = {
        name: value for name in _READING if (value := getattr(options, name)) is not None
    }
    if options.data == "simulated":
        if given or options.test_data is not None:
            unused = flag(next(iter(given), "test_data"))
            raise ValueError(f"--data simulated has no use for {unused}; leave it out.")
        on_stage("simulating")
        simulated = data.simulate()
        return simulated.interactions, (), simulated.tau_plus
    name = source_name(options)
    on_stage(f"reading {name}")
    given["progress"] = on_read
    if options.test_data is not None:
        if options.split is not None:
            raise ValueError(f"--test-data gives the test part; leave out --split {options.split}.")
        columns = data.columns(options.data, **given) + data.columns(options.test_data, **given)
        return data.read_split(Path(options.data), options.test_data, **given), (*columns,), None
    columns = tuple(data.columns(options.data, **given))
    anew = options.split is not None and len(columns) > 1
    if anew:
        warnings.warn(
            f"--split {options.split} puts the given parts of {name} together and cuts them "
            "anew; without it the given test part is the test part.",
            stacklevel=2,
        )
    return data.load(options.data, merge=anew, **given), columns, None


def _cut_test(loaded: data.Interactions, options: DataOptions) -> data.Split:
    seed = options.split_seed
    if options.split == "time" and loaded.timestamps is None:
        raise ValueError(f"--split time needs timestamps; --data {options.data} has none.")
    match options.split or "ratio":
        case "ratio":
            return data.split_by_ratio(loaded, test=options.test, seed=seed)
        case "time":
            return data.split_by_time(loaded, test=options.test)
        case "leave_k_out":
            by_time = loaded.timestamps is not None
            return data.leave_k_out(loaded, k=options.leave_k, seed=None if by_time else seed)
        case "clean":
            return data.split_top_rated(loaded, seed=seed)


def _check(problem: Problem, options: DataOptions) -> None:
    for name in ("train", "valid", "test"):
        part = getattr(problem, name)
        if part is not None and not len(part):
            raise ValueError(f"--data {options.data} has no interactions in its {name} part.")
    degrees = problem.train.degrees
    if not ((degrees > 0) & (degrees < problem.train.n_items)).any():
        raise ValueError(
            f"--data {options.data}: everyone took every item; there is nothing to compare with."
        )
