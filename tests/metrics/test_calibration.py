"""Calibration error with bins of equal mass, and Brier score, against sums in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import jitted
from _helpers.refusals import raises
from scipy.stats import rankdata
from sklearn.metrics import brier_score_loss

from crl_jax import metrics

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(metrics)
FUNCTIONS = (metrics.equal_mass_calibration, metrics.brier_score)
each = pytest.mark.parametrize("fn", FUNCTIONS)


def samples(shape=(6, 41), seed=0, decimals=2):
    """Probabilities, mostly near 0 and with ties unless ``decimals`` is large, and labels."""
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(shape) ** 4, decimals)
    return jnp.asarray(p, jnp.float32), jnp.asarray(rng.random(shape) < 0.3 + 0.5 * p)


def reference(p, y, bins):
    """Bins by average ranks, then |mean predicted - mean actual|, in float64."""
    p, y = np.ravel(p).astype(np.float64), np.ravel(y)
    bin_index = np.floor(bins * (rankdata(p) - 0.5) / len(p)).astype(int)
    return [
        (inside.sum(), p[inside].mean(), y[inside].mean()) if inside.any() else (0, 0, 0)
        for inside in (bin_index == b for b in range(bins))
    ]


@pytest.mark.parametrize("bins", [1, 7, 15, 400])
@pytest.mark.parametrize("decimals", [1, 2, 12])
def test_table_matches_reference(bins, decimals):
    p, y = samples(decimals=decimals)
    got = quick.equal_mass_calibration(p, y, bins=bins)
    count, predicted, actual = np.transpose(reference(p, y, bins))
    np.testing.assert_array_equal(got.samples, count)
    np.testing.assert_allclose(got.predicted, predicted, rtol=1e-5)
    np.testing.assert_allclose(got.actual, actual, rtol=1e-5)
    want = np.sum(count * np.abs(predicted - actual)) / p.size
    assert got.error == pytest.approx(want, rel=1e-5)


def test_bins_have_equal_mass():
    p, y = jnp.asarray(np.random.default_rng(0).permutation(1003) / 1003), jnp.ones(1003, bool)
    got = quick.equal_mass_calibration(p, y, bins=10)
    assert {*np.asarray(got.samples).tolist()} == {100, 101}


def test_error_of_constant_does_not_depend_on_order():
    p, y = jnp.full(1000, 0.25), jnp.arange(1000) < 300  # sorted by label
    got = quick.equal_mass_calibration(p, y)
    assert got.error == pytest.approx(0.05, rel=1e-5)
    assert np.sum(np.asarray(got.samples) > 0) == 1


def test_error_is_small_only_for_calibrated_probabilities():
    rng = np.random.default_rng(1)
    p = rng.random(30_000) ** 3
    y = jnp.asarray(rng.random(p.shape) < p)
    p = jnp.asarray(p, jnp.float32)
    noise = 0.8 * np.mean(np.sqrt(p * (1 - p))) / np.sqrt(p.size / 15)
    assert quick.equal_mass_calibration(p, y).error < 2 * noise
    assert quick.equal_mass_calibration(p / 2, y).error > 0.1


def test_brier_score_matches_scikit_learn():
    p, y = samples()
    want = brier_score_loss(np.ravel(y), np.ravel(p).astype(np.float64))
    assert quick.brier_score(p, y) == pytest.approx(want, rel=1e-5)
    constant = jnp.full(p.shape, jnp.mean(y))
    base = np.asarray(y).mean(dtype=np.float64)
    assert quick.brier_score(constant, y) == pytest.approx(base * (1 - base), rel=1e-5)


@each
def test_masking_equals_deletion(fn):
    p, y = samples()
    where = jnp.arange(41) % 3 > 0
    corrupted = jnp.where(where, p, jnp.nan)
    fn = jax.jit(fn)
    got = fn(corrupted, y, where=jnp.broadcast_to(where, p.shape))
    want = fn(p[:, where], y[:, where])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want)
    assert np.isnan(jax.tree.leaves(fn(corrupted, y))[-1])
    for leaf in jax.tree.leaves(fn(corrupted, y, where=jnp.zeros(p.shape, bool))):
        np.testing.assert_array_equal(leaf, 0)


@each
@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_empty_inputs_return_zero(fn, shape):
    for leaf in jax.tree.leaves(fn(jnp.zeros(shape), jnp.zeros(shape, bool))):
        np.testing.assert_array_equal(leaf, 0)


@each
def test_vmap_and_half_precision(fn):
    p, y = samples()
    rows = [fn(a, b) for a, b in zip(p, y)]
    got = jax.jit(jax.vmap(fn))(p, y)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, stacked)
    half = p.astype(jnp.bfloat16)
    got, want = fn(half, y), fn(half.astype(jnp.float32), y)
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_errors_name_the_argument():
    p, y = samples()
    for fn in FUNCTIONS:
        with raises(Exception, match="label"):
            fn(p, y[0])
        with raises(Exception, match="where"):
            fn(p, y, where=y[:2])
    with pytest.raises(ValueError, match="bins"):
        metrics.equal_mass_calibration(p, y, bins=0)
