"""Anchors and the pools of negatives that runs of them share."""

from dataclasses import replace

import jax
from jaxtyping import Array, Bool, Float, Int

from ..models import Encoder, Tables
from ..samplers import Positives, SamplingContext, SharedSampler, map_pools


def scores_of_pools(
    encoder: Encoder, tables: Tables, users: Int[Array, "batch"], pools: Int[Array, "runs n"]
) -> Float[Array, "batch n"]:
    """Scores of each anchor's user with the pool of its run."""

    def of_run(pool: jax.Array, users: jax.Array) -> jax.Array:
        return encoder.score_shared(tables, users, pool).T

    return map_pools(of_run, pools, users)


def negatives_of_pools(
    sampler: SharedSampler,
    batch: SamplingContext,
    pools: Int[Array, "runs n"],
    real: Bool[Array, "batch"],
) -> Bool[Array, "batch n"]:
    """Which items of its pool are negatives of each anchor."""

    def of_run(pool: jax.Array, users: jax.Array, items: jax.Array, real: jax.Array) -> jax.Array:
        return sampler.where(replace(batch, users=users, items=items), pool, real)

    return map_pools(of_run, pools, batch.users, batch.items, real, in_turn=True)


def taken_of_pools(
    positives: Positives, users: Int[Array, "batch"], pools: Int[Array, "runs n"]
) -> Bool[Array, "batch n"]:
    """Which items of its pool each anchor's user has taken."""

    def of_run(pool: jax.Array, users: jax.Array) -> jax.Array:
        return positives.taken_of_pool(users, pool)

    return map_pools(of_run, pools, users, in_turn=True)
