"""Blend of several models into one, whose scores are sums of standardised scores."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._encoder import Tables

_HIGHEST = jax.lax.Precision.HIGHEST
_ROUNDING = 1e-6


def blend(members: Sequence[Tables], weights: Sequence[float] | None = None) -> Tables:
    r"""Concatenates the vectors of several models, such that each counts by its weight.

    The scores of the result are, up to a constant of each user, which changes no ranking, the sum
    of the standardised scores of the members:

    .. math::
       s(u, i) = \sum_m \frac{w_m}{\sigma_m(u)} \langle u_m, i_m \rangle, \qquad
       \sigma_m^2(u) = \operatorname{Var}_i \langle u_m, i_m \rangle = u_m^\top C_m u_m,

    where :math:`C_m` is the covariance matrix of the item vectors of member m. A user whose scores
    by a member are all equal is left to the other members.

    Args:
      members: Vectors of each model, float32, whose inner products are its scores, see
        :meth:`Encoder.serving_tables`. Their dimensions may differ.
      weights: Weight of each member, finite and >= 0; by default all equal 1.

    Returns:
      Vectors of the sum of the dimensions, for inner products.

    Raises:
      ValueError: If there is no member, the numbers of users or items differ, or the weights are
        out of range.

    References:
      Montague and Aslam, `Relevance Score Normalization for Metasearch
      <https://doi.org/10.1145/502585.502657>`_, 2001 (zero mean, unit variance).

    >>> users, items = jnp.ones((1, 1)), jnp.array([[1.0], [2.0], [4.0]])
    >>> made = blend([Tables(users, items), Tables(users, -100 * items)], weights=[3, 1])
    >>> scores = (made.users @ made.items.T)[0]
    >>> round(float(scores.std()), 4)  # 3 - 1: the second model ranks in the opposite order
    2.0
    """
    if not members:
        raise ValueError("`members` must hold at least one model, got none.")
    sizes = [(len(each.users), len(each.items)) for each in members]
    if len(set(sizes)) > 1:
        raise ValueError(f"`members` must have equal numbers of users and of items, got {sizes}.")
    factors = np.ones(len(members)) if weights is None else np.asarray(weights, np.float64)
    if factors.shape != (len(members),) or not np.isfinite(factors).all() or (factors < 0).any():
        raise ValueError(
            f"`weights` must be {len(members)} finite numbers of at least 0, one per member, got "
            f"{weights}."
        )
    users, items = zip(*map(_standardized, members), strict=True)
    users = [jnp.float32(factor) * each for factor, each in zip(factors, users, strict=True)]
    return Tables(jnp.concatenate(users, axis=1), jnp.concatenate(items, axis=1))


@jax.jit
def _standardized(tables: Tables) -> Tables:
    """Scales the vectors such that each user's scores over all items have unit variance."""
    users = tables.users / _max_abs(tables.users, axis=1)  # neither overflows nor underflows
    items = tables.items / _max_abs(tables.items, axis=None)
    centred = items - items.mean(axis=0, keepdims=True)
    covariance = jnp.matmul(centred.T, centred, precision=_HIGHEST) / len(centred)
    variance = (jnp.matmul(users, covariance, precision=_HIGHEST) * users).sum(axis=1)
    # Less than the rounding errors of the scores: they are equal.
    least = _ROUNDING**2 * (users**2).sum(axis=1) * (items**2).sum(axis=1).mean()
    varies = variance > least
    factors = jnp.where(varies, jax.lax.rsqrt(jnp.where(varies, variance, 1.0)), 0.0)
    return Tables(users * factors[:, None], items)


def _max_abs(vectors: Float[Array, "n dim"], axis: int | None) -> Float[Array, "..."]:
    """Returns the largest absolute value, or 1 if all are 0."""
    largest = jnp.abs(vectors).max(axis=axis, keepdims=True)
    return jnp.where(largest > 0, largest, 1.0)
