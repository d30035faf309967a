"""Tests of puNCE on digits: sampling of labels, training and evaluation."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from crl_jax import tasks
from experiments.numerical import _punce as punce

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


@pytest.fixture(scope="module")
def digits():
    return punce.load()


def test_labelled_even_digits_are_nested_and_give_true_prior(digits):
    before = np.zeros(len(digits.even), bool)
    for share in punce.SHARES:
        labelled = punce.draw_labelled(digits, share, 3)
        assert labelled.sum() == round(share * digits.even.sum())
        assert digits.even[labelled].all()
        assert labelled[before].all()
        assert not np.array_equal(labelled, punce.draw_labelled(digits, share, 4))
        left = digits.even & ~labelled
        want = left.sum() / (len(labelled) - labelled.sum())
        assert punce.true_prior(digits, labelled) == pytest.approx(want)
        before = labelled


def test_methods_differ_in_labels_and_prior(digits):
    labelled = punce.draw_labelled(digits, 0.1, 0)
    prior = punce.true_prior(digits, labelled)
    priors = {"supcon": 0, "punce_half": prior / 2, "punce": prior, "punce_more": 1.5 * prior}
    for name, want in priors.items():
        task, labels = punce.make_task(name, digits, labelled)
        assert isinstance(task, tasks.PuNCE)
        assert task.hyperparams["tau_plus"] == pytest.approx(want)
        np.testing.assert_array_equal(labels >= 0, labelled)
    task, labels = punce.make_task("info_nce", digits, labelled)
    assert (labels < 0).all()
    task, labels = punce.make_task("supcon_negative", digits, labelled)
    assert isinstance(task, tasks.SupCon)
    np.testing.assert_array_equal(labels, labelled)


def test_pu_auc_matches_ridge_regression(digits):
    """Compares with scikit-learn's ridge regression on the labels."""
    rng = np.random.default_rng(0)
    seen, unseen = (
        rng.normal(size=(len(even), 4)) * [1, 2, 3, 4] + 0.7 * even[:, None]
        for even in (digits.even, digits.test_even)
    )
    labelled = punce.draw_labelled(digits, 0.5, 0)
    found = punce.evaluate(
        (jnp.asarray(seen, jnp.float32), jnp.asarray(unseen, jnp.float32)), digits, labelled
    )
    mean, std = seen.mean(axis=0), seen.std(axis=0)
    ridge = Ridge(alpha=0.1 * len(seen)).fit((seen - mean) / std, labelled)
    want = roc_auc_score(digits.test_even, ridge.predict((unseen - mean) / std))
    assert found["pu_auc"] == pytest.approx(want, abs=1e-4)
    assert 0.55 < found["linear"] < 0.8


def test_summary_pairs_seeds_and_applies_holm_correction():
    rng = np.random.default_rng(1)
    rows = [
        {"share": share, "method": name, "seed": seed,
         "linear": rng.random() + (name == "punce"), "pu_auc": 0.5}
        for seed in range(4) for share in punce.SHARES for name in punce.METHODS
    ]  # fmt: skip
    found = punce.summarize(rows)
    p_values = []
    for row in found:
        if row["measure"] == "pu_auc":
            assert np.isnan(row["p"])
            continue
        own, best = (
            np.array([r["linear"] for r in rows if (r["share"], r["method"]) == (row["share"], n)])
            for n in (row["method"], "punce")
        )
        assert row["mean"] == pytest.approx(own.mean())
        assert row["deviation"] == pytest.approx(own.std(ddof=1))
        assert row["punce_ahead"] == pytest.approx((best - own).mean())
        assert row["standard_error"] == pytest.approx(stats.sem(best - own))
        if row["method"] != "punce":
            p_values.append((row["p"], stats.ttest_rel(best, own).pvalue))
    assert len(p_values) == 15
    adjusted, plain = min(p_values, key=lambda pair: pair[1])
    assert adjusted == pytest.approx(min(1, 15 * plain))  # Holm's factor for the smallest p-value


@pytest.mark.slow
def test_training_returns_features_for_all_images(digits):
    few = digits._replace(
        images=digits.images[:200], even=digits.even[:200], test_images=digits.test_images[:7]
    )
    labelled = punce.draw_labelled(few, 0.5, 0)
    found = {
        name: punce.learn_features(*punce.make_task(name, few, labelled), few, seed=0, epochs=1)
        for name in ("info_nce", "punce")
    }
    for seen, unseen in found.values():
        assert seen.shape == (200, 32)
        assert unseen.shape == (7, 32)
    assert not np.allclose(found["info_nce"][0], found["punce"][0])
