"""Population of the numerical experiment, and the errors of estimators on samples of it.

An anchor's scores are ``low + (high - low) x`` with x in [0, 1] of density
``2 phi(x) [lead (1 - Phi(x)) + (1 - lead) Phi(x)]``: the lower of two draws from the density phi
with probability ``lead``, otherwise the higher. ``lead`` is alpha for true negatives, 1 - alpha for
false ones, and their mixture has the same form. phi is one of :data:`POPULATIONS`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax import Array

from crl_jax import losses, weights

POPULATIONS: dict[str, tuple[Any, float, float] | None] = {
    "uniform": None,
    "normal": (scipy.stats.norm(), -3.0, 3.0),
    "t": (scipy.stats.t(3), -6.0, 6.0),
    "gamma": (scipy.stats.gamma(2), 0.0, 8.0),
}
"""Densities phi by name: a distribution and its interval mapped to [0, 1]; None for uniform."""
_GRID = 2048
"""Number of bins of a density that is not uniform; it is constant in each."""

# In the order of figures and tables. Normalised weights average to 1; the AUC of independent draws
# is lower than the alpha of the densities.
ESTIMATORS = {
    "biased": "biased mean",
    "dcl": "DCL",
    "bcl": "BCL",
    "bcl_normalised": "BCL normalised",
    "bcl_auc": "BCL with the AUC",
}


class Setting(NamedTuple):
    """Parameters of the score distribution and of the estimators; numbers, or arrays to sweep."""

    alpha: Any
    """Probability that the lower score of a pair belongs to the true negative."""
    gamma: Any
    """Variation of the anchors' ranges in [0, 1]; at 0 all anchors have the same range."""
    tau_plus: Any
    """Share of false negatives."""
    temperature: Any
    """Divisor of all scores."""
    half_width: Any
    """The widest range of scores is [-half_width, half_width]."""
    assumed_alpha: Any
    """The alpha assumed by BCL."""
    assumed_tau_plus: Any
    """The share of false negatives assumed by DCL and BCL."""


class Sample(NamedTuple):
    """Scores of anchors' unlabelled samples and extra positives."""

    neg: Array
    is_true: Array
    pos: Array


def quantile(lead: Any, v: Array) -> Array:
    """Inverse distribution function of the density ``2 [lead (1 - x) + (1 - lead) x]``.

    The root of ``2 lead x + (1 - 2 lead) x² = v``, in the form without cancellation.
    """
    root = jnp.sqrt(lead**2 + (1 - 2 * lead) * v)
    denom = lead + root
    return jnp.where(denom > 0, v / jnp.where(denom > 0, denom, 1), 0)  # 0/0 at lead = v = 0


def phi_icdf(population: str, u: Array) -> Array:
    """Inverse distribution function of phi, from [0, 1] to [0, 1]."""
    spec = POPULATIONS[population]
    if spec is None:
        return u
    distribution, low, high = spec
    cdf = distribution.cdf(np.linspace(low, high, _GRID + 1))
    cdf = (cdf - cdf[0]) / (cdf[-1] - cdf[0])
    return jnp.interp(u, jnp.asarray(cdf, u.dtype), jnp.linspace(0, 1, _GRID + 1, dtype=u.dtype))


def ranges(key: Array, setting: Setting, n_anchors: int) -> tuple[Array, Array]:
    """Returns the lowest and the highest score of each anchor, ``[n_anchors, 1]`` each.

    Both ends move inwards, by up to ``gamma`` times the half width.
    """
    shift = setting.gamma * jax.random.uniform(key, (2, n_anchors, 1))
    return -setting.half_width * (1 - shift[0]), setting.half_width * (1 - shift[1])


@partial(jax.jit, static_argnames=("n_anchors", "n_neg", "n_pos", "population"))
def draw(
    key: Array,
    setting: Setting,
    *,
    n_anchors: int,
    n_neg: int,
    n_pos: int,
    population: str = "uniform",
) -> Sample:
    """Draws labels and scores in closed form."""
    range_key, key = jax.random.split(key)
    low, high = ranges(range_key, setting, n_anchors)
    # In a single call: each call of the generator takes long to compile.
    v = jax.random.uniform(key, (n_anchors, 2 * n_neg + n_pos))
    for_label, for_neg, for_pos = jnp.split(v, (n_neg, 2 * n_neg), axis=-1)
    is_true = for_label >= setting.tau_plus
    neg = quantile(jnp.where(is_true, setting.alpha, 1 - setting.alpha), for_neg)
    neg, pos = phi_icdf(population, neg), phi_icdf(population, quantile(1 - setting.alpha, for_pos))
    return Sample(low + (high - low) * neg, is_true, low + (high - low) * pos)


def log_means(sample: Sample, setting: Setting) -> dict[str, Array]:
    """Log of each estimate of the mean of exp(score / t) over true negatives, ``[n_anchors]``."""
    neg, is_true, pos = sample
    common = dict(temperature=setting.temperature)
    bayesian = dict(tau_plus=setting.assumed_tau_plus, alpha=setting.assumed_alpha, beta=0.5)
    auc = 0.5 + (2 * setting.assumed_alpha - 1) / 3  # AUC of the densities with that alpha
    log_bcl = losses.bayesian_log_sum(neg, **bayesian, **common)
    log_sums = {
        "biased": losses.biased_log_sum(neg, **common),
        "dcl": losses.debiased_log_sum(neg, pos, **_dcl(setting)),
        "bcl": log_bcl,
        "bcl_normalised": log_bcl
        - jnp.log(jnp.mean(weights.bayesian_weights(neg, **bayesian), axis=-1)),
        "bcl_auc": losses.bayesian_log_sum(neg, **bayesian | dict(alpha=auc), **common),
    }
    means = {name: value - jnp.log(float(neg.shape[-1])) for name, value in log_sums.items()}
    log_supervised = losses.biased_log_sum(neg, **common, where=is_true)
    n_true = jnp.sum(is_true, axis=-1).astype(neg.dtype)
    return {"supervised": log_supervised - jnp.log(n_true), **means}


