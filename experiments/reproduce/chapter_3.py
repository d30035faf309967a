"""Tables and figures of chapter 3: learning from noisy positives."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from crl_jax import losses, metrics, models, stats, tasks, train, weights

from .._progress import display
from ..recommend.objectives import group_bpr, likely_and_unpopular, popularity_mixture, ramp
from .comparisons import RankingTable
from .data import check_confidence_ratings, load_rated, with_noise
from .figures import draw_values, finish
from .methods import Method, Problem, Recipe
from .outcomes import ReportedMetrics
from .targets import Job, Options, Target, progress_callback, train_all, training_epochs
from .training import train_published

SCALE = 0.6
"""Variance of the initial values and of the score distribution on MovieLens; 0.2 on Yahoo!-R3."""
ROUNDS, TRIPLETS = 10, 1000
"""Number of EM rounds, and number of triplets per user in each."""
RATE = 0.4
"""The mean of the weight 2Ff·rating over the triplets of a training, which is the ratio of the
published code's effective learning rate to the stated one."""

_NOTES = (
    "The test part is half of the interactions with the top rating, or the given test part from "
    "--test-rating up; all other interactions, regardless of their rating, are positives in "
    "training. HIT_PRECISION is called MAP in the dissertation.",
    "The confidence is evaluated after training: the AUC of classifying training interactions "
    "rated above 1 against those rated 1.",
    "BPRAC's weights are divided by their mean, except in rows named unscaled. The score "
    "distribution is that of embeddings with the variance of the initial values, or is estimated "
    "from the scores by smoothing; the posterior uses the latter. The prior is BPRAC without "
    "scores.",
    "Truncated losses drop examples of a batch, and are therefore in the minibatch table only.",
)
_ABLATION_NOTES = (
    "Anchors are sampled as in the published code: a user uniformly, then one of its interactions; "
    "'each interaction once' is the sampling of the main table. That code multiplies the density "
    "by the rating, where the text has a prior by popularity, and does not divide by the mean: its "
    f"effective learning rate is {RATE:g} of the stated one. The first six rows have that rate, "
    "and weights of mean 1; the last four have the stated one. The last row is the published code "
    "of bprac.",
)


def epochs_per_round(problem: Problem) -> int:
    """Returns the number of epochs per EM round."""
    return max(1, round(TRIPLETS * problem.train.n_users / len(problem.train)))


RECIPE = Recipe(
    dim=27,
    learning_rate=0.05,
    weight_decay=0.01,
    deviation=math.sqrt(SCALE),
    epochs=lambda problem: ROUNDS * epochs_per_round(problem),
    metrics=(
        *(
            f"{name}@{k}"
            for k in (5, 10)
            for name in ("precision", "recall", "f1", "ndcg", "hit_precision")
        ),
        "auc",
    ),
    main="ndcg@10",
)


def _confidence(*, rated: bool = False, **changes: Any) -> Any:
    def make(problem: Problem) -> tasks.ConfidenceEM:
        log = problem.train
        prior: Any = weights.credibility_prior(log.item_counts)
        if rated:
            assert log.ratings is not None
            prior = tasks.InteractionPrior(jnp.asarray(log.ratings / log.ratings.max()))
        return tasks.ConfidenceEM(prior, every=epochs_per_round(problem), **changes)

    return make


_TRUNCATED: dict[str, Any] = {
    "batches": True,
    "hyperparams": {"drop_rate": 0.1},
    "schedule": ramp,
    "axis": ("drop_rate", (0.02, 0.05, 0.1, 0.2)),
    "published": "denoiserec",
}
_REWEIGHTED: dict[str, Any] = {
    "hyperparams": {"exponent": 0.25},
    "axis": ("exponent", (0.05, 0.1, 0.25, 0.5)),
    "published": "denoiserec",
}


def _recipe(scale: float) -> Recipe:
    return dataclasses.replace(RECIPE, deviation=math.sqrt(scale))


