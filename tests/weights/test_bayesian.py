"""Bayesian weights against the published formula in float64, and their theoretical properties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import jitted
from _helpers.refusals import raises
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from crl_jax import losses, weights

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick, contrastive = jitted(weights), jitted(losses).bayesian_contrastive

levels = st.floats(0.5, 1.0, width=32)
priors = st.floats(0.0, 1023 / 1024, width=32, allow_subnormal=False)

jitted_weights = jax.jit(weights.bayesian_weights)
jitted_posterior = jax.jit(weights.true_negative_posterior)


@pytest.fixture
def neg():
    s = jax.random.normal(jax.random.key(0), (4, 5, 13))
    return jnp.round(s, 1)  # some ties


@pytest.mark.parametrize("short", [1e-3, 1e-6])
def test_small_denominators_keep_relative_precision(short):
    """At the best score h = (1-alpha) tau_minus + alpha tau_plus, which may be tiny."""
    alpha, tau_plus = float(np.float32(1 - short)), np.array([1e-3, 1e-6, 1e-12, 1e-30])
    scores = jnp.tile(jnp.array([1.0, 2.0]), (4, 1))
    got = jitted_weights(scores, tau_plus=np.float32(tau_plus), alpha=alpha, beta=0.75)
    h = (1 - alpha) * (1 - tau_plus) + alpha * tau_plus
    z = 0.25 * alpha + 0.75 * (1 - alpha)
    np.testing.assert_allclose(got[:, 1], 0.75 * (1 - alpha) / z / h, rtol=1e-6)


def test_denormal_squares_are_not_treated_as_zero():
    """The best score is a false negative, however rare these are, unless there are none."""
    tau_plus = np.float32([1e-30, 0])
    got = jitted_weights(
        jnp.tile(jnp.array([1.0, 2.0]), (2, 1)), tau_plus=tau_plus, alpha=1.0, beta=0.75
    )
    assert got[0, 1] == 0
    np.testing.assert_array_equal(got[1], 1)


def test_gradients_are_finite_at_range_limits(neg):
    edges = np.float32([(0, 1), (0.1, 0.5), (0.5, 0.8), (0.1, 1)]).T
    for fn, more in (
        (weights.bayesian_weights, {"beta": 0.9}),
        (weights.true_negative_posterior, {}),
    ):

        def total(tau_plus, alpha, fn=fn, more=more):
            return fn(neg, tau_plus=tau_plus, alpha=alpha, **more).sum()

        slopes = jax.jit(jax.vmap(jax.grad(total, (0, 1))))(*edges)
        assert all(np.isfinite(slope).all() for slope in slopes)


@given(priors, levels, levels)
@example(0.0, 1.0, 0.5)
@example(0.5, 0.5, 1.0)
@example(1023 / 1024, 1.0, 0.984375)
@settings(max_examples=30, deadline=None)
def test_weights_are_a_density(tau_plus, alpha, beta):
    """The weights are non-negative, and their integral over u in [0, 1] is 1."""
    assume(alpha + beta <= 1.999)
    n = 4000  # u = 1/n, ..., 1
    w = jitted_weights(jnp.arange(float(n)), tau_plus=tau_plus, alpha=alpha, beta=beta)
    w = np.asarray(w, np.float64)
    assert np.isfinite(w).all()
    assert (w >= 0).all()
    # Trapezoids, whose error on a monotone curve is below its range / 2n. Phi(0) = 0 gives
    # the weight at u = 0.
    easy = (1 - beta) * alpha
    first = easy / (easy + beta * (1 - alpha)) / (alpha * (1 - tau_plus) + (1 - alpha) * tau_plus)
    integral = (w.sum() + (first - w[-1]) / 2) / n
    np.testing.assert_allclose(integral, 1, atol=1e-5 + abs(first - w[-1]) / (2 * n))


@given(priors, levels)
@example(0.0, 1.0)
@settings(max_examples=30, deadline=None)
def test_posterior_is_monotone_and_matches_weights(tau_plus, alpha):
    """Theorem 6.1; the limits of the posterior show that Phi runs from 0 to 1."""
    s = jnp.arange(500.0)
    p = jitted_posterior(s, tau_plus=tau_plus, alpha=alpha)
    p = np.asarray(p, np.float64)
    assert (p >= 0).all()
    assert (p <= 1).all()
    assert (np.diff(p) <= 1e-6).all()  # higher scores are never more likely true negatives
    if (tau_plus, alpha) != (0.0, 1.0):
        true, false = (1 - tau_plus) * (1 - alpha), tau_plus * alpha
        np.testing.assert_allclose(p[-1], true / (true + false), rtol=1e-4, atol=1e-6)
    if alpha < 1:
        w = jitted_weights(s, tau_plus=tau_plus, alpha=alpha, beta=0.5)
        np.testing.assert_allclose(p, (1 - tau_plus) * np.asarray(w), rtol=2e-6, atol=1e-7)


def test_rejects_alpha_and_beta_of_one(neg):
    for almost in (1.0, 1 - 1e-9):  # float32 has no value between
        with raises(ValueError, match="`alpha` and `beta` must not both be 1"):
            weights.bayesian_weights(neg, tau_plus=0.1, alpha=1.0, beta=almost)
    mixed = jnp.ones(5), jnp.full(5, 0.9).at[3].set(1.0)
    with raises(ValueError, match="`alpha` and `beta`"):
        weights.bayesian_weights(neg, tau_plus=0.1, alpha=mixed[0], beta=mixed[1])

    traced = jax.jit(lambda a, b: weights.bayesian_weights(neg, tau_plus=0.1, alpha=a, beta=b))
    np.testing.assert_array_equal(traced(1.0, 1.0), traced(1.0, 0.9))


@pytest.mark.parametrize("beta", [0.5, 1.0])  # 1 gives the lowest score a weight of 0
@pytest.mark.parametrize("bins", [None, 4])
def test_propagates_nan_unless_masked(neg, beta, bins):
    hyper = dict(tau_plus=0.1, alpha=0.8, beta=beta, bins=bins)
    is_nan = np.zeros(neg.shape, bool)
    is_nan[0, 0, 3] = True
    corrupted = np.where(is_nan, np.float32(np.nan), neg)
    for where in (None, jnp.ones(neg.shape, bool)):
        got = quick.bayesian_weights(corrupted, **hyper, where=where)
        np.testing.assert_array_equal(np.isnan(got), is_nan)
        loss = contrastive(neg[..., 0], corrupted, **hyper, where=where, reduce_fn=None)
        np.testing.assert_array_equal(np.isnan(loss), is_nan.any(-1))
    assert np.isfinite(quick.bayesian_weights(corrupted, **hyper, where=~is_nan)).all()


def test_128_bins_are_nearly_exact_for_thousands_of_negatives():
    """Errors of weights and of weighted sums, for dense scores and for scores with an outlier."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(8, 8192)).astype(np.float32)
    scores[4:, 0] = 12
    hyper = dict(tau_plus=0.1, alpha=0.9, beta=0.9)
    exact, binned = (
        np.asarray(quick.bayesian_weights(scores, **hyper, bins=bins)) for bins in (None, 128)
    )
    assert np.abs(binned - exact).mean() < 2e-3
    sums = [(w * np.exp(scores.astype(np.float64))).sum(axis=1) for w in (exact, binned)]
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-3)


def test_binned_weight_of_highest_score_is_exact():
    scores = np.linspace(0, 1, 400, dtype=np.float32)
    hyper = dict(tau_plus=0.4, alpha=1 - 1e-5, beta=0.5)
    exact, binned = (
        np.asarray(quick.bayesian_weights(scores, **hyper, bins=bins)) for bins in (None, 3)
    )
    assert 0 < exact[-1] < 1e-4 * exact[0]
    np.testing.assert_allclose(binned[-1], exact[-1], rtol=1e-5)
