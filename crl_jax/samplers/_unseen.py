"""Where a score stands among the user's scores on what it has not taken."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..stats._columns import count_no_larger
from ._batch import Batch

# Scores held at once, 64 MiB of float32; anchors beyond it wait their turn.
_MAX_SCORES = 2**24


class Standing(NamedTuple):
    """Where items stand: eCDF and score of each, and the score of the anchor's positive."""

    ecdf: Float[Array, "batch n"]
    scores: Float[Array, "batch n"]
    pos: Float[Array, "batch 1"]


def exact_ecdf(batch: Batch, items: Int[Array, "batch n"]) -> Standing:
    r"""ECDF of each user's scores on all of :math:`\mathcal I_u^-`, at its own ``items``.

    .. math::
        F(\hat x_{ul}) = \frac{\#\{j \in \mathcal I_u^- : \hat x_{uj} \le \hat x_{ul}\}}
                              {|\mathcal I_u^-|}

    Args:
      batch: The anchors.
      items: Items that the anchors' users have not taken, ``[batch, n]``.

    Returns:
      The values, in (0, 1], and the scores.
    """
    every_item = jnp.arange(batch.positives.n_items, dtype=jnp.int32)
    n_anchors = batch.users.shape[0]

    def some(anchors: tuple[Array, Array, Array]) -> Standing:
        users, own, items = anchors
        part = dataclasses.replace(batch, users=users, items=own)
        scores = part.shared_scores(every_item)
        # An item's score is read from the same product, or rounding might set it apart.
        pos = jnp.take_along_axis(scores, own[None], axis=0)
        at = jnp.take_along_axis(scores, items.T, axis=0)
        unseen = jnp.where(batch.positives.taken(users, every_item), jnp.nan, scores)
        n_unseen = jnp.maximum(batch.positives.n_unseen(users), 1)
        share = count_no_larger(unseen, at) / n_unseen[None]
        return Standing(share.T.astype(scores.dtype), at.T, pos.T)

    anchors = batch.users, batch.items, items
    if n_anchors * every_item.size <= _MAX_SCORES:
        return some(anchors)
    # In blocks of as many anchors as have room.
    block = max(_MAX_SCORES // every_item.size, 1)
    n_blocks = -(-n_anchors // block)
    fill = jnp.arange(n_blocks * block) % n_anchors
    blocks = jax.tree.map(lambda x: x[fill].reshape(n_blocks, block, *x.shape[1:]), anchors)
    out = jax.lax.map(some, blocks)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:n_anchors], out)


def sampled_ecdf(
    batch: Batch, scores: Float[Array, "batch n"], sample: Int[Array, "n_sample"]
) -> Float[Array, "batch n"]:
    r"""The same over a uniform sample of the catalogue, shared by all anchors of a batch.

    What a user has taken drops out of its sample, which leaves :math:`n_u` items; the error is
    at most :math:`\epsilon` with probability :math:`1 - 2e^{-2 n_u \epsilon^2}`, see
    :func:`crl_jax.stats.dkw_error`. One product scores the sample for all anchors.

    Args:
      batch: The anchors.
      scores: Scores to place, ``[batch, n]``.
      sample: Item indices drawn uniformly and independently, ``[n_sample]``.

    Returns:
      Values in [0, 1], ``[batch, n]``; 1/2 where the sample leaves nothing.
    """
    taken = batch.positives.taken(batch.users, sample)
    unseen = jnp.where(taken, jnp.nan, batch.shared_scores(sample))
    n_unseen = jnp.sum(~taken, axis=0, dtype=jnp.int32)
    share = count_no_larger(unseen, scores.T) / jnp.maximum(n_unseen, 1)[None]
    return jnp.where((n_unseen > 0)[None], share, 0.5).T.astype(scores.dtype)
