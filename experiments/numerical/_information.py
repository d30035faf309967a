"""Mutual information and contrastive losses: figure 6.1, and the bound of InfoNCE for Gaussians."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from crl_jax import losses, metrics

from .._panels import COLOURS, make_panels, save, stack_tables

SHARES = (0.0, 0.1, 0.3, 0.5)
"""Shares of false negatives in figure 6.1."""
DIM, TAU_PLUS, N_POS = 2, 0.1, 64
"""Dimension of the vectors, share of false negatives, and further positives per anchor of DCL."""
INFORMATIONS = (0.5, 1.0, 2.0)
"""Mutual informations of the two vectors, in nats."""
SIZES = tuple(4**i for i in range(6))
"""Numbers of negatives."""
_LABELS = {
    "supervised": "true negatives",
    "biased": "unlabelled (InfoNCE)",
    "debiased": "unlabelled, DCL",
    "bayesian": "unlabelled, BCL",
}


def density_ratio(score: np.ndarray, tau_plus: float, scale: float = 1.0) -> np.ndarray:
    """Density ratio of positives to true negatives, from a score fitted to unlabelled data (6.7).

    Args:
      score: Exponential of the positive's score, which tends to ``scale`` times the ratio of
        positives to unlabelled samples.
      tau_plus: Share of false negatives.
      scale: Constant of proportionality m.
    """
    return score * (1 - tau_plus) / (scale - score * tau_plus)


def draw_ratio(folder: Path) -> None:
    """Figure 6.1: the density ratio by score jumps at m / tau_plus."""
    figure, (axes,) = make_panels(1, 1, (5.5, 4), "p⁺ / p⁻")
    score = np.linspace(0, 12, 400)  # meets no pole
    rows = {}
    for share, colour in zip(SHARES, COLOURS):
        ratio = density_ratio(score, share)
        rows[share] = {"score": score, "ratio": ratio}
        for side in (ratio >= 0, ratio < 0):
            label = f"τ⁺ = {share:g}" if side[0] else None
            axes.plot(np.where(side, score, np.nan), ratio, color=colour, label=label)
        if share:
            axes.axvline(1 / share, color=colour, linewidth=0.8, linestyle=":")
    axes.set(xlabel="x̂⁺ in units of m", ylim=(-20, 20))
    axes.legend()
    title = "Density ratio implied by a score that is fitted to unlabelled data"
    save(figure, folder / "figure_6_1", title, *stack_tables("tau_plus", rows))


def log_ratio(x: Array, y: Array, rho: Array) -> Array:
    """Log density ratio p(y | x) / p(y) of standard normal vectors with correlation ``rho``."""
    noise_variance = 1 - rho**2
    pairs = (2 * rho * x * y - rho**2 * (x**2 + y**2)) / noise_variance - jnp.log(noise_variance)
    return jnp.sum(pairs, axis=-1) / 2


@partial(jax.jit, static_argnames=("n", "n_anchors"))
def measure(
    key: Key[Array, ""], information: Float[Array, ""], *, n: int, n_anchors: int
) -> dict[str, Float[Array, ""]]:
    """Bounds from the losses of the best score, the log density ratio.

    The vectors of true negatives are independent of the anchor; unlabelled samples are positives
    with probability :data:`TAU_PLUS`. The alpha of BCL is the AUC of the score.

    Args:
      key: A PRNG key.
      information: Mutual information of an anchor and its positive, in nats.
      n: Number of negatives.
      n_anchors: Number of anchors.

    Returns:
      By loss: the value of :func:`crl_jax.metrics.info_nce_bound`.
    """
    rho = jnp.sqrt(-jnp.expm1(-2 * information / DIM))
    label_key, key = jax.random.split(key)
    m = 2 * n + 2 + N_POS
    x, z = jnp.split(jax.random.normal(key, (n_anchors, m, DIM)), (1,), axis=1)
    is_true, is_false, positive = jnp.split(z, (n, 2 * n), axis=1)  # noise of each kind of sample
    positive, is_false = (rho * x + jnp.sqrt(1 - rho**2) * noise for noise in (positive, is_false))
    pos, true, false = (log_ratio(x, y, rho) for y in (positive, is_true, is_false))
    swapped = jax.random.uniform(label_key, true.shape) < TAU_PLUS
    unlabelled = jnp.where(swapped, false, true)
    auc = metrics.debiased_auc(pos.reshape(-1), true[:, 0], tau_plus=0.0)
    means = {
        "supervised": losses.info_nce(pos[:, 0], true),
        "biased": losses.info_nce(pos[:, 0], unlabelled),
        "debiased": losses.debiased_contrastive(
            pos, unlabelled, tau_plus=TAU_PLUS, min_score=-jnp.inf
        ),
        "bayesian": losses.bayesian_contrastive(
            pos[:, 0], unlabelled, tau_plus=TAU_PLUS, alpha=jnp.clip(auc, 0.5, 1), beta=0.5
        ),
    }
    return {name: metrics.info_nce_bound(loss, n) for name, loss in means.items()}


def grow(seed: int, n_anchors: int) -> dict[float, dict[str, np.ndarray]]:
    """Returns the bounds along the number of negatives, by mutual information."""
    bounds = {}
    for information in INFORMATIONS:
        key, nats = jax.random.key(seed), jnp.float32(information)
        by_size = [measure(key, nats, n=n, n_anchors=n_anchors) for n in SIZES]
        bounds[information] = {
            "n": np.array(SIZES, float),
            "largest": np.log1p(np.array(SIZES, float)),
            **{name: np.array([row[name] for row in by_size], np.float64) for name in _LABELS},
        }
    return bounds


def draw_bounds(folder: Path, by_information: dict[float, dict[str, np.ndarray]]) -> None:
    """Draws the bounds next to the mutual information."""
    ylabel = "log(N + 1) − loss, nats"
    figure, panels = make_panels(1, len(by_information), (11.5, 3.9), ylabel)
    for axes, (information, row) in zip(panels, by_information.items()):
        for (name, label), colour, marker in zip(_LABELS.items(), COLOURS, "os^v"):
            axes.plot(row["n"], row[name], color=colour, marker=marker, markersize=4, label=label)
        axes.plot(row["n"], row["largest"], ":", color="0.4", label="log(N + 1)")
        axes.axhline(information, color="black", linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set(
            xlabel="N, negatives", ylim=(-0.2, 1.5 * information + 0.2),
            title=f"mutual information {information:g}",
        )  # fmt: skip
    panels[-1].legend()
    title = f"Bound of mutual information for Gaussian vectors, τ⁺ = {TAU_PLUS:g}"
    save(figure, folder / "information", title, *stack_tables("information", by_information))
