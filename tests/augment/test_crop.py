"""Crops and mirror images, against Pillow and the published rule for random boxes in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.crops import pillow, simulated_box
from _helpers.programs import counted
from _helpers.refusals import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from crl_jax import augment

pytestmark = pytest.mark.usefixtures("quick_compiles")

RNG = np.random.default_rng(0)
PHOTO = RNG.random((13, 17, 3)).astype(np.float32)


crop = jax.jit(augment.crop_resize, static_argnums=2)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), rows=st.sampled_from([1, 4, 20]), columns=st.sampled_from([1, 9]))
def test_crop_resize_matches_pillow(data, rows, columns):
    height, width = data.draw(st.integers(1, 13)), data.draw(st.integers(1, 17))
    top, left = data.draw(st.integers(0, 13 - height)), data.draw(st.integers(0, 17 - width))
    box = np.array([top, left, height, width])
    got = crop(PHOTO, box, (rows, columns))
    np.testing.assert_allclose(got, pillow(PHOTO, box, (rows, columns)), atol=2e-6)


def test_full_crop_at_same_size_is_identity():
    got = crop(PHOTO, np.array([0, 0, 13, 17]), (13, 17))
    np.testing.assert_array_equal(got, PHOTO)


@pytest.mark.parametrize("size", [6, (20, 9)])
def test_flipped_crop_equals_flip_of_crop(size):
    box = np.array([2, 3, 9, 11])
    plain, other = (crop(PHOTO, box, size, flipped=f) for f in (False, True))
    np.testing.assert_array_equal(other, augment.flip(plain))
    np.testing.assert_array_equal(augment.flip(PHOTO), np.fliplr(PHOTO))


def test_boxes_do_not_recompile_and_batches_agree():
    own = lambda x, box, f: augment.crop_resize(x, box, 8, flipped=f)  # noqa: E731
    random_boxes = jax.jit(jax.vmap(lambda key: augment.random_crop_box(key, 13, 17)))
    images = jnp.asarray(RNG.random((4, 13, 17, 3)), jnp.float32)
    jitted, traces = counted(jax.vmap(own))
    for seed in range(2):
        keys = jax.random.split(jax.random.key(seed), 4)
        boxes = random_boxes(keys)
        got = jitted(images, boxes, jnp.arange(4) % 2 == 1)
        for i in range(4):
            want = pillow(np.asarray(images[i]), boxes[i], (8, 8))
            np.testing.assert_allclose(got[i], want[:, ::-1] if i % 2 else want, atol=2e-6)
    assert len(traces) == 1
    leading = crop(images.reshape(2, 2, 13, 17, 3), boxes[0], 8)
    np.testing.assert_allclose(leading[0, 0], pillow(np.asarray(images[0]), boxes[0], (8, 8)),
                               atol=2e-6)  # fmt: skip


def test_uint8_and_bfloat16_become_float32():
    box = np.array([1, 2, 9, 9])
    whole = np.round(255 * PHOTO).astype(np.uint8)
    want = pillow((whole / 255).astype(np.float32), box, (5, 5))
    np.testing.assert_allclose(crop(whole, box, 5), want, atol=2e-6)
    half = jnp.asarray(PHOTO, jnp.bfloat16)
    got = crop(half, box, 5)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, pillow(np.asarray(half, np.float32), box, (5, 5)), atol=2e-6)
    assert augment.flip(half).dtype == augment.flip(whole).dtype == jnp.float32


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (32, 32, (0.08, 1.0), (3 / 4, 4 / 3)),
        (10, 40, (0.3, 1.0), (3 / 4, 4 / 3)),  # often none of ten fits: too wide
        (40, 11, (0.3, 1.0), (3 / 4, 4 / 3)),  # or too high
        (8, 8, (0.9, 1.3), (0.5, 2.0)),  # or too large
    ],
)
def test_random_boxes_follow_published_distribution(height, width, scale, ratio):
    rng = np.random.default_rng(1)
    want = np.array([simulated_box(rng, height, width, scale, ratio) for _ in range(6000)])
    draw = jax.jit(jax.vmap(
        lambda key, scale, ratio: augment.random_crop_box(
            key, height, width, scale=scale, ratio=ratio
        ), (0, None, None)
    ))  # fmt: skip
    got = np.asarray(draw(jax.random.split(jax.random.key(2), 6000), scale, ratio))
    assert got.dtype == np.int32
    assert (got[:, :2] >= 0).all()
    assert (got[:, 2:] >= 1).all()
    assert (got[:, :2] + got[:, 2:] <= [height, width]).all()
    features = [*range(4), "area", "room"]
    for feature in features:
        a, b = (
            x[:, 2] * x[:, 3] if feature == "area"
            else x[:, 0] * 100 - x[:, 3] if feature == "room" else x[:, feature]
            for x in (got, want)
        )  # fmt: skip
        assert stats.ks_2samp(a, b, method="asymp").pvalue > 1e-3, feature
    # The joint distribution of both sides matches, too.
    values, tallies = [], []
    for x in (got, want):
        pairs, count = np.unique(x[:, 2] * 1000 + x[:, 3], return_counts=True)
        values.append(dict(zip(pairs.tolist(), count.tolist())))
    common = [p for p in values[1] if values[1][p] + values[0].get(p, 0) >= 20]
    tallies = np.array([[v.get(p, 0) for p in common] for v in values])
    rest = 6000 - tallies.sum(1, keepdims=True)
    tallies = np.concatenate([tallies, rest + 1], axis=1)
    assert stats.chi2_contingency(tallies).pvalue > 1e-3


def test_random_flip_has_requested_rate():
    x = jnp.arange(6, dtype=jnp.float32).reshape(1, 2, 3) / 6
    keys = jax.random.split(jax.random.key(3), 2000)
    flips = jax.jit(jax.vmap(lambda key, rate: augment.random_flip(key, x, rate=rate), (0, None)))
    for rate in (0.0, 0.2, 1.0):
        got = flips(keys, rate)
        flipped = np.array([np.array_equal(y, x[:, ::-1]) for y in np.asarray(got)])
        assert all(np.array_equal(y, x) for y in np.asarray(got)[~flipped])
        assert stats.binomtest(int(flipped.sum()), 2000, rate).pvalue > 1e-3


def test_rejects_invalid_arguments():
    key = jax.random.key(0)
    for box in ([0, 0, 14, 5], [-1, 0, 3, 3], [3, 3, 0, 4], [0, 12, 2, 6]):
        with refused("box", " must lie inside the image of 13 by 17 pixels"):
            augment.crop_resize(PHOTO, np.array(box), 8)
    with refused("box", r" must be \[top, left, height, width\], got shape \(3,\)"):
        augment.crop_resize(PHOTO, np.array([0, 0, 3]), 8)
    with refused("size", " must be at least 1, got 0"):
        augment.crop_resize(PHOTO, np.array([0, 0, 3, 3]), (4, 0))
    with refused("scale", r" must lie in \(0, inf\), got 0"):
        augment.random_crop_box(key, 8, 8, scale=(0, 1.0))
    with refused("ratio", r" must be a pair \(low, high\), got \(2, 1\)"):
        augment.random_crop_box(key, 8, 8, ratio=(2, 1))
    with refused("height", " must be at least 1, got 0"):
        augment.random_crop_box(key, 0, 8)
    with refused("rate", r" must lie in \[0, 1\], got 1.5"):
        augment.random_flip(key, PHOTO, rate=1.5)
