"""Updates of the rows that a batch touches: a step costs what the batch costs."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float


def row_updates(
    optimizer: optax.GradientTransformation,
    params: Any,
    ids: Any,
    rows: Any,
    grads: Any,
    *,
    where: Bool[Array, "batch"],
    weight: Float[Array, "batch"] | None = None,
) -> Any:
    """Adds to the tables what an optimiser without state makes of gradients of their rows.

    A row that stands in the batch twice gets both updates, as the sum over the batch asks for.

    Args:
      optimizer: The transformation; it must keep no state.
      params: Tables ``[rows, dim]``.
      ids: The rows of each table, ``[batch, ...]``.
      rows: Those rows, ``[batch, ..., dim]``.
      grads: Their gradients, of the same shapes.
      where: True marks the anchors whose rows change.
      weight: What the losses of the anchors were multiplied with, and the L2 terms of their rows
        are to be; None for 1.
    """

    def beside(x: Array, like: Array) -> Array:
        return x.reshape(-1, *[1] * (like.ndim - 1))

    # The L2 term is linear in the rows: to weight these is to weight it.
    shrunk = rows
    if weight is not None:
        shrunk = jax.tree.map(lambda x: x * beside(weight, x).astype(x.dtype), rows)
    updates, _ = optimizer.update(grads, optimizer.init(rows), shrunk)

    def add(table: Array, ids: Array, updates: Array) -> Array:
        updates = jnp.where(beside(where, updates), updates, 0).astype(table.dtype)
        return table.at[ids].add(updates)

    return jax.tree.map(add, params, ids, updates)
