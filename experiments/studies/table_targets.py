"""Tables of the dissertation as targets: which rows they have, and what is said below them."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from crl_jax import stats

from . import confidence, sampling
from .data import check_judgeable, load_parts, load_rated
from .methods import Method, Recipe, World
from .published import published
from .tables import compare, rich_table, write_table
from .targets import Job, Options, Target, length, train_all

_DKW_SAMPLES = 64
_SAMPLING_NOTES = (
    "BNS takes the distribution of scores over all that a user has not taken, exactly, but for the "
    f"row that names a sample: of {_DKW_SAMPLES} items its error is at most "
    f"{stats.dkw_error(_DKW_SAMPLES):.2f} with 95 % confidence, and a little more where the user "
    "has taken some of them.",
)
_CONFIDENCE_NOTES = (
    "Test data are half of the interactions with the top rating, or the test part from "
    "--test-rating up; all other interactions, whatever their rating, are positives in training. "
    "HIT_PRECISION is what the dissertation calls MAP.",
    "The confidence is judged, after training, by the AUC with which it tells training "
    "interactions rated above 1 from those rated 1.",
    "BPRAC's weights are divided by their mean, but for rows that are not scaled. The law is that "
    "of embeddings with the variance of the initial values, or is smoothed off the scores; the "
    "posterior takes the latter. The prior is BPRAC without a look at scores.",
    "Truncated losses need batches to drop from, and stand in the minibatch table alone.",
)
_ABLATION_NOTES = (
    "Anchors are drawn as the published code draws them: a user uniformly, then one of its "
    "interactions; 'each interaction once' is how the main table trains. That code multiplies the "
    "density by the rating, where the text has a prior by popularity, and does not divide by the "
    f"mean: its learning rate is in effect {confidence.RATE:g} of the one stated. The first six "
    "rows have that rate, and weights of mean 1; the last four have the stated one. The last row "
    "does what the published code of bprac does.",
)


@dataclass(frozen=True)
class Table:
    """What makes a table.

    Attributes:
      number: Of the dissertation's table.
      methods: Its rows.
      notes: What is said below it, besides how its methods were trained.
      recipe: What is reported, from what is common to the methods.
      check: Raises ``ValueError`` for data that do not do.
    """

    number: str
    methods: Callable[[Options], tuple[Method, ...]]
    notes: Callable[[Options], tuple[str, ...]]
    recipe: Callable[[Recipe], Recipe] = lambda recipe: recipe
    check: Callable[[Options, World], None] = lambda options, world: None

    def __call__(self, job: Job) -> None:
        """Trains the methods, prints the table and writes it."""
        options = job.options
        self.check(options, job.world)
        methods = self._rows(options)
        outcomes = train_all(methods, job)
        dataset = options.dataset or options.data.resolve().name
        known = published(self.number, dataset, "mf")
        recipe = self.recipe(methods[0].recipe)
        rows = compare(outcomes, [known.get(m.published or m.label, {}) for m in methods], recipe)
        kind = "ablation" if options.ablation else f"{options.setting} setting"
        title = f"{job.title}, {dataset}, {kind}"
        job.console.print(rich_table(rows, title, recipe))
        name = "ablation" if options.ablation else options.setting
        splits = f"-{options.splits}-splits" if options.splits > 1 else ""
        path = options.out / f"{options.target}-{name}{splits}.md"
        epochs = length(methods[0], options, job.world)
        notes = [
            _trained(options, methods, recipe.main, bool(known)),
            _how(options, methods, epochs),
        ]
        write_table(rows, title, [*notes, *self.notes(options)], path, recipe)
        job.console.print(f"results in {path.with_suffix('')}.md, .csv, .png")

    def _rows(self, options: Options) -> tuple[Method, ...]:
        """Those that the setting can train and that --methods names."""
        minibatch = options.setting == "minibatch"
        possible = [m for m in self.methods(options) if minibatch or not m.batches]
        return choose(tuple(possible), options.methods)


def choose(methods: tuple[Method, ...], names: tuple[str, ...]) -> tuple[Method, ...]:
    """The methods of these names, in their order; all if there are none.

    Raises:
      ValueError: If there is no such method.
    """
    labels = [method.label for method in methods]
    for name in names:
        if name not in labels:
            known = ", ".join(f'"{label}"' for label in labels)
            raise ValueError(f'--methods takes some of {known}, got "{name}".')
    return tuple(methods[labels.index(name)] for name in names) or methods


def _trained(options: Options, methods: tuple[Method, ...], main: str, known: bool) -> str:
    """How often, and how rows are compared."""
    times, units = f"{options.seeds} seeds", "seeds"
    if options.splits > 1:
        times, units = f"{options.splits} splits of {times} each", "splits"
    return (
        f"Matrix factorisation of width {methods[0].recipe.dim}, {times}: mean ± standard "
        f"deviation over {units}{' (published)' if known else ''}. Gain is {main.upper()} less "
        f"that of {methods[0].label}; p-values are two-sided, of paired t-tests over {units} and "
        "over users (each averaged over all trainings), adjusted by Holm's method."
    )


def _how(options: Options, methods: tuple[Method, ...], epochs: int) -> str:
    """The setting."""
    recipe = methods[0].recipe
    if options.setting == "minibatch":
        own = ", times 4 where it has a number of its own"
        return (
            f"Adam, batches of 1,024; for each method a search of 8 points of {epochs} epochs on a "
            f"validation part{own if any(m.axis for m in methods) else ''}, then all seeds on all "
            "training data."
        )
    draws = " or ".join(f"{n:,}" for n in sorted({m.draw for m in methods}))
    return (
        f"SGD, one triplet a step, learning rate {recipe.learning_rate:g}, L2 "
        f"{recipe.weight_decay:g}, initial values N(0, {recipe.deviation:.3g}²), {epochs} epochs; "
        f"scored after the last. Negatives are drawn for {draws} triplets at a time, from the "
        "parameters before them."
    )


def _judged(recipe: Recipe) -> Recipe:
    """For a table of the confidence itself."""
    name = "confidence_auc"
    return dataclasses.replace(recipe, metrics=(name,), main=name, by_user=False)


def _check_splits(options: Options) -> None:
    if options.splits > 1 and options.test_rating is not None:
        raise ValueError("--splits cuts the data anew; --test-rating takes the test part given.")
    if options.ablation and options.setting != "published":
        raise ValueError("--ablation is of the published setting: leave out --setting.")


def _of_sampling(number: str, title: str, settings: tuple[str, ...] | None = None) -> Target:
    rows = sampling.TABLES[number]
    made = Target(
        title=f"Table {number}: {title}",
        load=load_parts,
        make=Table(number, lambda _: rows, lambda _: _SAMPLING_NOTES),
        flags=("methods",),
    )
    return dataclasses.replace(made, settings=settings) if settings else made


def _of_confidence(title: str, table: Table, *flags: str) -> Target:
    return Target(
        title=f"Table {table.number}: {title}",
        load=load_rated,
        make=table,
        flags=("test_rating", "splits", "law_scale", "methods", *flags),
        check=_check_splits,
    )


TABLE_3_2 = _of_confidence(
    "quality of the confidence",
    Table(
        "3.2",
        lambda options: confidence.Study(options.law_scale).tables()["3.2"],
        lambda _: _CONFIDENCE_NOTES,
        _judged,
        lambda _, world: check_judgeable(world),
    ),
)


def _rows_3_3(options: Options) -> tuple[Method, ...]:
    of = confidence.Study(options.law_scale)
    return of.ablation() if options.ablation else of.tables()["3.3"]


TABLE_3_3 = _of_confidence(
    "learning from noisy positives",
    Table(
        "3.3",
        _rows_3_3,
        lambda options: _CONFIDENCE_NOTES + (_ABLATION_NOTES if options.ablation else ()),
        check=lambda options, world: check_judgeable(world) if options.ablation else None,
    ),
    "ablation",
)
TABLE_4_2 = _of_sampling("4.2", "negative samplers")
TABLE_4_3 = _of_sampling("4.3", "variants of BNS")
TABLE_4_4 = _of_sampling("4.4", "BNS with other losses")
TABLE_4_5 = _of_sampling("4.5", "BNS with an oracle prior")
TABLE_5_3 = _of_sampling("5.3", "DPL and negative samplers", ("minibatch",))
