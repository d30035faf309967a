"""Figures of chapter 3: score distributions, ROC, injected noise, convergence."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from crl_jax import metrics, models, stats, tasks, train, weights

from .._progress import display
from . import confidence as study
from .data import check_judgeable, load_rated, with_noise
from .targets import Job, Target, finish, length, shown, train_all
from .training import train_published

_LAWS = [(dim, scale) for dim in (8, 27, 64) for scale in (0.2, 0.6, 1.0)]


def laws(job: Job) -> None:
    """Figure 3.2: score distributions."""
    _draw_laws(job, lambda law, x: law.pdf(x))


def credible_laws(job: Job) -> None:
    """Figure 3.3: score distributions of credible interactions."""
    _draw_laws(job, lambda law, x: weights.confidence_density(x, prior=1.0, distribution=law))


def _draw_laws(job: Job, density: Any) -> None:
    x = jnp.linspace(-15.0, 15.0, 601)
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    rows = []
    for axes, (scale, group) in zip(
        figure.subplots(1, 3, sharex=True),
        itertools.groupby(sorted(_LAWS, key=lambda law: law[1]), key=lambda law: law[1]),
        strict=True,
    ):
        for dim, _ in group:
            values = np.asarray(density(stats.VarianceGamma(dim, scale), x))
            axes.plot(x, values, label=f"d = {dim}")
            rows += [[dim, scale, *pair] for pair in zip(x.tolist(), values.tolist(), strict=True)]
        axes.set_title(f"λ = {scale:g}", fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.supxlabel("score")
    figure.supylabel("density")
    finish(job, figure, ["dim", "scale", "score", "density"], rows)


def roc(job: Job) -> None:
    """Figure 3.4: ROC of the confidence."""
    check_judgeable(job.world)
    of = study.Study(job.options.law_scale)
    outcomes = train_all(of.tables()["3.2"], job)
    figure = Figure(figsize=(5.5, 5), layout="constrained")
    axes = figure.subplots()
    rates, rows = np.linspace(0, 1, 101), []
    for outcome in outcomes:
        auc = np.mean([m["confidence_auc"] for m in outcome.per_seed])
        axes.plot(rates, outcome.roc, label=f"{outcome.label}, AUC {auc:.3f}")
        rows += [[outcome.label, *pair] for pair in zip(rates, outcome.roc, strict=True)]
    axes.plot([0, 1], [0, 1], ":", color="0.6")
    axes.set_xlabel("share of the interactions rated 1 that pass")
    axes.set_ylabel("share of the others that pass")
    axes.grid(alpha=0.3)
    axes.legend()
    finish(job, figure, ["method", "false_positive_rate", "true_positive_rate"], rows)


def noise(job: Job) -> None:
    """Figure 3.5: injected false positives."""
    main, rows_of = study.RECIPE.main, study.Study(job.options.law_scale).rows()
    robust = tuple(rows_of[name] for name in study.ROBUST)
    scores = {}
    for rate in study.NOISE_RATES:
        job.console.print(f"{rate:.0%} of false positives")
        noisy = with_noise(job.world, rate)
        for outcome in train_all(robust, job, [noisy]):
            scores[outcome.label, rate] = np.array([m[main] for m in outcome.per_seed])
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    for method in robust:
        curve = np.array([scores[method.label, rate] for rate in study.NOISE_RATES])
        for axes, values in ((panels[0], curve), (panels[1], curve / curve[0])):
            deviation = values.std(axis=1, ddof=1) if values.shape[1] > 1 else None
            axes.errorbar(
                study.NOISE_RATES, values.mean(axis=1), deviation, fmt="o-", capsize=3,
                label=method.label,
            )  # fmt: skip
    panels[0].set_ylabel(main.upper())
    panels[1].set_ylabel("relative to that without noise")
    for axes in panels:
        axes.set_xlabel("false positives added per training interaction")
        axes.grid(alpha=0.3)
    panels[0].legend()
    rows = [
        [label, rate, seed, value]
        for (label, rate), values in scores.items()
        for seed, value in enumerate(values)
    ]
    setting = f", {job.options.setting} setting"
    finish(job, figure, ["method", "rate", "seed", main], rows, about=setting)


def convergence(job: Job) -> None:
    """Figure 3.6: convergence."""
    rows_of = study.Study(job.options.law_scale).rows()
    converging = tuple(rows_of[name] for name in study.CONVERGING)
    plan = metrics.eval_layout(job.world.train, job.world.test)
    probe = train.ValidationMetrics(jax.tree_util.Partial(_auc, plan))
    outcomes = []
    with display(job.console) as screen:
        for method in converging:
            epochs = length(method, job.options, job.world)
            outcomes.append(
                train_published(
                    method, job.world, tuple(range(job.options.seeds)), epochs, probe=probe,
                    on_epoch=shown(screen, method.label, epochs),
                )
            )  # fmt: skip
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    rows = []
    for outcome in outcomes:
        epochs = [entry["epoch"] for entry in outcome.history]
        curve = [float(np.mean(entry["auc"])) for entry in outcome.history]
        axes.plot(epochs, curve, label=outcome.label)
        rows += [[outcome.label, *pair] for pair in zip(epochs, curve, strict=True)]
    axes.set_xlabel("epoch")
    axes.set_ylabel("AUC on test data")
    axes.grid(alpha=0.3)
    axes.legend()
    finish(job, figure, ["method", "epoch", "auc"], rows)


def _auc(
    plan: metrics.EvalLayout, task: tasks.Ranking, params: Any, model_state: Any
) -> dict[str, jax.Array]:
    """Returns the mean AUC over the test users."""
    del model_state
    tables = task.serving.serving_tables(params)
    return {"auc": jnp.mean(metrics.evaluate(models.inner_scores, tables, plan, ks=(1,))["auc"])}


_OF_CONFIDENCE = ("test_rating", "law_scale")
FIGURE_3_2 = Target(
    title="Figure 3.2: laws of scores", load=load_rated, make=laws, flags=_OF_CONFIDENCE
)
FIGURE_3_3 = Target(
    title="Figure 3.3: laws of scores of credible interactions",
    load=load_rated, make=credible_laws, flags=_OF_CONFIDENCE,
)  # fmt: skip
FIGURE_3_4 = Target(
    title="Figure 3.4: ROC of the confidence", load=load_rated, make=roc, flags=_OF_CONFIDENCE
)
FIGURE_3_5 = Target(
    title="Figure 3.5: positives injected at random",
    load=load_rated, make=noise, flags=_OF_CONFIDENCE,
)  # fmt: skip
FIGURE_3_6 = Target(
    title="Figure 3.6: convergence",
    load=load_rated, make=convergence, flags=_OF_CONFIDENCE, settings=("published",),
)  # fmt: skip
