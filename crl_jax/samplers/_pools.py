"""A batch parted in runs of anchors that have something in common."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped


def anchors_per_pool(n_anchors: int, runs: int) -> int:
    """Anchors in each of the runs that a batch is parted in; the last one may have fewer."""
    return -(-n_anchors // runs)


def broadcast_pools(
    values: Shaped[Array, "runs *rest"], n_anchors: int
) -> Shaped[Array, "batch *rest"]:
    """The value of its run for each anchor."""
    return jnp.repeat(values, anchors_per_pool(n_anchors, len(values)), axis=0)[:n_anchors]


def map_pools(
    of_run: Callable[..., Shaped[Array, "anchors n"]],
    pools: Shaped[Array, "runs n"],
    *anchors: Shaped[Array, "batch"],
    in_turn: bool = False,
) -> Shaped[Array, "batch n"]:
    """``of_run(pool, *anchors)`` of each run of anchors with its pool, joined again.

    Args:
      of_run: A function of a pool and of arrays of the anchors that share it. Those that only
        fill the last run up are zeros.
      pools: The pool of each run.
      *anchors: Arrays ``[batch]``. The runs are as long as each other; the last may be shorter.
      in_turn: Whether one run comes after the other, rather than all at once.

    Returns:
      A row for each anchor, ``[batch, n]``.
    """
    n_anchors, runs = len(anchors[0]), len(pools)
    if runs == 1:
        return of_run(pools[0], *anchors)
    size = anchors_per_pool(n_anchors, runs)
    fill = (0, runs * size - n_anchors)
    parts = [jnp.pad(x, fill).reshape(runs, size) for x in anchors]
    if in_turn:
        found = jax.lax.map(lambda given: of_run(*given), (pools, *parts))
    else:
        found = jax.vmap(of_run)(pools, *parts)
    return found.reshape(runs * size, -1)[:n_anchors]
