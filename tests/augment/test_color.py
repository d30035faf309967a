"""Colour adjustments against Pillow, Matplotlib and their formulas in float64."""

import colorsys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import counted
from _helpers.refusals import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from PIL import Image, ImageEnhance
from scipy import ndimage

from crl_jax import augment

pytestmark = pytest.mark.usefixtures("quick_compiles")

RNG = np.random.default_rng(0)
PHOTO = RNG.integers(0, 256, (9, 11, 3), dtype=np.uint8)
PHOTO[0, :4] = [[0, 0, 0], [255, 255, 255], [7, 7, 7], [255, 255, 0]]  # greys and a tie
FLOATS = PHOTO / 255
LUMA = np.array([0.299, 0.587, 0.114])


def np_grey(x):
    return np.repeat((x * LUMA).sum(-1, keepdims=True), 3, axis=-1)


def np_hue(x, shift):
    hsv = rgb_to_hsv(x)
    hsv[..., 0] = (hsv[..., 0] + shift) % 1
    return hsv_to_rgb(hsv)


def np_blur(x, sigma):
    side = np.exp(-1 / (2 * sigma**2)) if sigma > 1e-6 else 0.0
    for axis in (0, 1):
        x = ndimage.correlate1d(x, np.array([side, 1, side]) / (1 + 2 * side), axis, mode="mirror")
    return x


CHANGES = {
    "brightness": (augment.adjust_brightness, lambda x, f: np.clip(f * x, 0, 1)),
    "contrast": (
        augment.adjust_contrast,
        lambda x, f: np.clip(f * x + (1 - f) * np_grey(x).mean(), 0, 1),
    ),
    "saturation": (
        augment.adjust_saturation,
        lambda x, f: np.clip(f * x + (1 - f) * np_grey(x), 0, 1),
    ),
    "hue": (augment.adjust_hue, np_hue),
    "grey": (lambda x, f: augment.to_grayscale(x), lambda x, f: np_grey(x)),
    "blur": (lambda x, f: augment.gaussian_blur(x, f, 3), np_blur),
}
COMPILED = {name: jax.jit(change) for name, (change, _) in CHANGES.items()}
each_change = pytest.mark.parametrize(("change", "formula"), CHANGES.values(), ids=CHANGES)
ENHANCERS = {
    "brightness": (augment.adjust_brightness, ImageEnhance.Brightness, 1.01),
    "contrast": (
        augment.adjust_contrast,
        ImageEnhance.Contrast,
        1.6,
    ),  # its mean is rounded
    "saturation": (augment.adjust_saturation, ImageEnhance.Color, 1.6),  # and so is its grey
}


@settings(deadline=None, max_examples=30)
@given(
    factor=st.floats(0, 2, width=32),
    shift=st.floats(-0.5, 0.5, width=32),
    seed=st.integers(0, 99),
    levels=st.sampled_from([2, 4, 256]),  # few levels: ties between channels, and greys
)
def test_adjustments_match_formulas(factor, shift, seed, levels):
    x = np.random.default_rng(seed).integers(0, levels, (5, 4, 3)) / (levels - 1)
    for name, (_, formula) in CHANGES.items():
        number = shift if name == "hue" else factor
        got = COMPILED[name](x.astype(np.float32), np.float32(number))
        np.testing.assert_allclose(got, formula(x, number), atol=3e-6, err_msg=name)


@pytest.mark.parametrize(("change", "enhancer", "steps"), ENHANCERS.values(), ids=ENHANCERS)
@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.7])
def test_adjustments_match_pillow_up_to_rounding(change, enhancer, steps, factor):
    theirs = np.asarray(enhancer(Image.fromarray(PHOTO)).enhance(factor))
    np.testing.assert_allclose(255 * change(PHOTO, factor), theirs, atol=steps)


def test_grayscale_matches_pillow():
    theirs = np.asarray(Image.fromarray(PHOTO).convert("L"))
    got = augment.to_grayscale(PHOTO)
    np.testing.assert_allclose(255 * got[..., 0], theirs, atol=0.51)
    np.testing.assert_array_equal(got[..., 0], got[..., 1])
    np.testing.assert_array_equal(got[..., 0], got[..., 2])


def test_hue_matches_colorsys():
    got = np.asarray(augment.adjust_hue(PHOTO, -0.21))
    for place in np.ndindex(PHOTO.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*FLOATS[place])
        want = colorsys.hsv_to_rgb((h - 0.21) % 1, s, v)
        np.testing.assert_allclose(got[place], want, atol=1e-5)


