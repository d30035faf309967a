"""Calibration and AUC of posteriors and weights, against scikit-learn and float64 sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import jitted
from _helpers.refusals import raises
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score

from crl_jax import weights

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(weights)
FUNCTIONS = (weights.posterior_calibration, weights.weights_auc, weights.false_negative_share)
each = pytest.mark.parametrize("fn", FUNCTIONS)


def samples(shape=(6, 40), seed=0):
    """Returns an informative posterior with ties and its labels, as JAX arrays."""
    rng = np.random.default_rng(seed)
    true = rng.random(shape) < 0.7
    p = np.round(np.clip(0.55 + 0.3 * (true - 0.5) + 0.2 * rng.normal(size=shape), 0, 1), 2)
    return jnp.asarray(p, jnp.float32), jnp.asarray(true)


@pytest.mark.parametrize("bins", [1, 7, 10])
def test_calibration_table_matches_scikit_learn(bins):
    p, true = samples()
    p = p + 0.001  # scikit-learn assigns bin edges differently
    got = quick.posterior_calibration(p, true, bins=bins)
    actual, predicted = calibration_curve(np.ravel(true), np.ravel(p).clip(0, 1), n_bins=bins)
    some = np.asarray(got.samples) > 0
    np.testing.assert_allclose(got.actual[some], actual, rtol=1e-5)
    np.testing.assert_allclose(got.predicted[some], predicted, rtol=5e-3)
    assert np.sum(got.samples) == p.size
    want = np.sum(np.asarray(got.samples)[some] * np.abs(actual - got.predicted[some])) / p.size
    assert got.error == pytest.approx(want, rel=1e-4)


def test_bins_match_hand_computed_values():
    p, true = jnp.array([[0.0, 0.5, 1.0, 0.49]]), jnp.array([[False, True, True, True]])
    got = quick.posterior_calibration(p, true, bins=2)
    # An edge belongs to the bin above it, and 1 to the last.
    np.testing.assert_allclose(got.samples, [2, 2])
    np.testing.assert_allclose(got.predicted, [0.245, 0.75])
    np.testing.assert_allclose(got.actual, [0.5, 1])
    assert got.error == pytest.approx((2 * 0.255 + 2 * 0.25) / 4)


@pytest.mark.parametrize("seed", range(3))
def test_auc_and_false_negative_share_match_references(seed):
    p, true = samples((4, 15), seed)
    got = quick.weights_auc(p, true)
    assert got == pytest.approx(roc_auc_score(np.ravel(true), np.ravel(p)), abs=1e-5)
    assert quick.weights_auc(p**3 / 7, true) == pytest.approx(float(got), abs=1e-5)
    w = np.asarray(p, np.float64)
    share = quick.false_negative_share(p * 1e30, true)
    assert share == pytest.approx(w[~np.asarray(true)].sum() / w.sum(), rel=1e-4)


def test_auc_is_accurate_with_few_false_negatives():
    rng = np.random.default_rng(0)
    w = rng.random(200_000).astype(np.float32)
    true = np.arange(len(w)) >= 5
    got = quick.weights_auc(jnp.asarray(w), jnp.asarray(true))
    assert got == pytest.approx(roc_auc_score(true, w), abs=1e-6)


@each
def test_masking_equals_deletion(fn):
    p, true = samples()
    where = jnp.arange(40) % 3 > 0
    corrupted = jnp.where(where, p, jnp.nan)
    fn = jax.jit(fn)
    got = fn(corrupted, true, where=jnp.broadcast_to(where, p.shape))
    want = fn(p[:, where], true[:, where])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want)
    assert np.isnan(jax.tree.leaves(fn(corrupted, true))[-1])


@each
def test_supports_vmap_and_half_precision(fn):
    p, true = samples()

    def same(a, b):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), a, b)

    jitted = jax.jit(fn)
    want = jitted(p, true)
    both = jax.jit(jax.vmap(fn))(jnp.stack([p[::-1] ** 2, p]), jnp.stack([true, true]))
    same(jax.tree.map(lambda leaf: leaf[1], both), want)
    same(jitted(p.ravel(), true.ravel()), want)
    half = p.astype(jnp.bfloat16)
    same(jitted(half, true), jitted(half.astype(jnp.float32), true))


def test_empty_or_single_class_inputs_return_defaults():
    p, none = jnp.ones((2, 3)), jnp.zeros((2, 3), bool)
    table = quick.posterior_calibration(p, ~none, where=none)
    assert table.error == 0
    assert np.all(table.samples == 0)
    assert quick.weights_auc(p, ~none) == 0.5
    assert quick.weights_auc(p, none) == 0.5
    assert quick.false_negative_share(0 * p, none) == 0
    assert quick.false_negative_share(p, none, where=none) == 0
    assert quick.false_negative_share(p, none) == 1


@each
def test_rejects_invalid_arguments(fn):
    p, true = samples((2, 3))
    with raises(ValueError, match="`is_true` must have shape"):
        fn(p, true[:1])
    with raises(ValueError, match="`where` must have shape"):
        fn(p, true, where=true[:1])
    with raises(ValueError, match="`bins` must be at least 1, got 0"):
        weights.posterior_calibration(p, true, bins=0)
