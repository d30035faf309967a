"""Where a score stands among the user's scores on what it has not taken."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from .._blocks import map_blocks
from ..stats import count_no_larger, ecdf
from ._base import SamplingContext
from ._positives import Positives, pack_bits

# Scores held at once, 64 MiB of float32; anchors beyond it wait their turn.
_MAX_SCORES = 2**24
# Ranking a user's whole row costs as much as counting for this many of its items.
_COUNTS_PER_USER = 800


class CandidateEcdf(NamedTuple):
    """Where items stand: eCDF and score of each, and the score of the anchor's positive."""

    ecdf: Float[Array, "batch n"]
    scores: Float[Array, "batch n"]
    pos: Float[Array, "batch 1"]


def exact_ecdf(batch: SamplingContext, items: Int[Array, "batch n"]) -> CandidateEcdf:
    r"""The eCDF of each user's scores on all it has not taken, at its own ``items``.

    .. math::
        F(\hat x_{ul}) = \frac{\#\{j \in \mathcal I_u^- : \hat x_{uj} \le \hat x_{ul}\}}
                              {|\mathcal I_u^-|}

    Args:
      batch: The anchors.
      items: Items that the anchors' users have not taken, ``[batch, n]``.

    Returns:
      The values, in (0, 1], or NaN for a score that is NaN, and the scores.
    """
    every_item = jnp.arange(batch.positives.n_items, dtype=jnp.int32)
    n_anchors = batch.users.shape[0]

    def some(anchors: tuple[Array, Array, Array]) -> CandidateEcdf:
        users, own, items = anchors
        part = dataclasses.replace(batch, users=users, items=own)
        scores = part.shared_scores(every_item)
        # An item's score is read from the same product, or rounding might set it apart.
        pos = jnp.take_along_axis(scores, own[None], axis=0)
        at = jnp.take_along_axis(scores, items.T, axis=0)
        n_unseen = jnp.maximum(batch.positives.n_unseen(users), 1)
        share = count_no_larger(scores, at, batch.positives.taken_words(users)) / n_unseen[None]
        share = jnp.where(jnp.isnan(at), jnp.nan, share)
        return CandidateEcdf(share.T.astype(scores.dtype), at.T, pos.T)

    anchors = batch.users, batch.items, items
    n_users, k = batch.positives.n_users, items.shape[1]
    if n_anchors * k >= _COUNTS_PER_USER * n_users and n_users * every_item.size <= _MAX_SCORES:
        table = user_table(batch, jnp.arange(n_users, dtype=jnp.int32))
        row = batch.users[:, None]
        at = row, items
        return CandidateEcdf(
            table.ecdf[at], table.scores[at], table.scores[row, batch.items[:, None]]
        )
    return map_blocks(some, anchors, max(_MAX_SCORES // every_item.size, 1))


class UserTable(NamedTuple):
    """All scores of some users: what they are, where they stand, and which are of the unseen."""

    ecdf: Float[Array, "users n_items"]
    scores: Float[Array, "users n_items"]
    unseen: Bool[Array, "users n_items"]


def user_table(batch: SamplingContext, users: Int[Array, "users"]) -> UserTable:
    """The eCDF of users' scores on all they have not taken, at every item; 0 at the others."""
    every_item = jnp.arange(batch.positives.n_items, dtype=jnp.int32)
    scores = dataclasses.replace(batch, users=users).shared_scores(every_item).T
    unseen = ~batch.positives.taken(users, every_item).T
    return UserTable(ecdf(scores, where=unseen), scores, unseen)


class CatalogueSample(NamedTuple):
    """A sample of the catalogue, and what each user has taken of it.

    Attributes:
      items: Item indices, drawn uniformly and independently, int32 ``[n_sample]``.
      taken: One bit for each user and item of the sample, items along the bits of the words,
        uint32 ``[ceil(n_sample / 32), n_users]``.
    """

    items: Int[Array, "n_sample"]
    taken: UInt32[Array, "words n_users"]


def draw_sample(key: Key[Array, ""], positives: Positives, n: int) -> CatalogueSample:
    """Draws ``n`` items of the catalogue, and looks up once what all users have taken of them."""
    items = jax.random.randint(key, (n,), 0, positives.n_items, jnp.int32)
    users = jnp.arange(positives.n_users, dtype=jnp.int32)
    return CatalogueSample(items, pack_bits(positives.taken(users, items)))


def sampled_ecdf(
    batch: SamplingContext, scores: Float[Array, "batch n"], sample: CatalogueSample
) -> Float[Array, "batch n"]:
    r"""The same over a uniform sample of the catalogue, shared by all users.

    What a user has taken drops out of its sample, which leaves :math:`n_u` items; the error is
    at most :math:`\epsilon` with probability :math:`1 - 2e^{-2 n_u \epsilon^2}`, see
    :func:`crl_jax.stats.dkw_error`. One product scores the sample for all anchors.

    Args:
      batch: The anchors.
      scores: Scores to place, ``[batch, n]``.
      sample: What :func:`draw_sample` gave.

    Returns:
      Values in [0, 1], ``[batch, n]``; 1/2 where the sample leaves nothing, and NaN for NaN.
    """
    taken = sample.taken[:, batch.users]
    seen = jnp.sum(jax.lax.population_count(taken), axis=0).astype(jnp.int32)
    n_unseen = sample.items.shape[0] - seen
    counts = count_no_larger(batch.shared_scores(sample.items), scores.T, taken)
    share = counts / jnp.maximum(n_unseen, 1)[None]
    share = jnp.where((n_unseen > 0)[None], share, 0.5).T.astype(scores.dtype)
    return jnp.where(jnp.isnan(scores), jnp.nan, share)
