"""Moving averages of the denominators of the global contrastive loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import jitted
from _helpers.refusals import raises

from crl_jax import losses

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(losses)
RNG = np.random.default_rng(0)
NEG = RNG.normal(size=(3, 4, 6)).astype(np.float32)  # three steps
WHERE = RNG.random((3, 4, 6)) < 0.7
WHERE[..., 0] = True
WHERE[1, 2] = False  # no negatives in the second step


def test_update_log_mean_matches_recursion():
    """The recursion in float64, not as logarithms; the first mean counts in full."""
    u, log_u = np.zeros(4), jnp.full(4, -jnp.inf)
    for step, (neg, where) in enumerate(zip(NEG, WHERE)):
        power = np.exp(np.float64(neg) / 0.5)
        g = (where * power).sum(-1) / np.maximum(where.sum(-1), 1)
        new = g if step == 0 else 0.3 * u + 0.7 * g
        u = np.where(where.any(-1), new, u)
        junk = jnp.where(where, neg, jnp.nan)
        log_u = quick.update_log_mean(log_u, junk, gamma=0.7, temperature=0.5, where=where)
        np.testing.assert_allclose(log_u, np.log(u), rtol=1e-5, atol=1e-6)
    half = quick.update_log_mean(log_u, jnp.bfloat16(NEG[0]))
    assert half.dtype == jnp.float32


def test_update_log_mean_at_large_scores_and_gamma_limits():
    neg = jnp.array([[1e4, 0.0], [-1e4, -1e4]])
    old = jnp.array([0.0, 5.0])
    got = quick.update_log_mean(old, neg, gamma=1.0, temperature=0.01)
    np.testing.assert_allclose(got, [1e6 - np.log(2), -1e6], rtol=1e-6)
    got = quick.update_log_mean(old, neg, gamma=1e-30, temperature=0.01)
    np.testing.assert_allclose(got, [1e6, 5.0], rtol=1e-3)
    unused = jnp.full(2, -jnp.inf)
    got = quick.update_log_mean(unused, neg, where=jnp.zeros((2, 2), bool))
    np.testing.assert_array_equal(got, unused)
    for gamma in (0.0, 1.1, np.nan):
        with raises(ValueError, match="`gamma` must lie in"):
            losses.update_log_mean(old, neg, gamma=gamma)
    with raises(Exception, match="log_mean"):
        losses.update_log_mean(jnp.zeros(3), neg)


def test_gradient_matches_published_weights():
    """exp(s/t) / (u N t) for negatives, with u of the current step, and -1/t for the positive."""
    pos, neg, t = jnp.float32(RNG.normal(size=4)), NEG[0], 0.5
    log_u = quick.update_log_mean(jnp.zeros(4), neg, gamma=0.6, temperature=t)

    def total(pos, neg, log_u):
        return losses.global_contrastive(pos, neg, log_mean=log_u, temperature=t, reduce_fn=jnp.sum)

    d_pos, d_neg = jax.jit(jax.grad(total, (0, 1)))(pos, neg, log_u)
    weight = np.exp(np.float64(neg) / t) / np.exp(np.float64(log_u))[:, None]
    np.testing.assert_allclose(d_neg, weight / 6 / t, rtol=1e-5)
    np.testing.assert_allclose(d_pos, np.full(4, -1 / t), rtol=1e-6)


def test_gamma_of_one_matches_decoupled_loss():
    pos, neg = jnp.float32(RNG.normal(size=4)), NEG[0]

    def global_loss(neg):
        log_u = losses.update_log_mean(jnp.zeros(4), neg, gamma=1.0, temperature=0.5)
        return losses.global_contrastive(pos, neg, log_mean=log_u, temperature=0.5)

    def decoupled(neg):
        return losses.decoupled_contrastive(pos, neg, temperature=0.5) - np.log(6)

    want, got = (jax.jit(jax.value_and_grad(f))(neg) for f in (decoupled, global_loss))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), got, want)
