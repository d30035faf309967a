"""Node dropout, per-layer edge dropout, and the remaining degrees, against NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.graphs import (
    DIM,
    GRAPHS,
    LAYOUTS,
    heavy_and_empty,
    interactions,
    normalised,
    some_tables,
    stacked,
)
from _helpers.refusals import raises

from crl_jax.models import InteractionGraph, LightGCN, Tables, propagate

# Not compiled as a whole where tests share the compiled parts of a propagation.
pytestmark = pytest.mark.usefixtures("quick_compiles", "narrow_blocks")
WEIGHTS = (0.5, 0.25, 0.0, 1.0)


product = jax.jit(propagate)


def operator(graph):
    """Returns the matrix of a graph, column by column, by applying it to unit vectors."""
    every = graph.n_users + graph.n_items
    units = Tables(jnp.eye(graph.n_users, every), jnp.eye(graph.n_items, every, graph.n_users))
    return stacked(product(graph, units))


def remaining_links(graph):
    """Returns the links that remain in a graph after dropout."""
    return operator(graph)[: graph.n_users, graph.n_users :] != 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_node_dropout_removes_links_and_rescales_remaining(layout):
    seen, rate = heavy_and_empty(), 0.3
    graph = InteractionGraph.from_interactions(interactions(seen), layout=layout)
    dropped = jax.jit(lambda graph: graph.drop_nodes(jax.random.key(0), rate))(graph)
    whole, got = normalised(seen), operator(dropped)
    for has_links, degrees in zip(
        (seen.any(1), seen.any(0)), (dropped.user_degrees, dropped.item_degrees)
    ):
        share = np.mean(np.asarray(degrees)[has_links] == 0)
        assert abs(share - rate) < 4 * np.sqrt(rate * (1 - rate) / has_links.sum())
    is_kept = np.concatenate([dropped.user_degrees, dropped.item_degrees]) > 0
    want = whole * is_kept[:, None] * is_kept / (1 - rate) ** 2
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "layout"),
    [("heavy and empty", "rows"), ("one item", "dense"), ("heavy and empty", "bits")],
)
def test_renormalization_uses_remaining_degrees(name, layout):
    seen = GRAPHS[name]
    graph = InteractionGraph.from_interactions(interactions(seen), layout=layout, droppable=True)

    @jax.jit
    def drop_edges_and_nodes(graph):
        return graph.drop(jax.random.key(1), 0.3).drop_nodes(jax.random.key(2), 0.2)

    thin = drop_edges_and_nodes(graph)
    left = remaining_links(thin)
    assert np.all(seen[left])
    renormalized = jax.jit(InteractionGraph.renormalized)(thin)
    np.testing.assert_array_equal(renormalized.user_degrees, left.sum(1))
    np.testing.assert_array_equal(renormalized.item_degrees, left.sum(0))
    np.testing.assert_allclose(operator(renormalized), normalised(left), rtol=1e-5, atol=1e-7)


def encoders(seen, **settings):
    return LightGCN.from_interactions(
        interactions(seen), DIM, 3, layer_weights=WEIGHTS, layout="rows", **settings
    )


def weighted_layers(matrices, tables):
    """Returns the weighted sum of layers, each with a separate matrix, in float64."""
    layer = stacked(tables)
    total = WEIGHTS[0] * layer
    for weight, matrix in zip(WEIGHTS[1:], matrices, strict=True):
        layer = matrix @ layer
        total = total + weight * layer
    return total


def matrices_of(encoder, key):
    """Returns the matrix of each layer that an encoding with this key uses, one mix at a time.

    The layers are linear: applied to unit vectors they give their product.
    """
    every = encoder.n_users + encoder.n_items
    units = {
        "users": jnp.eye(encoder.n_users, every),
        "items": jnp.eye(encoder.n_items, every, encoder.n_users),
    }
    weights = [(0.0,) * i + (1.0,) for i in (1, 2, 3)]
    made = encoder.mixes(units, key, weights)
    return [stacked(of) for of in made]


@pytest.mark.parametrize(
    "settings",
    [
        {"node_dropout": 0.2, "renormalize": True},
        {"edge_dropout": 0.2, "node_dropout": 0.1},
    ],
    ids=str,
)
def test_layers_share_one_dropped_graph(settings):
    seen = heavy_and_empty()
    encoder, key = encoders(seen, **settings), jax.random.key(5)
    tables = some_tables(seen)
    params = tables._asdict()
    first, second, third = matrices_of(encoder, key)
    np.testing.assert_allclose(second, first @ first, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(third, first @ first @ first, rtol=1e-4, atol=1e-6)
    left = first[: len(seen), len(seen) :] != 0
    assert 0 < left.sum() < seen.sum()
    whole = normalised(seen)
    kept = 1.0
    for name, power in (("edge_dropout", 1), ("node_dropout", 2)):
        kept *= (1 - settings.get(name, 0)) ** power
    want = normalised(left) if settings.get("renormalize") else whole * (first != 0) / kept
    np.testing.assert_allclose(first, want, rtol=1e-4, atol=1e-7)
    got = stacked(encoder.encode(params, key))
    np.testing.assert_allclose(got, weighted_layers([want] * 3, tables), rtol=1e-4, atol=1e-5)
    got = stacked(encoder.encode(params))  # without a key
    np.testing.assert_allclose(got, weighted_layers([whole] * 3, tables), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("renormalize", [False, True])
def test_walk_samples_edges_per_layer(renormalize):
    seen, rate = heavy_and_empty(), 0.2
    encoder = encoders(seen, edge_dropout=rate, walk=True, renormalize=renormalize)
    tables, slopes = some_tables(seen), some_tables(seen, seed=2)
    key = jax.random.key(5)
    # The graphs of the layers, as the encoder samples them.
    keys = jax.random.split(jax.random.fold_in(key, 3), 3)
    drop = jax.jit(lambda graph, key: graph.drop(key, rate))
    links_per_layer = [remaining_links(drop(encoder.graph, own)) for own in keys]
    assert np.any(links_per_layer[0] != links_per_layer[1])
    assert np.any(links_per_layer[1] != links_per_layer[2])
    matrices = [normalised(left) for left in links_per_layer]
    if not renormalize:
        whole = normalised(seen)
        matrices = [whole * (matrix != 0) / (1 - rate) for matrix in matrices]

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def slope(params):
        made = encoder.encode(params, key)
        return sum(jnp.vdot(x, s) for x, s in zip(made, slopes, strict=True)), made

    found, got = slope(tables._asdict())
    np.testing.assert_allclose(
        stacked(got), weighted_layers(matrices, tables), rtol=1e-4, atol=1e-5
    )
    product, want = np.eye(len(matrices[0])), WEIGHTS[0] * stacked(slopes)
    for weight, matrix in zip(WEIGHTS[1:], matrices, strict=True):
        product = matrix @ product
        want = want + weight * product.T @ stacked(slopes)
    np.testing.assert_allclose(stacked(Tables(**found)), want, rtol=1e-4, atol=1e-5)


def test_walk_adds_noise_to_each_layer():
    seen = heavy_and_empty()
    encoder = encoders(seen, edge_dropout=0.2, walk=True, noise=0.3)
    quiet = encoders(seen, edge_dropout=0.2, walk=True, noise=0.0)
    params, key = some_tables(seen)._asdict(), jax.random.key(5)
    units = [(0.0,) * i + (1.0,) for i in (1, 2)]
    noisy, plain = (
        jax.jit(lambda params, each=each: each.mixes(params, key, units))(params)
        for each in (encoder, quiet)
    )
    added = np.abs(stacked(noisy[0]) - stacked(plain[0]))
    linked = np.abs(stacked(plain[0])).max(1) > 0
    np.testing.assert_allclose(np.linalg.norm(added, axis=1)[linked], 0.3, rtol=1e-4)
    assert np.abs(stacked(noisy[1]) - stacked(plain[1])).max() > 0.1


def test_vmap_over_keys_matches_separate_encodings():
    seen = heavy_and_empty()
    encoder = encoders(seen, edge_dropout=0.2, node_dropout=0.1, walk=True, renormalize=True)
    keys = jax.random.split(jax.random.key(0), 2)
    params = some_tables(seen)._asdict()
    encode = jax.jit(lambda key: encoder.encode(params, key))
    together = jax.jit(jax.vmap(encode))(keys)
    for place, key in enumerate(keys):
        alone = encode(key)
        np.testing.assert_allclose(together.users[place], alone.users, rtol=1e-5, atol=1e-6)


def test_rejects_invalid_arguments():
    with raises(ValueError, match=r"`node_dropout` must lie in \[0, 1\), got 1.0"):
        encoders(heavy_and_empty(), node_dropout=1.0)
