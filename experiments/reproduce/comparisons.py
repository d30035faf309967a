"""Tables of ranking methods, trained on every dataset with every encoder."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path

from crl_jax import hyperparams

from .cost import training_seconds
from .methods import SAMPLING, Method, Problem
from .outcomes import Outcome, ReportedMetrics
from .tables import Group, choose, make_table, published
from .targets import Job, Options, outcome_path, train_all, training_epochs

_ENCODERS = {"mf": "Matrix factorisation", "lightgcn": "LightGCN"}
_SWEPT = {
    "lr": "optimizer.learning_rate",
    "weight_decay": "optimizer.weight_decay",
    "init_scale": "task.init_scale",
}


@dataclass(frozen=True)
class RankingTable:
    """Callable that trains the methods of a table and writes it.

    Attributes:
      methods: Returns the rows for the flags, the encoder, and the name and the data of a dataset.
      notes: Returns the notes below the table, except those on the training of its methods.
      reported: Reported metrics.
      check: Raises ``ValueError`` for unsupported data.
      encoders: Default encoders, unless --encoders is given.
      long: Whether to print a time estimate before training.
    """

    methods: Callable[[Options, str, str, Problem], tuple[Method, ...]]
    notes: Callable[[Options], tuple[str, ...]]
    reported: ReportedMetrics = SAMPLING.reported
    check: Callable[[Options, Problem], None] = lambda options, problem: None
    encoders: tuple[str, ...] = ("mf",)
    long: bool = False

    def __call__(self, job: Job) -> None:
        """Trains the methods, prints the table and writes the completed part after each group."""
        options = job.options
        self.check(options, job.problem)
        groups = []
        for folder, splits in groupby(job.problems, attrgetter("folder")):
            own, name = job._replace(problems=list(splits)), Path(folder).resolve().name
            for encoder in dict.fromkeys(options.encoders or self.encoders):
                rows = {
                    method.label: method
                    for method in self.methods(options, encoder, name, own.problem)
                    if options.setting == "minibatch" or not method.batches
                }
                methods = with_sweep(choose(rows, options.methods), options.sweep)
                groups.append(self._group(own, options.dataset or name, encoder, methods))
        first, _ = groups[0].times[0]
        kind = "ablation" if options.ablation else options.setting
        times = f"-{options.splits}-splits" if options.splits > 1 else ""

        def notes(done: Sequence[Group]) -> list[str]:
            is_published = any(known for group in done for known in group.published)
            compared = _comparison_note(options, first, self.reported.main, is_published)
            swept = [f"Values of the searches set by hand: {'; '.join(options.sweep)}."]
            own = swept if options.sweep else []
            return [compared, *(group.note for group in done), *own, *self.notes(options)]

        make_table(
            [groups],
            job,
            path=options.out / f"{options.target}-{kind}{times}",
            title=lambda done: _title(
                job, *zip(*((group.dataset, group.encoder) for group in done))
            ),
            notes=notes,
            reported=self.reported,
            estimate="most" if self.long or options.estimate else "",
        )

    def _group(self, job: Job, dataset: str, encoder: str, methods: Sequence[Method]) -> Group:
        options, known = job.options, published(job.number, dataset, encoder)

        def seconds(method: Method, problem: Problem) -> float:
            if outcome_path(method, problem, options).exists():
                return 0.0
            epochs = training_epochs(method, options, problem)
            return training_seconds(method, problem, epochs, options.seeds, options.out / "speeds")

        def train() -> list[Outcome]:
            if self.long:
                job.console.print(f"{dataset}, {encoder}")
            return train_all(methods, job)

        return Group(
            dataset,
            encoder,
            title=_title(job, [dataset], [encoder]),
            published=[known.get(m.published or m.label, {}) for m in methods],
            times=[
                (m.label, partial(seconds, m, problem)) for m in methods for problem in job.problems
            ],
            train=train,
            note=_training_note(encoder, dataset, job.problem, methods, options),
        )


def with_sweep(methods: Sequence[Method], sweep: Sequence[str]) -> list[Method]:
    """Returns the methods with the values of ``--sweep`` in their searches.

    ``NAME=NUMBER,NUMBER`` applies to each method that has this number, and
    ``METHOD.NAME=NUMBER,NUMBER`` to one method, whatever the former says.

    Raises:
      ValueError: If an entry does not have this form, names no method or a number that none has, or
        is given twice.
    """
    axes = {method.label: method.axes for method in methods}
    accepted = {
        method.label: _SWEPT | {
            name: f"task.hyperparams.{name}"
            for name in (*hyperparams(method.loss), *method.hyperparams)
        }
        for method in methods
    }  # fmt: skip
    parsed: dict[tuple[str, str], tuple[float, ...]] = {}
    for spec in sweep:
        path, _, values = spec.rpartition("=")  # a label may have an equals sign, too
        label, _, name = path.rpartition(".")
        try:
            numbers = tuple(float(value) for value in values.split(","))
        except ValueError:
            numbers = ()
        is_distinct = len({*numbers}) == len(numbers) and all(map(math.isfinite, numbers))
        if not (name and numbers and is_distinct):
            raise ValueError(
                "--sweep must be NAME=NUMBER,NUMBER,… or METHOD.NAME=NUMBER,NUMBER,… with distinct "
                f"finite numbers, got {spec!r}."
            )
        if name in _SWEPT and min(numbers) < 0:
            raise ValueError(f"--sweep {name} must not be negative, got {spec!r}.")
        if (label, name) in parsed:
            raise ValueError(f"--sweep {path} is given twice.")
        parsed[label, name] = numbers
    for (label, name), numbers in sorted(parsed.items()):  # those of all methods first
        if label and label not in accepted:
            known = ", ".join(f'"{name}"' for name in accepted)
            raise ValueError(f'--sweep takes a method among {known}, got "{label}".')
        labels = [each for each in ([label] if label else accepted) if name in accepted[each]]
        if not labels:
            known = ", ".join(
                accepted[label] if label else dict.fromkeys(chain(*accepted.values()))
            )
            raise ValueError(f"--sweep takes one of {known}, got {name!r}.")
        for each in labels:
            axes[each] = {**axes[each], accepted[each][name]: numbers}
    return [
        method if axes[method.label] == method.axes else replace(
            method, axis=None,
            minibatch=replace(method.minibatch, axes=tuple(axes[method.label].items())),
        )
        for method in methods
    ]  # fmt: skip


def _title(job: Job, datasets: Sequence[str], encoders: Sequence[str]) -> str:
    """Returns the title, datasets, encoders (if not MF alone) and setting of a table."""
    shown = ", ".join(dict.fromkeys(datasets))
    if set(encoders) != {"mf"}:
        shown += f", {', '.join(dict.fromkeys(encoders))}"
    kind = "ablation" if job.options.ablation else f"{job.options.setting} setting"
    return f"{job.title}, {shown}, {kind}"


def _comparison_note(options: Options, first: str, main: str, known: bool) -> str:
    """Describes the number of trainings per row and the statistical comparison."""
    times, units = f"{options.seeds} seed{'s' if options.seeds > 1 else ''}", "seeds"
    if options.splits > 1:
        times, units = f"{options.splits} splits of {times} each", "splits"
    return (
        f"{times}: mean ± standard deviation over {units}"
        f"{' (published)' if known else ''}. Gain is {main.upper()} minus that of {first}; "
        f"p-values are from two-sided paired t-tests over {units} and over users (each averaged "
        "over all trainings), adjusted by Holm's method within a dataset and encoder."
    )


def _training_note(
    encoder: str, dataset: str, problem: Problem, methods: Sequence[Method], options: Options
) -> str:
    recipe, epochs = methods[0].recipe, training_epochs(methods[0], options, problem)
    text = f"{_ENCODERS[encoder]} of width {recipe.dim} on {dataset}"
    if options.setting == "minibatch":
        cfg = methods[0].minibatch
        points = " or ".join(map(str, sorted({m.points for m in methods})))
        layers = "" if cfg.layers is None else f", {cfg.layers} layers"
        return (
            f"{text}{layers}: Adam, batches of {cfg.batch_size:,}; for each method a search of "
            f"{points} points of {epochs} epochs on a validation part of {100 * cfg.valid:.0f} %, "
            "then all seeds on all training data."
        )
    if recipe.batch_size > 1:
        return (
            f"{text}, {recipe.layers} layer: Adam, batches of {recipe.batch_size:,}, learning rate "
            f"{recipe.learning_rate:g}, a tenth of it after each fifth of {epochs} epochs, L2 "
            f"{recipe.weight_decay:g}; evaluated after the last epoch."
        )
    draws = " or ".join(f"{n:,}" for n in sorted({m.draw for m in methods}))
    return (
        f"{text}: SGD, one triplet per step, learning rate {recipe.learning_rate:g}, L2 "
        f"{recipe.weight_decay:g}, initial values N(0, {recipe.deviation:.3g}²), {epochs} epochs; "
        f"evaluated after the last. Negatives are sampled for {draws} triplets at a time, from the "
        "parameters before them."
    )
