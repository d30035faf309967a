"""Propagation over the graph of users and items, with a gradient that is propagation again."""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .._floats import at_least_float32
from ._encoder import Tables
from ._interaction_graph import InteractionGraph

Mixes = tuple[tuple[float, ...], ...]


class LayerNoise(NamedTuple):
    """Random vectors that are added to every row of every layer but the first.

    Attributes:
      length: How long they are.
      key: Random key.
    """

    length: Any
    key: Key[Array, ""]


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
    return propagate_mixes(graph, tables, (layer_weights,))[0]


def propagate_mixes(
    graph: InteractionGraph,
    tables: Tables,
    mixes: Sequence[Sequence[float]],
    noise: LayerNoise | None = None,
) -> tuple[Tables, ...]:
    r"""Several weighted sums of the same layers, of one propagation.

    With noise, the layers are :math:`E^{(l+1)} = D^{-1/2} A D^{-1/2} E^{(l)} + \Delta`, where each
    row of :math:`\Delta` is as long as asked, points in a random direction and has the signs of the
    row that it is added to. Its derivative is that without noise.

    Args:
      graph: As for :func:`propagate`.
      tables: As for :func:`propagate`.
      mixes: For each sum its weights of the layers 0, 1, ...; static.
      noise: What is added to the layers; None for nothing.

    Returns:
      Tables of the shapes and the dtypes of ``tables`` for each of ``mixes``.

    Raises:
      ValueError: If the tables do not have the graph's shapes, or a sum has no weight.

    References:
      Yu et al., `Are Graph Augmentations Necessary? Simple Graph Contrastive Learning for
      Recommendation <https://arxiv.org/abs/2112.08679>`_, 2022, for the noise.
    """
    for name, table, rows in zip(Tables._fields, tables, (graph.n_users, graph.n_items)):
        if table.ndim != 2 or table.shape[0] != rows:
            raise ValueError(f"`tables.{name}` must have shape ({rows}, dim), got {table.shape}.")
    if tables.users.shape != (graph.n_users, tables.items.shape[1]):
        raise ValueError(
            f"`tables` must have one width, got {tables.users.shape} and {tables.items.shape}."
        )
    if not all(map(len, mixes)):
        raise ValueError("`layer_weights` must have at least one weight, got none.")
    wide = Tables(*at_least_float32(*tables))
    made: Any = _mix(tuple(map(_trimmed, mixes)), graph, wide, noise)
    return tuple(Tables(*(x.astype(old.dtype) for x, old in zip(of, tables))) for of in made)


def propagate_per_layer(
    graphs: Sequence[InteractionGraph],
    tables: Tables,
    mixes: Sequence[Sequence[float]],
    noise: LayerNoise | None = None,
) -> tuple[Tables, ...]:
    """:func:`propagate_mixes` where each layer has a graph of its own.

    The layers are kept apart, so that it costs more than the same with one graph.

    Args:
      graphs: The links of the layers 1, 2, ..., at least as many as have a weight.
      tables: As for :func:`propagate`.
      mixes: As for :func:`propagate_mixes`.
      noise: As for :func:`propagate_mixes`.
    """
    kept = list(map(_trimmed, mixes))
    layers = [Tables(*at_least_float32(*tables))]
    for i, graph in zip(range(1, max(map(len, kept))), graphs):
        own = None if noise is None else noise._replace(key=jax.random.fold_in(noise.key, i))
        layers += propagate_mixes(graph, layers[-1], ((0.0, 1.0),), own)
    made = [_weighted(layers[: len(w)], [(x,) for x in w]) for w in kept]
    return tuple(Tables(*(x.astype(old.dtype) for x, old in zip(of, tables))) for of in made)


def _trimmed(weights: Sequence[float]) -> tuple[float, ...]:
    """Without the layers at the end that count nothing."""
    kept = list(map(float, weights))
    while len(kept) > 1 and not kept[-1]:
        kept.pop()
    return tuple(kept)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
