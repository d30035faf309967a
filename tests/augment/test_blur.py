"""Gaussian blur against SciPy, and its random sigma against the uniform distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import refused
from scipy import ndimage, stats

from crl_jax import augment

pytestmark = pytest.mark.usefixtures("quick_compiles")

RNG = np.random.default_rng(0)
PHOTO = RNG.random((9, 7, 3))


def scipy_blur(x, sigma, kernel_size):
    d = np.arange(kernel_size) - kernel_size // 2
    weights = np.exp(-(d**2) / (2 * sigma**2))
    for axis in (0, 1):
        x = ndimage.correlate1d(x, weights / weights.sum(), axis, mode="mirror")
    return x


blur = jax.jit(augment.gaussian_blur, static_argnums=2)


@pytest.mark.parametrize("kernel_size", [1, 3, 5, 13])  # 13: up to the far edge
@pytest.mark.parametrize("sigma", [0.1, 0.8, 2.0, 50.0])
def test_gaussian_blur_matches_scipy(kernel_size, sigma):
    got = blur(PHOTO.astype(np.float32), sigma, kernel_size)
    np.testing.assert_allclose(got, scipy_blur(PHOTO, sigma, kernel_size), atol=2e-6)


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_random_sigmas_are_uniform(rate):
    """A bright pixel reveals sigma: its centre keeps the square of the middle weight."""
    dot = jnp.zeros((5, 5, 1)).at[2, 2].set(1)
    keys = jax.random.split(jax.random.key(0), 3000)
    own = lambda key: augment.random_blur(key, dot, 3, sigma=(0.5, 2.0), rate=rate)  # noqa: E731
    centre = np.asarray(jax.jit(jax.vmap(own))(keys)[:, 2, 2, 0], np.float64)
    blurred = centre < 1
    assert stats.binomtest(int(blurred.sum()), 3000, rate).pvalue > 1e-3
    if rate:
        middle = np.sqrt(centre[blurred])
        sigma = np.sqrt(-0.5 / np.log((1 / middle - 1) / 2))
        assert stats.kstest(sigma, stats.uniform(0.5, 1.5).cdf).pvalue > 1e-3


def test_rejects_invalid_arguments():
    with refused("kernel_size", " must be odd, got 4"):
        augment.gaussian_blur(PHOTO, 1.0, 4)
    with refused("kernel_size", " must be less than 14 for a side of 7 pixels, got 15"):
        augment.gaussian_blur(PHOTO, 1.0, 15)
    with refused("sigma", r" must lie in \[0, inf\), got -1"):
        augment.gaussian_blur(PHOTO, -1, 3)
    key = jax.random.key(0)
    with refused("sigma", r" must be a pair \(low, high\), got \(2.0, 0.1\)"):
        augment.random_blur(key, PHOTO, 3, sigma=(2.0, 0.1))
    with refused("rate", r" must lie in \[0, 1\], got -0.5"):
        augment.random_blur(key, PHOTO, 3, rate=-0.5)
