"""Batches of many small graphs, and GIN against each graph by itself in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import apply, initial
from _helpers.refusals import raises
from scipy.stats import hypergeom

from crl_jax import data
from crl_jax.models import GIN, BackboneWithHead, GraphArrays, Network, Projection

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

GRAPHS = data.simulate_graphs(n=24, n_nodes=(3, 14), seed=2)
ARRAYS = GraphArrays.from_graphs(GRAPHS)
SETTINGS = GIN(4, width=5, n_layers=3, epsilon=0.25)
NETWORK = Network(SETTINGS)
HEADED = Network(BackboneWithHead(SETTINGS, Projection((6, 3), norm=False)))


pack = jax.jit(GraphArrays.pack, static_argnums=2, static_argnames="drawn")


def members(index, graphs=GRAPHS):
    """Features and the adjacency matrix of one graph, in float64."""
    nodes = slice(*graphs.node_offsets[index : index + 2])
    x = np.asarray(graphs.features[nodes], np.float64)
    near = np.zeros((len(x), len(x)))
    for low, high in graphs.edges[:, slice(*graphs.edge_offsets[index : index + 2])].T:
        near[low, high] = near[high, low] = 1
    return x, near


def reference(params, graphs, statistics=None):
    """Features of each graph, a layer at a time; statistics of a batch unless they are given."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    states, pooled = graphs, []
    for layer in (1, 2, 3):
        first, second, norm = (params[f"{n}_{layer}"] for n in ("first", "second", "norm"))
        outs = []
        for h, near in states:
            h = 1.25 * h + near @ h
            for part in (first, second):
                h = np.maximum(h @ part["kernel"] + part["bias"], 0)
            outs.append(h)
        whole = np.concatenate(outs)
        mean, var = whole.mean(axis=0), whole.var(axis=0)
        if statistics is not None:
            mean, var = (np.asarray(statistics[f"norm_{layer}"][n]) for n in ("mean", "var"))
        outs = [(h - mean) / np.sqrt(var + 1e-5) * norm["scale"] + norm["bias"] for h in outs]
        states = [(h, near) for h, (_, near) in zip(outs, states, strict=True)]
        pooled.append(np.stack([h.sum(axis=0) for h in outs]))
    return np.concatenate(pooled, axis=1)


def perturbed(tree):
    """Adds noise, so that no parameter is 0 or 1."""
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda x: jnp.asarray(np.asarray(x) + 0.3 * rng.normal(size=x.shape), x.dtype), tree
    )


@pytest.mark.parametrize("n_packs", [1, 4])
def test_features_match_float64_reference_per_graph(n_packs):
    params, rest = initial(NETWORK)
    params, indices = perturbed(params), np.array([3, 17, 0, 9, 21, 8, 2, 1])
    batch = pack(ARRAYS, jnp.asarray(indices), n_packs)
    graphs = [members(index) for index in indices]
    got, after = apply(NETWORK, params, rest, batch, train=True)
    np.testing.assert_allclose(got, reference(params, graphs), rtol=2e-4, atol=2e-4)
    got, _ = apply(NETWORK, params, after, batch)
    np.testing.assert_allclose(got, reference(params, graphs, after), rtol=2e-4, atol=2e-4)


def test_gradients_match_finite_differences():
    params, rest = initial(NETWORK)
    batch = pack(ARRAYS, jnp.arange(4))
    weights = jax.random.normal(jax.random.key(1), (4, 15))

    def loss(params):
        return jnp.sum(weights * apply(NETWORK, params, rest, batch, train=True)[0])

    value_and_grad = jax.jit(jax.value_and_grad(loss))
    with jax.enable_x64(True):
        params, rest, weights, batch = jax.tree.map(
            lambda x: np.asarray(x, np.float64) if x.dtype == jnp.float32 else x,
            (perturbed(params), rest, weights, batch),
        )
        rng = np.random.default_rng(3)
        step = jax.tree.map(lambda x: rng.normal(size=x.shape), params)
        slope = sum(
            np.vdot(g, s)
            for g, s in zip(*map(jax.tree.leaves, (value_and_grad(params)[1], step)), strict=True)
        )
        up, down = (
            value_and_grad(jax.tree.map(lambda x, s, t=t: x + t * s, params, step))[0]
            for t in (1e-6, -1e-6)
        )
        np.testing.assert_allclose(slope, (up - down) / 2e-6, rtol=1e-5)