@partial(jax.jit, static_argnums=0)
def _mix(
    mixes: Mixes, graph: InteractionGraph, tables: Tables, noise: LayerNoise | None
) -> tuple[Tables, ...]:
    """With S = D^{-1/2}: a layer is S A S E, its rows divided by S are A S E."""
    kept = [Tables(*(own * table for table in tables)) for own, *_ in mixes]
    depth = max(map(len, mixes))
    if depth == 1:
        return tuple(kept)
    roots = _all_roots(graph, tables)
    layout, by_degree = graph.layout, _by_degree(graph, roots)
    users, items = layout.enter(*(root * table for root, table in zip(roots, tables)))
    entered = layout.enter(*roots)
    mixed: list[Any] = [None] * len(mixes)
    for layer in range(1, depth):
        users, items = layout.sums((users, items), by_degree)
        if noise is not None:
            users, items = _perturbed((users, items), entered, noise, layer)
        for place, weights in enumerate(mixes):
            if layer < len(weights) and weights[layer]:
                terms = [weights[layer] * users, weights[layer] * items]
                had = mixed[place]
                mixed[place] = [m + t for m, t in zip(had, terms)] if had else terms
    return tuple(
        own if of is None else _back(own, layout.leave(*of), roots) for own, of in zip(kept, mixed)
    )


def _back(own: Tables, mixed: Sequence[Array], roots: tuple[Array, Array]) -> Tables:
    """Back from S E to E, by the root of the degree, which is 0 where there is no link."""
    backs = [jnp.where(root > 0, 1 / jnp.where(root > 0, root, 1), 0) for root in roots]
    return Tables(*(k + b * m for k, b, m in zip(own, backs, mixed)))


def _all_roots(graph: InteractionGraph, tables: Tables) -> tuple[Array, Array]:
    return _roots(graph.user_degrees, tables.users), _roots(graph.item_degrees, tables.items)


def _by_degree(graph: InteractionGraph, roots: tuple[Array, Array]) -> Any:
    """What the sums of a layer are multiplied with, S²."""
    return graph.layout.enter(
        *(root * root * graph.edge_scale.astype(root.dtype) for root in roots)
    )


def _roots(degrees: Array, table: Array) -> Float[Array, "n 1"]:
    """One over the root of each degree, 0 where there is no link, as a column."""
    degrees = degrees[:, None].astype(table.dtype)
    return jnp.where(degrees > 0, 1 / jnp.sqrt(jnp.maximum(degrees, 1)), 0)


def _perturbed(
    tables: tuple[Array, Array], roots: tuple[Array, Array], noise: LayerNoise, layer: int
) -> tuple[Array, ...]:
    """Rows of S E with the noise of E, times S."""
    length = jnp.asarray(noise.length, tables[0].dtype)
    keys = jax.random.split(jax.random.fold_in(noise.key, layer))

    def one(table: Array, root: Array, key: Array) -> Array:
        drawn = jax.random.uniform(key, table.shape, table.dtype)
        unit = drawn / jnp.sqrt(jnp.sum(drawn**2, axis=1, keepdims=True))
        return table + root * length * jnp.sign(table) * unit

    return tuple(map(one, tables, roots, keys))


def _forward(
    mixes: Mixes, graph: InteractionGraph, tables: Tables, noise: LayerNoise | None
) -> tuple[tuple[Tables, ...], InteractionGraph]:
    return _mix(mixes, graph, tables, noise), graph


def _backward(
    mixes: Mixes, graph: InteractionGraph, slopes: tuple[Tables, ...]
) -> tuple[None, Tables, None]:
    if len(mixes) == 1:
        made: Any = _mix(mixes, graph, slopes[0], None)
        return None, made[0], None
    return None, _unmix(mixes, graph, slopes), None


@partial(jax.jit, static_argnums=0)
def _unmix(mixes: Mixes, graph: InteractionGraph, slopes: tuple[Tables, ...]) -> Tables:
    """The sum of what each mix makes of its own slopes, with no more products than one needs.

    By Horner's scheme: the slopes of the deepest layer first, and one layer between two.
    """
    depth = max(map(len, mixes))
    terms = [_weighted(slopes, [w[layer : layer + 1] for w in mixes]) for layer in range(depth)]
    if depth == 1:
        return terms[0]
    roots = _all_roots(graph, terms[0])
    layout, by_degree = graph.layout, _by_degree(graph, roots)
    users, items = layout.enter(*(root * x for root, x in zip(roots, terms[-1])))
    for layer in range(depth - 1, 0, -1):
        users, items = layout.sums((users, items), by_degree)
        if layer > 1:
            more = layout.enter(*(root * x for root, x in zip(roots, terms[layer - 1])))
            users, items = users + more[0], items + more[1]
    return _back(terms[0], layout.leave(users, items), roots)


def _weighted(tables: Sequence[Tables], weights: Sequence[tuple[float, ...]]) -> Tables:
    """The sum of tables times their weights; one without a weight counts nothing."""
    scaled = [Tables(*(w * x for x in of)) for of, own in zip(tables, weights) for w in own]
    return jax.tree.map(lambda *of: reduce(jnp.add, of), *scaled)


_mix.defvjp(_forward, _backward)
