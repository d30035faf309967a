"""Samplers that prefer what the encoder ranks high at this moment."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._checks import check_range
from ..stats._columns import select_largest
from ._batch import STATIC, Batch, Sampler, best
from ._positives import Positives, sample_unseen


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
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

    def select(self, proposals: Any, batch: Batch, state: Any) -> tuple[Int[Array, "batch n"], Any]:
        """The best of each group of candidates."""
        shape = (-1, batch.n, self.candidates)
        scores = batch.scores(proposals)
        return best(scores.reshape(shape), proposals.reshape(shape)), state


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AOBPR(Sampler):
    r"""Adaptive oversampling: :math:`P(j \mid u) \propto e^{-r_j/\lambda}`, by current rank.

    The rank :math:`r_j` is that of the score among the user's scores on :math:`\mathcal I_u^-`;
    equal scores rank by item. Drawn exactly: a rank from the truncated geometric law, then the
    item that holds it, found by counting (:func:`crl_jax.stats.select_largest`), which costs
    about 43 looks at every score. (The published code looks ranks up in lists that it sorts
    anew from time to time.)

    Attributes:
      scale: The :math:`\lambda > 0`, in ranks: the larger, the nearer to uniform.

    References:
      Rendle and Freudenthaler, `Improving Pairwise Learning for Item Recommendation from
      Implicit Feedback <https://doi.org/10.1145/2556195.2556248>`_, 2014; AOBPR in "Contrastive
      Learning for Personalized Recommendation", section 4.5.1.2.
    """

    scale: Float[Array, ""] | float = 500.0

    def __post_init__(self) -> None:
        check_range("scale", self.scale, 0, jnp.inf, low_open=True, dtype=jnp.float32)

    @property
    def reads_bitmap(self) -> bool:
        """Of all items."""
        return True

    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> Int[Array, "n batch"]:
        """The ranks, from 0."""
        u = jax.random.uniform(key, (n, *users.shape))
        n_unseen = positives.n_unseen(users)[None]
        # P(rank < r) = (1 - e^{-r/λ}) / (1 - e^{-n/λ}), inverted.
        scale = jnp.asarray(self.scale, jnp.float32)
        rank = -scale * jnp.log1p(u * jnp.expm1(-n_unseen.astype(jnp.float32) / scale))
        return jnp.clip(rank.astype(jnp.int32), 0, jnp.maximum(n_unseen - 1, 0))

    def select(self, proposals: Any, batch: Batch, state: Any) -> tuple[Int[Array, "batch n"], Any]:
        """The items of these ranks."""
        every_item = jnp.arange(batch.positives.n_items, dtype=jnp.int32)
        unseen = ~batch.positives.taken(batch.users, every_item)
        return select_largest(batch.shared_scores(every_item), proposals, unseen).T, state
