"""Relatives of InfoNCE: without the positive below, of centres, and in both directions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.compare import same
from _helpers.refusals import raises
from jax.test_util import check_grads

from crl_jax import losses


@pytest.fixture
def square():
    return jax.random.normal(jax.random.key(2), (6, 6))


def test_info_nce_is_softplus_of_decoupled(pos, neg):
    decoupled = losses.decoupled_contrastive(pos, neg, temperature=0.5, reduce_fn=None)
    nce = losses.info_nce(pos, neg, temperature=0.5, reduce_fn=None)
    same(nce, jax.nn.softplus(decoupled), rtol=1e-5)
    one = losses.decoupled_contrastive(pos, neg[:, :1], reduce_fn=None)
    same(one, neg[:, 0] - pos, rtol=1e-5)


def test_decoupled_gradients_do_not_vanish(neg):
    """They are that of the positive, -1/t, and a softmax of the negatives alone."""
    far = jnp.full(6, 50.0)
    slopes = jax.grad(losses.decoupled_contrastive, argnums=(0, 1))(
        far, neg, temperature=0.5, reduce_fn=jnp.sum
    )
    same(slopes[0], -2.0)
    same(slopes[1], 2 * jax.nn.softmax(neg / 0.5), rtol=1e-5)


def test_equal_concentrations_are_a_temperature(pos, neg):
    got = losses.proto_nce(pos, neg, pos_concentration=0.3, neg_concentration=0.3)
    same(got, losses.info_nce(pos, neg, temperature=0.3), rtol=1e-5)


def test_proto_nce_is_a_cross_entropy_over_centres_averaged_over_clusterings():
    rng = np.random.default_rng(0)
    scores, own = rng.normal(size=(3, 6, 4)), rng.integers(4, size=(3, 6))  # 3 clusterings
    phi = rng.uniform(0.5, 1.5, (3, 1, 4))
    p = np.exp(scores / phi) / np.exp(scores / phi).sum(-1, keepdims=True)
    want = -np.log(np.take_along_axis(p, own[..., None], axis=-1)).mean()

    got = losses.proto_nce(
        jnp.asarray(np.take_along_axis(scores, own[..., None], -1)[..., 0], jnp.float32),
        jnp.asarray(scores, jnp.float32),
        where=jnp.asarray(own[..., None] != np.arange(4)),
        pos_concentration=jnp.asarray(np.take_along_axis(phi[:, 0], own, -1), jnp.float32),
        neg_concentration=jnp.asarray(phi, jnp.float32),
    )
    same(got, want, rtol=1e-5)


def np_clip(s, t):
    """Cross-entropies of rows and columns against the diagonal."""
    s = np.asarray(s, np.float64) / t
    rows = np.log(np.exp(s).sum(1)) - np.diag(s)
    columns = np.log(np.exp(s).sum(0)) - np.diag(s)
    return (rows + columns) / 2


def test_clip_is_the_mean_of_two_cross_entropies(square):
    for t in (1.0, 0.2):
        got = losses.clip_contrastive(square, temperature=t, reduce_fn=None)
        same(got, np_clip(square, t), rtol=1e-4)
    same(losses.clip_contrastive(square), np_clip(square, 1.0).mean(), rtol=1e-5)
    same(losses.clip_contrastive(square.T), losses.clip_contrastive(square))


def test_clip_of_a_batch_of_squares(square):
    both = jnp.stack([square, 2 * square])
    each = losses.clip_contrastive(both, reduce_fn=None)
    for got, one in zip(each, both):
        same(got, losses.clip_contrastive(one, reduce_fn=None))
    same(jax.jit(jax.vmap(losses.clip_contrastive))(both), each.mean(1))


def test_clip_never_reads_a_padded_pair(square):
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
        soiled = jnp.where(where[:, None] & where[None], square, junk)
        got = value_and_grad(soiled, jnp.where(where, weights, junk))
        jax.tree.map(np.testing.assert_array_equal, got, want)


def test_clip_of_a_pair_alone_is_0(square):
    one = jnp.arange(6) == 3
    value, slope = jax.value_and_grad(losses.clip_contrastive)(square, where=one)
    assert value == 0
    assert (slope == 0).all()
    assert losses.clip_contrastive(square[:1, :1]) == 0
    assert jnp.isnan(losses.clip_contrastive(square.at[1, 2].set(jnp.nan)))


def test_clip_learns_its_temperature(square):
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


def test_clip_at_extremes(square):
    scores = jnp.asarray(100 * jnp.sign(square), jnp.bfloat16)
    value, slopes = jax.value_and_grad(losses.clip_contrastive)(scores, temperature=0.01)
    assert value.dtype == jnp.float32
    assert np.isfinite(value)
    assert np.isfinite(slopes.astype(jnp.float32)).all()


def test_clip_checks_its_arguments(square):
    for name, args, kwargs in [
        ("scores", (square[:5],), {}),
        ("where", (square,), dict(where=jnp.ones(5, bool))),
        ("weights", (square,), dict(weights=jnp.ones(5))),
        ("temperature", (square,), dict(temperature=0.0)),
    ]:
        with raises(Exception, match=name):
            losses.clip_contrastive(*args, **kwargs)
