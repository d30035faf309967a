"""Samplers that prefer items with a high current score."""

from dataclasses import field
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt32

from .._hyperparams import Range, Scalar
from .._pytree import STATIC, pytree_dataclass
from ..stats import select_largest
from ._base import Ids, Sampler, SamplingContext, Selection, Users, best
from ._positives import Positives, sample_unseen


@pytree_dataclass
class DNS(Sampler):
    r"""Dynamic negative sampling: the candidate with the highest score out of m.

    With :math:`n = |\mathcal I_u^-|`, independent uniform candidates, and ranks from 1 for the
    highest score,

    .. math::
        P(j \mid u) = \left(\frac{n - r_j + 1}{n}\right)^m - \left(\frac{n - r_j}{n}\right)^m

    This is uniform for m = 1 and linear in the rank for m = 2.

    Attributes:
      candidates: Number m >= 1 of candidates. Static.

    References:
      Zhang et al., `Optimizing Top-N Collaborative Filtering via Dynamic Negative Item Sampling
      <https://doi.org/10.1145/2484028.2484126>`_, 2013; DNS in "Contrastive Learning for
      Personalized Recommendation", section 4.5.1.2, where it is linear in the rank.
    """

    candidates: Annotated[int, Range(1)] = field(default=5, metadata=STATIC)

    def propose(self, key: Key[Array, ""], users: Users, positives: Positives, n: int) -> Ids:
        """Draws ``n * candidates`` unseen items."""
        return sample_unseen(key, users, positives, n * self.candidates)

    def select(self, proposals: Any, batch: SamplingContext, state: Any) -> Selection:
        """Returns the highest-scoring candidate of each group."""
        shape = (-1, batch.n, self.candidates)
        scores = batch.scores(proposals)
        return best(scores.reshape(shape), proposals.reshape(shape)), state


@pytree_dataclass
class AOBPR(Sampler):
    r"""Adaptive oversampling by rank: :math:`P(j \mid u) \propto e^{-r_j/\lambda}`.

    The rank :math:`r_j` is that of the current score among the user's scores on :math:`\mathcal
    I_u^-`; ties rank by item. Sampling is exact: a rank from the truncated geometric distribution,
    then the item of that rank (:func:`crl_jax.stats.select_largest`), found by counting, which
    reads every score about 43 times, or by sorting. (The published code uses sorted lists that it
    updates periodically.)

    Attributes:
      scale: Scale :math:`\lambda > 0` in ranks; ``inf`` is uniform.

    References:
      Rendle and Freudenthaler, `Improving Pairwise Learning for Item Recommendation from
      Implicit Feedback <https://doi.org/10.1145/2556195.2556248>`_, 2014; AOBPR in "Contrastive
      Learning for Personalized Recommendation", section 4.5.1.2.
    """

    scale: Annotated[Scalar, Range(0, low_open=True)] = 500.0

    @property
    def uses_bitmap(self) -> bool:
        """True: :meth:`select` masks the seen items of the whole catalogue."""
        return True

    def propose(
        self, key: Key[Array, ""], users: Users, positives: Positives, n: int
    ) -> Int[Array, "n batch"]:
        """Draws ranks, counted from 0."""
        n_unseen = jnp.broadcast_to(positives.n_unseen(users), (n, *users.shape))
        return truncated_geometric(key, n_unseen, self.scale, positives.n_items)

    def select(self, proposals: Any, batch: SamplingContext, state: Any) -> Selection:
        """Returns the items of the ranks."""
        every_item = jnp.arange(batch.positives.n_items, dtype=jnp.int32)
        unseen = ~batch.positives.seen(batch.users, every_item)
        return select_largest(batch.shared_scores(every_item), proposals, unseen).T, state


def truncated_geometric(
    key: Key[Array, ""], n: Int[Array, "*shape"], scale: Any, max_n: int
) -> Int[Array, "*shape"]:
    r"""Draws integers with :math:`P(r) \propto e^{-r/\lambda}` on ``[0, n)``, n <= max_n, or 0.

    Draws a block of consecutive integers and an offset in it, from one random word each: a single
    float32 distinguishes at most 2^24 integers, two distinguish 2^31.
    """
    block = 1 << (max_n.bit_length() // 2)  # about the root of `max_n`, which is static
    scale = jnp.asarray(scale, jnp.float32)
    block_bits, offset_bits = jax.random.bits(key, (2, *n.shape), jnp.uint32)

    def sample(bits: Array, n: Array) -> Array:
        n = n.astype(jnp.float32)
        return n * _truncated_exponential(bits, n / scale)

    # The last block may be shorter and is proportionally less likely.
    block_index = (sample(block_bits, n) / block).astype(jnp.int32)
    block_index = jnp.clip(block_index, 0, jnp.maximum(n - 1, 0) // block)
    length = jnp.minimum(n - block_index * block, block)
    offset = sample(offset_bits, length).astype(jnp.int32)
    return block_index * block + jnp.clip(offset, 0, jnp.maximum(length - 1, 0))


def _truncated_exponential(bits: UInt32[Array, "*shape"], rate: Array) -> Float[Array, "*shape"]:
    """Draws from the density proportional to ``exp(-rate x)`` on [0, 1]."""
    uniform = (bits.astype(jnp.float32) + 0.5) * 2.0**-32  # high resolution near 0, the upper tail
    # Inverse of P(X > x) = (e^{-rate x} - e^{-rate}) / (1 - e^{-rate}), in two forms: each loses
    # precision where the other is accurate.
    near = jnp.log1p((1 - uniform) * jnp.expm1(-rate))
    power = jnp.where(rate > 1, jnp.log(uniform + (1 - uniform) * jnp.exp(-rate)), near)
    return jnp.where(rate == 0, 1 - uniform, -power / jnp.where(rate == 0, 1, rate))
