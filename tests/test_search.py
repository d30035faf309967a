"""Counts and ranks by sorting and searching against explicit comparisons."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.exported import exported
from _helpers.platforms import forms_for, lowered_for
from jax.sharding import PartitionSpec as P

from crl_jax import _search
from crl_jax._search import (
    count_below,
    ranks_by_sorting,
    rows_contain,
    search_rows,
    with_block_ends,
)

pytestmark = pytest.mark.usefixtures("quick_compiles")

VALUES = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)


@pytest.fixture(params=["cpu", "tpu"])
def platform(request):
    with forms_for(request.param, _search._count_rows):
        yield request.param


def draw(shape, seed=0):
    return np.random.default_rng(seed).choice(VALUES, shape)


def count_by_comparing(scores, thresholds, side):
    compare = np.less if side == "left" else np.less_equal
    return compare(scores[..., None, :], thresholds[..., :, None]).sum(-1)


LENGTHS = 0, 1, 2, 0, 127, 128, 129, 300, 1, 17_000, 3


@pytest.fixture(params=["cpu", "cuda", "tpu"])
def searched_on(request):
    with forms_for(request.param):
        yield


def rows_and_queries(dtype):
    """Sorted rows with ties, concatenated, and queries within and beyond their values."""
    generator = np.random.default_rng(0)
    rows = [np.sort(generator.integers(1, 9_000, n)).astype(dtype) for n in LENGTHS]
    queries = generator.integers(0, 9_001, (len(rows), 40)).astype(dtype)
    queries[:, 0] = 0
    for row, row_queries in zip(rows, queries, strict=True):
        if row.size:
            row_queries[1:4] = row[0], row[-1], row[row.size // 2]
    return rows, queries


@pytest.mark.usefixtures("searched_on")
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.float32])
@pytest.mark.parametrize("cut", [len(LENGTHS), 9])  # with and without a row of thousands
def test_search_rows_matches_searchsorted(dtype, side, cut):
    rows, queries = (x[:cut] for x in rows_and_queries(dtype))
    ends = np.cumsum(LENGTHS[:cut])
    low, high = jnp.asarray(ends - LENGTHS[:cut]), jnp.asarray(ends)
    rounds = max(LENGTHS[:cut]).bit_length()
    values, ends = with_block_ends(np.concatenate(rows), rounds)
    search = jax.jit(partial(search_rows, rounds=rounds, side=side))
    got = search(jnp.asarray(values), jnp.asarray(queries.T), low, high, ends=ends)
    want = [np.searchsorted(*each, side=side) for each in zip(rows, queries, strict=True)]
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got.T - low[:, None], want)


@pytest.mark.usefixtures("searched_on")
def test_rows_contain_matches_isin():
    rows, queries = rows_and_queries(np.int32)
    ends = np.cumsum(LENGTHS)
    bounds = jnp.asarray(ends - LENGTHS), jnp.asarray(ends)
    contain = jax.jit(partial(rows_contain, rounds=15))
    got = contain(jnp.asarray(np.concatenate(rows)), jnp.asarray(queries.T), *bounds)
    want = [np.isin(*each) for each in zip(queries, rows, strict=True)]
    np.testing.assert_array_equal(got.T, want)
    assert 0 < np.sum(want) < np.size(want)


def test_search_rows_accepts_empty_values(searched_on):
    del searched_on
    empty = jnp.zeros(0, jnp.int32)
    got = search_rows(
        empty, jnp.array([[3, 4]]), jnp.zeros(2, jnp.int32), jnp.zeros(2, jnp.int32), 0
    )
    np.testing.assert_array_equal(got, 0)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("n", "k"), [(40, 7), (1, 30)])
def test_count_below_matches_comparisons(platform, side, n, k):
    scores, thresholds = draw((2, 3, n)), draw((2, 3, k), seed=1)
    got = count_below(jnp.asarray(scores), jnp.asarray(thresholds), side)
    assert got.dtype == jnp.int32
    known = ~np.isnan(thresholds)
    np.testing.assert_array_equal(got[known], count_by_comparing(scores, thresholds, side)[known])


@pytest.mark.usefixtures("platform")
def test_count_below_supports_bfloat16_and_vmap():
    scores, thresholds = (
        jax.random.normal(jax.random.key(i), (5, n), jnp.bfloat16) for i, n in ((0, 60), (1, 9))
    )
    got = jax.vmap(partial(count_below, side="right"))(scores, thresholds)
    want = count_by_comparing(np.float32(scores), np.float32(thresholds), "right")
    np.testing.assert_array_equal(got, want)


each_sort = pytest.mark.parametrize(
    "by_sorting", [ranks_by_sorting, partial(ranks_by_sorting, by_blocks=True)], ids=["", "blocks"]
)


@each_sort
@pytest.mark.parametrize("n", [51, 128, 384])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_ranks_by_sorting_match_comparisons(by_sorting, dtype, n):
    scores = np.concatenate([draw((6, n - 1)), np.full((6, 1), np.nan)], axis=1)
    scores[4] = 1.0
    scores[5] = np.nan
    want = np.where(np.isnan(scores), 0, count_by_comparing(scores, scores, "right"))
    got = jax.jit(by_sorting)(jnp.asarray(scores, dtype))
    np.testing.assert_array_equal(got, want)  # 3e38 is finite in bfloat16, too


@each_sort
@pytest.mark.parametrize("n", [2**16, 2**16 + 1])  # positions of 16 bits, and longer ones
def test_ranks_of_long_rows_match_searchsorted(by_sorting, n):
    scores = np.random.default_rng(n).normal(size=(2, n)).round(3).astype(np.float32)
    want = [np.searchsorted(np.sort(row), row, side="right") for row in scores]
    np.testing.assert_array_equal(jax.jit(by_sorting)(jnp.asarray(scores)), want)


@each_sort
def test_sorting_supports_sharded_values(by_sorting):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    scores, thresholds = draw((4, 256)), np.array([[0, 1], [-1, 5], [0.5, -5], [9, 0]], np.float32)

    def both(scores, thresholds):
        return by_sorting(scores), _search._count_by_merging(scores, thresholds, side="left")

    ranks, counts = jax.shard_map(both, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(
        jnp.asarray(scores), jnp.asarray(thresholds)
    )
    want = np.where(np.isnan(scores), 0, count_by_comparing(scores, scores, "right"))
    np.testing.assert_array_equal(ranks, want)
    np.testing.assert_array_equal(counts, count_by_comparing(scores, thresholds, "left"))


@pytest.mark.usefixtures("platform")
def test_count_below_supports_symbolic_shapes():
    scores, thresholds = draw((3, 40)), np.array([[0, 1], [-1, 5], [0.5, -5]], np.float32)
    count = exported(partial(count_below, side="right"), scores, thresholds, b=3, n=40, k=2)
    got = count.call(scores, thresholds)
    np.testing.assert_array_equal(got, count_by_comparing(scores, thresholds, "right"))


def test_accelerator_lowering_avoids_gather_and_scatter():
    scores, thresholds = jnp.zeros((4, 600)), jnp.zeros((4, 9))
    count = partial(count_below, side="left")
    assert "gather" in lowered_for("cpu", count, scores, thresholds)
    for platform in ("cuda", "tpu"):
        text = lowered_for(platform, count, scores, thresholds)
        assert "stablehlo.sort" in text
        assert "gather" not in text
        assert "scatter" not in text
