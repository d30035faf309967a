"""Propagation over the graph of users and items, with a gradient that is propagation again."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._floats import at_least_float32
from ._encoder import Tables
from ._graph import InteractionGraph


def propagate(
    graph: InteractionGraph, tables: Tables, layer_weights: Sequence[float] = (0.0, 1.0)
) -> Tables:
    r"""A weighted sum of layers, :math:`\sum_l w_l\,(D^{-1/2} A D^{-1/2})^l E`.

    The graph has no weights: the degrees are divided out between two layers, and a layer is a
    plain sum of rows. The operator is symmetric, so that its gradient is itself and nothing of a
    forward pass is kept. A user or item without links gets zeros from every layer but the
    first, :math:`l = 0`.

    Args:
      graph: The links.
      tables: The embeddings, ``[n_users, dim]`` and ``[n_items, dim]``.
      layer_weights: Weights of the layers 0, 1, ...; static. By default one plain product.

    Returns:
      Tables of the shapes and the dtypes of ``tables``; sums are taken in float32 or wider.

    Raises:
      ValueError: If the tables do not have the graph's shapes, or there is no weight.

    References:
      He et al., LightGCN, 2020, equations 3, 4 and 7.
    """
    for name, table, rows in zip(Tables._fields, tables, (graph.n_users, graph.n_items)):
        if table.ndim != 2 or table.shape[0] != rows:
            raise ValueError(f"`tables.{name}` must have shape ({rows}, dim), got {table.shape}.")
    if tables.users.shape != (graph.n_users, tables.items.shape[1]):
        raise ValueError(
            f"`tables` must have one width, got {tables.users.shape} and {tables.items.shape}."
        )
    if not len(layer_weights):
        raise ValueError("`layer_weights` must have at least one weight, got none.")
    wide = Tables(*at_least_float32(*tables))
    made: Any = _mix(tuple(map(float, layer_weights)), graph, wide)
    return Tables(*(new.astype(old.dtype) for new, old in zip(made, tables)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
@partial(jax.jit, static_argnums=0)
def _mix(layer_weights: tuple[float, ...], graph: InteractionGraph, tables: Tables) -> Tables:
    """With S = D^{-1/2}: a layer is S A S E, its rows divided by S are A S E."""
    own, *others = layer_weights
    while others and not others[-1]:
        others.pop()
    kept = Tables(*(own * table for table in tables))
    if not others:
        return kept
    roots = _roots(graph.user_degrees, tables.users), _roots(graph.item_degrees, tables.items)
    users, items = (root * table for root, table in zip(roots, tables))
    layout = graph.layout
    degrees = [root * root * graph.edge_scale.astype(root.dtype) for root in roots]
    by_degree = layout.enter(*degrees)
    users, items = layout.enter(users, items)
    mixed: list[Array] = []
    for weight in others:
        users, items = layout.sums((users, items), by_degree)
        if weight:
            terms = [weight * users, weight * items]
            mixed = [m + t for m, t in zip(mixed, terms)] if mixed else terms
    mixed_tables = layout.leave(*mixed)
    # Back from S E to E: by the root of the degree, which is 0 where there is no link.
    backs = [jnp.where(root > 0, 1 / jnp.where(root > 0, root, 1), 0) for root in roots]
    return Tables(*(k + b * m for k, b, m in zip(kept, backs, mixed_tables)))


def _roots(degrees: Array, table: Array) -> Float[Array, "n 1"]:
    """One over the root of each degree, 0 where there is no link, as a column."""
    degrees = degrees[:, None].astype(table.dtype)
    return jnp.where(degrees > 0, 1 / jnp.sqrt(jnp.maximum(degrees, 1)), 0)


def _forward(
    layer_weights: tuple[float, ...], graph: InteractionGraph, tables: Tables
) -> tuple[Tables, InteractionGraph]:
    return _mix(layer_weights, graph, tables), graph


def _backward(
    layer_weights: tuple[float, ...], graph: InteractionGraph, slopes: Tables
) -> tuple[None, Tables]:
    return None, _mix(layer_weights, graph, slopes)


_mix.defvjp(_forward, _backward)
