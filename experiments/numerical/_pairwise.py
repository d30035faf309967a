"""Error of the debiased pairwise loss (DPL): lemmas 5.2 and 5.3, on a population of known labels.

Cosine similarities lie in [-1, 1]. True negatives are distributed as the lower and positives as the
higher of two uniform draws, with probability :data:`ALPHA`.
"""

import math
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from crl_jax import losses

from .._panels import COLOURS, make_panels, save, stack_tables
from ._model import quantile

ALPHA = 0.9
SIZES = tuple(4**i for i in range(1, 6))
"""Numbers of unlabelled samples and of further positives, N = M."""
SIZE = 100
"""Number of unlabelled samples and of further positives in the sweep of the prior."""
SHARES = (0.1, 0.3, 0.6)
"""Shares of false negatives in the sweep of the sizes."""
PRIORS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
"""Shares of false negatives in the sweep of the prior."""
_NODES = 4096


def printed_bound(tau_plus: float, n: int, m: int) -> float:
    """Returns the bound of lemma 5.3 on the mean absolute error, as printed."""
    return math.e**2 * (math.sqrt(2 * math.pi / n) + tau_plus * math.sqrt(2 * math.pi / m))


def scores(lead: float | Array, v: Array) -> Array:
    """Returns cosine similarities for uniform numbers ``v``."""
    return 2 * quantile(lead, v) - 1


def supervised(pos: Float[Array, "n"]) -> Float[Array, "n"]:
    """Supervised loss (5.27) of each positive, over all true negatives of the population."""
    neg = scores(ALPHA, (jnp.arange(_NODES, dtype=pos.dtype) + 0.5) / _NODES)
    true = jnp.ones((len(pos), _NODES), bool)
    negatives = jnp.broadcast_to(neg, true.shape)
    return losses.oracle_pairwise(pos, negatives, true_negative=true, reduce_fn=None)


@partial(jax.jit, static_argnames=("n", "n_anchors"))
def measure(
    key: Key[Array, ""], tau_plus: Float[Array, "points"], *, n: int, n_anchors: int
) -> dict[str, Float[Array, "points"]]:
    """Errors of DPL on samples, for several shares of false negatives.

    Args:
      key: A PRNG key; all points use the same random numbers.
      tau_plus: Shares of false negatives, which the loss receives as its prior.
      n: Number of unlabelled samples, and of further positives.
      n_anchors: Number of anchors, each with its positive and its samples.

    Returns:
      For each point: ``error``, the mean over anchors of the absolute difference from the
      supervised loss (5.27), of anchors with a positive estimate; ``loss_error``, the absolute
      difference of the mean losses, with the default floor; ``biased_error``, the same without
      debiasing; ``half_error``, with ½ for the mean over further positives; ``undefined``, the
      share of anchors whose estimate is not positive, so that its logarithm does not exist.
    """
    v = jax.random.uniform(key, (n_anchors, 1 + 3 * n))
    for_own, for_label, for_neg, for_pos = jnp.split(v, (1, 1 + n, 1 + 2 * n), axis=-1)
    pos = scores(1 - ALPHA, for_own)
    both = jnp.concatenate([pos, scores(1 - ALPHA, for_pos)], axis=-1)
    target = supervised(pos[:, 0])

    def point(share: Array) -> dict[str, Array]:
        neg = scores(jnp.where(for_label < share, 1 - ALPHA, ALPHA), for_neg)
        mixed, false = (
            jnp.mean(jax.nn.sigmoid(pos - samples), axis=-1) for samples in (neg, both[:, 1:])
        )
        is_positive = mixed - share * false > 0
        dpl = partial(losses.debiased_pairwise, reduce_fn=None)
        error = jnp.abs(dpl(both, neg, tau_plus=share, floor=0.0) - target)
        differences = {
            "loss_error": dpl(both, neg, tau_plus=share),
            "biased_error": dpl(both, neg, tau_plus=0.0),
            "half_error": dpl(pos[:, 0], neg, tau_plus=share),
        }
        return {
            "error": jnp.mean(error, where=is_positive),
            **{name: jnp.abs(jnp.mean(loss - target)) for name, loss in differences.items()},
            "undefined": jnp.mean((~is_positive).astype(error.dtype)),
        }

    return jax.lax.map(point, tau_plus)


