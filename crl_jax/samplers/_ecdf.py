"""Empirical CDF of scores among the scores of a user's unseen items."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from .._blocks import map_blocks
from ..stats import count_no_larger, ecdf
from ._base import SamplingContext
from ._positives import Positives, pack_bits

# Maximum number of scores in memory, 64 MiB of float32; larger batches are processed in blocks.
_MAX_SCORES = 2**24
# Sorting a user's row of scores costs as much as this many counts over it.
_COUNTS_PER_USER = 800


class CandidateEcdf(NamedTuple):
    """eCDF and score of each candidate, and the score of the anchor's positive."""

    ecdf: Float[Array, "batch n"]
    scores: Float[Array, "batch n"]
    pos: Float[Array, "batch 1"]


def exact_ecdf(batch: SamplingContext, items: Int[Array, "batch n"]) -> CandidateEcdf:
    """Computes the eCDF of each user's scores on all unseen items at ``items``; NaN for NaN."""
    every_item = jnp.arange(batch.positives.n_items, dtype=jnp.int32)
    n_anchors = batch.users.shape[0]

    def block(anchors: tuple[Array, Array, Array]) -> CandidateEcdf:
        users, pos_items, items = anchors
        part = dataclasses.replace(batch, users=users, items=pos_items)
        scores = part.shared_scores(every_item)
        # Taken from the same product: scores computed separately may differ by rounding.
        pos = jnp.take_along_axis(scores, pos_items[None], axis=0)
        candidates = jnp.take_along_axis(scores, items.T, axis=0)
        n_unseen = jnp.maximum(batch.positives.n_unseen(users), 1)
        share = (
            count_no_larger(scores, candidates, batch.positives.seen_bits(users)) / n_unseen[None]
        )
        share = jnp.where(jnp.isnan(candidates), jnp.nan, share)
        return CandidateEcdf(share.T.astype(scores.dtype), candidates.T, pos.T)

    anchors = batch.users, batch.items, items
    n_users, k = batch.positives.n_users, items.shape[1]
    if n_anchors * k >= _COUNTS_PER_USER * n_users and n_users * every_item.size <= _MAX_SCORES:
        table = user_table(batch, jnp.arange(n_users, dtype=jnp.int32))
        row = batch.users[:, None]
        pos = table.scores[row, batch.items[:, None]]
        return CandidateEcdf(table.ecdf[row, items], table.scores[row, items], pos)
    return map_blocks(block, anchors, max(_MAX_SCORES // every_item.size, 1))


def candidate_ecdf(scores: Float[Array, "batch n"]) -> Float[Array, "batch n"]:
    r"""Estimates the CDF of a user's scores from the ``n`` candidates of the anchor alone.

    No further score is computed. The k-th smallest of them has :math:`k/(n+1)`, the mean of the CDF
    at the k-th of n draws; k/n would be 1 at the highest, which BNS would then never choose. Ties
    count in full; NaN for NaN.
    """
    columns = scores.T
    share = (count_no_larger(columns, columns) / (scores.shape[1] + 1)).T.astype(scores.dtype)
    return jnp.where(jnp.isnan(scores), jnp.nan, share)


class UserTable(NamedTuple):
    """eCDF and score of every item for some users, and the mask of their unseen items."""

    ecdf: Float[Array, "users n_items"]
    scores: Float[Array, "users n_items"]
    unseen: Bool[Array, "users n_items"]


def user_table(batch: SamplingContext, users: Int[Array, "users"]) -> UserTable:
    """Computes the eCDF over unseen items at every item for ``users``; seen items get 0."""
    every_item = jnp.arange(batch.positives.n_items, dtype=jnp.int32)
    scores = dataclasses.replace(batch, users=users).shared_scores(every_item).T
    unseen = ~batch.positives.seen(users, every_item).T
    return UserTable(ecdf(scores, where=unseen), scores, unseen)


class CatalogueSample(NamedTuple):
    """Uniform sample of the catalogue, and packed bits of the part that each user has seen."""

    items: Int[Array, "n_sample"]
    seen: UInt32[Array, "words n_users"]


def draw_sample(key: Key[Array, ""], positives: Positives, n: int) -> CatalogueSample:
    """Samples ``n`` items and looks up which of them each user has seen."""
    items = jax.random.randint(key, (n,), 0, positives.n_items, jnp.int32)
    users = jnp.arange(positives.n_users, dtype=jnp.int32)
    return CatalogueSample(items, pack_bits(positives.seen(users, items)))


def sampled_ecdf(
    batch: SamplingContext, scores: Float[Array, "batch n"], sample: CatalogueSample
) -> Float[Array, "batch n"]:
    r"""Approximates :func:`exact_ecdf` on a sample of the catalogue; 1/2 if all of it is seen.

    Without the seen items of a user, :math:`n_u` items of the sample are left; the error is at
    most :math:`\epsilon` with probability :math:`1 - 2e^{-2 n_u \epsilon^2}`, see
    :func:`crl_jax.stats.dkw_error`. One matrix product scores the sample for all anchors.
    """
    seen = sample.seen[:, batch.users]
    n_seen = jnp.sum(jax.lax.population_count(seen), axis=0).astype(jnp.int32)
    n_unseen = sample.items.shape[0] - n_seen
    counts = count_no_larger(batch.shared_scores(sample.items), scores.T, seen)
    share = counts / jnp.maximum(n_unseen, 1)[None]
    share = jnp.where((n_unseen > 0)[None], share, 0.5).T.astype(scores.dtype)
    return jnp.where(jnp.isnan(scores), jnp.nan, share)
