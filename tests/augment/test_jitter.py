"""Random colour changes against the published rule in NumPy."""

from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import counted
from _helpers.refusals import refused
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from scipy import stats

from crl_jax import augment

pytestmark = pytest.mark.usefixtures("quick_compiles")

RNG = np.random.default_rng(0)
PHOTO = RNG.random((3, 2, 3)).astype(np.float32)
STRENGTHS = (0.4, 1.5, 0.6, 0.2)  # of contrast, from 0 on
ORDERS = list(permutations("bcsh"))


def grey(x):
    return (x * [0.299, 0.587, 0.114]).sum(-1, keepdims=True)


def apply_changes(x, order, factors):
    """Images ``[n, height, width, 3]``, each by its own factors ``[n, 4]``, all in one order."""
    b, c, s, h = factors.T[..., None, None, None]
    for change in order:
        if change == "h":
            hsv = rgb_to_hsv(x)
            hsv[..., 0] = (hsv[..., 0] + h[..., 0]) % 1
            x = hsv_to_rgb(hsv)
            continue
        f, other = {
            "b": (b, np.zeros(1)),
            "c": (c, grey(x).mean((1, 2, 3), keepdims=True)),
            "s": (s, grey(x)),
        }[change]
        x = np.clip(f * x + (1 - f) * other, 0, 1)
    return x


def jitter_images(n, seed, rate=1.0):
    keys = jax.random.split(jax.random.key(seed), n)
    jitter = lambda key: augment.color_jitter(key, PHOTO, STRENGTHS, rate=rate)  # noqa: E731
    return keys, np.asarray(jax.jit(jax.vmap(jitter))(keys), np.float64)


def test_results_match_drawn_order_and_orders_are_uniform():
    n = 2400
    keys, got = jitter_images(n, 0)
    # Only the order of the random numbers is taken from the implementation.
    uniform = np.asarray(jax.vmap(lambda key: jax.random.uniform(key, (6,)))(keys), np.float64)
    s = np.array(STRENGTHS)
    low = np.maximum(1 - s[:3], 0)
    factors = np.c_[low + uniform[:, 1:4] * (1 + s[:3] - low), s[3] * (2 * uniform[:, 4] - 1)]
    photos = np.broadcast_to(PHOTO.astype(np.float64), (n, *PHOTO.shape))
    drawn = np.floor(24 * uniform[:, 0]).astype(int)
    for i, order in enumerate(ORDERS):
        own = drawn == i
        want = apply_changes(photos[own], order, factors[own])
        np.testing.assert_allclose(got[own], want, atol=1e-5)
    assert stats.chisquare(np.bincount(drawn, minlength=24)).pvalue > 1e-3


@pytest.mark.parametrize("rate", [0.0, 0.8])
def test_color_jitter_has_requested_rate(rate):
    _, got = jitter_images(2000, 2, rate)
    same = np.abs(got - PHOTO).max((1, 2, 3)) == 0
    assert stats.binomtest(int((~same).sum()), 2000, rate).pvalue > 1e-3


def test_supports_batches_dtypes_and_traced_strengths():
    key = jax.random.key(5)
    jitted, traces = counted(lambda k, x, s, r: augment.color_jitter(k, x, s, rate=r))
    for strengths in ((0.1, 0.2, 0.3, 0.1), STRENGTHS):
        got = jitted(key, PHOTO, strengths, 1.0)
    assert len(traces) == 1
    whole = jax.jit(augment.color_jitter)
    want = whole(key, PHOTO, jnp.array(STRENGTHS))
    np.testing.assert_allclose(got, want, atol=1e-5)
    film = whole(key, np.stack([PHOTO, PHOTO[::-1]]), STRENGTHS)
    np.testing.assert_allclose(film[1, ::-1], want, atol=1e-5)
    half = whole(key, jnp.asarray(PHOTO, jnp.bfloat16), (0.1, 0.1, 0.1, 0.0))
    assert half.dtype == jnp.float32


def test_single_channel_has_only_brightness_and_contrast():
    x = PHOTO[..., :1]
    keys = jax.random.split(jax.random.key(6), 50)
    jitter = jax.jit(jax.vmap(augment.color_jitter, (0, None, None)))
    colour = jitter(keys, x, (0.0, 0.0, 0.9, 0.5))
    np.testing.assert_array_equal(colour, np.broadcast_to(x, colour.shape))
    other = jitter(keys, x, (0.4, 0.4, 0.0, 0.0))
    assert np.abs(np.asarray(other) - x).max((1, 2, 3)).min() > 0


def test_gradients_are_finite():
    value = lambda x: augment.color_jitter(jax.random.key(1), x, STRENGTHS).sum()  # noqa: E731
    slopes = jax.jit(jax.grad(value))(jnp.asarray(PHOTO).at[0].set(0.5))
    assert np.isfinite(slopes).all()


def test_random_grayscale_has_requested_rate():
    keys = jax.random.split(jax.random.key(7), 2000)
    got = jax.jit(jax.vmap(lambda key: augment.random_grayscale(key, PHOTO, rate=0.2)))(keys)
    colourless = np.asarray(got[..., 0] == got[..., 1]).all((1, 2))
    assert stats.binomtest(int(colourless.sum()), 2000, 0.2).pvalue > 1e-3
    np.testing.assert_array_equal(got[colourless], np.broadcast_to(
        augment.to_grayscale(PHOTO), got[colourless].shape))  # fmt: skip
    np.testing.assert_array_equal(got[~colourless], np.broadcast_to(
        PHOTO, got[~colourless].shape))  # fmt: skip


def test_rejects_invalid_arguments():
    key = jax.random.key(0)
    with refused(
        "strengths",
        " must be the four strengths of brightness, contrast, saturation and hue, got 3",
    ):
        augment.color_jitter(key, PHOTO, (0.4, 0.4, 0.4))
    with refused("strengths", r" must lie in \[0, 0.5\], got 0.6"):
        augment.color_jitter(key, PHOTO, (0.4, 0.4, 0.4, 0.6))
    with refused("strengths", r" must lie in \[0, inf\), got -0.4"):
        augment.color_jitter(key, PHOTO, (-0.4, 0.4, 0.4, 0.1))
    for function in (
        lambda rate: augment.color_jitter(key, PHOTO, STRENGTHS, rate=rate),
        lambda rate: augment.random_grayscale(key, PHOTO, rate=rate),
    ):
        with refused("rate", r" must lie in \[0, 1\], got 2"):
            function(2)
    with refused("image", " must have 1 or 3 channels, got 4"):
        augment.color_jitter(key, np.ones((2, 2, 4), np.float32), STRENGTHS)
