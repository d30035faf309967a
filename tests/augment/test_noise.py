"""Gaussian noise, and its random standard deviation against the uniform distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import counted
from _helpers.refusals import refused
from scipy import stats

from crl_jax import augment

pytestmark = pytest.mark.usefixtures("quick_compiles")

RNG = np.random.default_rng(0)
PHOTO = RNG.random((8, 11, 3)).astype(np.float32)
noise = jax.jit(augment.gaussian_noise)


def test_noise_is_normal_and_independent():
    even = np.full((2, 40, 50, 3), 0.5, np.float32)  # five deviations from the limits
    z = (np.asarray(noise(jax.random.key(0), even, 0.1), np.float64) - 0.5) / 0.1
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    for axis in range(4):  # images, rows, columns and channels differ
        a, b = (np.take(z, at, axis).ravel() for at in (0, 1))
        assert stats.pearsonr(a, b).pvalue > 1e-3


def test_noise_is_clipped_and_zero_std_is_identity():
    got = np.asarray(noise(jax.random.key(1), PHOTO, 5.0))
    assert (got.min(), got.max()) == (0, 1)
    np.testing.assert_array_equal(noise(jax.random.key(1), PHOTO, 0.0), PHOTO)
    half = jnp.asarray(PHOTO, jnp.bfloat16)
    still = noise(jax.random.key(1), half, 0.0)
    assert still.dtype == jnp.float32
    np.testing.assert_array_equal(still, half.astype(jnp.float32))


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_random_standard_deviations_are_uniform(rate):
    n, even = 2000, jnp.full((32, 32, 1), 0.5)
    keys = jax.random.split(jax.random.key(0), n)
    own = lambda key: augment.random_noise(key, even, std=(0.02, 0.1), rate=rate)  # noqa: E731
    std = np.asarray(jax.jit(jax.vmap(own))(keys), np.float64).std((1, 2, 3))
    noisy = std > 0
    assert stats.binomtest(int(noisy.sum()), n, rate).pvalue > 1e-3
    if rate:  # the deviation of 1,024 pixels is within 2 % of the true one
        quantiles = np.quantile(std[noisy], [0.1, 0.5, 0.9])
        np.testing.assert_allclose(quantiles, [0.028, 0.06, 0.092], atol=0.006)


def test_deviations_and_rates_share_one_program():
    jitted, traces = counted(
        lambda key, low, high, rate: augment.random_noise(key, PHOTO, std=(low, high), rate=rate)
    )
    key = jax.random.key(0)
    np.testing.assert_array_equal(jitted(key, 0.1, 0.2, 0.0), PHOTO)
    assert np.abs(jitted(key, 0.1, 0.2, 1.0) - PHOTO).mean() > 0.03
    assert len(traces) == 1


def test_rejects_invalid_arguments():
    key = jax.random.key(0)
    with refused("std", r" must lie in \[0, inf\), got -1"):
        augment.gaussian_noise(key, PHOTO, -1)
    with refused("std", r" must be a pair \(low, high\), got \(0.2, 0.1\)"):
        augment.random_noise(key, PHOTO, std=(0.2, 0.1))
    with refused("rate", r" must lie in \[0, 1\], got 2"):
        augment.random_noise(key, PHOTO, rate=2)
