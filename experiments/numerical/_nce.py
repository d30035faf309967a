"""Noise-contrastive estimation (NCE) versus maximum likelihood, with known item probabilities."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from crl_jax import losses

from .._panels import COLOURS, make_panels, save, stack_tables

N_ITEMS = 50
N_OBSERVED, N_DRAWS = 200, 50
"""Number of observations per sampled gradient, and number of sampled gradients."""
N_FITTED, N_FITS = 20_000, 400
"""Number of observations per fit, and number of fits."""
RATIOS = tuple(4**i for i in range(6))
"""Values of k, the number of noise samples per observation."""
NOISES = {"uniform": 0.0, "popularity": 1.0}
"""Noise by name: the exponent of the item probabilities, before normalisation."""


class Items(NamedTuple):
    """Items with true probabilities and those of an imperfect model.

    Attributes:
      data: Probability of each item, ``[n_items]``; that of the r-th is proportional to
        1 / (r + 5).
      noise: Probability of each item under the noise distribution.
      scores: Log-probabilities of the model: those of the data plus a normal error with standard
        deviation 0.5, normalised.
    """

    data: Float[Array, "n_items"]
    noise: Float[Array, "n_items"]
    scores: Float[Array, "n_items"]


def make_items(key: Key[Array, ""], power: float) -> Items:
    """Creates the items, with a noise distribution that is a power of their probabilities."""
    data = 1 / jnp.arange(6.0, N_ITEMS + 6.0)
    data /= data.sum()
    noise = data**power / jnp.sum(data**power)
    error = 0.5 * jax.random.normal(key, (N_ITEMS,))
    return Items(data, noise, jax.nn.log_softmax(jnp.log(data) + error))


def likelihood_gradient(items: Items) -> Float[Array, "n_items"]:
    """Gradient of the mean log-likelihood with respect to the scores (NCE note, Eq. 13)."""
    return items.data - jnp.exp(items.scores)


def nce_gradient(items: Items, k: float) -> Float[Array, "n_items"]:
    """Gradient of the expected NCE objective over data and noise (NCE note, Eq. 10)."""
    u, noise = jnp.exp(items.scores), k * items.noise
    return noise / (u + noise) * (items.data - u)


def sampled_difference(key: Key[Array, ""], items: Items, k: int) -> Float[Array, "n_items"]:
    """Returns the gradient of :func:`crl_jax.losses.nce` minus that of the likelihood.

    Both use the same observations; NCE uses k noise samples for each.
    """
    data_key, noise_key = jax.random.split(key)
    observed = jax.random.choice(data_key, N_ITEMS, (N_OBSERVED,), p=items.data)
    noise_items = jax.random.choice(noise_key, N_ITEMS, (N_OBSERVED, k), p=items.noise)
    log_noise = jnp.log(items.noise)

    def loss(scores: Array) -> Array:
        return losses.nce(
            scores[observed], scores[noise_items],
            pos_log_noise=log_noise[observed], neg_log_noise=log_noise[noise_items],
        )  # fmt: skip

    shares = jnp.zeros(N_ITEMS).at[observed].add(1 / N_OBSERVED)
    return -jax.grad(loss)(items.scores) - likelihood_gradient(items._replace(data=shares))


@partial(jax.jit, static_argnames="k")
def _sampled_differences(keys: Key[Array, "n"], items: Items, k: int) -> Float[Array, "n n_items"]:
    return jax.lax.map(lambda key: sampled_difference(key, items, k), keys)


def distances(key: Key[Array, ""], items: Items) -> dict[str, np.ndarray]:
    """Distances of the NCE gradients from that of the likelihood, relative to its norm.

    Returns:
      For each k: ``expected``, the distance of the expected gradient; ``drawn``, that of the mean
      of sampled gradients; and ``deviation``, the norm of the standard error of that mean.
    """
    reference = np.asarray(likelihood_gradient(items), np.float64)
    results: dict[str, list[float]] = {"expected": [], "drawn": [], "deviation": []}
    for k in RATIOS:
        keys = jax.random.split(jax.random.fold_in(key, k), N_DRAWS)
        sampled = np.asarray(_sampled_differences(keys, items, k), np.float64)
        vectors = {
            "expected": np.asarray(nce_gradient(items, k), np.float64) - reference,
            "drawn": sampled.mean(axis=0),
            "deviation": sampled.std(axis=0, ddof=1) / np.sqrt(N_DRAWS),
        }
        for name, vector in vectors.items():
            results[name].append(float(np.linalg.norm(vector) / np.linalg.norm(reference)))
    return {name: np.array(values) for name, values in results.items()}


def fits(seed: int, items: Items) -> dict[str, np.ndarray]:
    r"""Errors of NCE fits to samples, with one free parameter per item.

    The optimum has a closed form: :math:`\hat u(x) = k q(x) n(x) / m(x)` for an item that occurs
    n(x) times in the data and m(x) times in the noise. The maximum-likelihood estimate is the
    item's share of the data.

    Returns:
      For each k: ``error``, the mean square error of all probabilities, divided by that of maximum
      likelihood; ``theory``, its limit for many observations; and ``normaliser``, the standard
      deviation of the sum of the fitted probabilities, which is not constrained to 1.
    """
    rng = np.random.default_rng(seed)
    p, q = (np.asarray(x, np.float64) for x in (items.data, items.noise))
    p, q = p / p.sum(), q / q.sum()
    counts = rng.multinomial(N_FITTED, p, N_FITS)
    likelihood_error = np.mean((counts / N_FITTED - p) ** 2)
    results: dict[str, list[float]] = {"error": [], "theory": [], "normaliser": []}
    for k in RATIOS:
        noise_counts = rng.multinomial(k * N_FITTED, q, N_FITS)
        # An item absent from the noise would get an infinite estimate: it counts as drawn once.
        fitted = k * q * counts / np.maximum(noise_counts, 1)
        results["error"].append(float(np.mean((fitted - p) ** 2) / likelihood_error))
        # By the delta method, for nearly independent counts.
        variance = p * (1 - p) + p**2 * (1 - q) / (k * q)
        results["theory"].append(float(variance.sum() / np.sum(p * (1 - p))))
        results["normaliser"].append(float(fitted.sum(axis=1).std(ddof=1)))
    return {name: np.array(values) for name, values in results.items()}


def measure(seed: int) -> dict[str, dict[str, np.ndarray]]:
    """Returns :func:`distances` and :func:`fits` for each ``k``, keyed by noise distribution."""
    items_key, draw_key = jax.random.split(jax.random.key(seed))
    results = {}
    for name, power in NOISES.items():
        items = make_items(items_key, power)
        results[name] = {"k": np.array(RATIOS), **distances(draw_key, items), **fits(seed, items)}
    return results


def draw(folder: Path, by_noise: dict[str, dict[str, np.ndarray]]) -> None:
    """Plots the convergence of NCE to maximum likelihood, for each noise: gradients and fits."""
    figure, panels = make_panels(1, 2, (9.5, 3.9))
    for (name, row), colour, marker in zip(by_noise.items(), COLOURS, ("o", "s")):
        points: dict[str, Any] = dict(color=colour, marker=marker, linestyle="none", markersize=4)
        panels[0].plot(row["k"], row["expected"], color=colour, label=f"noise: {name}")
        panels[0].errorbar(row["k"], row["drawn"], 2 * row["deviation"], **points)
        panels[1].plot(row["k"], row["theory"], color=colour)
        panels[1].plot(row["k"], row["error"], **points)
    titles = "distance of the gradient, relative", "mean square error of a fit, relative"
    for axes, title in zip(panels, titles):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="k, noise samples per observation", title=title)
    panels[0].set_yscale("log")
    panels[0].legend()
    panels[1].axhline(1, color="0.5", linewidth=0.8)
    title = "NCE compared with maximum likelihood; lines: theory"
    save(figure, folder / "nce", title, *stack_tables("noise", by_noise))
