"""Search of a sweep by successive halving, within a limit of time."""

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import jax
import numpy as np

from crl_jax import train
from crl_jax.models import Tables

from .._processes import broadcast_from_first, is_first, remove_checkpoint
from .._ranges import read_json
from .._rundir import write_json
from .._study import Member, OnEntry, Runs, SearchResult, no_finite_score

PHASE = "tune"
_SHORT = 3
"""Ratio of the lengths of a complete training and of one of the first rung."""
_MARGIN = 0.04
"""Relative difference in validation scores below which an earlier space wins: noise is as large."""
_TOLERANCE = 0.02
"""Relative difference in validation scores within which a longer training is selected."""
_BLENDED = 0.2
"""Relative difference in validation scores within which the models of a blend are."""
_AT_ONCE = 8
"""Number of points that are trained together at most."""
_FILE = "halving.json"


@dataclass(frozen=True)
class Space:
    """Points that differ in numbers that a sweep can set.

    Attributes:
      config: The configuration.
      points: Values of the swept numbers.
      names: What further distinguishes the points of this space, such as the loss.
      kind: What its models have in common with those of other spaces: of each kind, a blend has
        the best model only, since alike ones add little to each other.
    """

    config: Any
    points: Sequence[Mapping[str, float]]
    names: Mapping[str, Any] = field(default_factory=dict)
    kind: Hashable = None


FitPoints = Callable[[Any, dict[str, np.ndarray], Path, Callable[[Any], None]], train.FitResult]
"""Function ``fit(config, runs, checkpoint, on_entry)`` that trains runs together. ``runs`` has the
values of each swept number, the ``seeds`` and the ``epochs``."""


class _Record:
    """Finished trainings of a search and their history, in a file of the run directory."""

    def __init__(self, path: Path):
        self._path = path
        self._stored: list[dict[str, Any]] = read_json(path) if path.exists() else []
        if not (isinstance(self._stored, list) and all(map(_is_record, self._stored))):
            raise ValueError(
                f"{path}: expected the trainings of a search; delete it to start again."
            )

    @property
    def trained(self) -> list[train.RungResult]:
        return [train.RungResult(*map(_as_tuple, each["trained"])) for each in self._stored]

    @property
    def entries(self) -> list[tuple[int, list[dict[str, Any]]]]:
        """Number of runs and history of each training."""
        return [(each["n_runs"], each["entries"]) for each in self._stored]

    def add(self, trained: train.RungResult, n_runs: int, entries: list[dict[str, Any]]) -> None:
        stored = {"trained": list(trained), "n_runs": n_runs, "entries": entries}
        self._stored = json.loads(json.dumps([*self._stored, stored]))
        write_json(self._path, self._stored)


