"""Tables and figures of the dissertation, made anew: ``python -m experiments.reproduce TARGET``.

Each target is one command on a dataset folder: it trains what the table or figure compares, prints
our numbers beside the published ones, and writes Markdown, CSV and PNG.
"""

import sys
import warnings
from collections.abc import Callable
from typing import get_args

import tyro
from rich.console import Console

from crl_jax import data, stats, train

from . import _credence_figures as credence_figures
from . import _credence_study as credence
from . import _sampling_figures as sampling_figures
from . import _sampling_study as sampling
from . import _study as study
from ._published import published
from ._report import compare, rich_table, write_table
from ._screen import output, show_error, show_warning
from ._targets import TITLES, Options, Target, length, train_all

_TABLES = {**credence.TABLES, **sampling.TABLES}
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


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0, or 2 for an error."""
    warnings.showwarning = show_warning
    options = tyro.cli(
        Options, prog="python -m experiments.reproduce", args=arguments, description=__doc__
    )
    try:
        _reproduce(options, output())
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted; the same command goes on from here.")
        return 130
    except (ValueError, OSError, train.TrainingDiverged) as error:
        show_error(error)
        return 2
    return 0


def _reproduce(options: Options, console: Console) -> None:
    if options.seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {options.seeds}.")
    if options.epochs is not None and options.epochs < 1:
        raise ValueError(f"--epochs must be at least 1, got {options.epochs}.")
    kind, number = options.target.split("-")
    if options.target in _PUBLISHED_ONLY and options.setting != "published":
        raise ValueError(f"{options.target} is of the published setting: leave out --setting.")
    if options.target == "table-5.3" and options.setting != "minibatch":
        raise ValueError("table-5.3 compares losses of minibatches: add --setting minibatch.")
    if kind == "figure" and options.methods:
        raise ValueError("--methods chooses rows of tables; figures have all of theirs.")
    if options.test_rating is not None and not number.startswith("3."):
        raise ValueError("--test-rating chooses the test part of chapter 3.")
    world = _load(options)
    if options.target in ("table-3.2", "figure-3.4"):
        credence.check_judgeable(world)
    options.out.mkdir(parents=True, exist_ok=True)
    console.print(
        f"{TITLES[options.target]}: {world.train.n_users:,} users, {world.train.n_items:,} items, "
        f"{len(world.train):,} + {len(world.test):,} interactions",
    )
    if kind == "table":
        _table(number, options, world, console)
    else:
        _FIGURES[number](options, world, console)


def _load(options: Options) -> study.World:
    loaded = data.load(str(options.data))
    if options.target.partition("-")[2].startswith("3."):
        return credence.load_world(loaded, options.test_rating, str(options.data))
    if not isinstance(loaded, data.Split) or loaded.test is None:
        raise ValueError(f"--data {options.data} must hold a training and a test part.")
    if loaded.valid is not None:
        raise ValueError(
            f"--data {options.data} has a validation part; these tables are of training and test "
            "alone."
        )
    return study.World(loaded.train, loaded.test, str(options.data))


def _table(number: str, options: Options, world: study.World, console: Console) -> None:
    possible = [m for m in _TABLES[number] if options.setting == "minibatch" or not m.batches]
    methods = _chosen(tuple(possible), options.methods)
    outcomes = train_all(methods, options, world, console)
    dataset = options.dataset or options.data.resolve().name
    known = published(number, dataset, "mf")
    recipe = credence.CONFIDENCE if number == "3.2" else methods[0].recipe
    rows = compare(outcomes, [known.get(m.published or m.label, {}) for m in methods], recipe)
    title = f"{TITLES[options.target]}, {dataset}, {options.setting} setting"
    console.print(rich_table(rows, title, recipe))
    path = options.out / f"{options.target}-{options.setting}.md"
    write_table(rows, title, _notes(options, methods, recipe.main, bool(known)), path, recipe)
    console.print(f"results in {path.with_suffix('')}.md, .csv, .png")


def _notes(
    options: Options, methods: tuple[study.Method, ...], main: str, known: bool
) -> list[str]:
    recipe = methods[0].recipe
    notes = [
        f"Matrix factorisation of width {recipe.dim}, {options.seeds} seeds: mean ± standard "
        f"deviation{' (published)' if known else ''}. Gain is {main.upper()} less that of "
        f"{methods[0].label}; p-values are two-sided, of paired t-tests over seeds and over users "
        "(each averaged over seeds), adjusted by Holm's method."
    ]
    epochs = length(methods[0], options)
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
    return notes


def _chosen(methods: tuple[study.Method, ...], names: tuple[str, ...]) -> tuple[study.Method, ...]:
    labels = [method.label for method in methods]
    for name in names:
        if name not in labels:
            # Quoted: names hold commas.
            raise ValueError(
                f"--methods takes some of {', '.join(map(repr, labels))}, got {name!r}."
            )
    return tuple(methods[labels.index(name)] for name in names) or methods


if __name__ == "__main__":
    sys.exit(main())
