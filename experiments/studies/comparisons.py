"""Tables that train their methods on every dataset with every encoder and compare the results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cost import Training, announce
from .methods import Method, Recipe, World, by_folder
from .published import published
from .tables import Group, compare, rich_table, write_table
from .targets import Job, Options, length, train_all

_ENCODERS = {"mf": "Matrix factorisation", "lightgcn": "LightGCN"}


@dataclass(frozen=True)
class Block:
    """Methods that are compared with one another.

    Attributes:
      dataset, encoder: Names of the dataset and of the encoder.
      worlds: The data; several worlds are splits of the same dataset.
      methods: The rows.
    """

    dataset: str
    encoder: str
    worlds: list[World]
    methods: tuple[Method, ...]

    @property
    def recipe(self) -> Recipe:
        """Recipe shared by the rows."""
        return self.methods[0].recipe


@dataclass(frozen=True)
class Table:
    """Callable that trains the methods of a table and writes it.

    Attributes:
      number: Number of the dissertation's table.
      methods: Returns the rows for the flags, the encoder, and the name and the data of a dataset.
      notes: Returns the notes below the table, except those on the training of its methods.
      recipe: Derives the reported metrics from the recipe shared by the methods.
      check: Raises ``ValueError`` for unsupported data.
      encoders: Default encoders, unless --encoders is given.
      long: Whether to print a time estimate before training.
    """

    number: str
    methods: Callable[[Options, str, tuple[str, World]], tuple[Method, ...]]
    notes: Callable[[Options], tuple[str, ...]]
    recipe: Callable[[Recipe], Recipe] = lambda recipe: recipe
    check: Callable[[Options, World], None] = lambda options, world: None
    encoders: tuple[str, ...] = ("mf",)
    long: bool = False

    def __call__(self, job: Job) -> None:
        """Trains the methods, prints the table and writes the completed part after each block."""
        options, console = job.options, job.console
        self.check(options, job.world)
        blocks = self._blocks(job)
        if self.long or options.estimate:
            announce([training for block in blocks for training in _trainings(block, job)], job)
        if options.estimate:
            return
        groups = []
        for block in blocks:
            groups.append(self._train(block, job))
            self._write(blocks[: len(groups)], groups, job)
        console.print(f"results in {_path(options)}.md, .csv, .png")

    def _blocks(self, job: Job) -> list[Block]:
        """Returns a block for every combination of dataset and encoder."""
        options, made = job.options, []
        for folder, worlds in by_folder(job.worlds).items():
            name = Path(folder).resolve().name
            for encoder in dict.fromkeys(options.encoders or self.encoders):
                rows = self._rows(options, encoder, (name, worlds[0]))
                made.append(Block(options.dataset or name, encoder, worlds, rows))
        return made

    def _rows(self, options: Options, encoder: str, of: tuple[str, World]) -> tuple[Method, ...]:
        """Returns the methods supported by the setting and selected by --methods."""
        minibatch = options.setting == "minibatch"
        made = self.methods(options, encoder, of)
        return choose(tuple(m for m in made if minibatch or not m.batches), options.methods)

    def _train(self, block: Block, job: Job) -> Group:
        recipe, known = self.recipe(block.recipe), self._published(block)
        if self.long:
            job.console.print(f"{block.dataset}, {block.encoder}")
        outcomes = train_all(block.methods, job, block.worlds)
        rows = compare(
            outcomes,
            [known.get(m.published or m.label, {}) for m in block.methods],
            recipe.reported,
        )
        job.console.print(rich_table(rows, _title([block], job), recipe.reported))
        return Group(block.dataset, block.encoder, rows)

    def _published(self, block: Block) -> dict[str, dict[str, float]]:
        return published(self.number, block.dataset, block.encoder)

    def _write(self, blocks: list[Block], groups: list[Group], job: Job) -> None:
        options, recipe = job.options, self.recipe(blocks[0].recipe)
        known = any(map(self._published, blocks))
        notes = [
            _compared(options, blocks[0].methods[0].label, recipe.main, known),
            *(_how(block, options) for block in blocks),
            *self.notes(options),
        ]
        write_table(groups, _title(blocks, job), notes, _path(options), recipe.reported)


def _path(options: Options) -> Path:
    """Returns the path of the output files, without extension."""
    name = "ablation" if options.ablation else options.setting
    splits = f"-{options.splits}-splits" if options.splits > 1 else ""
    return options.out / f"{options.target}-{name}{splits}"


def _title(blocks: Sequence[Block], job: Job) -> str:
    """Returns the title, dataset, encoder (if not MF, or several) and setting of a table."""
    options = job.options
    datasets = ", ".join(dict.fromkeys(block.dataset for block in blocks))
    encoders = tuple(dict.fromkeys(block.encoder for block in blocks))
    named = "" if encoders == ("mf",) else f", {', '.join(encoders)}"
    kind = "ablation" if options.ablation else f"{options.setting} setting"
    return f"{job.title}, {datasets}{named}, {kind}"


def _trainings(block: Block, job: Job) -> list[Training]:
    return [
        Training((block.dataset, block.encoder), method, world, length(method, job.options, world))
        for method in block.methods
        for world in block.worlds
    ]


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


def _compared(options: Options, first: str, main: str, known: bool) -> str:
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


def _how(block: Block, options: Options) -> str:
    """Describes the training of a block."""
    recipe, methods = block.recipe, block.methods
    epochs = length(methods[0], options, block.worlds[0])
    what = f"{_ENCODERS[block.encoder]} of width {recipe.dim} on {block.dataset}"
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
