"""Samplers with a fixed distribution."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from .._checks import check_shape
from .._floats import at_least_float32
from .._hyperparams import Range
from .._pytree import pytree_dataclass
from .._search import search_rows
from ..data import Interactions
from ._base import Ids, Sampler, Users
from ._positives import Positives, randint_below, sample_unseen

# Approximate sum of the weights after conversion to integers, which makes exclusion exact.
_TOTAL = 2**30


@pytree_dataclass
class RNS(Sampler):
    r"""Uniform sampling of unseen items: :math:`P(j \mid u) = 1/|\mathcal I_u^-|`.

    Exactly uniform, see :func:`sample_unseen`.

    References:
      The sampler of Rendle et al., `BPR <https://arxiv.org/abs/1205.2618>`_, 2009; RNS in
      "Contrastive Learning for Personalized Recommendation", section 4.5.1.2.
    """

    def propose(self, key: Key[Array, ""], users: Users, positives: Positives, n: int) -> Ids:
        """Draws the negatives."""
        return sample_unseen(key, users, positives, n)


@pytree_dataclass
class PNS(Sampler):
    r"""Popularity-biased sampling: :math:`P(j \mid u) \propto w_j` over unseen items.

    Weights are rounded to multiples of :math:`2^{-30}` of their sum, positive ones not to 0. If all
    unseen items of a user have weight 0, sampling is uniform.

    Attributes:
      weights: Weights :math:`w_j \ge 0`, float32 ``[n_items]``; :meth:`from_interactions` uses
        popularity to the power of 0.75.

    Raises:
      ValueError: If a weight is negative or not finite or, when negatives are drawn, the number of
        weights is not that of the items.

    References:
      "Contrastive Learning for Personalized Recommendation", section 4.5.1.2, after Mikolov et
      al., `Distributed Representations of Words and Phrases <https://arxiv.org/abs/1310.4546>`_,
      2013 (the power 3/4).
    """

    weights: Annotated[Float[Array | np.ndarray, "n_items"], Range(0, high_open=True)]

    @classmethod
    def from_interactions(cls, train: Interactions, exponent: float = 0.75) -> "PNS":
        r"""Returns weights :math:`\mathrm{pop}_j^{\mathrm{exponent}}`, popularity to a power."""
        return cls(jnp.asarray(train.item_counts, jnp.float32) ** exponent)

    def propose(self, key: Key[Array, ""], users: Users, positives: Positives, n: int) -> Ids:
        """Draws the negatives."""
        check_shape("weights", self.weights, (positives.n_items,))
        weighted_key, uniform_key = jax.random.split(key)
        table = _table(self.weights, positives)
        remaining = table.remaining[users]
        weighted = _sample_weighted(weighted_key, users, positives, table, n)
        uniform = sample_unseen(uniform_key, users, positives, n)
        return jnp.where((remaining == 0)[:, None], uniform, weighted)


class _Table(NamedTuple):
    """Integer weights, prepared for sampling from the unseen items of a user."""

    cumulative: UInt32[Array, "n_items_plus_1"]  # total weight of all items before each
    # Per interaction, the weight of the user's preceding positives, up to a constant per row, and
    # the weight of *unseen* items before it, ascending within a row.
    before: UInt32[Array, "n_plus_1"]
    gaps: UInt32[Array, "n"]
    remaining: UInt32[Array, "n_users"]  # total weight of the unseen items of each user


def _table(weights: Float[Array | np.ndarray, "n_items"], positives: Positives) -> _Table:
    (weights,) = at_least_float32(weights)  # shares of _TOTAL exceed float16
    # The sum of large weights could overflow; a power of 2 changes no digit.
    scaled = jnp.ldexp(weights, -jnp.frexp(jnp.max(weights))[1])
    share = scaled / jnp.sum(scaled) * _TOTAL
    integers = jnp.where(weights > 0, jnp.maximum(jnp.round(share), 1), 0).astype(jnp.uint32)
    cumulative = _exclusive_cumsum(integers)
    # This sum overflows over all rows; differences within a row are exact nonetheless.
    before = _exclusive_cumsum(integers[positives.items])
    start, stop = positives.indptr[:-1], positives.indptr[1:]
    n = positives.items.shape[0]
    row = jnp.repeat(jnp.arange(start.size), stop - start, total_repeat_length=n)
    gaps = cumulative[positives.items] - (before[:-1] - before[start[row]])
    return _Table(cumulative, before, gaps, cumulative[-1] - (before[stop] - before[start]))


def _sample_weighted(
    key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, table: _Table, n: int
) -> Int[Array, "batch n"]:
    """Inverts the CDF of the unseen items of each user with two binary searches."""
    low, high = positives.indptr[users], positives.indptr[users + 1]
    mass = randint_below(key, (n, *users.shape), table.remaining[users]).astype(jnp.uint32)
    first = search_rows(table.gaps, mass, low, high, positives.rounds)
    mass = mass + (table.before[first] - table.before[low][None])
    n_items = positives.n_items
    bounds = jnp.zeros_like(low), jnp.full_like(low, n_items + 1)
    above = search_rows(table.cumulative, mass, *bounds, (n_items + 1).bit_length())
    return (above - 1).T


def _exclusive_cumsum(x: UInt32[Array, "n"]) -> UInt32[Array, "n_plus_1"]:
    return jnp.concatenate([jnp.zeros(1, jnp.uint32), jnp.cumsum(x, dtype=jnp.uint32)])
