"""Graph propagation over users and items; its gradient is a propagation again."""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from .._floats import at_least_float32
from ._encoder import Tables
from ._interaction_graph import InteractionGraph

Mixes = tuple[tuple[float, ...], ...]


class LayerNoise(NamedTuple):
    """Random vectors of norm ``length``, added to all rows of all layers but the first."""

    length: Any
    key: Key[Array, ""]


def propagate(
    graph: InteractionGraph, tables: Tables, layer_weights: Sequence[float] = (0.0, 1.0)
) -> Tables:
    r"""Weighted sum of layers, :math:`\sum_l w_l\,(D^{-1/2} A D^{-1/2})^l E`.

    Edges are unweighted: tables are divided by degrees between layers, and a layer is a plain sum
    of rows. The operator is symmetric: its gradient is itself and needs no residuals. Layers after
    the first are zero for a user or item without edges.

    Args:
      graph: Interaction graph.
      tables: Embeddings, ``[n_users, dim]`` and ``[n_items, dim]``.
      layer_weights: Weights of the layers 0, 1, ...; static. The default is one propagation.

    Returns:
      Tables with the shapes and dtypes of ``tables``; sums are in float32 or wider.

    Raises:
      ValueError: If the tables do not have the graph's shapes or there is no weight.

    References:
      He et al., LightGCN, 2020, equations 3, 4 and 7.
    """
    return propagate_mixes(graph, tables, (layer_weights,))[0]


def propagate_mixes(
    graph: InteractionGraph,
    tables: Tables,
    mixes: Sequence[Sequence[float]],
    noise: LayerNoise | None = None,
) -> tuple[Tables, ...]:
    r"""Several weighted sums of the layers of one propagation.

    With noise, the layers are :math:`E^{(l+1)} = D^{-1/2} A D^{-1/2} E^{(l)} + \Delta`, where each
    row of :math:`\Delta` has the given length, a random direction and the signs of the row that it
    is added to. The gradient ignores the noise.

    Args:
      graph, tables: As for :func:`propagate`.
      mixes: Weights of the layers 0, 1, ... for each sum; static.
      noise: Noise added to the layers; None for none.

    Returns:
      Tables for each of ``mixes``, as :func:`propagate`, whose errors are also the same.

    References:
      Yu et al., `Are Graph Augmentations Necessary? Simple Graph Contrastive Learning for
      Recommendation <https://arxiv.org/abs/2112.08679>`_, 2022, for the noise.
    """
    for name, table, rows in zip(Tables._fields, tables, (graph.n_users, graph.n_items)):
        if table.ndim != 2 or table.shape[0] != rows:
            raise ValueError(f"`tables.{name}` must have shape ({rows}, dim), got {table.shape}.")
    if tables.users.shape != (graph.n_users, tables.items.shape[1]):
        raise ValueError(
            f"`tables` must have the same width, got {tables.users.shape} and {tables.items.shape}."
        )
    if not all(map(len, mixes)):
        raise ValueError("`layer_weights` must have at least one weight, got none.")
    wide = Tables(*at_least_float32(*tables))
    sums: Any = _propagate(tuple(map(_trimmed, mixes)), graph, wide, noise)
    return _cast(sums, tables)


def propagate_per_layer(
    graphs: Sequence[InteractionGraph],
    tables: Tables,
    mixes: Sequence[Sequence[float]],
    noise: LayerNoise | None = None,
) -> tuple[Tables, ...]:
    """:func:`propagate_mixes` with a separate graph for each layer, at a higher cost."""
    mixes = list(map(_trimmed, mixes))
    layers = [Tables(*at_least_float32(*tables))]
    for i, graph in zip(range(1, max(map(len, mixes))), graphs):
        layer_noise = noise and noise._replace(key=jax.random.fold_in(noise.key, i))
        layers += propagate_mixes(graph, layers[-1], ((0.0, 1.0),), layer_noise)
    sums = [_weighted(layers[: len(w)], [(x,) for x in w]) for w in mixes]
    return _cast(sums, tables)


def _trimmed(weights: Sequence[float]) -> tuple[float, ...]:
    """Removes trailing zero weights."""
    values = list(map(float, weights))
    while len(values) > 1 and not values[-1]:
        values.pop()
    return tuple(values)


def _cast(sums: Sequence[Tables], tables: Tables) -> tuple[Tables, ...]:
    return tuple(Tables(*(x.astype(y.dtype) for x, y in zip(each, tables))) for each in sums)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