def _density(scale: float, **changes: Any) -> Any:
    """Returns the published confidence, with the distribution of the initial inner products."""
    distribution = stats.VarianceGamma(RECIPE.dim, scale)
    return _confidence(distribution=distribution, rule="density", **changes)


def methods(scale: float = SCALE) -> dict[str, Method]:
    """Returns the methods of chapter 3 by name.

    Args:
      scale: Variance of the initial values and of the score distribution.
    """
    make = partial(Method, recipe=_recipe(scale))
    rows = (
        make("bpr"),
        make(
            "gbpr", loss=group_bpr, hyperparams={"rho": 0.4}, n_group=3,
            axis=("rho", (0.2, 0.4, 0.6, 0.8)),
        ),
        make(
            "mpr", lambda problem: popularity_mixture(problem.train), loss=likely_and_unpopular,
            hyperparams={"balance": 0.5}, n_neg=2, n_pos=2,
            axis=("balance", (0.3, 0.5, 0.7, 0.9)),
        ),
        make("truncated bce", loss=losses.truncated_bce, **_TRUNCATED),
        make("truncated bpr", loss=losses.truncated_bpr, **_TRUNCATED),
        make("reweighted bce", loss=losses.reweighted_bce, **_REWEIGHTED),
        make("reweighted bpr", loss=losses.reweighted_bpr, **_REWEIGHTED),
        make("bprac", confidence=_density(scale)),
        # As in the text: the unnormalised confidence, of about 0.1, slows learning down.
        make("bprac, unscaled", confidence=_density(scale, normalize=False), published="bprac"),
        make("bprac, smoothed law", confidence=_confidence(rule="density")),
        make("posterior", confidence=_confidence()),
        make("prior", confidence=_confidence(rule="prior")),
    )  # fmt: skip
    return {method.label: method for method in rows}


def ablation(scale: float = SCALE) -> tuple[Method, ...]:
    """Returns an ablation of the factors that explain the published figures of table 3.3."""
    make = partial(Method, recipe=_recipe(scale), anchors="users")
    make_scaled = partial(make, rate=RATE)
    return (
        make_scaled("bpr at that rate"),
        make_scaled("density × prior", confidence=_density(scale)),
        make_scaled("posterior", confidence=_confidence()),
        make_scaled("prior", confidence=_confidence(rule="prior")),
        make_scaled("rating", confidence=_confidence(rule="prior", rated=True)),
        make_scaled("density × rating", confidence=_density(scale, rated=True)),
        make("bpr, each interaction once", anchors="interactions"),
        make("bpr"),
        make("density × prior, unscaled", confidence=_density(scale, normalize=False)),
        # The prior is the rating divided by its maximum, 5; the rate compensates for this.
        make(
            "density × rating, unscaled", rate=5.0, published="bprac",
            confidence=_density(scale, rated=True, normalize=False),
        ),
    )  # fmt: skip


ESTIMATES = ("prior", "bprac", "bprac, unscaled", "bprac, smoothed law", "posterior")
"""Methods whose confidence is evaluated."""
NOISE_RATES = (0.0, 0.1, 0.2, 0.3, 0.4)
ROBUST = ("bpr", "reweighted bpr", "bprac", "posterior")
"""Methods compared under injected noise."""
CONVERGING = ("bpr", "gbpr", "mpr", "reweighted bpr", "bprac", "posterior")
RULES = ("bprac", "posterior", "prior", "bpr")
"""Methods whose likelihood is tracked: three rules of the expectation step, and none."""


