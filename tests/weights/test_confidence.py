"""Credibility of interactions: values by quadrature, Bayes' rule, and limiting cases."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from _helpers.programs import counted, jitted
from _helpers.refusals import raises
from jax.test_util import check_grads

from crl_jax import stats, weights
from crl_jax.data import Interactions

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(weights)
smoothed = jax.jit(stats.SmoothedEmpirical().fit)

RULES = [weights.confidence_density, weights.confidence_posterior]


def density(x, dim, scale):
    """Equation 3.6 in float64."""
    z = np.abs(x) / scale
    order = (dim - 1) / 2
    bessel = scipy.special.kve(order, z) * np.exp(-z)
    return (z / 2) ** order * bessel / (scale * np.sqrt(np.pi) * scipy.special.gamma(dim / 2))


def cdf(x, dim, scale):
    tail = scipy.integrate.quad(density, abs(x), np.inf, args=(dim, scale), epsabs=1e-12)[0]
    return tail if x < 0 else 1 - tail


@pytest.mark.parametrize(("dim", "scale"), [(27, 0.6), (32, 0.2), (3, 1.5)])
def test_confidence_rules_match_quadrature(dim, scale):
    x = np.linspace(-4, 4, 9) * scale * np.sqrt(dim) + 0.01
    prior = np.linspace(0, 1, 9)
    below = np.array([cdf(value, dim, scale) for value in x])
    distribution = stats.VarianceGamma(dim, scale)
    got = quick.confidence_density(
        jnp.asarray(x), prior=jnp.asarray(prior), distribution=distribution
    )
    np.testing.assert_allclose(got, 2 * below * density(x, dim, scale) * prior, rtol=2e-5)
    posterior = quick.confidence_posterior(
        jnp.asarray(x), prior=jnp.asarray(prior), distribution=distribution
    )
    want = below * prior / (below * prior + (1 - below) * (1 - prior))
    np.testing.assert_allclose(posterior, want, rtol=2e-5, atol=1e-7)


def test_credibility_prior_matches_standardized_popularity():
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((20, 8)) < np.linspace(0.1, 0.9, 8))
    log = Interactions.from_arrays(users, items, user_ids=np.arange(20), item_ids=np.arange(8))
    share = np.bincount(items, minlength=8) / 20
    want = 1 / (1 + np.exp(-(share - share.mean()) / share.std()))
    np.testing.assert_allclose(weights.credibility_prior(log.item_counts), want, rtol=1e-5)


def test_equally_popular_items_are_equally_credible():
    log = Interactions.from_arrays([0, 1], [0, 1], user_ids=np.arange(2), item_ids=np.arange(2))
    np.testing.assert_array_equal(weights.credibility_prior(log.item_counts), [0.5, 0.5])


DISTRIBUTIONS = {
    "known": cache(lambda: stats.VarianceGamma(27, 0.6)),
    "read off": cache(lambda: smoothed(np.linspace(-1.0, 1.0, 99, dtype=np.float32))),
}


@cache
def value_and_slope(rule):
    def total(scores, prior, distribution):
        got = rule(scores, prior=prior, distribution=distribution)
        return jnp.sum(got), got

    return jax.jit(jax.grad(total, has_aux=True))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_extreme_scores_give_finite_weights(rule, dtype, distribution):
    scores = jnp.tile(jnp.array([-3e38, -1e4, -100, 0, 100, 1e4, 3e38], dtype), (3, 1))
    prior = jnp.array([[0.0], [0.5], [1.0]])
    slope, got = value_and_slope(rule)(scores, prior, DISTRIBUTIONS[distribution]())
    assert got.dtype == jnp.float32
    assert np.isfinite(got).all()
    assert (got >= 0).all()
    assert np.isfinite(slope.astype(jnp.float32)).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_propagates_nan_scores(rule, distribution):
    got = jax.jit(rule)(
        jnp.array([0.1, jnp.nan]), prior=0.5, distribution=DISTRIBUTIONS[distribution]()
    )
    np.testing.assert_array_equal(np.isnan(got), [False, True])


def test_posterior_is_half_for_contradictory_score_and_prior():
    distribution = smoothed(np.linspace(-1.0, 1.0, 99, dtype=np.float32))
    far = jnp.array([-9.0, 9.0])
    got = quick.confidence_posterior(far, prior=jnp.array([1.0, 0.0]), distribution=distribution)
    np.testing.assert_array_equal(got, [0.5, 0.5])


@pytest.mark.parametrize("rule", RULES)
def test_gradients_match_finite_differences(rule):
    with jax.enable_x64(True):
        scores = jnp.asarray([-3.0, -0.4, 0.7, 5.0])
        distribution = stats.VarianceGamma(27, 0.6)
        rule_fn = jax.jit(lambda s, p: rule(s, prior=p, distribution=distribution))
        check_grads(rule_fn, (scores, scores / 20 + 0.5), order=1)


@pytest.mark.parametrize("rule", RULES)
def test_vmap_matches_jit_and_scale_does_not_recompile(rule):
    rule_fn, traces = counted(lambda s, p, d: rule(s, prior=p, distribution=d))
    scores = jnp.linspace(-2.0, 3.0, 12).reshape(3, 4)
    prior = jnp.full((3, 1), 0.4)
    mapped = jax.jit(jax.vmap(lambda s, p, d: rule(s, prior=p, distribution=d), (0, 0, None)))
    for scale in (0.3, 0.6):
        distribution = stats.VarianceGamma(5, scale)
        whole = rule_fn(scores, prior, distribution)
        each = mapped(scores, prior, distribution)
        np.testing.assert_allclose(whole, each, rtol=1e-5)
    assert len(traces) == 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("prior", [-0.1, 1.1, np.nan])
def test_rejects_prior_outside_unit_interval(rule, prior):
    with raises(ValueError, match="`prior`"):
        rule(jnp.zeros(2), prior=prior, distribution=stats.VarianceGamma(3, 1.0))