@partial(jax.jit, static_argnums=0)
def _propagate(
    mixes: Mixes, graph: InteractionGraph, tables: Tables, noise: LayerNoise | None
) -> tuple[Tables, ...]:
    """Propagates by S A S with S = D^{-1/2}; tables between layers are divided by S."""
    first = [Tables(*(w * table for table in tables)) for w, *_ in mixes]
    depth = max(map(len, mixes))
    if depth == 1:
        return tuple(first)
    layout, (roots, by_degree) = graph.layout, _scales(graph, tables.users.dtype)
    users, items = layout.permute(*(root * table for root, table in zip(roots, tables)))
    scales = layout.permute(*roots)
    mixed: list[Any] = [None] * len(mixes)
    for layer in range(1, depth):
        users, items = layout.neighbour_sums((users, items), by_degree)
        if noise is not None:
            users, items = _perturbed((users, items), scales, noise, layer)
        for i, weights in enumerate(mixes):
            if layer < len(weights) and weights[layer]:
                terms = [weights[layer] * users, weights[layer] * items]
                total = mixed[i]
                mixed[i] = [m + t for m, t in zip(total, terms)] if total else terms
    return tuple(
        x if m is None else _unscale(x, layout.unpermute(*m), roots) for x, m in zip(first, mixed)
    )


def _unscale(first: Tables, mixed: Sequence[Array], roots: tuple[Array, ...]) -> Tables:
    """Adds the first layer to mixed layers times D^{1/2}, which is 0 for nodes without edges."""
    degree_roots = [jnp.where(root > 0, 1 / jnp.where(root > 0, root, 1), 0) for root in roots]
    return Tables(*(k + b * m for k, b, m in zip(first, degree_roots, mixed)))


def _scales(graph: InteractionGraph, dtype: Any) -> tuple[tuple[Array, ...], Any]:
    """Columns of S, 0 for nodes without edges, and the scale of the sums of a layer, S²."""
    degrees = (d[:, None].astype(dtype) for d in (graph.user_degrees, graph.item_degrees))
    roots = tuple(jnp.where(d > 0, 1 / jnp.sqrt(jnp.maximum(d, 1)), 0) for d in degrees)
    squares = (root * root * graph.edge_scale.astype(dtype) for root in roots)
    return roots, graph.layout.permute(*squares)


def _perturbed(
    tables: tuple[Array, Array], roots: tuple[Array, Array], noise: LayerNoise, layer: int
) -> tuple[Array, ...]:
    """Adds the noise times S to the rows of S E."""
    length = jnp.asarray(noise.length, tables[0].dtype)
    keys = jax.random.split(jax.random.fold_in(noise.key, layer))

    def add_noise(table: Array, root: Array, key: Array) -> Array:
        uniform = jax.random.uniform(key, table.shape, table.dtype)
        unit = uniform / jnp.sqrt(jnp.sum(uniform**2, axis=1, keepdims=True))
        return table + root * length * jnp.sign(table) * unit

    return tuple(map(add_noise, tables, roots, keys))


def _forward(
    mixes: Mixes, graph: InteractionGraph, tables: Tables, noise: LayerNoise | None
) -> tuple[tuple[Tables, ...], InteractionGraph]:
    return _propagate(mixes, graph, tables, noise), graph


def _backward(
    mixes: Mixes, graph: InteractionGraph, grads: tuple[Tables, ...]
) -> tuple[None, Tables, None]:
    if len(mixes) == 1:
        sums: Any = _propagate(mixes, graph, grads[0], None)
        return None, sums[0], None
    return None, _propagate_transposed(mixes, graph, grads), None


@partial(jax.jit, static_argnums=0)
def _propagate_transposed(
    mixes: Mixes, graph: InteractionGraph, grads: tuple[Tables, ...]
) -> Tables:
    """Sums the gradients of all mixes by Horner's scheme, from the deepest layer to the first."""
    depth = max(map(len, mixes))
    terms = [_weighted(grads, [w[layer : layer + 1] for w in mixes]) for layer in range(depth)]
    if depth == 1:
        return terms[0]
    layout, (roots, by_degree) = graph.layout, _scales(graph, terms[0].users.dtype)
    users, items = layout.permute(*(root * x for root, x in zip(roots, terms[-1])))
    for layer in range(depth - 1, 0, -1):
        users, items = layout.neighbour_sums((users, items), by_degree)
        if layer > 1:
            more = layout.permute(*(root * x for root, x in zip(roots, terms[layer - 1])))
            users, items = users + more[0], items + more[1]
    return _unscale(terms[0], layout.unpermute(users, items), roots)


def _weighted(tables: Sequence[Tables], weights: Sequence[tuple[float, ...]]) -> Tables:
    """Weighted sum of tables; tables with an empty tuple of weights are skipped."""
    terms = [Tables(*(w * x for x in t)) for t, each in zip(tables, weights) for w in each]
    return jax.tree.map(lambda *x: reduce(jnp.add, x), *terms)


_propagate.defvjp(_forward, _backward)
