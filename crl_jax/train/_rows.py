"""Updates of the rows that a batch touches: a step costs what the batch costs."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool


def row_updates(
    optimizer: optax.GradientTransformation,
    params: Any,
    ids: Any,
    rows: Any,
    grads: Any,
    *,
    where: Bool[Array, "batch"],
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
    """
    updates, _ = optimizer.update(grads, optimizer.init(rows), rows)

    def add(table: Array, ids: Array, updates: Array) -> Array:
        kept = where.reshape(-1, *[1] * (updates.ndim - 1))
        updates = jnp.where(kept, updates, 0).astype(table.dtype)
        return table.at[ids].add(updates)

    return jax.tree.map(add, params, ids, updates)
