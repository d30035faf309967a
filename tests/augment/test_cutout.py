"""Cutout: exact squares, whose centres are uniform over the pixels."""

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
cutout = jax.jit(augment.cutout)


@pytest.mark.parametrize("box", [
    (2, 3, 4, 5), (0, 0, 8, 11), (-2, -3, 4, 5), (6, 9, 4, 4), (1, 1, 0, 3), (1, 1, 2, -2),
    (20, 0, 3, 3),
])  # fmt: skip
@pytest.mark.parametrize("fill", [0.25, (0.0, 0.5, 1.0)])
def test_cutout_fills_only_box(box, fill):
    want = PHOTO.copy()
    top, left, height, width = box
    for i in range(top, top + height):
        for j in range(left, left + width):
            if 0 <= i < 8 and 0 <= j < 11:
                want[i, j] = fill
    np.testing.assert_array_equal(cutout(PHOTO, np.array(box), fill=fill), want)


def test_supports_dtypes_and_leading_axes():
    film = RNG.integers(0, 256, (2, 3, 8, 11, 1), dtype=np.uint8)
    got = cutout(film, np.array([1, 2, 3, 4]), fill=1.0)
    np.testing.assert_array_equal(got[1, 2], cutout(film[1, 2], np.array([1, 2, 3, 4]), fill=1.0))
    half = jnp.asarray(PHOTO, jnp.bfloat16)
    got = cutout(half, np.array([0, 0, 2, 2]))
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got[2:], half[2:].astype(jnp.float32))


@pytest.mark.parametrize(("size", "side"), [(0.5, 4), (0.37, 3), (0.0, 0), (1.0, 8)])
def test_centres_are_uniform_and_sides_exact(size, side):
    """The border cuts a square off on one side only, so that its extent reveals its centre."""
    n, image = 4000, jnp.ones((8, 11, 1))
    keys = jax.random.split(jax.random.key(0), n)
    own = lambda key: augment.random_cutout(key, image, size=size, rate=0.6)  # noqa: E731
    hole = np.asarray(jax.jit(jax.vmap(own))(keys)[..., 0] == 0)
    cut = hole.any((1, 2))
    if side == 0:
        assert not cut.any()
        return
    assert stats.binomtest(int(cut.sum()), n, 0.6).pvalue > 1e-3
    for axis, length in ((1, 8), (2, 11)):
        line = hole[cut].any(3 - axis)
        extent = line.sum(1)
        want = [
            len([p for p in range(c - side // 2, c - side // 2 + side) if 0 <= p < length])
            for c in range(length)
        ]
        counts, shares = np.bincount(extent, minlength=12), np.bincount(want, minlength=12) / length
        assert not counts[shares == 0].any()
        if (shares > 0).sum() > 1:
            kept = shares > 0
            assert stats.chisquare(counts[kept], cut.sum() * shares[kept]).pvalue > 1e-3
    assert (hole[cut].sum((1, 2)) == hole[cut].any(2).sum(1) * hole[cut].any(1).sum(1)).all()


def test_sizes_and_rates_share_one_program():
    jitted, traces = counted(
        lambda key, size, rate: augment.random_cutout(key, PHOTO, size=size, rate=rate, fill=0.5)
    )
    key = jax.random.key(0)
    np.testing.assert_array_equal(jitted(key, 0.5, 0.0), PHOTO)
    assert np.any(jitted(key, 0.5, 1.0) == 0.5)
    assert len(traces) == 1


def test_rejects_invalid_arguments():
    key = jax.random.key(0)
    with refused("box", r" must be \[top, left, height, width\], got shape \(3,\)"):
        augment.cutout(PHOTO, np.zeros(3, int))
    with refused(
        "fill", r" must be one number or one for each of the 3 channels, got shape \(4,\)"
    ):
        augment.cutout(PHOTO, np.zeros(4, int), fill=(0.0,) * 4)
    with refused("size", r" must lie in \[0, 1\], got 1.5"):
        augment.random_cutout(key, PHOTO, size=1.5)
    with refused("rate", r" must lie in \[0, 1\], got -1"):
        augment.random_cutout(key, PHOTO, rate=-1)
