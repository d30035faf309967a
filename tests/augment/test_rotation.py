"""Rotation against SciPy, and its random angle against the uniform distribution."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import counted
from _helpers.refusals import refused
from scipy import ndimage, stats

from crl_jax import augment

pytestmark = pytest.mark.usefixtures("quick_compiles")

RNG = np.random.default_rng(0)
PHOTO = RNG.random((9, 12, 3))
rotate = jax.jit(augment.rotate)


def scipy_rotate(x, degrees, fill):
    rotated = partial(ndimage.rotate, reshape=False, order=1, mode="grid-constant")
    channels = zip(np.moveaxis(x, -1, 0), fill, strict=True)
    return np.stack([rotated(c, degrees, cval=f) for c, f in channels], axis=-1)


@pytest.mark.parametrize("degrees", [-360.0, -77.5, -3.0, 12.0, 90.0, 271.0])
def test_rotate_matches_scipy(degrees):
    fill = (0.2, 0.5, 1.0)
    got = rotate(PHOTO.astype(np.float32), degrees, fill=fill)
    np.testing.assert_allclose(got, scipy_rotate(PHOTO, degrees, fill), atol=4e-6)


def test_quarter_turns_match_rot90_and_zero_is_identity():
    square = PHOTO[:, :9].astype(np.float32)
    for quarter in range(-1, 3):
        got = rotate(square, 90.0 * quarter)
        np.testing.assert_allclose(got, np.rot90(square, quarter), atol=2e-6)
    for image in (PHOTO.astype(np.float32), PHOTO.astype(jnp.bfloat16)):
        still = rotate(image, 0.0, fill=0.7)
        assert still.dtype == jnp.float32
        np.testing.assert_array_equal(still, image.astype(np.float32))


def test_keeps_value_range_and_leading_axes():
    film = RNG.integers(0, 256, (2, 3, 9, 12, 1), dtype=np.uint8)
    got = np.asarray(rotate(film, 33.0, fill=1.0))
    assert got.shape == film.shape
    assert got.min() >= 0
    assert got.max() <= 1 + 1e-6
    np.testing.assert_allclose(got[1, 2], rotate(film[1, 2], 33.0, fill=1.0), atol=1e-6)


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_random_angles_are_uniform(rate):
    """A bright pixel right of the centre reveals the angle: the rotated one is at its centroid."""
    dot = jnp.zeros((13, 13, 1)).at[6, 10].set(1)
    keys = jax.random.split(jax.random.key(0), 2000)
    own = lambda key: augment.random_rotation(key, dot, degrees=(-40, 80), rate=rate)  # noqa: E731
    got = np.asarray(jax.jit(jax.vmap(own))(keys)[..., 0], np.float64)
    got /= got.sum((1, 2), keepdims=True)
    offset = np.arange(13.0) - 6
    up = -np.einsum("nij,i->n", got, offset)
    right = np.einsum("nij,j->n", got, offset)
    angle = np.rad2deg(np.arctan2(up, right))
    turned = np.abs(got[:, 6, 10] - 1) > 1e-9
    assert stats.binomtest(int(turned.sum()), 2000, rate).pvalue > 1e-3
    if rate:
        assert stats.kstest(angle[turned], stats.uniform(-40, 120).cdf).pvalue > 1e-3


def test_angles_and_rates_share_one_program():
    jitted, traces = counted(
        lambda key, low, high, rate: augment.random_rotation(
            key, PHOTO, degrees=(low, high), rate=rate
        )
    )
    key = jax.random.key(1)
    np.testing.assert_array_equal(jitted(key, -9.0, 9.0, 0.0), PHOTO.astype(np.float32))
    got = jitted(key, 20.0, 20.0, 1.0)
    np.testing.assert_allclose(got, scipy_rotate(PHOTO, 20, (0, 0, 0)), atol=4e-6)
    assert len(traces) == 1


def test_rejects_invalid_arguments():
    key = jax.random.key(0)
    with refused("degrees", r" must lie in \[-360, 360\], got 400"):
        augment.rotate(PHOTO, 400)
    with refused(
        "fill", r" must be one number or one for each of the 3 channels, got shape \(2,\)"
    ):
        augment.rotate(PHOTO, 10, fill=(0.0, 1.0))
    with refused("degrees", r" must be a pair \(low, high\), got \(30, -30\)"):
        augment.random_rotation(key, PHOTO, degrees=(30, -30))
    with refused("rate", r" must lie in \[0, 1\], got 2"):
        augment.random_rotation(key, PHOTO, rate=2)
