"""The figures of chapter 3: laws of scores, ROC, injected noise, convergence."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from crl_jax import metrics, models, stats, tasks, train, weights

from . import _credence_study as credence
from . import _study as study
from ._progress import display
from ._targets import TITLES, Options, finish, length, shown, train_all

_LAWS = [(dim, scale) for dim in (8, 27, 64) for scale in (0.2, 0.6, 1.0)]


def laws(options: Options, world: study.World, console: Console) -> None:
    """Figure 3.2."""
    _draw_laws(options, console, lambda law, x: law.pdf(x))


def credible_laws(options: Options, world: study.World, console: Console) -> None:
    """Figure 3.3."""
    _draw_laws(options, console, lambda law, x: weights.confidence(x, prior=1.0, law=law))


def _draw_laws(options: Options, console: Console, density: Any) -> None:
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
    figure.suptitle(TITLES[options.target])
    finish(figure, options, console, ["dim", "scale", "score", "density"], rows)


def roc(options: Options, world: study.World, console: Console) -> None:
    """Figure 3.4."""
    of = credence.Study(options.law_scale)
    outcomes = train_all(of.tables()["3.2"], options, [world], console)
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
    figure.suptitle(TITLES[options.target])
    finish(figure, options, console, ["method", "false_positive_rate", "true_positive_rate"], rows)


def noise(options: Options, world: study.World, console: Console) -> None:
    """Figure 3.5."""
    main, rows_of = credence.CREDENCE.main, credence.Study(options.law_scale).rows()
    robust = tuple(rows_of[name] for name in credence.ROBUST)
    scores = {}
    for rate in credence.NOISE_RATES:
        console.print(f"{rate:.0%} of false positives")
        noisy = credence.with_noise(world, rate)
        for outcome in train_all(robust, options, [noisy], console):
            scores[outcome.label, rate] = np.array([m[main] for m in outcome.per_seed])
    figure = Figure(figsize=(10, 4), layout="constrained")
    panels = figure.subplots(1, 2)
    for method in robust:
        curve = np.array([scores[method.label, rate] for rate in credence.NOISE_RATES])
        for axes, values in ((panels[0], curve), (panels[1], curve / curve[0])):
            deviation = values.std(axis=1, ddof=1) if values.shape[1] > 1 else None
            axes.errorbar(
                credence.NOISE_RATES, values.mean(axis=1), deviation, fmt="o-", capsize=3,
                label=method.label,
            )  # fmt: skip
    panels[0].set_ylabel(main.upper())
    panels[1].set_ylabel("relative to that without noise")
    for axes in panels:
        axes.set_xlabel("false positives added per training interaction")
        axes.grid(alpha=0.3)
    panels[0].legend()
    figure.suptitle(f"{TITLES[options.target]}, {options.setting} setting")
    rows = [
        [label, rate, seed, value]
        for (label, rate), values in scores.items()
        for seed, value in enumerate(values)
    ]
    finish(figure, options, console, ["method", "rate", "seed", main], rows)


def convergence(options: Options, world: study.World, console: Console) -> None:
    """Figure 3.6."""
    rows_of = credence.Study(options.law_scale).rows()
    converging = tuple(rows_of[name] for name in credence.CONVERGING)
    plan = metrics.ranking_plan(world.train, world.test)
    probe = train.Validate(jax.tree_util.Partial(_auc, plan))
    outcomes = []
    with display(console) as screen:
        for method in converging:
            epochs = length(method, options, world)
            outcomes.append(
                study.train_published(
                    method, world, tuple(range(options.seeds)), epochs, probe=probe,
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
    figure.suptitle(TITLES[options.target])
    finish(figure, options, console, ["method", "epoch", "auc"], rows)


def _auc(
    plan: metrics.RankingPlan, task: tasks.Ranking, params: Any, extra: Any
) -> dict[str, jax.Array]:
    """Mean AUC over the test users."""
    del extra
    tables = task.serving.serve(params)
    return {"auc": jnp.mean(metrics.evaluate(models.inner_scores, tables, plan, ks=(1,))["auc"])}
