"""Losses of square score matrices, CLIP and SigLIP, against their publications."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.compare import same
from _helpers.programs import jitted
from _helpers.refusals import raises
from jax.test_util import check_grads

from crl_jax import losses

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(losses)


@pytest.fixture
def square():
    return jax.random.normal(jax.random.key(2), (6, 6))


def np_clip(s, t):
    """Cross-entropies of rows and columns against the diagonal."""
    s = np.asarray(s, np.float64) / t
    rows = np.log(np.exp(s).sum(1)) - np.diag(s)
    columns = np.log(np.exp(s).sum(0)) - np.diag(s)
    return (rows + columns) / 2


def test_clip_is_mean_of_row_and_column_cross_entropies(square):
    for t in (1.0, 0.2):
        got = quick.clip_contrastive(square, temperature=t, reduce_fn=None)
        same(got, np_clip(square, t), rtol=1e-4)
    same(quick.clip_contrastive(square), np_clip(square, 1.0).mean(), rtol=1e-5)
    same(quick.clip_contrastive(square.T), quick.clip_contrastive(square))


def test_clip_supports_batch_dimensions_and_vmap(square):
    both = jnp.stack([square, 2 * square])
    each = quick.clip_contrastive(both, reduce_fn=None)
    for got, one in zip(each, both):
        same(got, quick.clip_contrastive(one, reduce_fn=None))
    same(jax.jit(jax.vmap(losses.clip_contrastive))(both), each.mean(1))


def test_clip_ignores_padded_pairs(square):
    where = jnp.array([True, True, False, True, False, True])
    weights = jnp.arange(6.0)
    left = np.flatnonzero(where)

    @jax.jit
    def value_and_grad(scores, weights):
        def loss(scores, weights, t):
            return losses.clip_contrastive(scores, temperature=t, where=where, weights=weights)

        return jax.value_and_grad(loss, argnums=(0, 1, 2))(scores, weights, 0.5)

    want = value_and_grad(square, weights)
    same(want[0], (weights[left] * np_clip(square[left][:, left], 0.5)).mean(), rtol=1e-5)
    for junk in (jnp.nan, jnp.inf):
        corrupted = jnp.where(where[:, None] & where[None], square, junk)
        got = value_and_grad(corrupted, jnp.where(where, weights, junk))
        jax.tree.map(np.testing.assert_array_equal, got, want)


def test_clip_of_single_pair_is_zero(square):
    one = jnp.arange(6) == 3
    value, slope = jax.jit(jax.value_and_grad(losses.clip_contrastive))(square, where=one)
    assert value == 0
    assert (slope == 0).all()
    assert quick.clip_contrastive(square[:1, :1]) == 0
    assert jnp.isnan(quick.clip_contrastive(square.at[1, 2].set(jnp.nan)))


def test_clip_temperature_is_differentiable_without_recompiling(square):
    traces = 0

    def loss(scores, log_scale):
        nonlocal traces
        traces += 1
        return losses.clip_contrastive(scores, temperature=jnp.exp(-log_scale))

    jitted = jax.jit(loss)
    for log_scale in (0.0, 1.5):
        same(jitted(square, log_scale), np_clip(square, np.exp(-log_scale)).mean(), rtol=1e-4)
    assert traces == 1
    with jax.enable_x64(True):
        wide = jnp.asarray(np.asarray(square), jnp.float64)
        check_grads(jax.jit(loss), (wide, jnp.float64(0.7)), order=1, modes=["rev"], rtol=1e-4)


def test_clip_is_finite_at_extreme_scores(square):
    scores = jnp.asarray(100 * jnp.sign(square), jnp.bfloat16)
    value, slopes = jax.jit(jax.value_and_grad(losses.clip_contrastive))(scores, temperature=0.01)
    assert value.dtype == jnp.float32
    assert np.isfinite(value)
    assert np.isfinite(slopes.astype(jnp.float32)).all()


def test_clip_rejects_invalid_arguments(square):
    for name, args, kwargs in [
        ("scores", (square[:5],), {}),
        ("where", (square,), dict(where=jnp.ones(5, bool))),
        ("weights", (square,), dict(weights=jnp.ones(5))),
        ("temperature", (square,), dict(temperature=0.0)),
    ]:
        with raises(Exception, match=name):
            losses.clip_contrastive(*args, **kwargs)


def embeddings(n=6, dim=4, seed=0):
    z = np.random.default_rng(seed).normal(size=(2, n, dim))
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


def np_siglip(x, y, scale, bias):
    """Algorithm 1: labels 1 on the diagonal and -1 elsewhere, the sum divided by the batch size."""
    logits = scale * x @ y.T + bias
    labels = 2 * np.eye(len(x)) - 1
    return -np.sum(np.log(1 / (1 + np.exp(-labels * logits)))) / len(x)


@jax.jit
def siglip(x, y, temperature, bias):
    pos, neg, where = losses.tower_scores(x, y)
    return losses.sigmoid_contrastive(pos, neg, where=where, temperature=temperature, bias=bias)


@pytest.mark.parametrize(("temperature", "bias"), [(0.1, -10.0), (1.0, 0.0), (0.02, 3.0)])
def test_siglip_mean_matches_published_loss(temperature, bias):
    x, y = embeddings()
    want = np_siglip(x, y, 1 / temperature, bias)
    x, y = (jnp.asarray(z, jnp.float32) for z in (x, y))
    np.testing.assert_allclose(siglip(x, y, temperature, bias), want, rtol=1e-5)
    np.testing.assert_allclose(siglip(y, x, temperature, bias), want, rtol=1e-5)  # transposed


def test_siglip_is_accurate_at_large_logits():
    """Large logits: a loss of e^-40 and one of 10^6 are both exact."""
    pos, neg = jnp.array([40.0, -1e6]), jnp.array([[-40.0], [-1e6]])
    got = quick.sigmoid_contrastive(pos, neg, reduce_fn=None)
    np.testing.assert_allclose(got, [2 * np.exp(-40.0), 1e6], rtol=1e-6)
