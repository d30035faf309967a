"""Log-sum kernels against float64 NumPy, interpreted and with small tiles."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from crl_jax.kernels import _log_sum_kernels, _row_log_sums, row_log_sums

pytestmark = pytest.mark.usefixtures("quick_compiles")

WEIGHT_TOLERANCE = dict(rtol=3e-4, atol=3e-4)  # weights have 12 significant bits
N, M, DIM = 19, 150, 4  # two tiles of keys, the last of each axis incomplete


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(_row_log_sums, "_TILE", (128, 128))
    monkeypatch.setattr(_log_sum_kernels, "_STRIP", 64)  # two strips, to compile quickly


def rank_weight(rank, count, low, high):
    return (low * (count - rank) + high * rank) / count


def batch(seed=0, *, constant=False):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(N, DIM)), rng.normal(size=(M, DIM))
    if constant:
        x, y = np.ones_like(x), np.ones_like(y)
    exponents = np.stack([np.linspace(0, 3, N), np.full(N, 1.5)], axis=1)
    ids, key_ids = rng.integers(0, 9, N), rng.integers(0, 9, M)
    mask = rng.random(M) < 0.8
    params = np.stack([np.linspace(0, 1, N), np.linspace(2, 1, N)], axis=1)
    floats = (jnp.asarray(a, jnp.float32) for a in (x, y, exponents, params))
    return *floats, dict(
        ids=jnp.asarray(ids, jnp.int32), key_ids=jnp.asarray(key_ids, jnp.int32),
        key_mask=jnp.asarray(mask),
    )  # fmt: skip


def interpolated_rank(scores, bins):
    """Histogram rank of each of the valid scores of one row, in float64."""
    low, high = scores.min(), scores.max()
    if low == high:
        return np.full(scores.shape, len(scores), float)
    place = (scores - low) / (high - low) * bins
    bin_ = np.clip(place.astype(int), 0, bins - 1)
    inside = np.bincount(bin_, minlength=bins)
    before = np.cumsum(inside) - inside
    return before[bin_] + 1 + (inside[bin_] - 1) * np.clip(place - bin_, 0, 1)


def reference(x, y, exponents, params, ids, key_ids, key_mask, bins):
    """Log-sums, their gradients for unit cotangents, and counts, row by row in float64."""
    x, y, exponents, params = (np.asarray(a, np.float64) for a in (x, y, exponents, params))
    k = exponents.shape[1]
    log_sums = np.full((N, k), -np.inf)
    d_x, d_y, d_exponents = np.zeros_like(x), np.zeros_like(y), np.zeros_like(exponents)
    counts = np.zeros(N, int)
    for i in range(N):
        where = np.asarray(key_mask) & (np.asarray(key_ids) != int(ids[i]))
        counts[i] = where.sum()
        if not counts[i]:
            continue
        scores, weights = y[where] @ x[i], 1.0
        if bins:
            rank = interpolated_rank(scores, bins)
            weights = rank_weight(rank, counts[i], params[i, 0], params[i, 1])
        for j in range(k):
            top = scores[np.broadcast_to(weights, scores.shape) > 0].max()
            below = np.minimum(scores - top, 0)  # above it, weights are 0
            terms = weights * np.exp(exponents[i, j] * below)
            share = terms / terms.sum()
            log_sums[i, j] = exponents[i, j] * top + np.log(terms.sum())
            d_x[i] += exponents[i, j] * share @ y[where]
            d_y[where] += exponents[i, j] * np.outer(share, x[i])
            d_exponents[i, j] = share @ scores
    return log_sums, counts, d_x, d_y, d_exponents


def evaluate(x, y, exponents, params, keys, bins):
    ranks: dict[str, Any] = dict(weight=rank_weight, params=params, bins=bins) if bins else {}

    def total(x, y, exponents):
        log_sums, top, counts = row_log_sums(x, y, exponents, **keys, **ranks, interpret=True)
        log_sums = log_sums + exponents * top[:, None]
        return jnp.sum(jnp.where(jnp.isfinite(log_sums), log_sums, 0)), (log_sums, counts)

    grads, (log_sums, counts) = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(x, y, exponents)
    return log_sums, counts, *grads


def assert_close(got, want, rtol=1e-5, atol=1e-5):
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(g, np.float64), w, rtol=rtol, atol=atol)


@pytest.mark.parametrize("bins", [0, 200])
def test_log_sums_and_gradients_match_float64(bins):
    x, y, exponents, params, keys = batch()
    got = evaluate(x, y, exponents, params, keys, bins)
    want = reference(x, y, exponents, params, **keys, bins=bins)
    assert got[1].dtype == jnp.int32
    assert_close(got, want, **(WEIGHT_TOLERANCE if bins else {}))


@pytest.mark.parametrize(("bins", "n_keys"), [(5, 256), (20, 512), (128, 512), (300, 128)])
def test_histogram_counts_the_negatives_in_each_bin(bins, n_keys):
    rng = np.random.default_rng(bins + n_keys)
    x, y = rng.integers(-9, 10, (128, DIM)), rng.integers(-9, 10, (1024, DIM))
    ids, key_ids = rng.integers(0, 9, (128, 1)), rng.integers(0, 9, (1, 1024))
    valid = rng.random((1, 1024)) < 0.8
    scores, where = x @ y.T, (ids != key_ids) & valid
    low = np.where(where, scores, 999).min(axis=1, keepdims=True)
    high = np.where(where, scores, -999).max(axis=1, keepdims=True)
    width = 2.0 ** np.ceil(np.log2((high - low + 1) / bins))  # a power of 2: places are exact
    place = ((scores - low) // width).astype(int)
    want = [np.bincount(p[w], minlength=bins) for p, w in zip(place, where, strict=True)]

    def histogram(x, y, ids, key_ids, valid, low, width):
        options = _row_log_sums.Options(None, bins, (128, n_keys), interpret=True)
        anchors = _row_log_sums.Anchors(x, ids, jnp.ones((128, 1)))
        row_bins = _row_log_sums.Bins(low, 1 / width)
        keys = _row_log_sums.Keys(y, key_ids, valid)
        return _log_sum_kernels.histogram(options, anchors, keys, row_bins)

    floats = (jnp.asarray(a, jnp.float32) for a in (x, y))
    integers = (jnp.asarray(a, jnp.int32) for a in (ids, key_ids, valid))
    row_bins = (jnp.asarray(a, jnp.float32) for a in (low, width))
    got = np.asarray(jax.jit(histogram)(*floats, *integers, *row_bins))
    np.testing.assert_array_equal(got[:, :bins], want)
    assert not got[:, bins:].any()


def test_equal_scores_have_the_top_rank():
    x, y, exponents, params, keys = batch(constant=True)
    keys |= dict(ids=jnp.arange(N, dtype=jnp.int32) + 9, key_mask=jnp.ones(M, bool))
    got = evaluate(x, y, exponents, params, keys, 8)
    assert_close(got, reference(x, y, exponents, params, **keys, bins=8), **WEIGHT_TOLERANCE)


def test_rows_with_one_or_no_negative_match_float64():
    x, y, exponents, params, keys = batch()
    keys["key_mask"] = jnp.arange(M) == 7
    keys["ids"] = jnp.where(jnp.arange(N) % 2 == 0, keys["key_ids"][7], 50)
    got = evaluate(x, y, exponents, params, keys, 4)
    want = reference(x, y, exponents, params, **keys, bins=4)
    assert set(want[1].tolist()) == {0, 1}
    assert_close(got, want, **WEIGHT_TOLERANCE)


def test_large_score_with_zero_weight_does_not_underflow_sum():
    x, y, exponents, params, keys = batch()
    exponents, params = (
        exponents + 1,
        params.at[:].set(jnp.array([[1.0, 0.0]])),
    )  # 0 at the highest rank
    x, y = x.at[:, 0].set(1), y.at[3, 0].set(200)
    keys["key_mask"] = keys["key_mask"].at[3].set(True)
    got = evaluate(x, y, exponents, params, keys, 200)
    want = reference(x, y, exponents, params, **keys, bins=200)
    assert np.nanmax(want[0]) < 80 < 180 < jnp.max(x @ y[3])
    assert_close(got, want, rtol=2e-2, atol=2e-2)  # the other scores are in a few bins


def test_large_masked_scores_do_not_change_log_sums():
    x, y, exponents, params, keys = batch()
    keys["ids"] = jnp.full(N, 9, jnp.int32)
    keys["key_ids"] = keys["key_ids"].at[3].set(9)
    got = evaluate(x, y.at[3].set(1e4), 100 * exponents, params, keys, 200)
    assert all(np.isfinite(g).all() for g in got)
    want = evaluate(x, y.at[3].set(0), 100 * exponents, params, keys, 200)
    assert_close(got[:2], want[:2])


@pytest.mark.parametrize(("spread", "tolerance"), [(0.5, 2**-11), (3.0, 2**-4)])
def test_packed_weights_are_within_rounding_bound(spread, tolerance):
    rng = np.random.default_rng(0)
    ends = rng.lognormal(sigma=spread, size=(2, 4000)) * (
        rng.random((2, 4000)) > 0.1 * (spread > 1)
    )
    ends[:, :9] = 0
    first, last = jnp.asarray(ends, jnp.float32)
    words = _row_log_sums._packed(first, last - first)
    got, rise = (np.asarray(a, np.float64) for a in _row_log_sums.unpacked(words))
    assert min(got.min(), (got + rise).min()) >= 0
    middle, change = ends.sum(axis=0) / 2, ends[1] - ends[0]
    assert (np.abs(rise - change) <= np.abs(change) / 8).all()
    assert (np.abs(got + rise / 2 - middle) <= tolerance * middle).all()


def test_large_exponents_neither_overflow_nor_lose_the_gradient():
    x, y, exponents, params, keys = batch()
    got = evaluate(30 * x, 30 * y, 100 * exponents, params, keys, 0)
    want = reference(30 * x, 30 * y, 100 * exponents, params, **keys, bins=0)
    assert np.abs(want[0]).max() > 1e5
    assert_close(got[:2], want[:2], rtol=1e-5)
    assert all(np.isfinite(g).all() for g in got[2:])
    assert_close(got[4:], want[4:], rtol=1e-4, atol=1e-2)


def test_bfloat16_embeddings_match_float64():
    x, y, exponents, params, keys = batch()
    x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    got = evaluate(x, y, exponents, params, keys, 0)
    want = reference(
        x.astype(jnp.float32), y.astype(jnp.float32), exponents, params, **keys, bins=0
    )
    assert got[2].dtype == got[3].dtype == jnp.bfloat16
    assert_close(got[:2], want[:2])
    assert_close(got[2:], want[2:], rtol=1e-2, atol=1e-2)


def test_masked_keys_do_not_change_result():
    x, y, exponents, params, keys = batch()
    want = evaluate(x, y, exponents, params, keys, 0)
    large = jnp.where(keys["key_mask"][:, None], y, 1e30)
    assert_close(evaluate(x, large, exponents, params, keys, 0), want, rtol=0, atol=0)


def test_histogram_bin_holds_all_keys_of_tile():
    n_keys, n_bins = 2 * 1024, 200
    options = _row_log_sums.Options(rank_weight, n_bins, (128, 1024), interpret=True)
    scores = np.repeat([0.5, 7.5, 150.5], [1500, n_keys - 1501, 1]).astype(np.float32)
    x = jnp.ones((128, 1)).at[5].set(0)
    anchors = _row_log_sums.Anchors(x, jnp.full((128, 1), 9).at[7].set(0), x)
    ids, valid = jnp.arange(n_keys)[None] % 2, jnp.ones((1, n_keys), jnp.int32)
    keys = _row_log_sums.Keys(jnp.asarray(scores)[:, None], ids, valid)
    bins = _row_log_sums.Bins(jnp.zeros((128, 1)), jnp.ones((128, 1)))
    got = np.asarray(_log_sum_kernels.histogram(options, anchors, keys, bins))
    want = np.bincount(scores.astype(int), minlength=got.shape[1])
    np.testing.assert_array_equal(got[0], want)
    assert got[5, 0] == n_keys  # all its scores are 0
    odd = np.bincount(scores[1::2].astype(int), minlength=got.shape[1])
    np.testing.assert_array_equal(got[7], odd)


@pytest.mark.parametrize("bins", [0, 8])
def test_valid_nan_propagates_to_log_sums(bins):
    x, y, exponents, params, masks = batch()
    valid = np.flatnonzero(masks["key_mask"])[0]
    sees = np.asarray(masks["ids"]) != int(masks["key_ids"][valid])
    ranks = dict(weight=rank_weight, params=params, bins=bins) if bins else {}
    got = row_log_sums(x, y.at[valid].set(jnp.nan), exponents, **masks, interpret=True, **ranks)
    assert 0 < sees.sum() < N
    np.testing.assert_array_equal(np.isnan(got[0]), np.stack([sees, sees], axis=1))
