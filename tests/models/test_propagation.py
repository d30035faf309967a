"""Propagation against float64 products: sparse ones of SciPy and explicit dense ones."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.graphs import GRAPHS, LAYOUTS, interactions, normalised, some_tables, stacked
from _helpers.programs import counted
from _helpers.refusals import raises
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from crl_jax.kernels._bit_matrix import kernel_product
from crl_jax.models import InteractionGraph, Tables, propagate
from crl_jax.models._dense_layout import _times_split
from crl_jax.models._interaction_graph import MATRIX_LAYOUTS

pytestmark = pytest.mark.usefixtures("quick_compiles", "narrow_blocks")


def test_layers_without_weight_are_not_computed():
    seen = GRAPHS["one user"]
    graph, tables = InteractionGraph.from_interactions(interactions(seen)), some_tables(seen)
    got = propagate(graph, tables, (2.0, 0.0, 0.0))
    np.testing.assert_array_equal(stacked(got), stacked(tables) * 2)
    traced = str(jax.make_jaxpr(lambda g, t: propagate(g, t, (3.0, 0.0)))(graph, tables))
    assert "gather" not in traced


def test_supports_second_derivatives():
    seen = GRAPHS["one user"]
    graph, tables = InteractionGraph.from_interactions(interactions(seen)), some_tables(seen)

    def slope(scale):
        def loss(scale):
            made = propagate(graph, Tables(*(scale * table for table in tables)))
            return sum(jnp.vdot(x, x) for x in made)

        return jax.grad(loss)(scale)

    product = normalised(seen) @ stacked(tables)
    np.testing.assert_allclose(jax.grad(slope)(1.0), 2 * np.vdot(product, product), rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vmap_matches_reference_of_each_run(layout):
    seen = GRAPHS["heavy and empty"]
    graph = InteractionGraph.from_interactions(interactions(seen), layout=layout)
    runs = [some_tables(seen, seed=seed) for seed in range(3)]
    together = Tables(*map(jnp.stack, zip(*runs)))
    got = jax.jit(jax.vmap(propagate, (None, 0)))(graph, together)
    for place, run in enumerate(runs):
        np.testing.assert_allclose(
            stacked(x[place] for x in got), normalised(seen) @ stacked(run), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_preserves_dtype_of_tables(layout, dtype):
    """Sums of bfloat16 are in float32: the only rounding is that of the result."""
    seen, tables = GRAPHS["heavy and empty"], some_tables(GRAPHS["heavy and empty"])
    with jax.enable_x64(dtype == jnp.float64):
        tables = Tables(*(table.astype(dtype) for table in tables))
        graph = InteractionGraph.from_interactions(interactions(seen), layout=layout)
        got = jax.jit(propagate)(graph, tables)
    assert [table.dtype for table in got] == [dtype] * 2
    rtol, atol = (2**-8, 1e-6) if dtype == jnp.bfloat16 else (1e-12, 1e-13)
    want = normalised(seen) @ stacked(tables)
    np.testing.assert_allclose(stacked(got), want, rtol=rtol, atol=atol)


@pytest.mark.parametrize("side", [0, 1])
def test_split_product_is_accurate_to_float32(side):
    """The computation of a dense layout on accelerators."""
    rng = np.random.default_rng(6)
    matrix = rng.random((60, 60)) < 0.2
    table = rng.normal(size=(60, 3)) * 10.0 ** rng.integers(-20, 20, (60, 1))
    table = table.astype(np.float32)
    got = _times_split(jnp.asarray(matrix, jnp.bfloat16), jnp.asarray(table), side)
    links = (matrix if side else matrix.T).astype(np.float64)
    error = np.abs(got - links @ table.astype(np.float64))
    assert np.all(error <= 2**-22 * (links @ np.abs(table.astype(np.float64))))
    one = jnp.ones((1, 1), jnp.bfloat16)
    numbers = jnp.array([[1.2345678e30, -1.2345678e-30, 16777215.0, 1 + 2**-23]], jnp.float32)
    np.testing.assert_array_equal(_times_split(one, numbers, side), numbers)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_edge_dropout_is_symmetric(layout):
    seen, rate = GRAPHS["heavy and empty"], 0.3
    graph = InteractionGraph.from_interactions(interactions(seen), layout=layout, droppable=True)
    n_users, n_items = seen.shape
    dropped = jax.jit(lambda key: graph.drop(key, rate))(jax.random.key(0))
    # The operator itself, column by column, applied to unit vectors.
    every = n_users + n_items
    units = Tables(jnp.eye(n_users, every), jnp.eye(n_items, every, n_users))
    operator = stacked(jax.jit(propagate)(dropped, units))
    np.testing.assert_allclose(operator, operator.T, atol=1e-7)
    whole = normalised(seen)
    kept = operator != 0
    # Degrees are those of the whole graph: kept edges are unchanged, except for the factor.
    np.testing.assert_allclose(operator[kept], whole[kept] / (1 - rate), rtol=1e-6)
    share = kept.sum() / (whole != 0).sum()
    assert abs(share - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / seen.sum())
    # The same key draws the same edges whatever the layout.
    other = InteractionGraph.from_interactions(
        interactions(seen), layout="dense" if layout == "rows" else "rows", droppable=True
    ).drop(jax.random.key(0), rate)
    np.testing.assert_allclose(stacked(jax.jit(propagate)(other, units)), operator, atol=1e-6)


def test_graph_of_same_shape_does_not_recompile():
    seen = GRAPHS["heavy and empty"]
    rng = np.random.default_rng(4)
    other = seen[rng.permutation(len(seen))][:, rng.permutation(seen.shape[1])]
    compiled, traces = counted(lambda graph, tables: propagate(graph, tables, (0.5, 0.5)))
    tables = some_tables(seen)
    for matrix in (seen, other):
        graph = InteractionGraph.from_interactions(interactions(matrix), layout="rows")
        got = compiled(graph, tables)
        want = 0.5 * stacked(tables) + 0.5 * normalised(matrix) @ stacked(tables)
        np.testing.assert_allclose(stacked(got), want, rtol=1e-5, atol=1e-6)
    assert len(traces) == 1


@pytest.mark.usefixtures("all_optimisations")
def test_propagation_does_not_materialize_edge_messages(monkeypatch):
    monkeypatch.setattr("crl_jax.models._gather_layout.WIDTHS", (32,))
    rng = np.random.default_rng(5)
    seen, dim = rng.random((300, 400)) < 0.5, 64
    graph = InteractionGraph.from_interactions(interactions(seen), layout="rows")
    tables = some_tables(seen, dim=dim)

    def loss(graph, tables):
        return sum(jnp.vdot(x, x) for x in propagate(graph, tables, (0.25,) * 4))

    compiled = jax.jit(jax.grad(loss, argnums=1)).lower(graph, tables).compile()
    edges = graph.n_interactions * dim * 4
    # Of the order of the tables, 180 kB; one gathered neighbourhood would be 15 MB.
    assert compiled.memory_analysis().temp_size_in_bytes < edges / 4


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other compilers heed barriers")
@pytest.mark.parametrize("n_runs", [None, 2])
@pytest.mark.usefixtures("all_optimisations")
def test_cpu_program_separates_tables_from_gather_loops(n_runs):
    """The graph is a constant of the program, for one run and for several batched runs."""
    seen = GRAPHS["heavy and empty"]
    graph, tables = (
        InteractionGraph.from_interactions(interactions(seen), layout="rows"),
        some_tables(seen),
    )
    run = partial(propagate, graph)
    if n_runs:
        run, tables = jax.vmap(run), Tables(*(jnp.stack([table] * n_runs) for table in tables))
    # Users: blocks and pieces, pieces of pieces, and the table; so do items.
    assert jax.jit(run).lower(tables).compile().as_text().count(" conditional(") >= 6


@pytest.mark.parametrize(
    ("platform", "layout", "bits_per_entry"),
    [("tpu", "Bit", 1), ("tpu v4", "Dense", 16)],
)
def test_auto_layout_uses_platform_size_and_density(monkeypatch, platform, layout, bits_per_entry):
    full = GRAPHS["one user"]
    sparse = full & (np.arange(full.size) < 4)

    def chosen_layout(platform, seen=full):
        graph = InteractionGraph.from_interactions(interactions(seen), platform=platform)
        return type(graph.layout).__name__.removesuffix("Layout")

    assert chosen_layout("cpu") == chosen_layout("gpu") == chosen_layout(None) == "Gather"
    assert chosen_layout(platform) == layout
    name, _, ratio = MATRIX_LAYOUTS[platform]
    n_bytes = full.size * bits_per_entry / 8
    monkeypatch.setitem(MATRIX_LAYOUTS, platform, (name, n_bytes, ratio))
    assert chosen_layout(platform) == layout
    monkeypatch.setitem(MATRIX_LAYOUTS, platform, (name, n_bytes - 1 / 8, ratio))
    assert chosen_layout(platform) == "Gather"
    monkeypatch.setitem(MATRIX_LAYOUTS, platform, (name, n_bytes, full.size / 4))
    assert chosen_layout(platform, sparse) == layout
    monkeypatch.setitem(MATRIX_LAYOUTS, platform, (name, n_bytes, full.size / 4 - 1))
    assert chosen_layout(platform, sparse) == "Gather"


def test_tpus_without_integer_products_use_dense_layout(monkeypatch):
    for kind, layout in {"TPU v4": "DenseLayout", "TPU v5 lite": "BitLayout"}.items():
        monkeypatch.setattr(jax, "devices", lambda kind=kind: [SimpleNamespace(device_kind=kind)])
        monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
        graph = InteractionGraph.from_interactions(interactions(GRAPHS["one user"]))
        assert type(graph.layout).__name__ == layout


def test_exports_platform_specific_programs(monkeypatch):
    """A graph in bit layout runs the kernel on TPUs and an equal plain product elsewhere."""
    seen, weights = GRAPHS["heavy and empty"], (0.5, 0.0, -2.0)
    graph = InteractionGraph.from_interactions(interactions(seen), platform="tpu")
    tables = some_tables(seen, dim=7)
    product = jax.jit(jax.grad(lambda t: stacked_norm(propagate(graph, t, weights))))
    programs = {p: export.export(product, platforms=(p,))(tables) for p in ("cpu", "cuda", "tpu")}
    kernels = {p: "tpu_custom_call" in e.mlir_module() for p, e in programs.items()}
    assert kernels == {"cpu": False, "cuda": False, "tpu": True}
    operator = 0.5 * np.eye(sum(seen.shape)) - 2 * np.linalg.matrix_power(normalised(seen), 2)
    want = 2 * operator @ operator @ stacked(tables)
    atol = 1e-6 * abs(want).max()
    np.testing.assert_allclose(stacked(programs["cpu"].call(tables)), want, rtol=0, atol=atol)
    # The kernel itself, interpreted; jax caches traces of equal functions.
    kernel = partial(kernel_product, interpret=True)
    monkeypatch.setattr("crl_jax.kernels._bit_matrix._plain", kernel)
    jax.clear_caches()
    got = jax.grad(lambda t: stacked_norm(propagate(graph, t, weights)))(tables)
    np.testing.assert_allclose(stacked(got), want, rtol=0, atol=atol)
    jax.clear_caches()


def stacked_norm(tables):
    return sum(jnp.vdot(x, x) for x in tables)


def test_vmapped_dropout_and_mesh_use_bit_kernel():
    seen, rate = GRAPHS["heavy and empty"], 0.3
    graph = InteractionGraph.from_interactions(interactions(seen), layout="bits", droppable=True)
    runs = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), some_tables(seen))

    def run(key, tables):
        return propagate(graph.drop(key, rate), tables)

    keys = jax.random.split(jax.random.key(3), 2)
    together = jax.jit(jax.vmap(run))
    assert (
        "tpu_custom_call" in export.export(together, platforms=("tpu",))(keys, runs).mlir_module()
    )
    got = together(keys, runs)
    for place, key in enumerate(keys):
        one = jax.jit(run)(key, Tables(*(x[place] for x in runs)))
        np.testing.assert_allclose(stacked(x[place] for x in got), stacked(one), atol=1e-6)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "table"))
    tables = jax.device_put(some_tables(seen), NamedSharding(mesh, PartitionSpec("table")))
    sharded = jax.jit(partial(propagate, graph.shard(mesh)))
    np.testing.assert_allclose(
        stacked(sharded(tables)), normalised(seen) @ stacked(tables), rtol=1e-5, atol=1e-6
    )
    lowered = sharded.trace(tables).lower(lowering_platforms=("tpu",))
    assert "tpu_custom_call" in lowered.as_text()


def test_rejects_invalid_arguments():
    seen = GRAPHS["one user"]
    data, tables = interactions(seen), some_tables(seen)
    graph = InteractionGraph.from_interactions(data)
    with raises(ValueError, match="`layout` must be one of auto, rows, dense, bits, got 'csr'"):
        InteractionGraph.from_interactions(data, layout="csr")  # pyright: ignore[reportArgumentType]
    for layout in LAYOUTS:
        with raises(ValueError, match="droppable=True"):
            InteractionGraph.from_interactions(data, layout=layout).drop(jax.random.key(0), 0.1)
    with raises(ValueError, match=r"`tables.items` must have shape \(37, dim\)"):
        propagate(graph, tables._replace(items=tables.users))
    with raises(ValueError, match="`tables` must have the same width"):
        propagate(graph, tables._replace(users=jnp.ones((1, 4))))
    with raises(ValueError, match="at least one weight"):
        propagate(graph, tables, ())
