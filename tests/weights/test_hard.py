"""Hard weights and effective sample size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises
from jax.test_util import check_grads

from crl_jax import weights


def np_hard(s, m, beta, t):
    """The published formula, in float64."""
    s, m = np.asarray(s, np.float64), np.asarray(m)
    power = m * np.exp(beta * s / t)
    return power / (power.sum(-1, keepdims=True) / m.sum(-1, keepdims=True))


@pytest.fixture
def neg():
    return jax.random.normal(jax.random.key(0), (4, 5, 7))


@pytest.fixture
def where():
    return jax.random.bernoulli(jax.random.key(1), 0.6, (4, 5, 7)).at[..., 0].set(True)


@pytest.mark.parametrize(("beta", "t"), [(0.0, 1.0), (1.0, 0.5), (2.5, 0.1)])
def test_values(neg, where, beta, t):
    every = jnp.ones_like(where)
    got = weights.hard_weights(neg, beta=beta, temperature=t)
    np.testing.assert_allclose(got, np_hard(neg, every, beta, t), rtol=2e-5, atol=1e-30)
    got = weights.hard_weights(neg, beta=beta, temperature=t, where=where)
    np.testing.assert_allclose(got, np_hard(neg, where, beta, t), rtol=2e-5, atol=1e-30)


def test_beta_may_differ_between_anchors(neg):
    beta = jnp.arange(5.0)
    each = [weights.hard_weights(neg[:, i], beta=float(i)) for i in range(5)]
    np.testing.assert_allclose(
        weights.hard_weights(neg, beta=beta), jnp.stack(each, axis=1), rtol=1e-6
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_huge_scores_stay_finite(dtype):
    neg = jnp.array([[-100, 100, 99], [100, 100, -100], [-100, -100, -100]], dtype)
    value_and_grad = jax.value_and_grad(
        lambda s, t: (weights.hard_weights(s, beta=2.0, temperature=t) ** 2).sum(), (0, 1)
    )
    value, grads = value_and_grad(neg, jnp.float32(0.01))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((value, grads)))
    got = weights.hard_weights(neg, beta=2.0, temperature=0.01)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, [[0, 3, 0], [1.5, 1.5, 0], [1, 1, 1]])


@pytest.mark.parametrize("scale", [1e35, 3e38])
def test_no_score_or_concentration_is_too_large(scale):
    neg = scale * jnp.array([[1.0, -1.0, 0.5], [0.5, 1.0, 1.0]])

    def f(neg, beta, t):
        return weights.hard_weights(neg, beta=beta, temperature=t)

    for beta, want in [(1e4, [[3, 0, 0], [0, 1.5, 1.5]]), (0.0, np.ones((2, 3)))]:
        for t in (1.0, 1e-3):
            got, pull_back = jax.vjp(f, neg, jnp.float32(beta), jnp.float32(t))
            np.testing.assert_array_equal(got, want)
            assert all(np.isfinite(g).all() for g in pull_back(jnp.array(3 * [[1.0, -1.0]]).T))


@pytest.mark.parametrize("junk", [jnp.nan, jnp.inf, -jnp.inf])
def test_masked_entries_are_never_read(neg, where, junk):
    where = where.at[0].set(False)

    @jax.jit
    @jax.value_and_grad
    def f(args):
        neg, beta, t = args
        return (weights.hard_weights(neg, beta=beta, temperature=t, where=where) ** 2).sum()

    hyper = (jnp.float32(1.5), jnp.float32(0.5))
    want, got = f((neg, *hyper)), f((jnp.where(where, neg, junk), *hyper))
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))
    np.testing.assert_array_equal(weights.hard_weights(neg, beta=1.0, where=where)[0], 0)


def test_gradients(neg, where):
    def f(args):
        neg, beta, t = args
        return weights.hard_weights(neg, beta=beta, temperature=t, where=where)

    f = jax.jit(f)
    with jax.enable_x64(True):
        args = tuple(jnp.asarray(np.asarray(x, np.float64)) for x in (neg, 1.5, 0.5))
        check_grads(f, (args,), order=1, modes=["rev"], rtol=1e-6)


def test_jit_agrees_and_does_not_retrace(neg):
    traces = 0

    @jax.jit
    def f(beta, t):
        nonlocal traces
        traces += 1
        return weights.hard_weights(neg, beta=beta, temperature=t)

    for beta, t in [(0.5, 1.0), (2.0, 0.3)]:
        want = weights.hard_weights(neg, beta=beta, temperature=t)
        np.testing.assert_allclose(f(beta, t), want, rtol=1e-5)
    assert traces == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beta", -0.1),
        ("beta", np.inf),
        ("beta", 1e39),
        ("temperature", 0.0),
        ("temperature", 1e-40),
    ],
)
def test_range_errors_name_the_argument(neg, name, value):
    with raises(ValueError, match=f"`{name}` must lie in"):
        weights.hard_weights(neg, **{"beta": 1.0} | {name: value})


def test_shape_errors_name_the_argument(neg):
    wrong = {"where": jnp.ones(7, bool), "temperature": jnp.ones(5), "beta": jnp.ones(3)}
    for name, value in wrong.items():
        with raises(Exception, match=name):
            weights.hard_weights(neg, **{"beta": 1.0} | {name: value})


def test_effective_sample_size():
    w = jnp.array([[2.0, 2.0, 2.0, 2.0], [0.0, 5.0, 0.0, 0.0], [1.0, 2.0, 3.0, 0.0], [0.0] * 4])
    np.testing.assert_allclose(weights.effective_sample_size(w), [4, 1, 36 / 14, 0], rtol=1e-6)
    for scale in (1e-30, 1e30, 0.6e38):  # their squares overflow or underflow float32
        got = weights.effective_sample_size(w * scale)
        np.testing.assert_allclose(got, [4, 1, 36 / 14, 0], rtol=1e-6)
    slope = jax.grad(lambda x: weights.effective_sample_size(x)[2])(w * 1e-30)
    by_hand = 2 * 6 / 14 - 2 * np.arange(1, 4) * 36 / 14**2
    np.testing.assert_allclose(slope[2, :3] * 1e-30, by_hand, rtol=1e-5)
    np.testing.assert_array_equal(slope[3], 0)
    where = jnp.array([[True, True, False, False], [True, False, True, True]] + [[False] * 4] * 2)
    soiled = jnp.where(where, w, jnp.nan)
    got = weights.effective_sample_size(soiled, where=where)
    np.testing.assert_allclose(got, [2, 0, 0, 0])
    assert weights.effective_sample_size(w.astype(jnp.bfloat16)).dtype == jnp.float32
    with raises(Exception, match="where"):
        weights.effective_sample_size(w, where=where[0])
