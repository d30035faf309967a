"""Cross-validated support vector machines against explicit loops over scikit-learn models."""

import numpy as np
import pytest
from _helpers.refusals import raises
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC

from crl_jax.metrics import cross_validated_svm

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4)) * np.array([1, 5, 1, 1])
Y = ((X[:, 0] ** 2 + X[:, 2] ** 2 > 1.4) ^ (RNG.random(90) < 0.1)).astype(int)


def nested_loop(x, y, parts, c_values, inner):
    """Returns the accuracy and the selected C of each fold."""
    results = []
    for train, test in parts:
        scores = []
        for c in c_values:
            cut = StratifiedKFold(inner).split(x[train], y[train])
            own = [
                np.mean(SVC(C=c).fit(x[train][a], y[train][a]).predict(x[train][b]) == y[train][b])
                for a, b in cut
            ]
            scores.append(np.mean(own))
        best = c_values[int(np.argmax(scores))]
        fitted = SVC(C=best).fit(x[train], y[train])
        results.append((np.mean(fitted.predict(x[test]) == y[test]), best))
    return np.array(results).T


def test_matches_nested_cross_validation_loop():
    c_values = (0.1, 1.0, 10.0)
    parts = list(StratifiedKFold(4, shuffle=True, random_state=3).split(X, Y))
    want = nested_loop(X, Y, parts, c_values, 3)
    got = cross_validated_svm(X, Y, folds=4, seed=3, c_values=c_values[::-1], inner_folds=3)
    np.testing.assert_allclose(got.accuracies, want[0])
    np.testing.assert_array_equal(got.c_values, want[1])
    assert got.accuracy == pytest.approx(want[0].mean())
    assert got.deviation == pytest.approx(want[0].std())


def test_given_folds_never_test_negative_ids():
    folds = np.arange(90) % 3
    folds[:6] = -1
    parts = [(np.flatnonzero(folds != k), np.flatnonzero(folds == k)) for k in range(3)]
    want = nested_loop(X, Y, parts, (1.0,), 5)
    got = cross_validated_svm(X, Y, folds=folds, c_values=(1.0,))
    np.testing.assert_allclose(got.accuracies, want[0])


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_standardized_features_do_not_depend_on_units(kernel):
    given = {"folds": 3, "kernel": kernel, "standardize": True, "c_values": (0.1, 1.0)}
    one, other = (cross_validated_svm(x, Y, **given) for x in (X, X * [1, 1000, 0.01, 1] + 7))
    np.testing.assert_allclose(one.accuracies, other.accuracies)


def test_rejects_invalid_arguments():
    for given, message in (
        ({"features": X[:, 0]}, r"`features` must be finite numbers \[n, dim\], got shape \(90,\)"),
        ({"features": np.full_like(X, np.nan)}, "`features` must be finite numbers"),
        ({"labels": Y[:5]}, r"`labels` must have shape \(90,\), got \(5,\)"),
        ({"folds": 60}, "`folds` must be at most .*, got 60"),
        ({"folds": np.zeros(90)}, "`folds` must name two folds or more, got 1"),
        ({"c_values": (0.0,)}, r"`c_values` must lie in \(0, inf\), got 0.0"),
        ({"kernel": "cubic"}, "`kernel` must be rbf or linear, got 'cubic'"),
        ({"labels": np.zeros(90, int)}, "`labels` must have two classes .* `inner_folds` = 5"),
    ):
        with raises(ValueError, match=message):
            cross_validated_svm(**{"features": X, "labels": Y, **given})
