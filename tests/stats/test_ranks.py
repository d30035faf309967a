"""Ranks and the eCDF against explicit counts, for every implementation."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.exported import exported
from _helpers.platforms import forms_for, lowered_for
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crl_jax import stats
from crl_jax.stats import _ranks

pytestmark = pytest.mark.usefixtures("quick_compiles")

# One row length per algorithm: fused, in blocks that do and do not fit, sorted. The network
# pads a row to a power of 2.
LENGTHS = {
    "pairs": [1, 32, 33, 64],
    "sort": [1, 33],
    "network": [1, 32, 33],
    "fused on TPUs": [33],
    "two sorts on TPUs": [1, 33],
}
each_length = pytest.mark.parametrize(
    ("way", "n"), [(way, n) for way in LENGTHS for n in LENGTHS[way]], indirect=["way"]
)
each_way = pytest.mark.parametrize("way", LENGTHS, indirect=True)


@pytest.fixture
def way(request, monkeypatch):
    on = "tpu" if request.param.endswith("TPUs") else "cpu"
    if request.param in ("sort", "network", "two sorts on TPUs"):
        for limit in ("FUSED", "ALL_PAIRS", "ALL_PAIRS_FEW_ROWS", "ALL_PAIRS_ON_TPU"):
            monkeypatch.setattr(_ranks, f"_LARGEST_{limit}", 0)
        monkeypatch.setattr(_ranks, "_FEW_ROWS", 0 if request.param == "network" else 10**9)
    with forms_for(on, _ranks._rank_rows):
        yield request.param


binned = jax.jit(
    lambda s, bins, where=None: stats.binned_ecdf(s, bins=bins, where=where), static_argnums=1
)


def np_ranks(scores, where):
    rows = zip(scores.reshape(-1, scores.shape[-1]), where.reshape(-1, scores.shape[-1]))
    counts = [[(row[keep] <= s).sum() if k else 0 for s, k in zip(row, keep)] for row, keep in rows]
    return np.reshape(counts, scores.shape)


def some_scores(n, seed=0):
    """Scores with many ties, and all values that sorts and comparisons treat differently."""
    rng = np.random.default_rng(seed)
    values = [0.0, -0.0, 1.0, -1.0, 0.5, 3e38, -3e38, np.inf, -np.inf, np.nan]
    return rng.choice(values, (3, 4, n)).astype(np.float32), rng.random((3, 4, n)) < 0.7


@each_length
def test_ranks_and_ecdf_match_explicit_counts(way, n):
    """Masked entries have no effect, even if they are not finite."""
    scores, where = some_scores(n)
    both = jax.jit(lambda s, where: (stats.ranks(s, where=where), stats.ecdf(s, where=where)))
    for keep, junk in (
        (where, None),
        (where, np.nan),
        (where, np.inf),
        (where, -np.inf),
        (None, 0),
    ):
        mask = np.ones_like(where) if keep is None else where
        want = np_ranks(scores, mask)
        given = scores if junk is None else np.where(mask, scores, np.float32(junk))
        got, u = both(given, keep)
        assert got.dtype == jnp.int32
        np.testing.assert_array_equal(got, want)
        count = np.maximum(mask.sum(-1, keepdims=True), 1)
        share = np.where(mask & np.isnan(scores), np.nan, want / count)
        np.testing.assert_allclose(u, share, rtol=2e-7)
        np.testing.assert_array_equal(u == 1, want == count)


# The longest rows counted in pairs and the shortest sorted ones, for many and for few rows.
@pytest.mark.parametrize(("n", "rows"), [(2048, 8), (2049, 8), (8192, 7), (8193, 7)])
def test_ranks_of_long_rows_match_searchsorted(n, rows):
    scores = np.random.default_rng(0).normal(size=(rows, n)).round(2).astype(np.float32)
    want = np.stack([np.searchsorted(np.sort(row), row, side="right") for row in scores])
    np.testing.assert_array_equal(stats.ranks(jnp.asarray(scores)), want)


@each_way
@pytest.mark.usefixtures("all_optimisations")
def test_no_pair_matrix_is_stored(way):
    """The working memory grows with the scores, not with their pairs."""
    scores = jnp.zeros((16, 2048))
    memory = jax.jit(stats.ranks).lower(scores).compile().memory_analysis()
    if memory is None:
        pytest.skip("the backend does not report memory")
    assert memory.temp_size_in_bytes < 10 * scores.nbytes


def test_ecdf_of_fully_masked_rows_is_zero():
    scores, nothing = jnp.ones((2, 3)), jnp.zeros((2, 3), bool)
    np.testing.assert_array_equal(stats.ecdf(scores, where=nothing), jnp.zeros((2, 3)))


@each_way
def test_jit_and_vmap_agree_and_gradient_is_zero(way):
    scores, where = some_scores(33)
    scores = jnp.asarray(np.where(np.isnan(scores), 0, scores))
    where = jnp.asarray(where)
    want = stats.ecdf(scores, where=where)
    row_wise = jax.vmap(jax.vmap(lambda s, w: stats.ecdf(s, where=w)))

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def both(scores):
        got = stats.ecdf(scores, where=where)
        return got.sum(), (got, row_wise(scores, jnp.asarray(where)))

    (_, got), slope = both(scores)
    for u in got:  # compilers may multiply by the reciprocal of a count
        np.testing.assert_allclose(u, want, rtol=3e-7)
    np.testing.assert_array_equal(slope, 0)


@pytest.mark.parametrize("n", [32, 33])
def test_types(n):
    def result_dtype(dtype):
        return jax.eval_shape(stats.ecdf, jax.ShapeDtypeStruct((n,), dtype)).dtype

    assert result_dtype(jnp.bfloat16) == result_dtype(jnp.float16) == jnp.float32
    with jax.enable_x64(True):
        assert result_dtype(jnp.float64) == jnp.float64


@given(
    # XLA may flush subnormal numbers to 0, and so see ties where NumPy sees none.
    hnp.arrays(np.float32, (2, 9), elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False)),
    hnp.arrays(bool, (2, 9)),
    st.sampled_from([1, 2, 8, 64]),
)
@settings(max_examples=30, deadline=None)
def test_binned_ecdf_error_is_within_documented_bound(scores, where, bins):
    got = np.asarray(binned(scores, bins, where))
    for row, keep, estimate in zip(scores.astype(np.float64), where, got, strict=True):
        assert (estimate[~keep] == 0).all()
        kept, estimate = row[keep], estimate[keep]
        if not kept.size:
            continue
        width = (kept.max() - kept.min()) / bins * (1 + 1e-5)
        for score, u in zip(kept, estimate, strict=True):
            exact = (kept <= score).mean()
            near = (np.abs(kept - score) <= width).sum() - 1  # at least the others in its bin
            assert abs(u - exact) <= near / kept.size + 1e-6
        assert (estimate[kept == kept.max()] == 1).all()
        order = np.argsort(kept)
        assert (np.diff(estimate[order]) >= 0).all()


def test_binned_ecdf_error_decreases_with_bins():
    scores = np.random.default_rng(1).normal(size=(2, 3000)).astype(np.float32)
    exact = np_ranks(scores, np.ones_like(scores, bool)) / 3000
    few, many = (binned(scores, b) for b in (64, 4096))
    assert np.abs(few - exact).max() < 0.02
    assert np.abs(many - exact).max() < 0.002


def test_binned_ecdf_is_unbiased():
    scores = np.random.default_rng(3).normal(size=(64, 500)).astype(np.float32)
    exact = (np.argsort(np.argsort(scores)) + 1) / 500
    error = np.asarray(binned(scores, 64)) - exact
    assert abs(np.mean(error)) < 0.1 / 500  # of a rank


def test_score_alone_in_its_bin_has_exact_rank():
    scores = np.random.default_rng(2).permuted(np.tile(np.arange(62) ** 1.5, (3, 1)), axis=1)
    exact = np_ranks(scores, np.ones_like(scores, bool)) / 62
    got = binned(np.float32(scores), 500)  # widths below 1
    np.testing.assert_allclose(got, exact, rtol=1e-6)


def test_binned_ecdf_at_extreme_scores():
    top = np.finfo(np.float32).max
    scores = jnp.array([[np.inf, -np.inf, 0.0, top, -top, np.nan], [2.0] * 6])
    for bins in (1, 4):
        got = np.asarray(binned(scores, bins))
        # A NaN counts in the total, but has no rank.
        np.testing.assert_allclose(got[0, [0, 1, 2, 5]], [5 / 6, 1 / 6, 3 / 6, np.nan])
        assert (got[1] == 1).all()
    slope = jax.jit(jax.grad(lambda s: stats.binned_ecdf(s, bins=4).sum()))
    np.testing.assert_array_equal(slope(scores), 0)
    with raises(ValueError, match="`bins` must be at least 1, got 0"):
        stats.binned_ecdf(scores, bins=0)


@pytest.mark.parametrize("form", [_ranks._count_by_scatter, _ranks._count_by_products])
@pytest.mark.parametrize("bins", [1, 8, 100])
def test_bin_counts_match_bincount(form, bins):
    """Includes bins with more scores than bfloat16 represents exactly."""
    rng = np.random.default_rng(bins)
    bin_ = np.minimum(rng.integers(0, 2 * bins, (3, 1500)), bins - 1).astype(np.int32)
    valid = rng.random(bin_.shape) < 0.8
    inside = jax.jit(partial(form, bins=bins))(jnp.asarray(bin_), jnp.asarray(valid))
    for row, keep, got in zip(bin_, valid, inside, strict=True):
        np.testing.assert_array_equal(got, np.bincount(row[keep], minlength=bins))


@pytest.mark.parametrize("form", [_ranks._gather, _ranks._select_by_products])
@pytest.mark.parametrize("bins", [1, 8, 100])
def test_bin_lookup_matches_take_along_axis(form, bins):
    rng = np.random.default_rng(bins)
    table = rng.normal(size=(3, bins)).astype(np.float32)
    bin_ = rng.integers(0, bins, (3, 50)).astype(np.int32)
    got = jax.jit(form)(jnp.asarray(table), jnp.asarray(bin_))
    np.testing.assert_array_equal(got, np.take_along_axis(table, bin_, axis=1))


def np_function_of_ranks(scores, where, function, bins):
    """Value at the interpolated rank of each valid score, bin by bin in float64; 0 for others."""
    out = np.zeros(scores.shape)
    for row, keep, values in zip(scores.astype(np.float64), where, out, strict=True):
        kept = row[keep]
        if not kept.size:
            continue
        edges = np.linspace(kept.min(), kept.max(), bins + 1)
        edges[-1] = kept.max()
        for low, high in pairwise(edges):
            inside = keep & (row >= low) & ((row < high) | (high == edges[-1]))
            below = np.count_nonzero(keep & (row < low))
            ends = function(below + 1.0), function(float(below + np.count_nonzero(inside)))
            share = (row[inside] - low) / (high - low)
            values[inside] = ends[0] + (ends[1] - ends[0]) * share
    return out


@pytest.mark.parametrize("bins", [3, 50])
def test_function_of_ranks_is_interpolated_within_bins(bins):
    rng = np.random.default_rng(bins)
    scores = rng.normal(size=(4, 80)).astype(np.float32)
    where = rng.random(scores.shape) < np.array([[1.0], [0.7], [0.2], [0.0]])
    got = stats.map_binned_ranks(jnp.sqrt, jnp.asarray(scores), bins=bins, where=jnp.asarray(where))
    want = np_function_of_ranks(scores, where, np.sqrt, bins)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_no_gather_and_no_scatter_on_accelerators():
    scores = jnp.zeros((4, 600))
    binned_ranks = partial(stats.binned_ranks, bins=64)
    assert "scatter" in lowered_for("cuda", binned_ranks, scores)
    for platform, function in (
        ("tpu", binned_ranks),
        ("tpu", stats.ranks),
        ("cuda", stats.ranks),
    ):
        text = lowered_for(platform, function, scores)
        assert "gather" not in text
        assert "scatter" not in text


def test_shape_error_names_the_argument():
    for function in (stats.ecdf, stats.ranks):
        with raises(Exception, match="where"):
            function(jnp.ones((2, 3)), where=jnp.ones(3, bool))


@pytest.mark.parametrize("n", [1, 40, 2100])
@pytest.mark.parametrize("axes", [{"b": 3}, {"b": 3, "n": None}], ids=" ".join)
def test_exported_with_symbolic_sizes(n, axes):
    """Covers the algorithms chosen for an unknown number of rows and for an unknown length."""
    scores, where = some_scores(n)
    axes = {name: n if size is None else size for name, size in axes.items()}
    ranks = exported(lambda s, w: stats.ranks(s, where=w), scores, where, **axes)
    np.testing.assert_array_equal(ranks.call(scores, where), np_ranks(scores, where))


def test_binned_ranks_are_exported_with_symbolic_sizes():
    scores, where = some_scores(40)
    f = partial(stats.binned_ecdf, bins=8)
    got = exported(lambda s, w: f(s, where=w), scores, where, b=3, n=40).call(scores, where)
    np.testing.assert_allclose(got, f(jnp.asarray(scores), where=jnp.asarray(where)), rtol=1e-6)
