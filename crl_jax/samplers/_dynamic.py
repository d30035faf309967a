"""Samplers that prefer what the encoder ranks high at this moment."""

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt32

from .._checks import check_range
from .._hyperparams import Scalar
from .._pytree import STATIC, pytree_dataclass
from ..stats import select_largest
from ._base import Sampler, SamplingContext, best
from ._positives import Positives, sample_unseen


@pytree_dataclass
class DNS(Sampler):
    r"""Dynamic negative sampling: the best-scoring of m uniform candidates.

    With :math:`n = |\mathcal I_u^-|` and ranks counted from 1 at the best score, the candidates
    being drawn independently,

    .. math::
        P(j \mid u) = \left(\frac{n - r_j + 1}{n}\right)^m - \left(\frac{n - r_j}{n}\right)^m

    For m = 2 it is linear in the rank, for m = 1 uniform.

    Attributes:
      candidates: The m >= 1; static.

    References:
      Zhang et al., `Optimizing Top-N Collaborative Filtering via Dynamic Negative Item Sampling
      <https://doi.org/10.1145/2484028.2484126>`_, 2013; DNS in "Contrastive Learning for
      Personalized Recommendation", section 4.5.1.2, where it is linear in the rank.
    """

    candidates: int = field(default=5, metadata=STATIC)

    def __post_init__(self) -> None:
        check_range("candidates", self.candidates, 1, jnp.inf)

    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> Int[Array, "batch n_candidates"]:
        """``n * candidates`` items not taken."""
        return sample_unseen(key, users, positives, n * self.candidates)

    def select(
        self, proposals: Any, batch: SamplingContext, state: Any
    ) -> tuple[Int[Array, "batch n"], Any]:
        """The best of each group of candidates."""
        shape = (-1, batch.n, self.candidates)
        scores = batch.scores(proposals)
        return best(scores.reshape(shape), proposals.reshape(shape)), state


@pytree_dataclass
class AOBPR(Sampler):
    r"""Adaptive oversampling: :math:`P(j \mid u) \propto e^{-r_j/\lambda}`, by current rank.

    The rank :math:`r_j` is that of the score among the user's scores on :math:`\mathcal I_u^-`;
    equal scores rank by item. Drawn exactly: a rank from the truncated geometric law, then the
    item that holds it, found by counting (:func:`crl_jax.stats.select_largest`), which costs
    about 43 looks at every score. (The published code looks ranks up in lists that it sorts
    anew from time to time.)

    Attributes:
      scale: The :math:`\lambda > 0`, in ranks: the larger, the nearer to uniform, which it is for
        ``inf``.

    References:
      Rendle and Freudenthaler, `Improving Pairwise Learning for Item Recommendation from
      Implicit Feedback <https://doi.org/10.1145/2556195.2556248>`_, 2014; AOBPR in "Contrastive
      Learning for Personalized Recommendation", section 4.5.1.2.
    """

    scale: Scalar = 500.0

    def __post_init__(self) -> None:
        check_range("scale", self.scale, 0, jnp.inf, low_open=True, dtype=jnp.float32)

    @property
    def uses_bitmap(self) -> bool:
        """Of all items."""
        return True

    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> Int[Array, "n batch"]:
        """The ranks, from 0."""
        n_unseen = jnp.broadcast_to(positives.n_unseen(users), (n, *users.shape))
        return truncated_geometric(key, n_unseen, self.scale, positives.n_items)

    def select(
        self, proposals: Any, batch: SamplingContext, state: Any
    ) -> tuple[Int[Array, "batch n"], Any]:
        """The items of these ranks."""
        every_item = jnp.arange(batch.positives.n_items, dtype=jnp.int32)
        unseen = ~batch.positives.taken(batch.users, every_item)
        return select_largest(batch.shared_scores(every_item), proposals, unseen).T, state


def truncated_geometric(
    key: Key[Array, ""], n: Int[Array, "*shape"], scale: Any, most: int
) -> Int[Array, "*shape"]:
    r"""Integers of which :math:`P(r) \propto e^{-r/\lambda}` on ``[0, n)``; 0 where ``n`` is 0.

    Drawn as a block of consecutive integers and a place in it, from a word of random bits each:
    one number between 0 and 1 tells no more than 2^24 integers apart, two tell 2^31.

    Args:
      key: Random key.
      n: How many integers there are, at most ``most``.
      scale: The :math:`\lambda`.
      most: Below 2^31; static. Blocks are about as long as its root.
    """
    block = 1 << (most.bit_length() // 2)
    scale = jnp.asarray(scale, jnp.float32)
    block_bits, place_bits = jax.random.bits(key, (2, *n.shape), jnp.uint32)

    def randint_below(bits: Array, n: Array) -> Array:
        n = n.astype(jnp.float32)
        return n * _truncated_exponential(bits, n / scale)

    # The last block may be shorter than others, and is as much less likely.
    which = (randint_below(block_bits, n) / block).astype(jnp.int32)
    which = jnp.clip(which, 0, jnp.maximum(n - 1, 0) // block)
    left = jnp.minimum(n - which * block, block)
    place = randint_below(place_bits, left).astype(jnp.int32)
    return which * block + jnp.clip(place, 0, jnp.maximum(left - 1, 0))


def _truncated_exponential(bits: UInt32[Array, "*shape"], rate: Array) -> Float[Array, "*shape"]:
    """Numbers in [0, 1] of a density that falls like ``exp(-rate x)``."""
    rest = (bits.astype(jnp.float32) + 0.5) * 2.0**-32  # small ones, finely graded, go far out
    # P(X > x) = (e^{-rate x} - e^{-rate}) / (1 - e^{-rate}), inverted: near 0 and far from it the
    # one form keeps the digits that the other loses.
    near = jnp.log1p((1 - rest) * jnp.expm1(-rate))
    power = jnp.where(rate > 1, jnp.log(rest + (1 - rest) * jnp.exp(-rate)), near)
    return jnp.where(rate == 0, 1 - rest, -power / jnp.where(rate == 0, 1, rate))