class _BestTables:
    """Vectors of the best point of each complete training, in files from which a search resumes."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._tables: dict[int, Tables] = {}

    def add(self, point: int, tables: Tables) -> None:
        self._tables[point] = tables
        if is_first():
            train.save_checkpoint(self._path(point), jax.device_get(tables)._asdict(), {})

    def load(self, point: int) -> Tables:
        if point in self._tables:
            return self._tables[point]
        stored, _ = train.load_checkpoint(self._path(point))
        return Tables(**stored)

    def _path(self, point: int) -> Path:
        return self._folder / f"{PHASE}-tables-{point}.npz"


def _is_record(stored: Any) -> bool:
    """Whether a part of a file describes a training."""
    return (
        isinstance(stored, dict)
        and stored.keys() == {"trained", "n_runs", "entries"}
        and isinstance(stored["n_runs"], int)
        and isinstance(stored["trained"], list)
        and len(stored["trained"]) == len(train.RungResult._fields)
        and isinstance(stored["entries"], list)
        and all({"epoch", "loss"} <= {*entry} for entry in stored["entries"])
    )


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def tune(
    spaces: Sequence[Space],
    fit: FitPoints,
    checkpoints: Path,
    on_entry: OnEntry,
    on_stage: Callable[[str], None],
    tables_fn: Callable[[Any, int], Tables] | None = None,
) -> SearchResult:
    """Searches the points of all spaces for the best validation score.

    Args:
      spaces: The points.
      fit: Trains points of one space.
      checkpoints: Folder of the checkpoints and of the finished trainings, with which an
        interrupted search continues.
      on_entry: See :data:`experiments._study.OnEntry`.
      on_stage: Called with a description of each training.
      tables_fn: ``tables_fn(fitted, run)`` returns the vectors of a run, which a blend needs.

    Returns:
      The search. Its blend has the candidates of a blend with their vectors: the selected model,
      and the best of other kinds that are close.

    Raises:
      TrainingDiverged: If all points diverge.
    """
    owners = [space for space in spaces for _ in space.points]
    points = [point for space in spaces for point in space.points]
    protocol, longest = spaces[0].config.protocol, spaces[0].config.training.epochs
    # A multiple of the epochs between validations, since the rest would be a separate program.
    eval_every = min(spaces[0].config.training.eval_every, longest)
    epochs = tuple(
        sorted({min(eval_every * math.ceil(longest / _SHORT / eval_every), longest), longest})
    )
    seeds = np.arange(protocol.seed, protocol.seed + protocol.search_seeds)
    record, tables = _Record(checkpoints / _FILE), _BestTables(checkpoints)
    read_tables = tables_fn if protocol.blend > 1 else None
    index, last_rung = count(), len(epochs) - 1
    for n_runs, entries in record.entries:
        run_group = Runs(PHASE, n_runs, longest, next(index))
        for entry in entries:
            on_entry(run_group, entry)

    def checkpoint_path(rung: int, chosen: tuple[int, ...]) -> Path:
        return checkpoints / f"{PHASE}-{rung}-{chosen[0]}.npz"

    if is_first():
        for each in record.trained:  # a kill may have come before its removal
            remove_checkpoint(checkpoint_path(each.rung, each.candidates))

    def train_points(rung: int, chosen: tuple[int, ...]) -> train.RungResult:
        own, n_runs, entries = owners[chosen[0]], len(chosen) * len(seeds), []
        description = " ".join(f"{name}={value}" for name, value in own.names.items())
        on_stage(f"rung {rung + 1} of {len(epochs)}: {len(chosen)} points {description}".rstrip())
        runs = {
            name: np.repeat([points[i][name] for i in chosen], len(seeds))
            for name in points[chosen[0]]
        }
        runs |= {"seeds": np.tile(seeds, len(chosen)), "epochs": np.full(n_runs, epochs[rung])}

        run_group = Runs(PHASE, n_runs, epochs[rung], next(index))

        def report(entry: dict[str, Any]) -> None:
            entries.append(entry)
            on_entry(run_group, entry)

        path = checkpoint_path(rung, chosen)
        trained, fitted = train.train_candidates(
            partial(fit, own.config, runs, path, report), rung, chosen, len(seeds),
            tolerance=_TOLERANCE,
        )  # fmt: skip
        is_finite = fitted is not None and np.isfinite(trained.scores).any()
        if read_tables is not None and rung == last_rung and is_finite:
            best = int(np.nanargmax(trained.scores))
            tables.add(chosen[best], read_tables(fitted, best * len(seeds)))
        trained = trained._replace(seconds=round(broadcast_from_first(trained.seconds), 3))
        if is_first():
            record.add(trained, n_runs, entries)
            remove_checkpoint(path)
        return trained

    labels = [(own.names.get("loss"), own.names.get("encoder")) for own in owners]
    n_losses = len({*labels})
    result = train.successive_halving(
        train_points,
        _groups(spaces),
        epochs,
        labels=labels,
        minutes=protocol.tune or None,
        keep=None if protocol.tune or n_losses < 2 else n_losses,
        done=record.trained,
    )
    if result.best is None:
        raise no_finite_score()
    last = [result.last(i) for i in range(len(points))]
    best, n_epochs, score = _select_preferred(
        result, [len(space.points) for space in spaces], last_rung
    )
    scores = np.array([np.nan if each is None else each[1] for each in last])
    best_epochs = np.array([0 if each is None else each[2] for each in last])
    choice = train.Selection(best, n_epochs, score, scores, best_epochs)
    named_points = [{**own.names, **point} for own, point in zip(owners, points, strict=True)]
    members = () if read_tables is None else _members(result, owners, choice, last_rung)
    members = tuple(each._replace(tables=tables.load(each.point)) for each in members)
    complete = sum(len(each.candidates) for each in result.trained if each.rung == last_rung)
    tried = sum(each is not None for each in last)
    description = (
        f"searched {tried} of {len(points)} points for {epochs[0]} epochs, the best {complete} for "
        f"{longest}, in {result.seconds:.0f} s"
    )
    return SearchResult(
        named_points, choice, config=owners[best].config, description=description, blend=members
    )


def _members(
    result: train.HalvingResult,
    owners: Sequence[Space],
    choice: train.Selection,
    last_rung: int,
) -> tuple[Member, ...]:
    """Returns the selected model, and the best of other kinds that are close, best first."""
    min_score = (1 - _BLENDED) * choice.score
    best: dict[Hashable, tuple[float, int, int]] = {}
    for i, own in enumerate(owners):
        last = result.last(i)
        if last is None or last[0] != last_rung or not last[1] >= min_score:
            continue
        if own.kind not in best or last[1] > best[own.kind][0]:
            best[own.kind] = last[1], i, last[2]
    runners_up = sorted(
        (each for kind, each in best.items() if kind != owners[choice.point].kind),
        key=lambda each: -each[0],
    )
    points = [(choice.point, choice.epochs), *((i, epoch) for _, i, epoch in runners_up)]
    return tuple(Member(owners[i].config, i, epoch) for i, epoch in points)


def _select_preferred(
    result: train.HalvingResult, sizes: Sequence[int], last_rung: int
) -> tuple[int, int, float]:
    """Returns a point, its epochs and its score: of the first space within the margin.

    With the number of points, the chance grows that one of them is the best by noise.

    Args:
      result: The finished search, of which some point did not diverge.
      sizes: Number of points of each space.
      last_rung: Index of the last rung.
    """
    assert result.best is not None
    first = 0
    for size in sizes:
        complete = [
            (each[1], -i, each[2])
            for i in range(first, first + size)
            if (each := result.last(i)) is not None
            and each[0] == last_rung
            and np.isfinite(each[1])
        ]
        score, negative_index, epoch = max(complete, default=(-np.inf, 0, 0))
        if score * (1 + _MARGIN) >= result.score:
            return -negative_index, epoch, score
        first += size
    return result.best, result.best_epoch, result.score


def _groups(spaces: Sequence[Space]) -> list[range]:
    """Splits the points of each space into groups; the first groups of all spaces come first."""
    groups, first = [], 0
    for space in spaces:
        end = first + len(space.points)
        starts = range(first, end, _AT_ONCE)
        groups += [(index, range(i, min(end, i + _AT_ONCE))) for index, i in enumerate(starts)]
        first = end
    return [group for _, group in sorted(groups, key=lambda each: each[0])]
