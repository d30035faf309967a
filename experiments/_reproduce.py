"""What ``python -m experiments.reproduce`` does, see :mod:`experiments.reproduce`."""

from collections.abc import Callable
from typing import get_args

import tyro
from rich.console import Console

from crl_jax import data, stats

from . import _credence_figures as credence_figures
from . import _credence_study as credence
from . import _sampling_figures as sampling_figures
from . import _sampling_study as sampling
from . import _study as study
from ._command import run
from ._locks import hold
from ._options import RANGES
from ._program import program
from ._published import published
from ._ranges import COUNT, POSITIVE, Range, check_flags
from ._report import compare, rich_table, write_table
from ._screen import output
from ._signals import advise
from ._targets import TITLES, Options, Target, length, train_all

_DESCRIPTION = """Make tables and figures of the dissertation anew.

Each target is one command on a dataset folder: it trains what the table or figure compares, prints
our numbers beside the published ones, and writes Markdown, CSV and PNG.
"""
_TABLES = {*credence.Study().tables(), *sampling.TABLES}
_FIGURES: dict[str, Callable[[Options, study.World, Console], None]] = {
    "3.2": credence_figures.laws,
    "3.3": credence_figures.credible_laws,
    "3.4": credence_figures.roc,
    "3.5": credence_figures.noise,
    "3.6": credence_figures.convergence,
    "4.2": sampling_figures.score_distributions,
    "4.4": sampling_figures.quality,
    "4.5": sampling_figures.gain_and_size,
}
assert set(get_args(Target)) == {f"table-{n}" for n in _TABLES} | {f"figure-{n}" for n in _FIGURES}
# Whose trainings are of the one setting alone.
_PUBLISHED_ONLY = ("figure-3.6", "figure-4.2", "figure-4.4", "figure-4.5")
_DKW_SAMPLES = 64
_RANGES = {
    "seeds": RANGES["seeds"],
    "epochs": RANGES["epochs"],
    "test_rating": Range(),
    "splits": COUNT,
    "law_scale": POSITIVE,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""

    def command() -> None:
        options = tyro.cli(
            Options,
            prog=program("reproduce"),
            args=arguments,
            description=_DESCRIPTION,
        )
        advise(lambda: "The same command goes on from here.")
        _reproduce(options, output())

    return run(command)


def _reproduce(options: Options, console: Console) -> None:
    check_flags(options, _RANGES)
    kind, number = options.target.split("-")
    if options.target in _PUBLISHED_ONLY and options.setting != "published":
        raise ValueError(f"{options.target} is of the published setting: leave out --setting.")
    if options.target == "table-5.3" and options.setting != "minibatch":
        raise ValueError("table-5.3 compares losses of minibatches: add --setting minibatch.")
    if kind == "figure" and options.methods:
        raise ValueError("--methods chooses rows of tables; figures have all of theirs.")
    _check_chapter_3(options, kind, number)
    worlds = _load(options, console)
    world = worlds[0]
    if options.target in ("table-3.2", "figure-3.4") or options.ablation:
        credence.check_judgeable(world)
    options.out.mkdir(parents=True, exist_ok=True)
    busy = f"another process is making {options.target} in {options.out}; let it end first."
    # Trainings that several targets share are held one by one, where they are trained.
    with hold(options.out / f".{options.target}.lock", busy=busy):
        console.print(
            f"{TITLES[options.target]}: {world.train.n_users:,} users, "
            f"{world.train.n_items:,} items, {len(world.train):,} + {len(world.test):,} "
            "interactions"
        )
        if kind == "table":
            _table(number, options, worlds, console)
        else:
            _FIGURES[number](options, world, console)


def _check_chapter_3(options: Options, kind: str, number: str) -> None:
    """Raises ``ValueError`` where a flag of chapter 3 has no use."""
    if not number.startswith("3."):
        given = {
            "--test-rating": options.test_rating is not None,
            "--splits": options.splits != 1,
            "--law-scale": options.law_scale != credence.SCALE,
        }
        for flag in (flag for flag, is_given in given.items() if is_given):
            raise ValueError(f"{flag} is for tables and figures of chapter 3: leave it out.")
    if options.splits > 1 and kind == "figure":
        raise ValueError(f"--splits is for tables, got {options.splits} for {options.target}.")
    if options.splits > 1 and options.test_rating is not None:
        raise ValueError("--splits cuts the data anew; --test-rating takes the test part given.")
    if options.ablation and (options.target, options.setting) != ("table-3.3", "published"):
        raise ValueError("--ablation is of table-3.3 in the published setting.")


def _load(options: Options, console: Console) -> list[study.World]:
    loaded = data.load(str(options.data))
    if options.target.partition("-")[2].startswith("3."):
        if options.test_rating is None and isinstance(loaded, data.Split):
            console.print(
                f"The parts of {options.data} are put together, and half of the interactions with "
                "the top rating are the test part; --test-rating takes the test part given."
            )
        return [
            credence.load_world(loaded, options.test_rating, str(options.data), split)
            for split in range(options.splits)
        ]
    if not isinstance(loaded, data.Split) or loaded.test is None:
        raise ValueError(f"--data {options.data} must hold a training and a test part.")
    if loaded.valid is not None:
        raise ValueError(
            f"--data {options.data} has a validation part; these tables are of training and test "
            "alone."
        )
    return [study.World(loaded.train, loaded.test, str(options.data))]


def _rows(number: str, options: Options) -> tuple[study.Method, ...]:
    """The methods that a table compares."""
    of = credence.Study(options.law_scale)
    rows = of.ablation() if options.ablation else {**of.tables(), **sampling.TABLES}[number]
    possible = [m for m in rows if options.setting == "minibatch" or not m.batches]
    return _chosen(tuple(possible), options.methods)


def _table(number: str, options: Options, worlds: list[study.World], console: Console) -> None:
    methods = _rows(number, options)
    outcomes = train_all(methods, options, worlds, console)
    dataset = options.dataset or options.data.resolve().name
    known = published(number, dataset, "mf")
    recipe = methods[0].recipe
    recipe = credence.judged(recipe) if number == "3.2" else recipe
    rows = compare(outcomes, [known.get(m.published or m.label, {}) for m in methods], recipe)
    kind = "ablation" if options.ablation else f"{options.setting} setting"
    title = f"{TITLES[options.target]}, {dataset}, {kind}"
    console.print(rich_table(rows, title, recipe))
    name = "ablation" if options.ablation else options.setting
    splits = f"-{options.splits}-splits" if options.splits > 1 else ""
    path = options.out / f"{options.target}-{name}{splits}.md"
    epochs = length(methods[0], options, worlds[0])
    notes = _notes(options, methods, epochs, recipe.main, bool(known))
    write_table(rows, title, notes, path, recipe)
    console.print(f"results in {path.with_suffix('')}.md, .csv, .png")


def _notes(
    options: Options, methods: tuple[study.Method, ...], epochs: int, main: str, known: bool
) -> list[str]:
    recipe = methods[0].recipe
    times, units = f"{options.seeds} seeds", "seeds"
    if options.splits > 1:
        times, units = f"{options.splits} splits of {times} each", "splits"
    notes = [
        f"Matrix factorisation of width {recipe.dim}, {times}: mean ± standard deviation over "
        f"{units}{' (published)' if known else ''}. Gain is {main.upper()} less that of "
        f"{methods[0].label}; p-values are two-sided, of paired t-tests over {units} and over "
        "users (each averaged over all trainings), adjusted by Holm's method."
    ]
    if options.setting == "published":
        draws = " or ".join(f"{n:,}" for n in sorted({m.draw for m in methods}))
        notes.append(
            f"SGD, one triplet a step, learning rate {recipe.learning_rate:g}, L2 "
            f"{recipe.weight_decay:g}, initial values N(0, {recipe.deviation:.3g}²), {epochs} "
            f"epochs; scored after the last. Negatives are drawn for {draws} triplets at a time, "
            "from the parameters before them."
        )
    else:
        own = any(method.axis for method in methods)
        notes.append(
            f"Adam, batches of 1,024; for each method a search of 8 points of {epochs} epochs on a "
            f"validation part{', times 4 where it has a number of its own' if own else ''}, then "
            "all seeds on all training data."
        )
    if recipe is study.SAMPLING:
        notes.append(
            "BNS takes the distribution of scores over all that a user has not taken, exactly, but "
            f"for the row that names a sample: of {_DKW_SAMPLES} items its error is at most "
            f"{stats.dkw_error(_DKW_SAMPLES):.2f} with 95 % confidence, and a little more where "
            "the user has taken some of them."
        )
    else:
        notes.extend(credence.NOTES)
    if options.ablation:
        notes.extend(credence.ABLATION_NOTES)
    return notes


def _chosen(methods: tuple[study.Method, ...], names: tuple[str, ...]) -> tuple[study.Method, ...]:
    labels = [method.label for method in methods]
    for name in names:
        if name not in labels:
            known = ", ".join(f'"{label}"' for label in labels)
            raise ValueError(f'--methods takes some of {known}, got "{name}".')
    return tuple(methods[labels.index(name)] for name in names) or methods
