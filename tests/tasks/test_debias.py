"""Estimate of α from the scores of a step, and trainings with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from crl_jax import losses, tasks
from crl_jax.data import simulate, split_by_ratio
from crl_jax.metrics import debiased_auc
from crl_jax.samplers import SharedRNS

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def scores(n=60, n_neg=9, seed=0):
    """Scores with ties, and a mask that leaves some anchors without negatives."""
    rng = np.random.default_rng(seed)
    pos, neg = rng.normal(0.7, 1, (n, 1)).round(1), rng.normal(0, 1, (n, n_neg)).round(1)
    where = (rng.random((n, n_neg)) < 0.7) & (np.arange(n) > 4)[:, None]
    return pos, neg, where


def reference(pos, neg, where, tau_plus):
    """Mean over anchors of the share of negatives below, in float64, corrected and clipped."""
    aucs = []
    for s, row, keep in zip(pos[:, 0], neg, where):
        if keep.any():
            kept = row[keep]
            aucs.append(((kept < s).sum() + 0.5 * (kept == s).sum()) / len(kept))
    return np.clip((np.mean(aucs) - tau_plus / 2) / (1 - tau_plus), 0.5, 0.99)


@pytest.mark.parametrize("tau_plus", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("shift", [-5.0, 0.0, 5.0])
def test_alpha_matches_float64_reference(tau_plus, shift):
    pos, neg, where = scores()
    given = {"tau_plus": tau_plus, "beta": 0.7}
    arrays = jnp.asarray(pos + shift), jnp.asarray(neg), jnp.asarray(where)
    got = jax.jit(tasks.alpha_from_batch)(*arrays, given)
    assert got.keys() == {"alpha"}
    want = reference((pos + shift).astype(np.float32), neg.astype(np.float32), where, tau_plus)
    assert got["alpha"] == pytest.approx(want, rel=1e-5)


def test_alpha_equals_debiased_auc_and_ignores_masked_scores():
    pos, neg, where = map(jnp.asarray, scores())
    with_infinities = jnp.where(where, neg, jnp.inf)
    got = tasks.alpha_from_batch(pos, with_infinities, where, {"tau_plus": 0.1})["alpha"]
    auc = debiased_auc(pos, neg, tau_plus=0.1, where=where)
    want = float(jnp.mean(auc, where=where.any(-1)))
    assert got == pytest.approx(want, rel=1e-5)
    fully_masked = tasks.alpha_from_batch(pos, neg, jnp.zeros_like(where), {"tau_plus": 0.1})
    assert fully_masked["alpha"] == 0.5
    half = tasks.alpha_from_batch(pos.astype(jnp.bfloat16), neg, where, {"tau_plus": 0.1})
    assert half["alpha"].dtype == jnp.float32
    with pytest.raises(ValueError, match="tau_plus"):
        tasks.alpha_from_batch(pos, neg, where, {})


def train_with(estimator, **hyperparams):
    split = split_by_ratio(simulate(n_users=40, n_items=60, n_exposed=40).interactions)
    sweep = {f"task.hyperparams.{k}": v for k, v in hyperparams.items() if np.ndim(v)}
    return tasks.fit_ranking(
        split.train,
        loss=losses.bayesian_contrastive,
        hyperparams={k: v for k, v in hyperparams.items() if not np.ndim(v)},
        sampler=SharedRNS(),
        n_neg=20,
        epochs=6,
        sweep=sweep,
        options=tasks.RankingOptions(hyperparam_estimator=estimator),
    )


def test_history_reports_alpha_that_grows_with_training():
    fitted = train_with(tasks.alpha_from_batch, tau_plus=np.array([0.0, 0.3]), alpha=0.9)
    alpha = np.array([entry["alpha"] for entry in fitted.history])
    assert alpha.shape == (6, 2)
    assert (alpha[-1] > alpha[0]).all()  # grows with the encoder
    assert (alpha[:, 1] >= alpha[:, 0]).all()  # false negatives hide a part of the quality
    assert (alpha < 0.99).all()


def test_loss_uses_estimated_alpha():
    def fixed(pos, neg, where, hyperparams):
        assert isinstance(hyperparams["tau_plus"], jax.Array)  # traced: no recompilation
        return {"alpha": jnp.float32(0.75)}

    got, want = train_with(fixed, tau_plus=0.1), train_with(None, tau_plus=0.1, alpha=0.75)
    np.testing.assert_allclose(got.tables().users, want.tables().users, rtol=1e-5, atol=1e-6)
    other = train_with(None, tau_plus=0.1, alpha=0.9)
    assert np.abs(got.tables().users - other.tables().users).max() > 1e-3
    assert "alpha" in got.history[0]
    assert "alpha" not in other.history[0]
