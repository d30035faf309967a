"""Parametric distributions and order statistics against SciPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from _helpers.refusals import raises
from scipy import integrate, special

from crl_jax import stats

pytestmark = pytest.mark.usefixtures("quick_compiles")
X = np.array([-9, -3, -1, -1e-3, 0, 1e-3, 0.2, 1, 2.5, 4, 9, 30], np.float32)
PAIRS = {
    "normal": (stats.Normal(1.0, 2.0), scipy.stats.norm(1, 2)),
    "t": (stats.StudentT(3.5), scipy.stats.t(3.5)),
    "gamma": (stats.Gamma(2.5, 0.8), scipy.stats.gamma(2.5, scale=1 / 0.8)),
}


@pytest.mark.parametrize(("ours", "theirs"), PAIRS.values(), ids=PAIRS)
def test_distributions_match_scipy(ours, theirs):
    wide = X.astype(np.float64)
    for name in ("pdf", "cdf"):
        got = getattr(ours, name)(jnp.asarray(X))
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, getattr(theirs, name)(wide), rtol=2e-5, atol=1e-7)
    half = ours.cdf(jnp.asarray(X, jnp.bfloat16))
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(
        half, theirs.cdf(np.float64(jnp.asarray(X, jnp.bfloat16))), rtol=2e-5, atol=1e-7
    )


@pytest.mark.parametrize(
    ("size", "of_t", "of_gamma", "of_order"),
    [(3, 4e-6, 2e-6, 1e-5), (100, 1e-5, 6e-5, 4e-5), (1000, 1e-4, 8e-4, 8e-4),
     (10_000, 4e-3, 1e-2, 4e-3)],
)  # fmt: skip
def test_float32_errors_are_within_documented_bounds(size, of_t, of_gamma, of_order):
    """The bounds are twice the documented errors, which vary with the processor and JAX version."""
    share = np.linspace(1e-4, 1 - 1e-4, 2001)
    t, gamma = scipy.stats.t(size), scipy.stats.gamma(size)
    cases = [
        (stats.StudentT(float(size)), t.ppf(share), t.cdf, of_t),
        (stats.Gamma(float(size)), gamma.ppf(share), gamma.cdf, of_gamma),
    ]
    for k in (1, (size + 1) // 2, size):

        def cdf(x, k=k):  # at least k scores are below
            return scipy.stats.beta(k, size - k + 1).cdf(scipy.stats.norm.cdf(x))

        x = scipy.stats.norm.ppf(scipy.stats.beta(k, size - k + 1).ppf(share))
        cases.append((stats.OrderStatistic(stats.Normal(), k, size), x, cdf, of_order))
    for ours, x, cdf, error in cases:
        x = x.astype(np.float32)
        got = np.float64(ours.cdf(jnp.asarray(x)))
        assert np.abs(got - cdf(np.float64(x))).max() < error, ours
        with jax.enable_x64(True):
            wide = ours.cdf(jnp.asarray(x, jnp.float64))
        np.testing.assert_allclose(wide, cdf(np.float64(x)), atol=1e-9)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 2), (2, 2), (2, 5), (5, 5), (100, 200)])
@pytest.mark.parametrize("name", PAIRS)
def test_order_statistics_match_formula(name, k, n):
    ours, theirs = PAIRS[name]
    statistic = stats.OrderStatistic(ours, k, n)
    x = theirs.ppf(np.linspace(0.02, 0.98, 25)).astype(np.float32)
    below, density = theirs.cdf(np.float64(x)), theirs.pdf(np.float64(x))
    ways = float(special.comb(n, k, exact=True) * k)  # n! / (k-1)! (n-k)!
    want = ways * below ** (k - 1) * density * (1 - below) ** (n - k)
    np.testing.assert_allclose(statistic.pdf(jnp.asarray(x)), want, rtol=2e-3, atol=1e-6)
    # At least k of n scores are below.
    want = scipy.stats.binom.sf(k - 1, n, below)
    np.testing.assert_allclose(statistic.cdf(jnp.asarray(x)), want, rtol=2e-3, atol=1e-6)


def test_order_statistic_is_normalized_and_exact_at_infinity():
    statistic = stats.OrderStatistic(stats.Normal(1.0, 5.0**0.5), k=2, n=5)
    total, _ = integrate.quad(lambda x: float(statistic.pdf(jnp.float32(x))), -20, 20, limit=200)
    assert total == pytest.approx(1, abs=1e-4)
    for k, ends in ((1, [0, 1]), (2, [0, 1])):
        ordered = stats.OrderStatistic(stats.Normal(), k, 2)
        far = jnp.array([-jnp.inf, jnp.inf])
        np.testing.assert_array_equal(ordered.pdf(far), [0, 0])
        np.testing.assert_array_equal(ordered.cdf(far), ends)
    maximum = stats.OrderStatistic(stats.VarianceGamma(27, 0.6), 2, 2)
    x = jnp.array([-1.0, 2.0])
    parent = maximum.distribution
    np.testing.assert_allclose(maximum.pdf(x), 2 * parent.cdf(x) * parent.pdf(x), rtol=1e-5)


def test_pdf_is_derivative_of_cdf():
    x = jnp.array([-0.7, 0.1, 1.3])
    t = stats.StudentT(3.0)
    everywhere = jnp.array([-5.0, -1e-3, 0.0, 1e-3, 1.9, 2.1])
    slopes = jax.vmap(jax.grad(t.cdf))(everywhere)
    np.testing.assert_allclose(slopes, scipy.stats.t(3).pdf(np.float64(everywhere)), rtol=1e-5)
    with raises(ValueError, match="`df` must not be differentiated"):
        jax.grad(lambda df: stats.StudentT(df).cdf(jnp.float32(1)))(3.0)
    for ours, _ in PAIRS.values():
        statistic = stats.OrderStatistic(ours, 2, 5)
        _, slope = jax.jvp(statistic.cdf, (x,), (jnp.ones_like(x),))
        np.testing.assert_allclose(slope, statistic.pdf(x), rtol=1e-3, atol=1e-6)


def test_rejects_invalid_ranks_and_parameters():
    for k, n in ((0, 2), (3, 2), (1, 0)):
        with raises(ValueError, match="`k` must lie in"):
            stats.OrderStatistic(stats.Normal(), k, n)
    bad = (
        (stats.Normal, {"std": 0.0}),
        (stats.StudentT, {"df": -1.0}),
        (stats.Gamma, {"shape": 0.0}),
    )
    for make, params in bad:
        with raises(ValueError, match="must lie in"):
            make(**params)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (1, 2), (2, 2), (2, 3)])
def test_order_statistic_gradients_are_finite_in_tails(k, n):
    dist = stats.OrderStatistic(stats.Normal(), k, n)
    x = jnp.array([-40.0, -14.0, -3.0, 0.5, 5.3, 5.5, 9.0, 40.0])
    for function in (dist.pdf, dist.cdf):
        assert np.isfinite(jax.vmap(jax.grad(function))(x)).all()
    inside = x[2:5]
    np.testing.assert_allclose(
        jax.vmap(jax.grad(dist.cdf))(inside), dist.pdf(inside), rtol=1e-3, atol=1e-7
    )


@pytest.mark.parametrize("std", [1e-30, 1e-20, 1e20])
def test_normal_pdf_is_accurate_at_extreme_std(std):
    dist = stats.Normal(0.0, std)
    x = jnp.array([0.0, 0.5 * std, -2 * std, 1.0, -1e30], jnp.float32)
    want = scipy.stats.norm(0, std).pdf(np.asarray(x, np.float64))
    np.testing.assert_allclose(dist.pdf(x), want, rtol=1e-5, atol=1e-38)
    assert np.isfinite(jax.vmap(jax.grad(lambda x: dist.pdf(x) * std))(x)).all()
