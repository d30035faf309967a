"""Samplers whose distribution does not change while the encoder learns."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from .._checks import check_range, check_shape
from .._pytree import pytree_dataclass
from .._search import search_rows
from ..data import Interactions
from ._base import Sampler
from ._positives import Positives, randint_below, sample_unseen

# The weights become integers of this sum (or a little more), so that exclusion is exact.
_TOTAL = 2**30


@pytree_dataclass
class RNS(Sampler):
    r"""Random negative sampling: :math:`P(j \mid u) = 1/|\mathcal I_u^-|` on what u has not taken.

    Exactly uniform: see :func:`sample_unseen`.

    References:
      The sampler of Rendle et al., `BPR <https://arxiv.org/abs/1205.2618>`_, 2009; RNS in
      "Contrastive Learning for Personalized Recommendation", section 4.5.1.2.
    """

    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> Int[Array, "batch n"]:
        """The negatives themselves."""
        return sample_unseen(key, users, positives, n)


@pytree_dataclass
class PNS(Sampler):
    r"""Popularity-biased sampling: :math:`P(j \mid u) \propto w_j` on what u has not taken.

    The weights are rounded to multiples of :math:`2^{-30}` of their sum, none of the positive
    ones to 0. Where all that a user has left has weight 0, the draw is uniform.

    Attributes:
      weights: The :math:`w_j \ge 0`, float32 ``[n_items]``; :meth:`from_interactions` takes
        popularity to the
        power of 0.75.

    Raises:
      ValueError: If a weight is negative or not finite, or, where negatives are drawn, they are
        of another number of items.

    References:
      "Contrastive Learning for Personalized Recommendation", section 4.5.1.2, after Mikolov et
      al., `Distributed Representations of Words and Phrases <https://arxiv.org/abs/1310.4546>`_,
      2013 (the power 3/4).
    """

    weights: Float[Array | np.ndarray, "n_items"]

    def __post_init__(self) -> None:
        check_range("weights", self.weights, 0, jnp.inf, high_open=True)

    @classmethod
    def from_interactions(cls, train: Interactions, exponent: float = 0.75) -> "PNS":
        """Weights :math:`pop_j^{exponent}`, with the interactions of each item as popularity."""
        return cls(jnp.asarray(train.item_counts, jnp.float32) ** exponent)

    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> Int[Array, "batch n"]:
        """The negatives themselves."""
        check_shape("weights", self.weights, (positives.n_items,))
        weighted_key, uniform_key = jax.random.split(key)
        table = _table(self.weights, positives)
        left = table.left[users]
        drawn = _sample_weighted(weighted_key, users, positives, table, n)
        uniform = sample_unseen(uniform_key, users, positives, n)
        return jnp.where((left == 0)[:, None], uniform, drawn)


class _Table(NamedTuple):
    """Integer weights, ready to draw from what a user has left.

    Attributes:
      up_to: Weight of all items before each, ``[n_items + 1]``.
      before: For each interaction, the weight of the user's positives before it, ``[n + 1]``,
        but for a constant of the row.
      gaps: For each interaction, the weight of what the user has *not* taken before it, ``[n]``:
        ascending within a row.
      left: Weight of what each user has not taken, ``[n_users]``.
    """

    up_to: UInt32[Array, "n_items_plus_1"]
    before: UInt32[Array, "n_plus_1"]
    gaps: UInt32[Array, "n"]
    left: UInt32[Array, "n_users"]


def _table(weights: Float[Array | np.ndarray, "n_items"], positives: Positives) -> _Table:
    share = weights / jnp.sum(weights) * _TOTAL
    whole = jnp.where(weights > 0, jnp.maximum(jnp.round(share), 1), 0).astype(jnp.uint32)
    up_to = _exclusive_cumsum(whole)
    # Over all rows this sum wraps around; within a row differences come out right all the same.
    before = _exclusive_cumsum(whole[positives.items])
    start, stop = positives.indptr[:-1], positives.indptr[1:]
    n = positives.items.shape[0]
    row = jnp.repeat(jnp.arange(start.size), stop - start, total_repeat_length=n)
    gaps = up_to[positives.items] - (before[:-1] - before[start[row]])
    return _Table(up_to, before, gaps, up_to[-1] - (before[stop] - before[start]))


def _sample_weighted(
    key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, table: _Table, n: int
) -> Int[Array, "batch n"]:
    """Inverts the distribution function of what each user has left, by two binary searches."""
    low, high = positives.indptr[users], positives.indptr[users + 1]
    mass = randint_below(key, (n, *users.shape), table.left[users]).astype(jnp.uint32)
    first = search_rows(table.gaps, mass, low, high, positives.rounds)
    mass = mass + (table.before[first] - table.before[low][None])
    n_items = positives.n_items
    everything = jnp.zeros_like(low), jnp.full_like(low, n_items + 1)
    above = search_rows(table.up_to, mass, *everything, (n_items + 1).bit_length())
    return (above - 1).T


def _exclusive_cumsum(x: UInt32[Array, "n"]) -> UInt32[Array, "n_plus_1"]:
    return jnp.concatenate([jnp.zeros(1, jnp.uint32), jnp.cumsum(x, dtype=jnp.uint32)])