def draw_distributions(
    density: Callable[[stats.VarianceGamma, jax.Array], jax.Array], job: Job
) -> None:
    """Figures 3.2 and 3.3: score distributions of all, and of credible interactions."""
    x = jnp.linspace(-15.0, 15.0, 601)
    figure, rows = Figure(figsize=(12, 3.8), layout="constrained"), []
    panels = figure.subplots(1, 3, sharex=True)
    for axes, scale in zip(panels, (0.2, 0.6, 1.0), strict=True):
        for dim in (8, 27, 64):
            values = np.asarray(density(stats.VarianceGamma(dim, scale), x))
            axes.plot(x, values, label=f"d = {dim}")
            rows += [[dim, scale, *pair] for pair in zip(x.tolist(), values.tolist(), strict=True)]
        axes.set_title(f"λ = {scale:g}", fontsize=10)
        axes.legend()
    figure.supxlabel("score")
    figure.supylabel("density")
    finish(job, figure, ["dim", "scale", "score", "density"], rows)


def draw_roc(job: Job) -> None:
    """Figure 3.4: ROC of the confidence."""
    check_confidence_ratings(job.problem)
    outcomes = train_all(_estimates(job.options), job)
    figure = Figure(figsize=(5.5, 5), layout="constrained")
    axes, rates, rows = figure.subplots(), np.linspace(0, 1, 101), []
    for outcome in outcomes:
        auc = outcome.by_seed("confidence_auc").mean()
        axes.plot(rates, outcome.roc, label=f"{outcome.label}, AUC {auc:.3f}")
        rows += [[outcome.label, *pair] for pair in zip(rates, outcome.roc, strict=True)]
    axes.plot([0, 1], [0, 1], ":", color="0.6")
    axes.set(xlabel="false positive rate (interactions rated 1)", ylabel="true positive rate")
    axes.legend()
    finish(job, figure, ["method", "false_positive_rate", "true_positive_rate"], rows)


def draw_noise(job: Job) -> None:
    """Figure 3.5: injected false positives."""
    by_name = methods(job.options.distribution_scale)
    scores = {}
    for rate in NOISE_RATES:
        job.console.print(f"{rate:.0%} of false positives")
        noisy = job._replace(problems=[with_noise(job.problem, rate)])
        for outcome in train_all([by_name[name] for name in ROBUST], noisy):
            scores[outcome.label, rate] = outcome.by_seed(RECIPE.main)
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    for name in ROBUST:
        curve = np.array([scores[name, rate] for rate in NOISE_RATES])
        for axes, values in zip(panels, (curve, curve / curve[0]), strict=True):
            draw_values(axes, NOISE_RATES, values, capsize=3, label=name)
    ylabels = RECIPE.main.upper(), "relative to no noise"
    for axes, ylabel in zip(panels, ylabels, strict=True):
        axes.set(xlabel="false positives added per training interaction", ylabel=ylabel)
    panels[0].legend()
    rows = [
        [label, rate, seed, value]
        for (label, rate), values in scores.items()
        for seed, value in enumerate(values)
    ]
    setting = f", {job.options.setting} setting"
    finish(job, figure, ["method", "rate", "seed", RECIPE.main], rows, about=setting)


def _histories(
    job: Job, names: Sequence[str], probe: train.ValidationMetrics
) -> dict[str, list[dict[str, Any]]]:
    """Trains methods in the published setting with a hook, and returns their histories by name."""
    by_name, seeds = methods(job.options.distribution_scale), tuple(range(job.options.seeds))
    histories = {}
    with display(job.console) as screen:
        for name in names:
            epochs = training_epochs(by_name[name], job.options, job.problem)
            on_epoch = progress_callback(screen, name, epochs)
            outcome = train_published(
                by_name[name], job.problem, seeds, epochs, probe=probe, on_epoch=on_epoch
            )
            histories[name] = outcome.history
    return histories


def draw_convergence(job: Job) -> None:
    """Figure 3.6: convergence."""
    layout = metrics.eval_layout(job.problem.train, job.problem.test)
    probe = train.ValidationMetrics(jax.tree_util.Partial(_auc, layout))
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes, rows = figure.subplots(), []
    for name, history in _histories(job, CONVERGING, probe).items():
        steps = [entry["epoch"] for entry in history]
        curve = [float(np.mean(entry["auc"])) for entry in history]
        axes.plot(steps, curve, label=name)
        rows += [[name, *pair] for pair in zip(steps, curve, strict=True)]
    axes.set(xlabel="epoch", ylabel="AUC on test data")
    axes.legend()
    finish(job, figure, ["method", "epoch", "auc"], rows)