def test_padding_does_not_change_embeddings():
    """The same graphs with more padding, and other values in the padding."""
    params, rest = initial(HEADED)
    indices = jnp.arange(5)
    close, wide = pack(ARRAYS, indices, drawn=True), pack(ARRAYS, indices)
    noise = jnp.where(wide.node_where[..., None], wide.features, 1e6)
    wide = wide._replace(features=noise)
    for train in (False, True):
        got, after = apply(HEADED, params, rest, wide, train=train)
        want, expected = apply(HEADED, params, rest, close, train=train)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        for one, other in zip(*map(jax.tree.leaves, (after, expected)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_bfloat16_is_close_to_float32():
    params, rest = initial(NETWORK)
    batch = pack(ARRAYS, jnp.arange(8))
    half = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, (params, batch)
    )
    got, after = apply(NETWORK, half[0], rest, half[1], train=True)
    want, _ = apply(NETWORK, params, rest, batch, train=True)
    assert got.dtype == jnp.bfloat16
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(after))
    np.testing.assert_allclose(np.asarray(got, np.float32), want, atol=0.05 * np.abs(want).max())


@pytest.mark.parametrize("drawn", [False, True])
def test_budget_fits_sampled_batches_and_is_bounded(drawn):
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 7, 8, 20, 24, 30, 60):
        nodes, edges = ARRAYS.budget(n, drawn=drawn)
        rounds, left = divmod(n, 24)
        for counts, capacity in ((GRAPHS.n_nodes, nodes), (GRAPHS.n_edges, edges)):
            drawings = [rng.permutation(counts)[:left].sum() for _ in range(50)]
            assert rounds * counts.sum() + max(drawings) <= capacity <= (rounds + 1) * counts.sum()
            if not drawn:  # the largest fit
                assert rounds * counts.sum() + np.sort(counts)[::-1][:left].sum() <= capacity


def test_budget_of_random_batches_rarely_overflows():
    """Exact overflow probability for graphs of two sizes, sampled without replacement."""
    counts = np.array([1] * 990 + [200] * 10)
    graphs = data.as_graphs([[[], []]] * 1000, None, np.arange(1000) % 2, n_nodes=counts)
    capacity = GraphArrays.from_graphs(graphs).budget(128, drawn=True)[0]
    least = (capacity - 128) // 199 + 1  # number of large graphs that does not fit
    assert hypergeom.sf(least - 1, 1000, 10, 128) <= 1e-12
    assert capacity <= counts[-10:].sum() + 118


def test_overflow_yields_nan_features():
    largest = int(np.argmax(GRAPHS.n_nodes))
    batch = pack(ARRAYS, jnp.full(16, largest))
    assert np.isnan(batch.features).all()
    assert not np.isnan(pack(ARRAYS, jnp.arange(48) % 24).features).any()


def test_graphs_without_edges_have_features():
    graphs = data.as_graphs([[[], []], [[], []]], [[0], [1, 1]], [0, 1])
    network = Network(GIN(2, width=5, n_layers=3))
    params, rest = initial(network)
    batch = pack(GraphArrays.from_graphs(graphs), jnp.arange(2))
    got, _ = apply(network, params, rest, batch)
    assert got.shape == (2, 15)
    assert np.isfinite(got).all()
    assert not batch.edge_where.any()


def test_rejects_invalid_arguments():
    with raises(ValueError, match="`n_packs` must divide the batch of 5 graphs, got 2"):
        pack(ARRAYS, jnp.arange(5), 2)
    with raises(ValueError, match="`width` must be at least 1, got 0"):
        GIN(3, width=0)
    params, rest = jax.eval_shape(Network(GIN(3)).init, jax.random.key(0))
    with raises(ValueError, match="`x` must have 3 node features, got 4"):
        jax.eval_shape(Network(GIN(3)).apply, params, rest, pack(ARRAYS, jnp.arange(2)))
