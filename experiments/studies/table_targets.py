"""Targets for the tables of the dissertation: their rows and the notes below them."""

import dataclasses

from crl_jax import stats

from . import confidence, contrastive, sampling
from .comparisons import Table
from .data import check_datasets, check_judgeable, load_datasets, load_parts, load_rated
from .methods import Method, Recipe, World
from .targets import Options, Target

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
_CONTRASTIVE_NOTES = (
    "All interactions of a dataset are put together, and a random fifth of them is the test part.",
    "The grids are those that were found good on MovieLens 100K, with as many points for every "
    "loss. On other data L2 on whole tables falls with the number of users and items, as the "
    "gradient of a row does. Epochs are fewer there, and learning rates four times as great on "
    "MovieLens 1M. On Gowalla and Yelp2018 they are eight times as great and L2 is a third of that "
    "with MF, five times and a tenth with LightGCN; these two have half of the points.",
)


def _judged(recipe: Recipe) -> Recipe:
    """Returns the recipe of a table on the quality of the confidence."""
    name = "confidence_auc"
    return dataclasses.replace(recipe, metrics=(name,), main=name, by_user=False)


def _check_splits(options: Options) -> None:
    if options.splits > 1 and options.test_rating is not None:
        raise ValueError("--splits cuts the data anew; --test-rating takes the test part given.")
    if options.ablation and options.setting != "published":
        raise ValueError("--ablation is of the published setting: leave out --setting.")


def _of_sampling(number: str, title: str, settings: tuple[str, ...] | None = None) -> Target:
    def rows(_: Options, encoder: str, of: tuple[str, World]) -> tuple[Method, ...]:
        del of
        made = sampling.TABLES[number]
        return tuple(map(contrastive.on_graph, made)) if encoder == "lightgcn" else made

    made = Target(
        title=f"Table {number}: {title}",
        load=load_parts,
        make=Table(number, rows, lambda _: _SAMPLING_NOTES),
        flags=("methods", "encoders", "estimate"),
        check=_check_encoders,
    )
    return dataclasses.replace(made, settings=settings) if settings else made


def _check_encoders(options: Options) -> None:
    if options.setting == "minibatch":
        return
    if "lightgcn" in options.encoders:
        raise ValueError(
            "--encoders lightgcn needs --setting minibatch: as published a step is one triplet, "
            "and each would take a propagation over the whole graph."
        )
    if options.estimate:
        raise ValueError("--estimate is of the minibatch setting: add --setting minibatch.")


def _of_confidence(title: str, table: Table, *flags: str) -> Target:
    return Target(
        title=f"Table {table.number}: {title}",
        load=load_rated,
        make=table,
        flags=("test_rating", "splits", "law_scale", "methods", *flags),
        check=_check_splits,
    )


def _of_contrastive(number: str, title: str) -> Target:
    def rows(_: Options, encoder: str, of: tuple[str, World]) -> tuple[Method, ...]:
        return contrastive.methods(number, encoder, *of)

    return Target(
        title=f"Table {number}: {title}",
        load=load_datasets,
        make=Table(
            number, rows, lambda _: _CONTRASTIVE_NOTES, encoders=contrastive.ENCODERS, long=True
        ),
        flags=("methods", "datasets", "encoders", "estimate"),
        settings=("minibatch",),
        check=check_datasets,
    )


TABLE_3_2 = _of_confidence(
    "quality of the confidence",
    Table(
        "3.2",
        lambda options, *_: confidence.Study(options.law_scale).tables()["3.2"],
        lambda _: _CONFIDENCE_NOTES,
        _judged,
        lambda _, world: check_judgeable(world),
    ),
)


def _rows_3_3(options: Options, *_: object) -> tuple[Method, ...]:
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
TABLE_5_2 = _of_contrastive("5.2", "contrastive losses and DPL")
TABLE_5_3 = _of_sampling("5.3", "DPL and negative samplers", ("minibatch",))
TABLE_6_3 = _of_contrastive("6.3", "contrastive losses and BCL")
