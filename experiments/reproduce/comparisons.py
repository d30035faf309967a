"""Tables of ranking methods, trained on every dataset with every encoder."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .cost import training_seconds
from .methods import Method, World, by_folder
from .outcomes import Outcome, Reported
from .tables import Block, Group, Presentation, make_table, published
from .targets import Job, Options, length, path_of, train_all

_ENCODERS = {"mf": "Matrix factorisation", "lightgcn": "LightGCN"}


@dataclass(frozen=True)
class Comparison:
    """Methods of one dataset and encoder, which are compared with one another.

    Attributes:
      dataset, encoder: Names of the dataset and of the encoder.
      worlds: The data; several worlds are splits of the same dataset.
      methods: The rows.
    """

    dataset: str
    encoder: str
    worlds: list[World]
    methods: tuple[Method, ...]


@dataclass(frozen=True)
class RankingTable:
    """Callable that trains the methods of a table and writes it.

    Attributes:
      number: Number of the dissertation's table.
      methods: Returns the rows for the flags, the encoder, and the name and the data of a dataset.
      notes: Returns the notes below the table, except those on the training of its methods.
      reported: Reported metrics; by default those of the recipe shared by the methods.
      check: Raises ``ValueError`` for unsupported data.
      encoders: Default encoders, unless --encoders is given.
      long: Whether to print a time estimate before training.
    """

    number: str
    methods: Callable[[Options, str, str, World], tuple[Method, ...]]
    notes: Callable[[Options], tuple[str, ...]]
    reported: Reported | None = None
    check: Callable[[Options, World], None] = lambda options, world: None
    encoders: tuple[str, ...] = ("mf",)
    long: bool = False

    def __call__(self, job: Job) -> None:
        """Trains the methods, prints the table and writes the completed part after each block."""
        options = job.options
        self.check(options, job.world)
        compared = list(self._comparisons(job))
        first = compared[0].methods[0]
        reported = self.reported or first.recipe.reported

        def notes(groups: Sequence[Group]) -> list[str]:
            done = compared[: len(groups)]
            known = any(map(self._published, done))
            return [
                _comparison_note(options, first.label, reported.main, known),
                *(_training_note(each, options) for each in done),
                *self.notes(options),
            ]

        shown = Presentation(
            path=_path(options),
            title=partial(_title, job),
            notes=notes,
            reported=reported,
            estimate="most" if self.long or options.estimate else "",
        )
        make_table([[self._block(each, job) for each in compared]], shown, job)

    def _comparisons(self, job: Job) -> Iterable[Comparison]:
        """Yields every combination of dataset and encoder."""
        options = job.options
        for folder, worlds in by_folder(job.worlds).items():
            name = Path(folder).resolve().name
            for encoder in dict.fromkeys(options.encoders or self.encoders):
                methods = self.methods(options, encoder, name, worlds[0])
                if options.setting != "minibatch":
                    methods = tuple(method for method in methods if not method.batches)
                chosen = choose(methods, options.methods)
                yield Comparison(options.dataset or name, encoder, worlds, chosen)

    def _published(self, of: Comparison) -> dict[str, dict[str, float]]:
        return published(self.number, of.dataset, of.encoder)

    def _block(self, of: Comparison, job: Job) -> Block:
        options, known = job.options, self._published(of)

        def seconds(method: Method, world: World) -> float:
            if path_of(method, world, options).exists():
                return 0.0
            epochs = length(method, options, world)
            return training_seconds(method, world, epochs, options.seeds, options.out / "speeds")

        def train() -> list[Outcome]:
            if self.long:
                job.console.print(f"{of.dataset}, {of.encoder}")
            return train_all(of.methods, job, of.worlds)

        return Block(
            of.dataset,
            of.encoder,
            title=_title(job, [of]),
            published=[known.get(m.published or m.label, {}) for m in of.methods],
            times=[(m.label, partial(seconds, m, w)) for m in of.methods for w in of.worlds],
            train=train,
        )


def _path(options: Options) -> Path:
    """Returns the path of the output files, without extension."""
    name = "ablation" if options.ablation else options.setting
    splits = f"-{options.splits}-splits" if options.splits > 1 else ""
    return options.out / f"{options.target}-{name}{splits}"


def _title(job: Job, shown: Sequence[Group | Comparison]) -> str:
    """Returns the title, dataset, encoder (if not MF, or several) and setting of a table."""
    datasets = ", ".join(dict.fromkeys(each.dataset for each in shown))
    encoders = tuple(dict.fromkeys(each.encoder for each in shown))
    named = "" if encoders == ("mf",) else f", {', '.join(encoders)}"
    kind = "ablation" if job.options.ablation else f"{job.options.setting} setting"
    return f"{job.title}, {datasets}{named}, {kind}"


def choose(methods: tuple[Method, ...], names: tuple[str, ...]) -> tuple[Method, ...]:
    """Returns the methods of these names, in the given order; all if no names are given.

    Raises:
      ValueError: If a name is unknown.
    """
    labels = [method.label for method in methods]
    for name in names:
        if name not in labels:
            known = ", ".join(f'"{label}"' for label in labels)
            raise ValueError(f'--methods takes some of {known}, got "{name}".')
    return tuple(methods[labels.index(name)] for name in names) or methods


def _comparison_note(options: Options, first: str, main: str, known: bool) -> str:
    """Describes the number of trainings per row and the statistical comparison."""
    times, units = f"{options.seeds} seed{'s' if options.seeds > 1 else ''}", "seeds"
    if options.splits > 1:
        times, units = f"{options.splits} splits of {times} each", "splits"
    return (
        f"{times}: mean ± standard deviation over {units}"
        f"{' (published)' if known else ''}. Gain is {main.upper()} less that of {first}; p-values "
        f"are two-sided, of paired t-tests over {units} and over users (each averaged over all "
        "trainings), adjusted by Holm's method among the rows of one dataset and encoder."
    )


def _training_note(compared: Comparison, options: Options) -> str:
    """Describes the training of the methods."""
    methods, recipe = compared.methods, compared.methods[0].recipe
    epochs = length(methods[0], options, compared.worlds[0])
    what = f"{_ENCODERS[compared.encoder]} of width {recipe.dim} on {compared.dataset}"
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
        f"{what}: SGD, one triplet a step, learning rate {recipe.learning_rate:g}, L2 "
        f"{recipe.weight_decay:g}, initial values N(0, {recipe.deviation:.3g}²), {epochs} epochs; "
        f"scored after the last. Negatives are drawn for {draws} triplets at a time, from the "
        "parameters before them."
    )
