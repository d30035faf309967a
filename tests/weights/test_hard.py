"""Hard and Gaussian weights at extreme values, and effective sample size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import jitted
from _helpers.refusals import raises

from crl_jax import weights

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(weights)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_huge_scores_stay_finite(dtype):
    neg = jnp.array([[-100, 100, 99], [100, 100, -100], [-100, -100, -100]], dtype)
    value_and_grad = jax.value_and_grad(
        lambda s, t: (quick.hard_weights(s, beta=2.0, temperature=t) ** 2).sum(), (0, 1)
    )
    value, grads = value_and_grad(neg, jnp.float32(0.01))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((value, grads)))
    got = quick.hard_weights(neg, beta=2.0, temperature=0.01)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, [[0, 3, 0], [1.5, 1.5, 0], [1, 1, 1]])


@pytest.mark.parametrize("scale", [1e35, 3e38])
def test_hard_weights_are_finite_near_float32_limits(scale):
    neg = scale * jnp.array([[1.0, -1.0, 0.5], [0.5, 1.0, 1.0]])

    def f(neg, beta, t):
        return quick.hard_weights(neg, beta=beta, temperature=t)

    for beta, want in [(1e4, [[3, 0, 0], [0, 1.5, 1.5]]), (0.0, np.ones((2, 3)))]:
        for t in (1.0, 1e-3):
            got, pull_back = jax.vjp(f, neg, jnp.float32(beta), jnp.float32(t))
            np.testing.assert_array_equal(got, want)
            assert all(np.isfinite(g).all() for g in pull_back(jnp.array(3 * [[1.0, -1.0]]).T))


@pytest.mark.parametrize("scale", [1e4, 3e38])
def test_gaussian_weights_are_finite_far_from_mean(scale):
    """The nearest scores have all the weight."""
    neg = scale * jnp.array([[0.5, -1.0, 1.0], [1.0, 1.0, -1.0]])

    def f(neg, mu, sigma):
        return quick.gaussian_weights(neg, mu=mu, sigma=sigma)

    got, pull_back = jax.vjp(f, neg, jnp.float32(0), jnp.float32(0.01))
    np.testing.assert_array_equal(got, [[3, 0, 0], [1, 1, 1]])
    assert all(np.isfinite(g).all() for g in pull_back(jnp.array(3 * [[1.0, -1.0]]).T))


def test_effective_sample_size():
    w = np.float32([[2.0, 2.0, 2.0, 2.0], [0.0, 5.0, 0.0, 0.0], [1.0, 2.0, 3.0, 0.0], [0.0] * 4])
    np.testing.assert_allclose(quick.effective_sample_size(w), [4, 1, 36 / 14, 0], rtol=1e-6)
    for scale in (1e-30, 1e30, 0.6e38):  # their squares overflow or underflow float32
        got = quick.effective_sample_size(w * scale)
        np.testing.assert_allclose(got, [4, 1, 36 / 14, 0], rtol=1e-6)
    slope = jax.jit(jax.grad(lambda x: weights.effective_sample_size(x)[2]))(w * 1e-30)
    by_hand = 2 * 6 / 14 - 2 * np.arange(1, 4) * 36 / 14**2
    np.testing.assert_allclose(slope[2, :3] * 1e-30, by_hand, rtol=1e-5)
    np.testing.assert_array_equal(slope[3], 0)
    where = jnp.array([[True, True, False, False], [True, False, True, True]] + [[False] * 4] * 2)
    corrupted = jnp.where(where, w, jnp.nan)
    got = quick.effective_sample_size(corrupted, where=where)
    np.testing.assert_allclose(got, [2, 0, 0, 0])
    assert quick.effective_sample_size(w.astype(jnp.bfloat16)).dtype == jnp.float32
    with raises(Exception, match="where"):
        weights.effective_sample_size(w, where=where[0])
