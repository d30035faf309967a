"""Complete view pipelines: their steps, their probabilities, and their pytree leaves."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.crops import pillow
from _helpers.programs import counted
from _helpers.refusals import refused
from scipy import stats

from crl_jax import augment
from crl_jax.augment import ImageAugmentation

pytestmark = pytest.mark.usefixtures("quick_compiles")

RNG = np.random.default_rng(0)
PHOTOS = RNG.integers(0, 256, (6, 10, 12, 3), dtype=np.uint8)
STILL = ImageAugmentation(size=8, flip_rate=0.0, jitter_rate=0.0, grey_rate=0.0, blur_rate=0.0)
draw = jax.jit(lambda views, keys, x: jax.vmap(views, (0, None))(keys, x))
draw_all = jax.jit(lambda views, keys, x: jax.vmap(views)(keys, x))


def keys_of(n, seed=0):
    return jax.random.split(jax.random.key(seed), n)


def test_view_depends_only_on_own_key_and_image():
    views = ImageAugmentation.cifar10(size=8)
    got = draw_all(views, keys_of(6), PHOTOS)
    assert got.shape == (6, 8, 8, 3)
    assert got.dtype == jnp.float32
    alone = jax.jit(views)(keys_of(6)[5], PHOTOS[5])
    np.testing.assert_allclose(alone, got[5], atol=2e-5)
    other = draw_all(views, keys_of(6, seed=1), PHOTOS)
    assert np.abs(other - got).max((1, 2, 3)).min() > 0.1


def test_parameters_do_not_recompile_and_support_vmap():
    jitted, traces = counted(lambda views, key: views(key, PHOTOS[0]))
    views = ImageAugmentation(size=8)
    changes = [
        {"scale": (0.2, 0.9), "ratio": (1.0, 2.0)}, {"flip_rate": 0.1}, {"jitter_rate": 0.3},
        {"jitter": (0.1, 0.2, 0.3, 0.4)}, {"grey_rate": 0.5}, {"mean": 0.4, "std": 0.3},
        {"blur_rate": 1.0, "blur_sigma": (1.0, 1.5)},
    ]  # fmt: skip
    outputs = [jitted(replace(views, **change), jax.random.key(3)) for change in [{}, *changes]]
    assert len(traces) == 1
    assert np.abs(outputs[6] - (outputs[0] - 0.4) / 0.3).max() < 1e-5
    view_with_mean = lambda mean: replace(views, mean=mean)(jax.random.key(3), PHOTOS[0])  # noqa: E731
    swept = jax.jit(jax.vmap(view_with_mean))(jnp.array([0.0, 0.4]))
    np.testing.assert_allclose(swept[0] - swept[1], 0.4, atol=1e-5)


def test_pytree_supports_hash_and_equality():
    views, same = ImageAugmentation.cifar10(), ImageAugmentation.cifar10()
    assert views == same
    assert hash(views) == hash(same)
    assert views != replace(views, grey_rate=0.3)
    leaves, shape = jax.tree.flatten(views)
    assert jax.tree.unflatten(shape, leaves) == views
    assert jax.tree.structure(replace(views, grey_rate=0.3)) == shape
    assert hash(jax.tree.structure(same)) == hash(shape)
    assert jax.tree.structure(replace(views, size=31)) != shape
    assert jax.tree.structure(replace(views, blur_kernel=5)) != shape


def test_zero_rates_give_normalised_crop():
    """The crop boxes come from the internal sampler and the key of each view."""
    views = replace(STILL, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    got = draw(views, keys_of(3), PHOTOS[0])

    @jax.jit
    @jax.vmap
    def boxes(key):
        uniform = jax.random.uniform(key, (32,))
        return augment._crop.sample_box(uniform[:22], 10, 12, views.scale, views.ratio)

    for box, view in zip(np.asarray(boxes(keys_of(3))), np.asarray(got)):
        want = pillow((PHOTOS[0] / 255).astype(np.float32), box, (8, 8))
        np.testing.assert_allclose(view * [0.5, 1, 2] + [0.1, 0.2, 0.3], want, atol=3e-6)


def test_flip_blur_and_grayscale_run_in_order():
    def apply(**changes):
        return draw(replace(STILL, **changes), keys_of(20), PHOTOS[0])

    blur = jax.jit(lambda images: augment.gaussian_blur(images, 0.9, 3))
    active = {"jitter_rate": 1.0, "blur_rate": 1.0}
    np.testing.assert_allclose(
        apply(flip_rate=1.0, **active), augment.flip(apply(flip_rate=0.0, **active)), atol=1e-5
    )
    np.testing.assert_allclose(
        apply(blur_rate=1.0, blur_sigma=(0.9, 0.9), jitter_rate=1.0, grey_rate=1.0),
        blur(apply(jitter_rate=1.0, grey_rate=1.0)), atol=1e-5,
    )  # fmt: skip
    grey = jax.jit(augment.to_grayscale)(apply(jitter_rate=1.0))
    np.testing.assert_allclose(apply(grey_rate=1.0, jitter_rate=1.0), grey, atol=1e-6)
    np.testing.assert_allclose(apply(jitter_rate=0.0), apply(jitter_rate=1.0, jitter=(0, 0, 0, 0)),
                               atol=1e-6)  # fmt: skip
    np.testing.assert_array_equal(
        draw(replace(STILL, blur_kernel=1, blur_rate=1.0), keys_of(20), PHOTOS[0]), apply()
    )


EXTRA = {"rotation_rate": 0.5, "noise_rate": 0.5, "cutout_rate": 0.5}


def test_optional_steps_match_functions():
    """Each step has its own key and does not change the random numbers of the others."""
    mean = (0.1, 0.2, 0.3)
    unstandardized = lambda views: draw(views, keys, PHOTOS[0]) + np.float32([[[mean]]])  # noqa: E731
    keys, active = keys_of(8), {"jitter_rate": 1.0, "blur_rate": 1.0, "mean": mean}
    own = lambda i: jax.vmap(lambda key: jax.random.fold_in(key, i))(keys)  # noqa: E731
    plain = unstandardized(replace(STILL, **active))
    noisy = unstandardized(replace(STILL, noise_rate=1.0, noise_std=(0.1, 0.2), **active))
    want = jax.vmap(lambda k, x: augment.random_noise(k, x, std=(0.1, 0.2), rate=1.0))
    np.testing.assert_allclose(noisy, want(own(1), plain), atol=1e-5)
    cut = unstandardized(replace(STILL, cutout_rate=1.0, cutout_size=0.3, **active))
    want = jax.vmap(lambda k, x: augment.random_cutout(k, x, size=0.3, rate=1.0, fill=mean))
    np.testing.assert_allclose(cut, want(own(2), plain), atol=1e-5)
    crop = unstandardized(replace(STILL, mean=mean))
    turned = unstandardized(replace(STILL, mean=mean, rotation_rate=1.0))
    want = jax.vmap(lambda k, x: augment.random_rotation(k, x, rate=1.0, fill=mean))
    np.testing.assert_allclose(turned, want(own(0), crop), atol=1e-5)


def test_optional_steps_with_rate_0_keep_view_and_compile_once():
    jitted, traces = counted(lambda views, key: views(key, PHOTOS[0]))
    key, plain = jax.random.key(3), ImageAugmentation(size=8)
    want = jax.jit(plain)(key, PHOTOS[0])
    views = replace(plain, **dict.fromkeys(EXTRA, 0.0))
    np.testing.assert_allclose(jitted(views, key), want, atol=1e-6)
    changes = [
        {"rotation_rate": 1.0, "rotation": (40.0, 50.0)},
        {"noise_rate": 1.0, "noise_std": (0.2, 0.3)},
        {"cutout_rate": 1.0, "cutout_size": 0.4},
    ]  # fmt: skip
    for change in changes:
        assert np.abs(jitted(replace(views, **change), key) - want).max() > 0.05
    assert len(traces) == 1
    assert jax.tree.structure(views) != jax.tree.structure(plain)


def test_jitter_of_view_matches_distribution_of_functions():
    """Views of constant images, which crop, flip and blur leave unchanged."""
    even = np.full((10, 12, 3), [0.3, 0.5, 0.7], np.float32)
    views = ImageAugmentation(size=2, blur_kernel=1)
    jitter = jax.jit(jax.vmap(lambda key: augment.random_grayscale(
        jax.random.fold_in(key, 1),
        augment.color_jitter(key, even[:1, :1], (0.4, 0.4, 0.4, 0.1), rate=0.8), rate=0.2,
    )))  # fmt: skip
    got, want = draw(views, keys_of(5000), even), jitter(keys_of(5000, seed=1))
    for channel in range(3):
        a, b = got[:, 0, 0, channel].round(5), want[:, 0, 0, channel].round(5)
        assert stats.ks_2samp(a, b, method="asymp").pvalue > 1e-3


def test_step_rates_are_as_requested_and_independent():
    n = 3000
    place = np.tile(np.linspace(0.1, 0.9, 12, dtype=np.float32)[None, :, None], (10, 1, 3))
    place = place * np.array([1.0, 0.8, 0.6], np.float32)
    bumpy = place + 0.05 * (np.indices((10, 12)).sum(0) % 2)[..., None].astype(np.float32)
    views = replace(STILL, flip_rate=0.5, grey_rate=0.2, blur_rate=0.4, blur_sigma=(2, 2),
                    scale=(1.0, 1.0), ratio=(1.2, 1.2), size=10)  # fmt: skip
    got = np.asarray(draw(views, keys_of(n), bumpy))
    flipped = got[:, :, 0, 0].mean(1) > got[:, :, -1, 0].mean(1)
    colourless = np.abs(got[..., 0] - got[..., 2]).max((1, 2)) < 1e-6
    rough = np.abs(np.diff(got[..., 1], 2, axis=1)).mean((1, 2))
    blurred = rough < (rough.min() + rough.max()) / 2
    events = {"flip": (flipped, 0.5), "grey": (colourless, 0.2), "blur": (blurred, 0.4)}
    for name, (event, rate) in events.items():
        assert stats.binomtest(int(event.sum()), n, rate).pvalue > 1e-3, name
    together = np.bincount(flipped + 2 * colourless + 4 * blurred, minlength=8)
    want = [(0.5) * (0.2 if g else 0.8) * (0.4 if b else 0.6)
            for b in (0, 1) for g in (0, 1) for f in (0, 1)]  # fmt: skip
    assert stats.chisquare(together, n * np.array(want)).pvalue > 1e-3


def test_plain_view_is_normalised_centre_crop():
    views = replace(STILL, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    exact = PHOTOS[0, :8, :8].astype(np.float32) / np.float32(255)
    want = (exact - np.float32([0.1, 0.2, 0.3])) / np.float32([0.5, 1.0, 2.0])
    np.testing.assert_allclose(views.plain(PHOTOS[0, :8, :8]), want, atol=3e-7)
    got = jax.jit(views.plain)(PHOTOS)  # 10 by 12: the square in the middle
    assert got.shape == (6, 8, 8, 3)
    want = pillow((PHOTOS[3] / 255).astype(np.float32), (0, 1, 10, 10), (8, 8))
    np.testing.assert_allclose(got[3] * np.float32([0.5, 1, 2])[None, None], want - np.float32(
        [0.1, 0.2, 0.3]), atol=3e-6)  # fmt: skip


def test_plain_size_may_exceed_training_size():
    larger = replace(STILL, plain_size=10)
    whole = PHOTOS[:, :10, :10]
    np.testing.assert_allclose(larger.plain(whole), whole / np.float32(255), atol=3e-7)
    assert jax.eval_shape(larger, jax.random.key(0), PHOTOS[0]).shape == (8, 8, 3)


def test_supports_single_channel_digits():
    from sklearn.datasets import load_digits

    digits = (load_digits().images[:50, ..., None] / 16).astype(np.float32)
    views = ImageAugmentation(size=8, jitter=(0.0, 0.0, 0.4, 0.1), grey_rate=0.5, blur_kernel=1)
    still = replace(views, jitter_rate=0.0, grey_rate=0.0)
    got = draw_all(views, keys_of(50), digits)
    assert got.shape == (50, 8, 8, 1)
    np.testing.assert_allclose(got, draw_all(still, keys_of(50), digits), atol=1e-6)
    np.testing.assert_array_equal(views.plain(digits), digits)
    half = jax.eval_shape(views, jax.random.key(0), jnp.asarray(digits[0], jnp.bfloat16))
    assert half.dtype == jnp.float32
    film = jax.jit(views)(jax.random.key(0), digits[:3])
    first = jax.jit(views)(jax.random.key(0), digits[0])
    np.testing.assert_allclose(film[0], first, atol=1e-5)


def test_presets_have_published_settings():
    cifar, imagenet = ImageAugmentation.cifar10(), ImageAugmentation.imagenet()
    assert (cifar.size, cifar.blur_kernel, len(cifar.mean)) == (32, 3, 3)
    assert (imagenet.size, imagenet.blur_kernel, imagenet.jitter[3]) == (224, 23, 0.2)
    assert ImageAugmentation.imagenet(64).blur_kernel == 7
    assert ImageAugmentation.cifar10(blur_kernel=1, mean=0.5).mean == 0.5


@pytest.mark.parametrize(("name", "value", "message"), [
    ("size", 0, " must be at least 1, got 0"),
    ("plain_size", 0, " must be at least 1, got 0"),
    ("blur_kernel", 4, " must be odd, got 4"),
    ("blur_kernel", 65, " must be less than 64 for a side of 32 pixels, got 65"),
    ("scale", (0.0, 1.0), r" must lie in \(0, inf\), got 0"),
    ("ratio", (2.0, 1.0), r" must be a pair \(low, high\)"),
    ("ratio", (1.0,), r" must be a pair \(low, high\)"),
    ("blur_sigma", (-1.0, 1.0), r" must lie in \[0, inf\), got -1"),
    ("jitter", (0.4, 0.4, 0.4), " must be the four strengths of brightness"),
    ("jitter", (0.4, 0.4, 0.4, 0.7), r" must lie in \[0, 0.5\], got 0.7"),
    ("flip_rate", 1.1, r" must lie in \[0, 1\], got 1.1"),
    ("jitter_rate", -1, r" must lie in \[0, 1\], got -1"),
    ("grey_rate", 2, r" must lie in \[0, 1\], got 2"),
    ("blur_rate", 1.5, r" must lie in \[0, 1\], got 1.5"),
    ("rotation", (10.0, -10.0), r" must be a pair \(low, high\)"),
    ("rotation_rate", 1.5, r" must lie in \[0, 1\], got 1.5"),
    ("noise_std", (-0.1, 0.1), r" must lie in \[0, inf\), got -0.1"),
    ("noise_rate", -1, r" must lie in \[0, 1\], got -1"),
    ("cutout_size", 1.1, r" must lie in \[0, 1\], got 1.1"),
    ("cutout_rate", 2, r" must lie in \[0, 1\], got 2"),
    ("std", (1.0, 0.0, 1.0), r" must lie in \(0, inf\), got 0"),
])  # fmt: skip
def test_rejects_invalid_arguments(name, value, message):
    with refused(name, message):
        ImageAugmentation(**{name: value})


def test_rejects_moments_not_matching_channels():
    with refused(
        "mean", r" must be one number or one for each of the 1 channels, got shape \(3,\)"
    ):
        ImageAugmentation.cifar10(size=8).plain(np.ones((8, 8, 1), np.float32))


@pytest.mark.usefixtures("unchecked")
def test_rejects_image_without_channels():
    for view in (STILL.plain, lambda image: STILL(jax.random.key(0), image)):
        with refused("image", r" must have the axes \[..., height, width, channels\]"):
            view(jnp.zeros((5, 5)))