def _numbers(arrays: dict[str, Array]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value, np.float64) for name, value in arrays.items()}


def grow(seed: int, n_anchors: int) -> dict[float, dict[str, np.ndarray]]:
    """Returns the errors along N = M, by share of false negatives."""
    key, shares = jax.random.key(seed), jnp.asarray(SHARES)
    by_size = [_numbers(measure(key, shares, n=n, n_anchors=n_anchors)) for n in SIZES]
    return {
        share: {
            "n": np.array(SIZES, float),
            **{name: np.array([errors[name][i] for errors in by_size]) for name in by_size[0]},
            "bound": np.array([printed_bound(share, n, n) for n in SIZES]),
        }
        for i, share in enumerate(SHARES)
    }


def sweep(seed: int, n_anchors: int) -> dict[str, np.ndarray]:
    """Returns the errors along the prior, for N = M = :data:`SIZE`, with two bounds.

    ``bound`` is that of the lemma as printed; ``corrected`` has the factor 1 / (1 - tau_plus),
    which the step to (5.34) omits: the expectation there is at least (1 - tau_plus) / (1 + e²).
    """
    errors = _numbers(
        measure(jax.random.key(seed), jnp.asarray(PRIORS), n=SIZE, n_anchors=n_anchors)
    )
    priors = np.array(PRIORS)
    bound = np.array([printed_bound(share, SIZE, SIZE) for share in PRIORS])
    return {"tau_plus": priors, **errors, "bound": bound, "corrected": bound / (1 - priors)}


def draw(folder: Path, seed: int, n_anchors: int) -> None:
    """Draws both lemmas."""
    _draw_growth(folder, grow(seed, n_anchors))
    _draw_bound(folder, sweep(seed, n_anchors))


def _draw_growth(folder: Path, by_share: dict[float, dict[str, np.ndarray]]) -> None:
    """Lemma 5.2: difference of the mean losses as N = M grow."""
    ylabel = "|mean loss − mean supervised loss|"
    figure, panels = make_panels(1, len(by_share), (11.5, 3.9), ylabel, sharey=True)
    styles: dict[str, dict[str, Any]] = {
        "loss_error": dict(label="DPL", color=COLOURS[2], marker="o"),
        "half_error": dict(label="DPL, ½ for further positives", color=COLOURS[0], marker="^"),
        "biased_error": dict(label="not debiased", color=COLOURS[3], marker="s"),
        "error": dict(label="DPL, mean of single differences", color=COLOURS[1], marker="v"),
    }
    for axes, (share, row) in zip(panels, by_share.items()):
        for name, style in styles.items():
            axes.plot(row["n"], row[name], markersize=4, **style)
        axes.plot(row["n"], row["bound"], ":", color="0.4", label="bound of lemma 5.3")
        axes.set_xscale("log", base=2)
        axes.set(xlabel="N = M", title=f"τ⁺ = {share:g}", yscale="log")
    panels[0].legend()
    title = "Lemma 5.2: convergence of DPL to the supervised pairwise loss"
    save(figure, folder / "lemma_5_2", title, *stack_tables("tau_plus", by_share))


def _draw_bound(folder: Path, row: dict[str, np.ndarray]) -> None:
    """Lemma 5.3: the error and its bound, and estimates that are not positive."""
    figure, (left, right) = make_panels(1, 2, (9.5, 3.9))
    tau_plus = row["tau_plus"]
    left.plot(tau_plus, row["error"], "o-", color=COLOURS[2], markersize=4, label="mean error")
    left.plot(tau_plus, row["bound"], ":", color="0.4", label="bound as printed")
    left.plot(tau_plus, row["corrected"], "--", color=COLOURS[0], label="bound / τ⁻")
    left.set(xlabel="τ⁺", ylabel="|DPL − supervised|, positive estimates", yscale="log")
    left.legend()
    right.plot(tau_plus, 100 * row["undefined"], "o-", color=COLOURS[3], markersize=4)
    right.set(xlabel="τ⁺", ylabel="estimates that are not positive, %")
    title = f"Lemma 5.3 for N = M = {SIZE}: without a floor, the loss need not exist"
    save(figure, folder / "lemma_5_3", title, list(row), np.transpose(list(row.values())))