def _auc(
    layout: metrics.EvalLayout, task: tasks.Ranking, params: Any, model_state: Any
) -> dict[str, jax.Array]:
    """Returns the mean AUC over the test users."""
    del model_state
    tables = task.serving.serving_tables(params)
    return {"auc": jnp.mean(metrics.evaluate(models.inner_scores, tables, layout, ks=(1,))["auc"])}


def track_likelihood(problem: Problem, scale: float) -> train.ValidationMetrics:
    """Returns a hook that records the likelihood of lemma 3.2 and the constant of its proof.

    ``log_posterior`` is the mean over the training interactions, each with one fixed random
    negative, of the penalised log-likelihood log σ(s_ui - s_uj) - ½ λ ‖Θ‖², with the rows of the
    triplet in Θ. The proof assumes that the confidence (3.27) is a constant times the expectation
    (3.25). ``ratio_low`` and ``ratio_high`` are the 5 % and 95 % quantiles over the interactions of
    the quotient of the two, relative to its median; both would be 1.

    Args:
      problem: The data.
      scale: Variance of the initial values, whose score distribution both formulas use.
    """
    log = problem.train
    seen = np.zeros((log.n_users, log.n_items), bool)
    seen[log.users, log.items] = True
    rng = np.random.default_rng(0)
    negatives = rng.integers(log.n_items, size=len(log))
    while len(rejected := np.flatnonzero(seen[log.users, negatives])):
        negatives[rejected] = rng.integers(log.n_items, size=len(rejected))
    triplets = tuple(jnp.asarray(ids, jnp.int32) for ids in (log.users, log.items, negatives))
    prior = weights.credibility_prior(log.item_counts)[log.items]
    distribution = stats.VarianceGamma(RECIPE.dim, scale)
    return train.ValidationMetrics(
        jax.tree_util.Partial(_likelihood, triplets, prior, distribution)
    )


def _likelihood(
    triplets: tuple[jax.Array, jax.Array, jax.Array],
    prior: jax.Array,
    distribution: stats.VarianceGamma,
    task: tasks.Ranking,
    params: Any,
    model_state: Any,
) -> dict[str, jax.Array]:
    del model_state
    tables = task.serving.serving_tables(params)
    user, pos, neg = (
        table[ids]
        for table, ids in zip((tables.users, tables.items, tables.items), triplets, strict=True)
    )
    scores = jnp.sum(user * pos, axis=-1)
    squares = sum(jnp.sum(rows**2, axis=-1) for rows in (user, pos, neg))
    likelihood = jax.nn.log_sigmoid(scores - jnp.sum(user * neg, axis=-1))
    density = weights.confidence_density(scores, prior=prior, distribution=distribution)
    ratio = density / weights.confidence_posterior(scores, prior=prior, distribution=distribution)
    low, middle, high = jnp.quantile(ratio, jnp.array([0.05, 0.5, 0.95]))
    return {
        "log_posterior": jnp.mean(likelihood - RECIPE.weight_decay / 2 * squares),
        "ratio_low": low / middle,
        "ratio_high": high / middle,
    }


