"""Lack of fit between scores and a distribution, against its definition and known cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import refused

from crl_jax.stats import VarianceGamma, dkw_error, lack_of_fit

pytestmark = pytest.mark.usefixtures("quick_compiles")

DISTRIBUTION = VarianceGamma(dim=5, scale=0.4)


def np_lack_of_fit(scores, distribution):
    """Maximum over all scores, on both sides of each step of the eCDF."""
    scores = np.sort(np.asarray(scores, np.float64))
    worst = 0.0
    for s, below in zip(scores, np.asarray(distribution.cdf(jnp.float32(scores)), float)):
        for share in (np.mean(scores < s), np.mean(scores <= s)):
            worst = max(worst, below**2 - share, share - 2 * below + below**2)
    return worst


@pytest.mark.parametrize("n", [1, 7, 60])
@pytest.mark.parametrize("shift", [-2.0, 0.0, 30.0])
def test_lack_of_fit_matches_definition(n, shift):
    scores = shift + jax.random.normal(jax.random.key(n), (n,))
    np.testing.assert_allclose(
        lack_of_fit(scores, distribution=DISTRIBUTION),
        np_lack_of_fit(scores, DISTRIBUTION),
        atol=1e-5,
    )


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_mixtures_of_maximum_and_minimum_of_two_fit(share):
    n = 2000
    keys = jax.random.split(jax.random.key(1), 3)
    draws = 0.4 * jnp.sum(
        jax.random.normal(keys[0], (2, n, 5)) * jax.random.normal(keys[1], (2, n, 5)), axis=-1
    )
    larger = jax.random.bernoulli(keys[2], share, (n,))
    scores = jnp.where(larger, draws.max(axis=0), draws.min(axis=0))
    assert lack_of_fit(scores, distribution=DISTRIBUTION) < dkw_error(n, confidence=0.999)


def test_shifted_and_rescaled_scores_do_not_fit():
    scores = jax.random.normal(jax.random.key(2), (500,))
    assert lack_of_fit(10 + scores, distribution=DISTRIBUTION) > 0.9
    np.testing.assert_allclose(
        lack_of_fit(1e-4 * scores, distribution=DISTRIBUTION), 0.25, atol=0.01
    )


def test_propagates_nan_and_rejects_non_vectors():
    assert np.isnan(lack_of_fit(jnp.array([0.0, jnp.nan]), distribution=DISTRIBUTION))
    for bad in (jnp.zeros((2, 2)), jnp.zeros(0)):
        with refused("scores", " must be a non-empty vector"):
            lack_of_fit(bad, distribution=DISTRIBUTION)