@each_change
def test_jit_vmap_and_leading_axes_agree_in_one_program(change, formula):
    each = jax.vmap(jax.vmap(change, (0, None)), (0, None))
    both, traces = counted(lambda x, number: (change(x, number), each(x, number)))
    images = jnp.asarray(RNG.random((2, 3, 6, 5, 3)), jnp.float32)
    for number in (0.1, 0.4):
        got, mapped = both(images, number)
        want = [[formula(np.float64(x), number) for x in row] for row in images]
        np.testing.assert_allclose(got, want, atol=1e-5)
        np.testing.assert_allclose(mapped, want, atol=1e-5)
    assert len(traces) == 1


@each_change
def test_half_precision_is_computed_in_float32(change, formula):
    half = jnp.asarray(FLOATS, jnp.bfloat16)
    got, of_bytes = jax.jit(lambda *images: [change(x, 0.3) for x in images])(half, PHOTO)
    assert got.dtype == of_bytes.dtype == jnp.float32
    np.testing.assert_allclose(got, formula(np.asarray(half, np.float64), 0.3), atol=1e-5)
    np.testing.assert_allclose(of_bytes, formula(FLOATS, 0.3), atol=1e-5)


@each_change
def test_gradients_are_finite_and_match_finite_differences(change, formula):
    x = jnp.asarray(0.2 + 0.6 * RNG.random((4, 3, 3)), jnp.float32).at[0].set(0.5)
    weights = RNG.normal(size=x.shape).astype(np.float32)
    gradient = jax.grad(lambda x: jnp.sum(weights * change(x, 0.2)))
    if jax.__version_info__ >= (0, 8):  # XLA on CPUs of JAX 0.7.2 gets that of the hue wrong
        gradient = jax.jit(gradient)
    slopes = np.asarray(gradient(x))
    assert np.isfinite(slopes).all()
    inside = np.asarray(x, np.float64)
    for place in [(1, 0, 0), (2, 2, 1), (3, 1, 2)]:
        step = np.zeros_like(inside)
        step[place] = 1e-6
        rise = formula(inside + step, 0.2) - formula(inside - step, 0.2)
        np.testing.assert_allclose(slopes[place], (weights * rise).sum() / 2e-6, atol=1e-3)


def test_blur_gradient_by_sigma_matches_finite_differences():
    x, weights = jnp.asarray(FLOATS, jnp.float32), RNG.normal(size=PHOTO.shape).astype(np.float32)
    slope = jax.jit(jax.grad(lambda s: jnp.sum(weights * augment.gaussian_blur(x, s, 3))))
    rise = np_blur(FLOATS, 0.9 + 1e-5) - np_blur(FLOATS, 0.9 - 1e-5)
    np.testing.assert_allclose(slope(0.9), (weights * rise).sum() / 2e-5, rtol=1e-3)
    assert np.isfinite(slope(0.0))


def test_neutral_arguments_keep_image():
    x = jnp.asarray(FLOATS, jnp.float32)
    np.testing.assert_array_equal(augment.adjust_hue(x, 0.0), x)
    np.testing.assert_array_equal(augment.gaussian_blur(x, 0, 5), x)
    for change in (augment.adjust_brightness, augment.adjust_contrast, augment.adjust_saturation):
        np.testing.assert_array_equal(change(x, 1.0), x)


def test_colour_adjustments_keep_single_channel_images():
    x = jnp.asarray(FLOATS[..., :1], jnp.float32)
    np.testing.assert_array_equal(augment.adjust_hue(x, 0.3), x)
    np.testing.assert_array_equal(augment.adjust_saturation(x, 0.3), x)
    np.testing.assert_array_equal(augment.to_grayscale(x), x)
    want = np.clip(0.3 * FLOATS[..., :1] + 0.7 * FLOATS[..., :1].mean(), 0, 1)
    np.testing.assert_allclose(augment.adjust_contrast(x, 0.3), want, atol=1e-6)


def test_rejects_invalid_arguments():
    for change in (augment.adjust_brightness, augment.adjust_contrast, augment.adjust_saturation):
        with refused("factor", r" must lie in \[0, inf\), got -0.1"):
            change(PHOTO, -0.1)
        with refused("image", r" must have the axes .* got shape \(9, 11\)"):
            change(PHOTO[..., 0], 0.5)
        with refused("image", r" must hold floats in \[0, 1\] or uint8, got int32"):
            change(PHOTO.astype(np.int32), 0.5)
    with refused("shift", r" must lie in \[-0.5, 0.5\], got 0.6"):
        augment.adjust_hue(PHOTO, 0.6)
    for change in (augment.adjust_contrast, augment.adjust_saturation, augment.adjust_hue):
        with refused("image", " must have 1 or 3 channels, got 2"):
            change(PHOTO[..., :2], 0.5)
    with refused("image", " must have 1 or 3 channels, got 2"):
        augment.to_grayscale(PHOTO[..., :2])
