"""Pair scores of batches, against loops over the samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import jitted
from _helpers.refusals import raises
from jax.test_util import check_grads

from crl_jax import losses

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(losses)


def embeddings(n, dim, count=2, seed=0, dtype=jnp.float32):
    z = np.random.default_rng(seed).normal(size=(count, n, dim))
    return tuple(jnp.asarray(each, dtype) for each in z)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_view_scores_match_loops_over_pairs(n):
    z1, z2 = embeddings(n, 4)
    views = np.concatenate([z1, z2]).astype(np.float64)
    ids = np.arange(n) // 2
    got = quick.view_scores(z1, z2)
    grouped = quick.view_scores(z1, z2, ids=jnp.asarray(ids))
    assert got.neg.shape == got.where.shape == (2 * n, 2 * n)
    for anchor in range(2 * n):
        np.testing.assert_allclose(
            got.pos[anchor], views[anchor] @ views[(anchor + n) % (2 * n)], rtol=1e-5
        )
        for key in range(2 * n):
            np.testing.assert_allclose(
                got.neg[anchor, key], views[key] @ views[anchor], rtol=1e-4, atol=1e-6
            )
            assert got.where[anchor, key] == (key % n != anchor % n)
            assert grouped.where[anchor, key] == (ids[key % n] != ids[anchor % n])


@pytest.mark.parametrize("n", [1, 3, 8])
def test_tower_scores_match_score_matrix(n):
    x, y = embeddings(n, 3, seed=1)
    ids = np.arange(n) % 2
    got = quick.tower_scores(x, y)
    grouped = quick.tower_scores(x, y, ids=jnp.asarray(ids))
    want = np.asarray(x, np.float64) @ np.asarray(y, np.float64).T
    np.testing.assert_allclose(got.neg, want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got.pos, np.diag(want), rtol=1e-5)
    np.testing.assert_array_equal(got.where, ~np.eye(n, dtype=bool))
    np.testing.assert_array_equal(grouped.where, ids[:, None] != ids)


def test_half_precision_gives_float32_scores():
    x, y = embeddings(4, 8, dtype=jnp.bfloat16)
    for scores in (quick.view_scores(x, y), quick.tower_scores(x, y)):
        assert scores.pos.dtype == scores.neg.dtype == jnp.float32
    want = np.asarray(x.astype(jnp.float32)) @ np.asarray(y.astype(jnp.float32)).T
    np.testing.assert_allclose(quick.tower_scores(x, y).pos, np.diag(want), rtol=1e-5)


@jax.jit
def normalized(x, slopes):
    got, pull_back = jax.vjp(losses.normalize, x)
    return got, pull_back(slopes)[0]


@pytest.mark.parametrize("scale", [1e-36, 1e-30, 1.0, 1e30, 1e38])
def test_normalize_matches_float64_at_any_scale(scale):
    x = scale * embeddings(5, 6)[0]
    along = np.asarray(embeddings(5, 6, seed=1)[0])
    got, grad = normalized(x, along)
    np.testing.assert_allclose(np.linalg.norm(got, axis=-1), 1, rtol=1e-6)
    x64 = np.asarray(x, np.float64)
    length = np.linalg.norm(x64, axis=-1, keepdims=True)
    want = x64 / length
    np.testing.assert_allclose(got, want, rtol=1e-5)
    slope = along - want * np.sum(want * along, axis=-1, keepdims=True)
    least = np.finfo(np.float32).tiny * length.max()  # gradients are as small as rows are large
    np.testing.assert_allclose(np.asarray(grad) * length, slope, rtol=1e-4, atol=1e-6 + least)


def test_normalize_of_zero_is_zero_with_zero_gradient():
    x = np.array(embeddings(3, 4)[0])
    x[1] = 0
    weights = embeddings(3, 4, seed=3)[0]

    def f(x):
        return jnp.sum(weights * quick.normalize(jnp.asarray(x)))

    np.testing.assert_array_equal(quick.normalize(jnp.asarray(x))[1], 0)
    grad = jax.jit(jax.grad(f))(x)
    assert np.isfinite(grad).all()
    assert (grad[1] == 0).all()
    assert np.abs(grad[0]).max() > 0
    check_grads(f, (embeddings(3, 4)[0],), order=1, modes=["rev"], rtol=2e-2)


def test_errors_report_expected_shapes():
    x, y = embeddings(4, 3)
    for scores in (losses.view_scores, losses.tower_scores):
        with raises(ValueError, match=r"must have shape \(4, 3\), got \(3, 3\)"):
            scores(x, y[:3])
        with raises(ValueError, match=r"must have shape \(batch, dim\), got \(3,\)"):
            scores(x[0], y[0])
        with raises(ValueError, match="`ids` must have shape"):
            scores(x, y, ids=jnp.arange(3))
