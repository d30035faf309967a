"""Propagation with user and item rows sharded over several devices."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.graphs import GRAPHS, interactions, normalised, some_tables, stacked
from _helpers.refusals import raises
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from crl_jax.models import InteractionGraph, LightGCN, Tables, propagate, propagate_mixes

pytestmark = pytest.mark.usefixtures("quick_compiles", "narrow_blocks")

WEIGHTS = (0.5, 0.0, -2.0, 0.25)


def mesh_of(data, table):
    return Mesh(np.array(jax.devices()[: data * table]).reshape(data, table), ("data", "table"))


MESHES = {"2": mesh_of(1, 2), "3 of 6": mesh_of(2, 3), "8": mesh_of(1, 8)}


def graph_on(seen, mesh, **options):
    return InteractionGraph.from_interactions(interactions(seen), **options).shard(mesh)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [*((name, "8") for name in GRAPHS), *(("heavy and empty", n) for n in ("2", "3 of 6"))],
)
def test_layers_match_dense_matrix(name, mesh):
    """Includes shards without links, more devices than rows, and rows with hundreds of links."""
    seen, mesh = GRAPHS[name], MESHES[mesh]
    tables, layer, want = some_tables(seen), stacked(some_tables(seen)), 0
    got = jax.jit(propagate, static_argnums=2)(graph_on(seen, mesh), tables, WEIGHTS)
    for weight in WEIGHTS:
        want = want + weight * layer
        layer = normalised(seen) @ layer
    np.testing.assert_allclose(stacked(got), want, rtol=0, atol=3e-6 * max(1, abs(want).max()))


def test_gradients_match_dense_formula():
    seen, mixes = GRAPHS["heavy and empty"], ((0.0, 1.0), WEIGHTS)
    graph, tables = graph_on(seen, MESHES["3 of 6"]), some_tables(seen)

    @jax.jit
    @jax.grad
    def slope(tables):
        found = propagate_mixes(graph, tables, mixes)
        return sum(jnp.sum(jnp.tanh(x)) for tables_of_mix in found for x in tables_of_mix)

    # The operator is symmetric, and so is any sum of its powers.
    operator, want = normalised(seen), 0
    powers = [np.linalg.matrix_power(operator, k) for k in range(len(WEIGHTS))]
    for weights in mixes:
        mix = sum(w * power for w, power in zip(weights, powers))
        want = want + mix @ (1 - np.tanh(mix @ stacked(tables)) ** 2)
    np.testing.assert_allclose(stacked(slope(tables)), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", GRAPHS)
def test_layout_returns_original_interactions(name):
    log = interactions(GRAPHS[name])
    users, items = InteractionGraph.from_interactions(log).layout.interactions()
    order = np.lexsort((items, users))
    np.testing.assert_array_equal(users[order], log.users)
    np.testing.assert_array_equal(items[order], log.items)


def test_devices_exchange_one_shard_at_a_time():
    seen = GRAPHS["heavy and empty"]
    seen, mesh = seen[:, :48], MESHES["8"]
    over = NamedSharding(mesh, PartitionSpec("table"))
    tables = Tables(*(jax.ShapeDtypeStruct((n, 5), jnp.float32) for n in np.shape(seen)))
    product = jax.jit(propagate, static_argnums=2, in_shardings=(None, over), out_shardings=over)
    text = product.lower(graph_on(seen, mesh), tables, WEIGHTS)
    sent = re.findall(r"= (\S+) ([a-z-]+)-?(?:start)?\(", text.compile().as_text())
    kinds = {"all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"}
    shapes = {(kind, shape.partition("{")[0]) for shape, kind in sent if kind in kinds}
    part = {f"f32[{n // 8 + 1},5]" for n in np.shape(seen)}
    assert {shape for kind, shape in shapes if kind == "collective-permute"} == part
    assert {kind for kind, _ in shapes} == {"collective-permute"}


def test_droppable_and_dense_graphs_are_not_sharded():
    log = interactions(GRAPHS["one user"])
    for options in ({"droppable": True}, {"layout": "dense"}):
        graph = InteractionGraph.from_interactions(log, **options)
        assert graph.shard(MESHES["2"]) is graph
    graph = InteractionGraph.from_interactions(log)
    assert graph.shard(mesh_of(4, 1)) is graph
    with raises(ValueError, match="`drop` needs a graph built with `droppable=True`"):
        graph.shard(MESHES["2"]).drop(jax.random.key(0), 0.5)


def test_graph_with_noise_is_not_sharded():
    """Noise is sampled in the order of the layout, and must not depend on the devices."""
    noisy = LightGCN.from_interactions(interactions(GRAPHS["one user"]), noise=0.1)
    assert noisy.shard(MESHES["2"]) is noisy


@pytest.mark.parametrize("noise", [None, 0.1])
def test_bit_layout_stores_any_mesh(noise):
    """Compilers cannot partition the kernel: the layout must store the mesh."""
    log = interactions(GRAPHS["one user"])
    encoder = LightGCN.from_interactions(log, noise=noise, layout="bits")
    for mesh in (mesh_of(4, 1), MESHES["3 of 6"]):
        assert encoder.shard(mesh).graph.layout.mesh == mesh


def test_each_device_holds_the_links_of_its_rows():
    graph = graph_on(GRAPHS["heavy and empty"], MESHES["8"])
    for leaf in jax.tree.leaves(graph.layout):
        assert leaf.addressable_shards[0].data.shape == (1, *leaf.shape[1:])