def _dcl(setting: Setting) -> dict[str, Any]:
    """Returns the hyper-parameters of DCL."""
    return dict(
        tau_plus=setting.assumed_tau_plus,
        min_score=-setting.half_width,
        temperature=setting.temperature,
    )


@partial(jax.jit, static_argnames=("n_anchors", "n_neg", "n_pos", "population"))
def measure(
    key: Array,
    settings: Setting,
    *,
    n_anchors: int,
    n_neg: int,
    n_pos: int,
    population: str = "uniform",
) -> dict[str, Array]:
    """Measures the error of each estimator at every point of a sweep.

    All points use the same random numbers, so that only the setting changes along a sweep.

    Args:
      key: A PRNG key.
      settings: Arrays of the same length, one entry for each point.
      n_anchors: Number of anchors.
      n_neg: Unlabelled samples per anchor.
      n_pos: Extra positives per anchor.
      population: Name of the density phi.

    Returns:
      Arrays ``[points, estimators]``, estimators as in :data:`ESTIMATORS`: ``mean`` of the
      estimates; ``bias``, ``mse`` and ``mse_over_bcl``, the mean over anchors of the error, of the
      squared error and of its excess over that of BCL; ``loss_bias``, the mean difference between
      the loss with the estimate and the loss with the supervised mean; and for each except
      ``mean`` the standard error with the suffix ``_se``. Then, ``[points]``, ``supervised``, the
      mean over true negatives, and ``clamped``, the share of anchors in which DCL's floor is
      active. All except ``clamped`` exclude anchors without a true negative.
    """
    bcl = list(ESTIMATORS).index("bcl")

    def point(setting: Setting) -> dict[str, Array]:
        sample = draw(
            key, setting, n_anchors=n_anchors, n_neg=n_neg, n_pos=n_pos, population=population
        )
        logs = log_means(sample, setting)
        log_supervised = logs["supervised"]
        log_means_ = jnp.stack([logs[name] for name in ESTIMATORS], axis=-1)
        has_true = jnp.any(sample.is_true, axis=-1)
        supervised = jnp.where(has_true, jnp.exp(log_supervised), 0)
        error = jnp.exp(log_means_) - supervised[:, None]

        def loss(log_mean: Array) -> Array:
            """The contrastive loss of an anchor's first positive, with N times this mean."""
            pos = sample.pos[:, :1] / setting.temperature
            return jax.nn.softplus(log_mean + jnp.log(float(n_neg)) - pos)

        values = {
            "bias": error,
            "mse": error**2,
            "mse_over_bcl": error**2 - error[:, bcl, None] ** 2,
            "loss_bias": loss(log_means_) - loss(jnp.where(has_true, log_supervised, 0)[:, None]),
        }
        result = {
            "mean": _mean(jnp.exp(log_means_), has_true),
            "supervised": _mean(supervised, has_true),
        }
        result["clamped"] = losses.floor_hit_rate(sample.neg, sample.pos, **_dcl(setting))
        n_used = jnp.sum(has_true).astype(error.dtype)
        for name, value in values.items():
            mean = _mean(value, has_true)
            variance = _mean((value - mean[None]) ** 2, has_true)
            result |= {name: mean, f"{name}_se": jnp.sqrt(variance / n_used)}
        return result

    return jax.lax.map(point, settings)


def _mean(values: Array, mask: Array) -> Array:
    """Returns the mean over the anchors that are kept."""
    return jnp.mean(values, axis=0, where=mask.reshape(-1, *(1,) * (values.ndim - 1)))


@partial(jax.jit, static_argnames=("n_anchors", "n_pos", "n_grid", "population"))
def limits(
    key: Array,
    setting: Setting,
    *,
    n_anchors: int,
    n_pos: int,
    n_grid: int = 4096,
    population: str = "uniform",
) -> dict[str, Array]:
    """Returns the root mean square errors in the limit of many unlabelled samples.

    They are computed from the known quantiles of each anchor's population. The error of DCL does
    not vanish for a fixed number of positives, because of their variance.
    """
    low, high = ranges(jax.random.split(key)[0], setting, n_anchors)
    v = (jnp.arange(n_grid, dtype=low.dtype)[None] + 0.5) / n_grid

    def scores(lead: Any) -> Array:
        return low + (high - low) * phi_icdf(population, quantile(lead, v))

    mixture = (1 - setting.tau_plus) * setting.alpha + setting.tau_plus * (1 - setting.alpha)
    mixed = scores(mixture)
    true = jnp.exp(scores(setting.alpha) / setting.temperature)
    false = jnp.exp(scores(1 - setting.alpha) / setting.temperature)
    grid_sample = Sample(mixed, jnp.ones(mixed.shape, bool), scores(1 - setting.alpha))
    logs = log_means(grid_sample, setting)
    result = {}
    for name in ESTIMATORS:
        error = jnp.exp(logs[name]) - jnp.mean(true, axis=-1)
        if name == "dcl":
            odds = setting.assumed_tau_plus / (1 - setting.assumed_tau_plus)
            error = jnp.hypot(error, odds * jnp.std(false, axis=-1) / jnp.sqrt(float(n_pos)))
        result[name] = jnp.sqrt(jnp.mean(error**2))
    return result
