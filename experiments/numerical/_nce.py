"""Noise-contrastive estimation (NCE) beside maximum likelihood, on items of known probabilities."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from crl_jax import losses

N_ITEMS = 50
N_OBSERVED, N_DRAWS = 200, 50
"""Observations of a drawn gradient, and how often it is drawn."""
N_FITTED, N_FITS = 20_000, 400
"""Observations of a fit, and how often it is made."""
RATIOS = tuple(4**i for i in range(6))
"""The k that are tried: noise samples to an observation."""
NOISES = {"uniform": 0.0, "popularity": 1.0}
"""Noise by name: to which power of its probability an item is drawn, against all others."""


class Items(NamedTuple):
    """Items that a model knows in part.

    Attributes:
      data: Probability of each, ``[n_items]``: that of the r-th is proportional to 1 / (r + 5).
      noise: Probability of each as noise.
      scores: The logarithms of the model's probabilities: of the data's, off by a normal number of
        deviation 0.5, normalised.
    """

    data: Float[Array, "n_items"]
    noise: Float[Array, "n_items"]
    scores: Float[Array, "n_items"]


def items_of(key: Key[Array, ""], power: float) -> Items:
    """The items, with noise of a power of their probabilities."""
    data = 1 / jnp.arange(6.0, N_ITEMS + 6.0)
    data /= data.sum()
    noise = data**power / jnp.sum(data**power)
    error = 0.5 * jax.random.normal(key, (N_ITEMS,))
    return Items(data, noise, jax.nn.log_softmax(jnp.log(data) + error))


def likelihood_gradient(items: Items) -> Float[Array, "n_items"]:
    """Gradient of the mean log-likelihood with respect to the scores (NCE note, Eq. 13)."""
    return items.data - jnp.exp(items.scores)


def nce_gradient(items: Items, k: float) -> Float[Array, "n_items"]:
    """That of the objective of NCE, in expectation over data and noise (NCE note, Eq. 10)."""
    u, noise = jnp.exp(items.scores), k * items.noise
    return noise / (u + noise) * (items.data - u)


def drawn_difference(key: Key[Array, ""], items: Items, k: int) -> Float[Array, "n_items"]:
    """The gradient of :func:`crl_jax.losses.nce`, less that of the likelihood.

    Both are of the same observations, with k noise samples each.
    """
    data_key, noise_key = jax.random.split(key)
    observed = jax.random.choice(data_key, N_ITEMS, (N_OBSERVED,), p=items.data)
    drawn = jax.random.choice(noise_key, N_ITEMS, (N_OBSERVED, k), p=items.noise)
    log_noise = jnp.log(items.noise)

    def loss(scores: Array) -> Array:
        return losses.nce(
            scores[observed], scores[drawn],
            pos_log_noise=log_noise[observed], neg_log_noise=log_noise[drawn],
        )  # fmt: skip

    shares = jnp.zeros(N_ITEMS).at[observed].add(1 / N_OBSERVED)
    return -jax.grad(loss)(items.scores) - likelihood_gradient(items._replace(data=shares))


@partial(jax.jit, static_argnames="k")
def _drawn(keys: Key[Array, "n"], items: Items, k: int) -> Float[Array, "n n_items"]:
    return jax.lax.map(lambda key: drawn_difference(key, items, k), keys)


def distances(key: Key[Array, ""], items: Items) -> dict[str, np.ndarray]:
    """How far the gradients of NCE lie from that of the likelihood, relative to its length.

    Returns:
      For each k: ``expected``, the distance of the expectation; ``drawn``, that of the mean of
      drawn gradients; and ``deviation``, the standard error of that mean, as a length too.
    """
    want = np.asarray(likelihood_gradient(items), np.float64)
    found: dict[str, list[float]] = {"expected": [], "drawn": [], "deviation": []}
    for k in RATIOS:
        keys = jax.random.split(jax.random.fold_in(key, k), N_DRAWS)
        drawn = np.asarray(_drawn(keys, items, k), np.float64)
        lengths = {
            "expected": np.asarray(nce_gradient(items, k), np.float64) - want,
            "drawn": drawn.mean(axis=0),
            "deviation": drawn.std(axis=0, ddof=1) / np.sqrt(N_DRAWS),
        }
        for name, vector in lengths.items():
            found[name].append(float(np.linalg.norm(vector) / np.linalg.norm(want)))
    return {name: np.array(values) for name, values in found.items()}


def fits(seed: int, items: Items) -> dict[str, np.ndarray]:
    r"""Errors of what NCE fits to samples, a number for each item.

    The optimum has a closed form: :math:`\hat u(x) = k q(x) n(x) / m(x)` for an item that is seen
    n(x) times among the data and m(x) times among the noise. That of the likelihood is its share
    of the data.

    Returns:
      For each k: ``error``, the mean square error of all probabilities, divided by that of maximum
      likelihood; ``theory``, what it tends to with many observations; and ``normaliser``, the
      standard deviation of the sum of the fitted probabilities, which nothing holds at 1.
    """
    rng = np.random.default_rng(seed)
    p, q = (np.asarray(x, np.float64) for x in (items.data, items.noise))
    p, q = p / p.sum(), q / q.sum()
    seen = rng.multinomial(N_FITTED, p, N_FITS)
    least = np.mean((seen / N_FITTED - p) ** 2)
    found: dict[str, list[float]] = {"error": [], "theory": [], "normaliser": []}
    for k in RATIOS:
        noise = rng.multinomial(k * N_FITTED, q, N_FITS)
        # An item that noise never drew would get an infinite estimate: it counts as drawn once.
        fitted = k * q * seen / np.maximum(noise, 1)
        found["error"].append(float(np.mean((fitted - p) ** 2) / least))
        # By the delta method, of counts that are nearly independent.
        spread = p * (1 - p) + p**2 * (1 - q) / (k * q)
        found["theory"].append(float(spread.sum() / np.sum(p * (1 - p))))
        found["normaliser"].append(float(fitted.sum(axis=1).std(ddof=1)))
    return {name: np.array(values) for name, values in found.items()}
