"""Figures of the densities of scores and of the weights, each with a CSV file of its data."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import stats, weights

from .._panels import COLOURS, make_panels, save, stack_tables
from . import _model as model
from ._options import Config

_ALPHAS = (0.5, 0.7, 0.9, 1.0)
_CLASSES: dict[str, dict[str, Any]] = {
    "true_negative": dict(color="#0072B2", linestyle="-"),
    "false_negative": dict(color="#D55E00", linestyle="--"),
}


_DISTRIBUTIONS: dict[str, tuple[stats.Distribution, float, float]] = {
    "Gaussian, N(0, 1)": (stats.Normal(), -4.0, 4.0),
    "Student's t, 3 degrees of freedom": (stats.StudentT(3.0), -6.0, 6.0),
    "gamma, shape 2": (stats.Gamma(2.0), 0.0, 9.0),
}
"""Distributions of figure 4.3, and the shown ranges."""
_SPREADS = tuple(10.0**-i for i in range(5))
"""Standard deviations of the scores of an anchor, as embeddings become smoother."""


def order_statistic(folder: Path, k: int = 2, n: int = 5) -> None:
    """Figure 2.3: density of the k-th smallest of n normal scores of mean 1 and variance 5."""
    base = stats.Normal(1.0, 5**0.5)
    x = np.linspace(-7, 9, 321)
    distributions = {"density": base, "order_statistic": stats.OrderStatistic(base, k, n)}
    rows = {
        name: np.asarray(distribution.pdf(jnp.asarray(x)), np.float64)
        for name, distribution in distributions.items()
    }
    figure, (axes,) = make_panels(1, 1, (5.5, 3.6), "density")
    axes.plot(x, rows["density"], label="N(1, 5)", color=COLOURS[0])
    axes.plot(x, rows["order_statistic"], "--", label=f"k = {k} of n = {n}", color=COLOURS[3])
    axes.set(xlabel="x")
    axes.legend()
    table = [["x", *rows], np.transpose([x, *rows.values()])]
    save(figure, folder / "figure_2_3", "Density of an order statistic", *table)


def class_densities(folder: Path) -> None:
    """Figure 4.3: densities of true and false negatives, with a panel for each distribution."""
    figure, panels = make_panels(
        1, len(_DISTRIBUTIONS), (3.6 * len(_DISTRIBUTIONS), 3.4), "density"
    )
    rows = {}
    for axes, (title, (distribution, low, high)) in zip(panels, _DISTRIBUTIONS.items()):
        x = np.linspace(low, high, 241)
        rows[title] = {"score": x}
        for rank, (name, style) in enumerate(_CLASSES.items(), 1):
            density = stats.OrderStatistic(distribution, rank, 2).pdf(jnp.asarray(x))
            rows[title][name] = np.asarray(density, np.float64)
            axes.plot(x, rows[title][name], label=name.replace("_", " ") + "s", **style)
        axes.plot(
            x, distribution.pdf(jnp.asarray(x)), color="0.5", linewidth=0.8, label="all scores"
        )
        axes.set(xlabel="score", title=title)
    panels[0].legend()
    title = "Densities of the lower and of the higher of two scores"
    save(figure, folder / "figure_4_3", title, *stack_tables("distribution", rows))


def smoothed_weights(folder: Path, config: Config) -> None:
    """Weights of HCL and BCL as the scores of an anchor converge: their standard deviation.

    The ranks, on which the weights of BCL depend, do not change.
    """
    noise = jax.random.normal(jax.random.key(config.seed), (config.anchors, config.n_neg))
    rows: dict[str, dict[str, np.ndarray]] = {}
    for name in ("HCL, β = 1", "BCL, β = 0.9"):
        summaries = []
        for spread in _SPREADS:
            scores = 0.9 + spread * noise
            if name.startswith("HCL"):
                sample_weights = weights.hard_weights(
                    scores, beta=1.0, temperature=config.temperature
                )
            else:
                sample_weights = weights.bayesian_weights(
                    scores, tau_plus=config.tau_plus, alpha=config.alpha, beta=0.9
                )
            sample_weights = np.asarray(sample_weights, np.float64)
            share = weights.effective_sample_size(jnp.asarray(sample_weights)) / config.n_neg
            summaries.append(
                [
                    sample_weights.std(axis=-1).mean(),
                    sample_weights.max(axis=-1).mean(),
                    share.mean(),
                ]
            )
        deviation, largest, share = np.transpose(summaries)
        rows[name] = {
            "spread": np.array(_SPREADS), "deviation": deviation, "largest": largest,
            "effective_share": share,
        }  # fmt: skip
    figure, (left, right) = make_panels(1, 2, (10, 3.6))
    for (name, row), colour, marker in zip(rows.items(), COLOURS[2:], "os"):
        style = {"color": colour, "marker": marker, "label": name}
        left.loglog(row["spread"], row["deviation"], **style)
        right.semilogx(row["spread"], row["effective_share"], **style)
    left.set(ylabel="standard deviation of the weights")
    right.set(ylabel="effective share of the negatives", ylim=(0, 1.05))
    for axes in (left, right):
        axes.invert_xaxis()
        axes.set(xlabel="standard deviation of an anchor's scores")
    left.legend()
    title = f"Weights under over-smoothing, t = {config.temperature:g}"
    save(figure, folder / "smoothed", title, *stack_tables("weights", rows))


def densities(folder: Path) -> None:
    """Figure 6.4: densities of the scores of true and false negatives, with a panel for each α."""
    s = np.linspace(-4, 4, 401)
    cdf = np.asarray(jax.scipy.stats.norm.cdf(jnp.asarray(s)), np.float64)
    pdf = np.exp(-(s**2) / 2) / np.sqrt(2 * np.pi)
    figure, panels = make_panels(1, len(_ALPHAS), (3.1 * len(_ALPHAS), 3.2), "density", sharey=True)
    rows = {}
    for axes, alpha in zip(panels, _ALPHAS):
        rows[alpha] = {
            "score": s,
            "true_negative": 2 * pdf * (alpha * (1 - cdf) + (1 - alpha) * cdf),
            "false_negative": 2 * pdf * ((1 - alpha) * (1 - cdf) + alpha * cdf),
        }
        for name, style in _CLASSES.items():
            axes.plot(s, rows[alpha][name], label=name.replace("_", " ") + "s", **style)
        axes.set(xlabel="score s", title=f"α = {alpha:g}")
    panels[0].legend(loc="upper left")
    panels[0].set_ylim(0, 1.15 * panels[0].get_ylim()[1])
    title = "Densities of the two classes, ϕ standard normal"
    save(figure, folder / "figure_6_4", title, *stack_tables("alpha", rows))


def score_histograms(folder: Path, config: Config) -> None:
    """Figure 6.8: the empirical distribution of exp(s / t), with a panel for each α.

    The scores of one anchor are drawn from a normal distribution instead of a uniform.
    """
    edges, temperature, key = np.linspace(0, 6, 61), 2.0, jax.random.key(config.seed)
    size = 3.1 * len(_ALPHAS), 3.2
    figure, panels = make_panels(1, len(_ALPHAS), size, "empirical density", sharey=True)
    rows = {}
    for axes, alpha in zip(panels, _ALPHAS):
        tau_plus = config.tau_plus
        setting = model.Setting(alpha, 0.0, tau_plus, temperature, 0.5, alpha, tau_plus)
        sample = model.draw(key, setting, n_anchors=1, n_neg=20_000, n_pos=1)  # uniform in ±0.5
        scores = jnp.exp(jax.scipy.stats.norm.ppf(sample.neg + 0.5) / temperature)
        scores, is_true = np.asarray(scores[0]), np.asarray(sample.is_true[0])
        rows[alpha] = {"from": edges[:-1], "to": edges[1:]}
        for label, (name, style) in zip((is_true, ~is_true), _CLASSES.items()):
            counts = np.histogram(scores[label], edges)[0]
            density = rows[alpha][name] = counts / max(label.sum(), 1) / np.diff(edges)
            axes.stairs(density, edges, fill=True, color=style["color"], alpha=0.25)
            axes.stairs(density, edges, label=name.replace("_", " ") + "s", **style)
        axes.set(xlabel="exp(s / t)", title=f"α = {alpha:g}")
    panels[-1].legend()
    title = "Drawn scores, ϕ standard normal, t = 2"
    save(figure, folder / "figure_6_8", title, *stack_tables("alpha", rows))


def weight_curves(folder: Path, config: Config) -> None:
    """Weights of BCL by the empirical CDF of the scores, for several values of α and of β."""
    n, tau_plus = 1000, config.tau_plus
    u = np.arange(1, n + 1) / n
    curves = {"α": [(alpha, 0.5) for alpha in _ALPHAS], "β": [(0.9, beta) for beta in _ALPHAS]}
    figure, panels = make_panels(1, 2, (8.4, 3.6), "weight ω")
    table: list[list[Any]] = []
    for axes, (swept, pairs), fixed in zip(panels, curves.items(), ("β = 0.5", "α = 0.9")):
        title = f"{fixed}, τ⁺ = {tau_plus:g}"
        for (alpha, beta), colour, line in zip(pairs, COLOURS, ("-", "--", "-.", ":")):
            ranked, value = jnp.arange(float(n)), alpha if swept == "α" else beta
            omega = weights.bayesian_weights(ranked, tau_plus=tau_plus, alpha=alpha, beta=beta)
            axes.plot(u, omega, color=colour, linestyle=line, label=f"{swept} = {value:g}")
            table += [
                [f"{swept}: {title}", swept, value, *row] for row in zip(u, np.asarray(omega))
            ]
        axes.axhline(1, color="0.5", linewidth=0.8)
        axes.set(xlabel="u, share of the anchor's scores that are no larger", title=title)
        axes.set_ylim(bottom=0)
        axes.legend()
    header = ["panel", "swept", "value", "u", "omega"]
    save(figure, folder / "weights", "Weight of a sample, by its rank", header, table)
