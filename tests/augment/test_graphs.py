"""Graph augmentations: invariants and the distributions of their random choices."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.platforms import forms_for
from _helpers.programs import counted as compiles
from _helpers.refusals import raises
from scipy.stats import chisquare, kstest, norm

from crl_jax import augment, data
from crl_jax.augment import _graphs
from crl_jax.models import GraphArrays

pytestmark = pytest.mark.usefixtures("quick_compiles")

GRAPHS = data.simulate_graphs(n=12, n_nodes=(3, 14), seed=5)
pack = jax.jit(GraphArrays.pack, static_argnums=2)


def in_numpy(function):
    """Compiles a function and converts its results to NumPy arrays."""
    jitted = jax.jit(function)
    return lambda *args: jax.tree.map(np.asarray, jitted(*args))


BATCH = jax.tree.map(np.asarray, pack(GraphArrays.from_graphs(GRAPHS), jnp.arange(12), 2))
N_NODES, N_EDGES = np.asarray(BATCH.n_nodes), np.asarray(BATCH.n_edges)
KINDS = ("drop_nodes", "subgraph", "perturb_edges", "mask_attributes")
CHANGES = {name: in_numpy(getattr(augment, name)) for name in KINDS}
ADDING = in_numpy(lambda keys, batch, ratio: augment.perturb_edges(keys, batch, ratio, add=True))
each_kind = pytest.mark.parametrize("kind", KINDS)
each_ratio = pytest.mark.parametrize("ratio", [0.0, 0.2, 0.5, 1.0])


def keys_of(seed, shape=(2, 6)):
    return jax.random.split(jax.random.key(seed), shape)


def count_valid(batch):
    """Returns the number of valid nodes and edges of each graph."""
    found = []
    for where, graph, n in (
        (batch.node_where, batch.graph, batch.n_nodes),
        (batch.edge_where, batch.edge_graph, batch.n_edges),
    ):
        found.append(
            np.stack([np.bincount(g[w], minlength=n.shape[1]) for w, g in zip(where, graph)])
        )
    return found


def check_edges(batch):
    """Edges connect valid nodes of the same graph."""
    for pack in range(2):
        ends = np.asarray(batch.edges[pack])[np.asarray(batch.edge_where[pack])]
        graph = np.asarray(batch.edge_graph[pack])[np.asarray(batch.edge_where[pack])]
        assert np.all(np.asarray(batch.node_where[pack])[ends])
        assert np.all(np.asarray(batch.graph[pack])[ends] == graph[:, None])
        assert np.all(ends[:, 0] != ends[:, 1])


def test_packed_batch_contains_all_graphs():
    nodes, edges = count_valid(BATCH)
    np.testing.assert_array_equal(nodes.ravel(), GRAPHS.n_nodes)
    np.testing.assert_array_equal(edges.ravel(), GRAPHS.n_edges)
    check_edges(BATCH)


@pytest.mark.parametrize("tenths", [1, 3, 7, 9])
def test_ratio_rounds_down_for_small_and_large_graphs(tenths):
    n = np.r_[1:1000, 113_781, 146_287, 399_900:400_000]
    found = _graphs.count_from_ratio(jnp.float32(tenths / 10), jnp.asarray(n))
    np.testing.assert_array_equal(found, tenths * n // 10)


@each_ratio
def test_drop_nodes_keeps_edges_between_remaining_nodes(ratio):
    view = CHANGES["drop_nodes"](keys_of(0), BATCH, ratio)
    nodes, _ = count_valid(view)
    np.testing.assert_array_equal(nodes, N_NODES - np.floor(ratio * N_NODES + 1e-4))
    check_edges(view)
    for pack in range(2):  # every edge between them is kept
        both = np.asarray(view.node_where[pack])[np.asarray(BATCH.edges[pack])].all(axis=-1)
        np.testing.assert_array_equal(view.edge_where[pack], both & BATCH.edge_where[pack])
    np.testing.assert_array_equal(view.features, BATCH.features)


@each_ratio
def test_perturb_edges_keeps_nodes_and_edge_fraction(ratio):
    view = CHANGES["perturb_edges"](keys_of(0), BATCH, ratio)
    nodes, edges = count_valid(view)
    np.testing.assert_array_equal(nodes.ravel(), GRAPHS.n_nodes)
    np.testing.assert_array_equal(edges, N_EDGES - np.floor(ratio * N_EDGES + 1e-4))
    added = ADDING(keys_of(0), BATCH, ratio)
    check_edges(added)
    np.testing.assert_array_equal(count_valid(added)[1], BATCH.n_edges)
    kept = np.asarray(view.edge_where)[..., None]
    np.testing.assert_array_equal(np.where(kept, added.edges, 0), np.where(kept, BATCH.edges, 0))


@each_ratio
def test_mask_attributes_changes_fraction_of_nodes(ratio):
    view = CHANGES["mask_attributes"](keys_of(0), BATCH, ratio)
    changed = np.any(view.features != BATCH.features, axis=-1)
    assert not changed[~np.asarray(BATCH.node_where)].any()
    found = [np.bincount(g[c], minlength=6) for g, c in zip(np.asarray(BATCH.graph), changed)]
    np.testing.assert_array_equal(found, np.floor(ratio * N_NODES + 1e-4))
    np.testing.assert_array_equal(view.edge_where, BATCH.edge_where)


@each_ratio
def test_subgraph_is_connected(ratio):
    view = CHANGES["subgraph"](keys_of(0), BATCH, ratio)
    nodes, _ = count_valid(view)  # simulated graphs are connected
    np.testing.assert_array_equal(nodes, N_NODES - np.floor(ratio * N_NODES + 1e-4))
    check_edges(view)
    for pack in range(2):
        ends = np.asarray(view.edges[pack])[np.asarray(view.edge_where[pack])]
        part = np.arange(view.graph.shape[1])
        for _ in range(len(part)):
            low = part[ends].min(axis=1, initial=len(part)) if len(ends) else []
            for side in (0, 1):
                np.minimum.at(part, ends[:, side], low)
        there = np.asarray(view.node_where[pack])
        graphs = np.unique(np.asarray(view.graph[pack])[there])
        assert len(np.unique(part[there])) == len(graphs)


def test_dropped_nodes_are_uniform():
    graphs = data.as_graphs([[[0, 1, 2, 3], [1, 2, 3, 4]]], [np.arange(5)], [0])
    batch = pack(GraphArrays.from_graphs(graphs), jnp.zeros(4000, jnp.int32), 4000)
    view = CHANGES["drop_nodes"](keys_of(1, (4000, 1)), batch, 0.4)
    dropped = ~np.asarray(view.node_where)
    codes = dropped @ (2 ** np.arange(5))
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == 10  # pairs of five
    assert chisquare(counts).pvalue > 1e-4


def grow_subgraph(rng, near, size):
    """Grows a connected node set by uniform border nodes, and returns it as a bit mask."""
    there = [int(rng.integers(len(near)))]
    while len(there) < size:
        border = [v for v in range(len(near)) if v not in there and near[v, there].any()]
        there.append(int(rng.choice(border)))
    return sum(2**v for v in there)


def test_subgraph_distribution_matches_random_growth():
    """Checks a graph with a triangle, a tail and a star against a slow reference."""
    links = np.array([[0, 1, 0, 2, 3, 3, 3], [1, 2, 2, 3, 4, 5, 6]])
    near = np.zeros((7, 7), bool)
    near[links[0], links[1]] = near[links[1], links[0]] = True
    graphs = data.as_graphs([links, [[0, 2], [1, 3]]], [np.arange(7), np.arange(5)], [0, 1])
    n, apart = 6000, 50
    places = jnp.asarray(np.repeat([0, 1], [n, apart]), jnp.int32)
    batch = pack(GraphArrays.from_graphs(graphs), places, n + apart)
    ratio = np.repeat(np.float32([0.45, 0.2]), [n, apart])[:, None]
    view = CHANGES["subgraph"](keys_of(2, (n + apart, 1)), batch, ratio)
    codes = np.asarray(view.node_where) @ (2 ** np.arange(view.node_where.shape[1]))
    # A graph in parts keeps one of them, or is unchanged if all of it is too small.
    assert set(codes[n:].tolist()) == {0b00011, 0b01100, 0b10000}
    small = CHANGES["subgraph"](keys_of(2, (n + apart, 1)), batch, np.full_like(ratio, 0.1))
    assert (np.asarray(small.node_where).sum(axis=1)[n:] == 5).all()
    got = codes[:n]
    rng = np.random.default_rng(0)
    want = np.array([grow_subgraph(rng, near, 4) for _ in range(n)])
    codes = np.unique(np.concatenate([got, want]))
    table = np.array([[np.sum(x == code) for code in codes] for x in (got, want)])
    table = table[:, table.sum(axis=0) > 20]
    expected = table.sum(axis=0) / 2
    assert chisquare(table[0], expected * table[0].sum() / expected.sum()).pvalue > 1e-4
    assert len(expected) > 10


def test_added_edges_are_uniform_pairs():
    links = [[0, 1, 2], [1, 2, 3]]
    graphs = data.as_graphs([links], [np.arange(4)], [0])
    n = 3000
    batch = pack(GraphArrays.from_graphs(graphs), jnp.zeros(n, jnp.int32), n)
    edges = np.sort(np.asarray(ADDING(keys_of(3, (n, 1)), batch, 1.0).edges), axis=-1)
    _, counts = np.unique(edges.reshape(-1, 2), axis=0, return_counts=True)
    assert len(counts) == 6
    assert chisquare(counts).pvalue > 1e-4


def test_masked_features_are_normal():
    view = CHANGES["mask_attributes"](keys_of(4), BATCH, 1.0)
    drawn = np.asarray(view.features)[np.asarray(BATCH.node_where)].ravel()
    assert kstest(drawn, norm(0.5, 0.5).cdf).pvalue > 1e-4


@each_kind
def test_ratio_may_differ_per_graph(kind):
    """Graphs of ratio 0 stay unchanged; the others match a run with their ratio for all graphs."""
    ratio = jnp.asarray(np.arange(12).reshape(2, 6) % 2 * 0.4, jnp.float32)
    mixed, all_of_them = (CHANGES[kind](keys_of(6), BATCH, r) for r in (ratio, 0.4))
    for field, graph in (("node_where", "graph"), ("edge_where", "edge_graph")):
        for pack in range(2):
            own = np.asarray(getattr(BATCH, graph)[pack])
            odd = np.append(np.asarray(ratio[pack]) > 0, False)[own]
            want = np.where(odd, getattr(all_of_them, field)[pack], getattr(BATCH, field)[pack])
            np.testing.assert_array_equal(getattr(mixed, field)[pack], want)


def test_view_depends_only_on_own_key_and_graph():
    arrays = GraphArrays.from_graphs(GRAPHS)
    places, keys = jnp.array([3, 8, 1, 11]), keys_of(7, (4,))
    views = augment.GraphAugmentation(arrays)
    one, many = map(in_numpy, (augment.GraphAugmentation.__call__, augment.GraphAugmentation.batch))
    batch = many(replace(views, n_packs=2), keys, places)
    nodes, edges = count_valid(batch)
    for place in range(4):
        alone = one(views, keys[place], places[place])
        assert alone.node_where.sum() == nodes.ravel()[place]
        assert alone.edge_where.sum() == edges.ravel()[place]
        pack, graph = divmod(place, 2)
        own = np.asarray(batch.graph[pack]) == graph
        there = np.arange(alone.graph.shape[0]) < GRAPHS.n_nodes[places[place]]
        # Computed by another program, which may round differently.
        got, want = batch.features[pack][own], alone.features[there]
        np.testing.assert_allclose(got, want, atol=1e-6)
        np.testing.assert_array_equal(batch.node_where[pack][own], alone.node_where[there])


def test_kinds_are_sampled_uniformly():
    graphs = data.as_graphs([[[0, 1, 2], [1, 2, 0]]] * 2, [[0, 1, 2]] * 2, [0, 1])
    views = augment.GraphAugmentation(
        GraphArrays.from_graphs(graphs), kinds=("identity", "drop_nodes", "mask_attributes"),
        ratio=0.5,
        n_packs=2000, drawn=False,
    )  # fmt: skip
    view = in_numpy(views.batch)(keys_of(8, (4000,)), jnp.arange(4000) % 2)
    plain = in_numpy(views.plain_batch)(jnp.arange(4000) % 2)
    dropped = np.asarray(view.node_where != plain.node_where).sum()
    masked = np.any(view.features != plain.features, axis=-1).sum()
    assert chisquare([dropped, masked, 4000 - dropped - masked]).pvalue > 1e-4


def test_ratio_does_not_recompile():
    views = augment.GraphAugmentation(GraphArrays.from_graphs(GRAPHS), kinds=("drop_nodes",))
    kept, traces = compiles(lambda views, *args: views.batch(*args).node_where.sum())
    counts = [
        int(kept(replace(views, ratio=ratio), keys_of(0, (12,)), jnp.arange(12)))
        for ratio in (0.0, 0.3, 0.6)
    ]
    assert len(traces) == 1
    assert counts[0] == GRAPHS.n_nodes.sum()
    assert counts == sorted(counts, reverse=True)


def test_rejects_invalid_arguments():
    arrays = GraphArrays.from_graphs(GRAPHS)
    with raises(ValueError, match="`kinds` must be some of identity, drop_nodes"):
        augment.GraphAugmentation(arrays, kinds=("drop",))
    with raises(ValueError, match=r"`ratio` must lie in \[0, 1\], got 1.2"):
        augment.GraphAugmentation(arrays, ratio=1.2)
    with raises(ValueError, match=r"`ratio` must lie in \[0, 1\], got -0.1"):
        augment.drop_nodes(keys_of(0), BATCH, -0.1)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_lowest_per_graph_matches_sorting(platform):
    """Fewer if values tie at the threshold; the greatest number lies below no threshold."""
    rng, largest = np.random.default_rng(0), 2**32 - 1
    sizes, counts = np.array([40, 1, 0, 50, 30, 9, 9]), np.array([7, 1, 0, 20, 0, 9, 5])
    graph = np.repeat(np.arange(8), [*sizes, 12]).astype(np.int32)  # the last 12 are padding
    values = rng.integers(0, largest, graph.size, dtype=np.uint32)
    values[graph == 3] %= 8
    values[graph >= 5] = largest - 1
    values[(graph == 5) & (np.arange(graph.size) % 3 == 0)] = largest
    with forms_for(platform, _graphs.lowest_per_graph):
        got = _graphs.lowest_per_graph(*map(jnp.asarray, (values, graph, counts)))
    for i, count in enumerate(counts):
        own = values[graph == i]
        threshold = np.sort(own)[count] if count < own.size else largest
        np.testing.assert_array_equal(np.asarray(got)[graph == i], own < threshold)
    assert not np.asarray(got)[graph == 7].any()
