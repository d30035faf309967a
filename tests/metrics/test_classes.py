"""Classification metrics against scikit-learn, and rank correlation against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import precision_recall_fscore_support

from crl_jax import metrics
from crl_jax.metrics import precision_recall_f1, spearman

pytestmark = pytest.mark.usefixtures("quick_compiles")


def sklearn_scores(labels, predicted, n_classes, average):
    known = list(range(n_classes))
    return precision_recall_fscore_support(
        labels, predicted, labels=known, average=average, zero_division=0
    )[:3]


CLASSES = st.lists(st.integers(0, 4), min_size=20, max_size=20)
five_class_scores = jax.jit(lambda *args, where: precision_recall_f1(*args, 5, where=where))
correlation = jax.jit(spearman)


@settings(deadline=None)
@given(CLASSES, CLASSES, st.integers(1, 20))
def test_precision_recall_f1_match_scikit_learn(labels, predicted, n):
    """Includes classes without examples and classes that are never predicted."""
    labels, predicted = np.array(labels, np.int32), np.array(predicted, np.int32)
    got = five_class_scores(labels, predicted, where=np.arange(20) < n)
    for start, average in ((0, None), (3, "macro"), (6, "micro")):
        want = sklearn_scores(labels[:n], predicted[:n], 5, average)
        for mine, theirs in zip(got[start : start + 3], want, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_excludes_negative_labels_and_counts_invalid_predictions():
    labels, predicted = jnp.array([0, 1, -1, 1, 0]), jnp.array([0, 1, 1, 7, 1])
    where = jnp.array([True, True, True, True, False])
    got = jax.jit(precision_recall_f1, static_argnums=2)(labels, predicted, 2, where=where)
    np.testing.assert_allclose(got.precision, [1, 1])
    np.testing.assert_allclose(got.recall, [1, 0.5])
    np.testing.assert_allclose(got.micro_precision, 2 / 3, rtol=1e-6)
    all_masked = precision_recall_f1(labels, predicted, 2, where=jnp.zeros(5, bool))
    assert all(np.all(x == 0) for x in all_masked)


VALUES = st.lists(st.integers(-4, 4), min_size=15, max_size=15)


@settings(deadline=None)
@given(VALUES, VALUES, st.floats(0.1, 1e30))
def test_spearman_matches_scipy(x, y, scale):
    x, y = np.array(x, np.float32) * np.float32(scale), np.array(y, np.float32)
    got = correlation(x, y)
    if len(set(x.tolist())) == 1 or len(set(y.tolist())) == 1:
        assert np.isnan(got)
        return
    np.testing.assert_allclose(got, stats.spearmanr(x, y).statistic, atol=2e-6)


def test_spearman_supports_long_and_half_precision_inputs():
    x, y = np.random.default_rng(0).normal(size=(2, 10_000)).astype(np.float32)
    y = np.round(x + y, 1)
    want = stats.spearmanr(x, y).statistic
    got = jax.jit(spearman)(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    half = jnp.asarray(x[:500], jnp.bfloat16)
    want = stats.spearmanr(np.asarray(half, np.float32), y[:500]).statistic
    np.testing.assert_allclose(spearman(half, jnp.asarray(y[:500])), want, rtol=1e-5)
    assert np.isnan(spearman(jnp.array([1.0, np.nan, 2.0]), jnp.array([1.0, 2.0, 3.0])))
    assert spearman(jnp.array([1.0, np.inf, 2.0]), jnp.array([1.0, 9.0, 3.0])) == 1


def test_spearman_of_seven_million_values_does_not_overflow():
    x = jnp.arange(7_000_000, dtype=jnp.float32)
    np.testing.assert_allclose(jax.jit(spearman)(x, -x), -1, rtol=1e-4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("value", [2**32, -(2**32)])
def test_rejects_classes_beyond_32_bits(value):
    """They would wrap to class 0."""
    wide, three = np.array([0, value, 1]), np.zeros(3, np.int32)
    with raises(ValueError, match=f"`predicted` must fit into 32 bits, got {value}"):
        precision_recall_f1(three, wide, 2)
    if value < 0:  # larger labels are not below the number of classes
        with raises(ValueError, match=f"`labels` must fit into 32 bits, got {value}"):
            precision_recall_f1(wide, three, 2)


def test_rejects_invalid_shapes():
    three, two = jnp.zeros(3, jnp.int32), jnp.zeros(2, jnp.int32)
    with refused("predicted"):
        precision_recall_f1(three, two, 2)
    with refused("n_classes", " must be at least 1, got 0"):
        precision_recall_f1(three, three, 0)
    with refused("gold"):
        spearman(jnp.zeros(3), jnp.zeros(2))


def test_rejects_labels_out_of_range():
    x = jax.random.normal(jax.random.key(0), (30, 5))
    y = jnp.arange(30, dtype=jnp.int32) % 3
    over, key = y + 5, jax.random.key(0)
    calls = {
        "labels": [
            lambda: metrics.knn_predict(x, x, over, n_classes=3, k=3),
            lambda: metrics.knn_accuracy(x, y, x, over, n_classes=3, k=3),
            lambda: metrics.linear_probe(x, over, x, y, n_classes=3, key=key),
            lambda: metrics.ridge_probe(x, over, x, y, n_classes=3),
            lambda: metrics.precision_recall_f1(over, y, n_classes=3),
        ],
        "query_labels": [lambda: metrics.knn_accuracy(x, over, x, y, n_classes=3, k=3)],
        "test_labels": [
            lambda: metrics.linear_probe(x, y, x, over, n_classes=3, key=key),
            lambda: metrics.ridge_probe(x, y, x, over, n_classes=3),
        ],
    }
    for name, functions in calls.items():
        for function in functions:
            with raises(ValueError, match=f"`{name}` must be below `n_classes` = 3"):
                function()


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_label_dtype_does_not_change_results(dtype):
    x = jax.random.normal(jax.random.key(0), (30, 5))
    y = jnp.arange(30, dtype=jnp.int32) % 3
    other = y.astype(dtype)
    want = metrics.ridge_probe(x, y, x, y, n_classes=3).accuracy
    assert metrics.ridge_probe(x, other, x, other, n_classes=3).accuracy == want
    want = metrics.knn_accuracy(x, y, x, y, n_classes=3, k=5)
    assert metrics.knn_accuracy(x, other, x, other, n_classes=3, k=5) == want
    got, want = (metrics.precision_recall_f1(labels, y[::-1], 3) for labels in (other, y))
    np.testing.assert_array_equal(got.f1, want.f1)
