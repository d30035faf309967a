"""Tables of ranking methods, trained on every dataset with every encoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from .cost import training_seconds
from .methods import SAMPLING, Method, World
from .outcomes import Outcome, Reported
from .tables import Group, choose, make_table, published
from .targets import Job, Options, length, path_of, train_all

_ENCODERS = {"mf": "Matrix factorisation", "lightgcn": "LightGCN"}


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

    methods: Callable[[Options, str, str, World], tuple[Method, ...]]
    notes: Callable[[Options], tuple[str, ...]]
    reported: Reported = SAMPLING.reported
    check: Callable[[Options, World], None] = lambda options, world: None
    encoders: tuple[str, ...] = ("mf",)
    long: bool = False

    def __call__(self, job: Job) -> None:
        """Trains the methods, prints the table and writes the completed part after each group."""
        options = job.options
        self.check(options, job.world)
        groups = []
        for folder, splits in groupby(job.worlds, attrgetter("folder")):
            own, name = job._replace(worlds=list(splits)), Path(folder).resolve().name
            for encoder in dict.fromkeys(options.encoders or self.encoders):
                rows = {
                    method.label: method
                    for method in self.methods(options, encoder, name, own.world)
                    if options.setting == "minibatch" or not method.batches
                }
                methods = choose(rows, options.methods)
                groups.append(self._group(own, options.dataset or name, encoder, methods))
        first, _ = groups[0].times[0]
        kind = "ablation" if options.ablation else options.setting
        times = f"-{options.splits}-splits" if options.splits > 1 else ""

        def notes(done: Sequence[Group]) -> list[str]:
            is_published = any(known for group in done for known in group.published)
            compared = _comparison_note(options, first, self.reported.main, is_published)
            return [compared, *(group.note for group in done), *self.notes(options)]

        make_table(
            [groups],
            job,
            path=options.out / f"{options.target}-{kind}{times}",
            title=lambda done: _title(job, *zip(*((of.dataset, of.encoder) for of in done))),
            notes=notes,
            reported=self.reported,
            estimate="most" if self.long or options.estimate else "",
        )

    def _group(self, job: Job, dataset: str, encoder: str, methods: Sequence[Method]) -> Group:
        options, known = job.options, published(job.number, dataset, encoder)

        def seconds(method: Method, world: World) -> float:
            if path_of(method, world, options).exists():
                return 0.0
            epochs = length(method, options, world)
            return training_seconds(method, world, epochs, options.seeds, options.out / "speeds")

        def train() -> list[Outcome]:
            if self.long:
                job.console.print(f"{dataset}, {encoder}")
            return train_all(methods, job)

        return Group(
            dataset,
            encoder,
            title=_title(job, [dataset], [encoder]),
            published=[known.get(m.published or m.label, {}) for m in methods],
            times=[(m.label, partial(seconds, m, world)) for m in methods for world in job.worlds],
            train=train,
            note=_training_note(encoder, dataset, job.world, methods, options),
        )


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
    encoder: str, dataset: str, world: World, methods: Sequence[Method], options: Options
) -> str:
    recipe, epochs = methods[0].recipe, length(methods[0], options, world)
    what = f"{_ENCODERS[encoder]} of width {recipe.dim} on {dataset}"
    if options.setting == "minibatch":
        of = methods[0].minibatch
        points = " or ".join(map(str, sorted({m.points for m in methods})))
        layers = "" if of.layers is None else f", {of.layers} layers"
        return (
            f"{what}{layers}: Adam, batches of {of.batch_size:,}; for each method a search of "
            f"{points} points of {epochs} epochs on a validation part of {100 * of.valid:.0f} %, "
            "then all seeds on all training data."
        )
    draws = " or ".join(f"{n:,}" for n in sorted({m.draw for m in methods}))
    return (
        f"{what}: SGD, one triplet per step, learning rate {recipe.learning_rate:g}, L2 "
        f"{recipe.weight_decay:g}, initial values N(0, {recipe.deviation:.3g}²), {epochs} epochs; "
        f"evaluated after the last. Negatives are sampled for {draws} triplets at a time, from the "
        "parameters before them."
    )