def draw_likelihood(job: Job) -> None:
    """Lemma 3.2: the penalised log-likelihood, and the constant of the proof."""
    round_length, scale = epochs_per_round(job.problem), job.options.distribution_scale
    columns = ("log_posterior", "ratio_low", "ratio_high")
    figure, rows = Figure(figsize=(11, 4.2), layout="constrained"), []
    left, right = figure.subplots(1, 2)
    for name, history in _histories(job, RULES, track_likelihood(job.problem, scale)).items():
        epochs = np.array([entry["epoch"] for entry in history])
        curves = {key: np.array([np.mean(entry[key]) for entry in history]) for key in columns}
        (line,) = left.plot(epochs, curves["log_posterior"], label=name)
        right.fill_between(
            epochs, curves["ratio_low"], curves["ratio_high"], alpha=0.2, color=line.get_color()
        )
        rows += [[name, *cells] for cells in zip(epochs, *curves.values(), strict=True)]
        steps = np.diff(curves["log_posterior"][epochs % round_length == 0])
        job.console.print(
            f"{name}: the log-likelihood falls in {np.sum(steps < 0)} of {len(steps)} rounds, by "
            f"at most {max(0.0, -steps.min(initial=0.0)):.4f}; the constant has 90 % of its values "
            f"from {curves['ratio_low'][-1]:.2f} to {curves['ratio_high'][-1]:.2f} times its median"
        )
    left.set(xlabel="epoch", ylabel="penalised log-likelihood per triplet")
    left.legend()
    right.axhline(1, color="0.3", linewidth=0.8)
    right.set(xlabel="epoch", ylabel="ĉ / E[c], relative to its median (90 %)")
    finish(job, figure, ["method", "epoch", *columns], rows)


def _check(options: Options) -> None:
    if options.splits > 1 and options.test_rating is not None:
        raise ValueError(
            "--splits splits the data randomly; --test-rating uses the given test part."
        )
    if options.ablation and options.setting != "published":
        raise ValueError("--ablation requires --setting published.")


def _estimates(options: Options, *_: object) -> tuple[Method, ...]:
    by_name = methods(options.distribution_scale)
    return tuple(by_name[name] for name in ESTIMATES)


def _all(options: Options, *_: object) -> tuple[Method, ...]:
    scale = options.distribution_scale
    return ablation(scale) if options.ablation else tuple(methods(scale).values())


_target = partial(
    Target,
    load=load_rated,
    data="interactions with ratings, such as ml-100k; movielens:100k is downloaded",
)
_FLAGS = ("test_rating", "distribution_scale")
_TABLE_FLAGS = (*_FLAGS, "splits", "methods", "sweep", "estimate")
_figure = partial(_target, flags=_FLAGS)
_untrained = partial(_figure, time="under 1 min, measured (no training)")
TARGETS: Mapping[str, Target] = {
    "table-3.2": _target(
        title="quality of the confidence",
        make=RankingTable(
            _estimates,
            lambda _: _NOTES,
            ReportedMetrics(("confidence_auc",), "confidence_auc", None),
            lambda _, problem: check_confidence_ratings(problem),
        ),
        flags=_TABLE_FLAGS,
        check=_check,
    ),
    "table-3.3": _target(
        title="learning from noisy positives",
        make=RankingTable(
            _all,
            lambda options: _NOTES + (_ABLATION_NOTES if options.ablation else ()),
            RECIPE.reported,
            lambda options, problem: (
                check_confidence_ratings(problem) if options.ablation else None
            ),
        ),
        flags=(*_TABLE_FLAGS, "ablation"),
        check=_check,
    ),
    "figure-3.2": _untrained(
        title="score distributions",
        make=partial(draw_distributions, lambda dist, x: dist.pdf(x)),
    ),
    "figure-3.3": _untrained(
        title="score distributions of credible interactions",
        make=partial(
            draw_distributions,
            lambda dist, x: weights.confidence_density(x, prior=1.0, distribution=dist),
        ),
    ),
    "figure-3.4": _figure(title="ROC of the confidence", make=draw_roc),
    "figure-3.5": _figure(title="randomly injected positives", make=draw_noise),
    "figure-3.6": _figure(title="convergence", make=draw_convergence, settings=("published",)),
    "lemma-3.2": _figure(
        title="likelihood over the rounds", make=draw_likelihood, settings=("published",)
    ),
}
