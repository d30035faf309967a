"""puNCE of two views: a few examples are labelled positive, the rest are unlabelled."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import in_one
from _helpers.refusals import raises
from _helpers.views import LABELS, LINEAR, POINTS, Given, ctx, fit, jitter, unit
from sklearn.metrics import roc_auc_score

from crl_jax.tasks import LabelledExamples, PuNCE, SimCLR, SupCon, ViewBatch

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

OWN = np.array([3, -1, -1, 3, -1, -2])  # any negative number is unlabelled
ALL_UNLABELLED = np.full(6, -1)
RNG = np.random.default_rng(2)
Z = RNG.normal(size=(12, 3)) + 3 * np.tile(OWN == 3, 2)[:, None]
T, PRIOR = 0.5, 0.3
PUNCE = PuNCE(LINEAR, jitter, {"temperature": T, "tau_plus": PRIOR})


def evaluate_task(task, labels=OWN, z=Z, n_real=6):
    """Returns the loss of the embeddings, and metrics."""
    task, nothing = dataclasses.replace(task, network=Given(z)), jnp.zeros((6, 1))
    batch = ViewBatch(
        nothing, nothing, jnp.arange(6), None if labels is None else jnp.asarray(labels)
    )
    loss, (_, metrics) = in_one(task.loss, {}, {}, batch, ctx(6, n_real))
    return loss, metrics


def real_views(n_real):
    """Returns unit views of the real examples in float64, and whether they are labelled."""
    kept = [i + b for b in (0, 6) for i in range(n_real)]
    return unit(Z)[kept], np.tile(OWN[:n_real] >= 0, 2)


def reference_loss(z, labelled, tau_plus):
    """Reference: the published formula, over all views."""
    n, total = len(z), 0.0
    for i in range(n):
        own = (i + n // 2) % n
        log_z = np.log(sum(np.exp(z[i] @ z[k] / T) for k in range(n) if k != i))
        minus = {k: log_z - z[i] @ z[k] / T for k in range(n) if k != i}
        as_positive = np.mean([minus[k] for k in minus if k == own or labelled[k]])
        share = 1 if labelled[i] else tau_plus
        total += share * as_positive + (1 - share) * minus[own]
    return total / n


@pytest.mark.parametrize(("n_real", "tau_plus"), [(6, 0.9), (4, 0.3)])
def test_loss_matches_published_formula(n_real, tau_plus):
    """Reference by loops; padding, even if labelled, is neither a positive nor a negative."""
    task = dataclasses.replace(PUNCE, hyperparams={"temperature": T, "tau_plus": tau_plus})
    labels = np.where(np.arange(6) < n_real, OWN, 3)
    want = reference_loss(*real_views(n_real), tau_plus)
    np.testing.assert_allclose(evaluate_task(task, labels, n_real=n_real)[0], want, rtol=1e-5)


def test_padding_does_not_change_result():
    """Neither the views nor the labels of padding change the loss or the metrics."""
    changed = Z.copy()
    changed[[4, 5, 10, 11]] *= -7
    labels = OWN.copy()
    labels[4:] = 3, 3
    assert evaluate_task(PUNCE, n_real=4) == evaluate_task(PUNCE, labels, changed, n_real=4)


@pytest.mark.parametrize("tau_plus", [0.0, 0.3])
def test_equals_simclr_without_labelled_examples(tau_plus):
    task = dataclasses.replace(PUNCE, hyperparams={"temperature": T, "tau_plus": tau_plus})
    plain = SimCLR(LINEAR, jitter, {"temperature": T})
    got, metrics = evaluate_task(task, ALL_UNLABELLED)
    np.testing.assert_allclose(got, evaluate_task(plain)[0], rtol=1e-6)
    assert metrics == {"labelled": 0, "auc": 0.5}


def test_equals_supcon_with_zero_prior():
    task = dataclasses.replace(PUNCE, hyperparams={"temperature": T, "tau_plus": 0.0})
    supervised = SupCon(LINEAR, jitter, {"temperature": T})
    np.testing.assert_allclose(evaluate_task(task)[0], evaluate_task(supervised)[0], rtol=1e-6)
    assert abs(evaluate_task(PUNCE)[0] - evaluate_task(supervised)[0]) > 0.005


@pytest.mark.parametrize("n_real", [6, 4])
def test_metrics_use_labelled_anchors_only(n_real):
    z, labelled = real_views(n_real)
    n = len(z)
    _, metrics = evaluate_task(PUNCE, n_real=n_real)
    np.testing.assert_allclose(metrics["labelled"], labelled.mean(), rtol=1e-6)
    aucs = []
    for i in np.flatnonzero(labelled):
        others = [k for k in range(n) if k not in (i, (i + n // 2) % n)]
        aucs.append(roc_auc_score(labelled[others], z[others] @ z[i]))
    assert np.mean(aucs) > 0.5
    np.testing.assert_allclose(metrics["auc"], np.mean(aucs), rtol=1e-6)


def test_rejects_invalid_data():
    with raises(ValueError, match=r"`data` of PuNCE must be tasks\.LabelledExamples, got"):
        fit(PUNCE, POINTS)
    with raises(ValueError, match=r"`data` must have one label for positives .* got 0, 1, 2"):
        fit(PUNCE, LabelledExamples(POINTS, LABELS))
