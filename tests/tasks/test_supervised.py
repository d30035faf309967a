"""Views of labelled examples: supervised losses, the oracle, and a measured α."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import in_one
from _helpers.refusals import raises
from _helpers.views import LABELS, LINEAR, NORMED, POINTS, Given, ctx, fit, jitter, unit
from sklearn.metrics import roc_auc_score

from crl_jax import losses, tasks, weights
from crl_jax.tasks import LabelledExamples, MoCo, SimCLR, SupCon, SupervisedOracle, ViewBatch

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

DATA = LabelledExamples(POINTS, LABELS)
OWN = np.array([0, 1, 0, 2, 1, -1])
RNG = np.random.default_rng(1)
CENTRES = RNG.normal(size=(4, 3))  # one per class, the last for unknown labels
Z, OTHERS = np.tile(CENTRES[OWN], (2, 1)) + 0.4 * RNG.normal(size=(2, 12, 3))
BCL = {"temperature": 0.5, "tau_plus": 0.25, "beta": 0.9}


def views(labels=OWN):
    nothing = jnp.zeros((6, 1))
    return ViewBatch(
        nothing, nothing, jnp.arange(6), None if labels is None else jnp.asarray(labels)
    )


def evaluate_task(task, z=Z, n_real=6, model_state=None):
    """Returns the loss of the embeddings, the updated model state, and metrics."""
    task = dataclasses.replace(task, network=Given(z))
    loss, (model_state, metrics) = in_one(
        task.loss, {}, {} if model_state is None else model_state, views(), ctx(6, n_real)
    )
    return loss, model_state, metrics


def exponentials(n_real, t):
    """Reference from the scores of all views of the real examples, with classes and examples."""
    kept = [i + b for b in (0, 6) for i in range(n_real)]
    z, labels = unit(Z)[kept], np.tile(OWN[:n_real], 2)
    own = np.tile(np.arange(n_real), 2)
    same = (labels[:, None] == labels) & (labels >= 0)[:, None] & (labels >= 0)
    return np.exp(z @ z.T / t), same | (own[:, None] == own), own[:, None] == own


@pytest.mark.parametrize("n_real", [6, 4])
def test_supcon_matches_published_formula(n_real):
    """Eq. 2 of SupCon by loops; padding is neither a positive nor a negative."""
    e, same, _ = exponentials(n_real, 0.5)
    want = []
    for i in range(len(e)):
        others = [j for j in range(len(e)) if j != i]
        positives = [j for j in others if same[i, j]]
        below = sum(e[i, j] for j in others)
        want.append(-np.mean([np.log(e[i, j] / below) for j in positives]))
    task = SupCon(LINEAR, jitter, {"temperature": 0.5})
    np.testing.assert_allclose(evaluate_task(task, n_real=n_real)[0], np.mean(want), rtol=1e-5)


@pytest.mark.parametrize("n_real", [6, 4])
def test_supervised_oracle_excludes_false_negatives(n_real):
    """Eq. 6.1 by loops, with the mean over true negatives for all."""
    e, same, own = exponentials(n_real, 0.5)
    want = []
    for i in range(len(e)):
        true = e[i][~same[i]]
        pos = e[i][(i + n_real) % (2 * n_real)]
        want.append(-np.log(pos / (pos + np.sum(~own[i]) * true.mean())))
    task = SupervisedOracle(LINEAR, jitter, {"temperature": 0.5})
    np.testing.assert_allclose(evaluate_task(task, n_real=n_real)[0], np.mean(want), rtol=1e-5)


@pytest.mark.parametrize("n_real", [6, 4])
def test_label_metrics_match_reference(n_real):
    """The share of false negatives, and the AUC of anchors with negatives of both kinds."""
    e, same, own = exponentials(n_real, 0.5)
    known = np.tile(OWN[:n_real] >= 0, 2)
    pairs = known[:, None] & known & ~own
    share = np.mean(same[pairs])
    aucs = [
        roc_auc_score(same[i][pairs[i]], e[i][pairs[i]])
        for i in range(len(e))
        if len(set(same[i][pairs[i]])) == 2
    ]
    _, _, metrics = evaluate_task(SimCLR(LINEAR, jitter), n_real=n_real)
    np.testing.assert_allclose(metrics["false_negatives"], share, rtol=1e-6)
    np.testing.assert_allclose(metrics["auc"], np.mean(aucs), rtol=1e-6)


def test_unlabelled_data_has_no_metrics_and_rejects_supervision():
    task = dataclasses.replace(SimCLR(LINEAR, jitter), network=Given(Z))
    loss, (_, metrics) = in_one(task.loss, {}, {}, views(None), ctx(6))
    assert metrics == {}
    assert loss == evaluate_task(SimCLR(LINEAR, jitter))[0]  # independent of the labels
    for kind in (SupCon, SupervisedOracle):
        with raises(ValueError, match=r"`data` of Sup\w+ must be tasks.Labelled"):
            fit(kind(LINEAR, jitter), POINTS, epochs=1)
    alpha = tasks.AlphaFromLabels()
    with raises(ValueError, match=r"`data` of AlphaFromLabels must be tasks\.Labelled"):
        fit(SimCLR(LINEAR, jitter, BCL, losses.bayesian_contrastive, alpha=alpha), epochs=1)


def test_rejects_invalid_alpha_arguments():
    with raises(ValueError, match="`hyperparams` must not contain alpha"):
        SimCLR(LINEAR, jitter, {"alpha": 0.9}, alpha=tasks.AlphaFromViews())
    with raises(ValueError, match="`rule` must be one of auc, model, got 'f1'"):
        tasks.AlphaFromViews(rule="f1")
    with raises(ValueError, match=r"`decay` must lie in \[0, 1\), got 1"):
        tasks.AlphaFromLabels(decay=1.0)


def model_alpha(auc):
    """Returns the α that `rule="model"` derives from this AUC."""
    return min(0.5 + 1.5 * (auc - 0.5), 1)


@pytest.mark.parametrize("rule", ["auc", "model"])
def test_alpha_is_measured_on_previous_steps(rule):
    """α is 0.5 in the first step, then the AUC of the first, and the loss uses that value."""
    task = SimCLR(
        LINEAR, jitter, BCL, losses.bayesian_contrastive, alpha=tasks.AlphaFromLabels(0.8, rule)
    )
    _, start = in_one(task.init, jax.random.key(0))
    loss, one, first = evaluate_task(task, model_state=start)
    _, two, second = evaluate_task(task, OTHERS, model_state=one)
    assert first["alpha"] == 0.5
    aucs = [float(metrics["auc"]) for metrics in (first, second)]
    want = [a if rule == "auc" else model_alpha(a) for a in aucs]
    assert aucs[0] != aucs[1]
    np.testing.assert_allclose(second["alpha"], want[0], rtol=1e-6)
    both = (0.8 * want[0] + want[1]) / 1.8
    np.testing.assert_allclose(weights.measured_alpha(two.alpha), both, rtol=1e-5)
    given = dataclasses.replace(task, alpha=None, hyperparams={**BCL, "alpha": 0.5})
    np.testing.assert_allclose(loss, evaluate_task(given)[0], rtol=1e-6)


def test_single_class_batch_does_not_update_alpha():
    task = SimCLR(Given(Z), jitter, BCL, losses.bayesian_contrastive, alpha=tasks.AlphaFromLabels())
    _, start = SimCLR(LINEAR, jitter, alpha=task.alpha).init(jax.random.key(0))
    _, (after, _) = in_one(task.loss, {}, start, views(np.zeros(6, int)), ctx(6))
    assert after.alpha.weight == 0


def test_views_estimate_alpha_without_labels():
    """The AUC of other views against all samples, corrected for the share of their class."""
    task = SimCLR(Given(Z), jitter, BCL, losses.bayesian_contrastive, alpha=tasks.AlphaFromViews())
    _, start = SimCLR(LINEAR, jitter, alpha=task.alpha).init(jax.random.key(0))
    _, (after, metrics) = in_one(task.loss, {}, start, views(None), ctx(6, 4))
    kept = [0, 1, 2, 3, 6, 7, 8, 9]
    s = (unit(Z) @ unit(Z).T)[np.ix_(kept, kept)]
    own = np.tile(np.arange(4), 2)
    pairs = own[:, None] != own
    wins = [np.mean(s[i, (i + 4) % 8] > s[i][pairs[i]]) for i in range(8)]
    want = (np.mean(wins) - 0.125) / 0.75
    assert 0.5 < want < 1
    np.testing.assert_allclose(weights.measured_alpha(after.alpha), want, rtol=1e-6)
    assert metrics.keys() == {"alpha"}


def test_alpha_increases_during_training():
    task = MoCo(
        NORMED, jitter, BCL, losses.bayesian_contrastive, alpha=tasks.AlphaFromViews(0.9), dim=8,
        queue=64, momentum=0.9,
    )  # fmt: skip
    history = fit(task, DATA, epochs=6).history
    alphas = [entry["alpha"][0] for entry in history]
    assert 0.5 < alphas[0] < alphas[-1] <= 1
    assert alphas[-1] > 0.75
    assert history[-1]["auc"][0] > 0.8
