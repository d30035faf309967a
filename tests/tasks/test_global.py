"""States per example: false-negative thresholds of GloFND and denominators of SogCLR."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises
from _helpers.views import LABELS, LINEAR, POINTS, Jitter

from crl_jax import losses, tasks, train

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

T, GAMMA, SHARE = 0.5, 0.7, 0.15
TASK = tasks.SogCLR(
    LINEAR, Jitter(0.3), {"temperature": T}, n_examples=64, gamma=GAMMA,
    false_negative_share=SHARE, threshold_rate=0.1, warm_up=1,
)  # fmt: skip
INDICES = jnp.array([3, 60, 17, 33, 8, 48, 25, 11])
REAL = jnp.arange(8) < 7
NEW, OLD = INDICES[:4], INDICES[4:7]  # examples without and with a state


@cache
def start():
    params, state = TASK.init(jax.random.key(0))
    old = state._replace(
        thresholds=state.thresholds.at[OLD].set(jnp.array([0.2, 0.5, -0.1])),
        log_means=state.log_means.at[OLD].set(jnp.array([0.3, -0.4, 1.0])),
    )
    return params, old


@jax.jit
def step(task, state, epoch):
    data = tasks.LabelledExamples(
        jnp.asarray(POINTS)[INDICES], jnp.asarray(LABELS, jnp.int32)[INDICES]
    )
    params, _ = start()
    batch = task.batch(jax.random.key(1), train.Batch(INDICES, data))
    ctx = train.StepContext(jax.random.key(2), epoch, jnp.float32(0), REAL, jnp.float32(7))
    views, _ = task.encode_views(params, state, batch.first, batch.second)
    loss, (new, metrics) = task.loss(params, state, batch, ctx)
    return loss, new, metrics, views


def run_step(epoch=1, task=TASK):
    """Returns the loss, the state and the metrics of a step, and its views."""
    return step(task, start()[1], jnp.int32(epoch))


def scores():
    """Cosines of both views of the real examples in float64, and the mask of negatives."""
    z1, z2 = (np.float64(z)[:7] for z in run_step()[3])
    z = np.concatenate([z1, z2])
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    example = np.tile(np.arange(7), 2)
    return z @ z.T, example[:, None] != example[None, :]


def expected_thresholds(s, where):
    found = []
    for i, old in enumerate([None] * 4 + [0.2, 0.5, -0.1]):
        both_views = np.concatenate([s[i][where[i]], s[i + 7][where[i + 7]]])  # 24 scores
        if old is None:
            found.append(np.sort(both_views)[-1 - int(SHARE * 24)])
        else:
            found.append(old - 0.1 * (SHARE - (both_views > old).mean()))
    return np.array(found)


def test_step_matches_float64_formulas():
    """Thresholds, denominators and the loss of the negatives below the thresholds."""
    s, where = scores()
    loss, state, metrics, _ = run_step()
    thresholds = expected_thresholds(s, where)
    np.testing.assert_allclose(state.thresholds[INDICES[:7]], thresholds, rtol=1e-5)

    kept = where & (s <= np.tile(thresholds, 2)[:, None] + 1e-6)
    g = (kept * np.exp(s / T)).sum(1) / kept.sum(1)
    old = np.exp(np.tile([np.nan] * 4 + [0.3, -0.4, 1.0], 2))
    u = np.where(np.isnan(old), g, (1 - GAMMA) * old + GAMMA * g)
    means = (u[:7] + u[7:]) / 2
    np.testing.assert_allclose(state.log_means[INDICES[:7]], np.log(means), rtol=1e-4, atol=1e-6)

    pos = np.diagonal(s, 7)
    each = np.log(u) + g / u - 1 - np.tile(pos, 2) / T
    np.testing.assert_allclose(loss, each.mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["removed"], 1 - kept.sum() / where.sum(), rtol=1e-5)
    same = np.tile(LABELS[INDICES[:7]], 2)
    false = kept & (same[:, None] == same[None, :])
    np.testing.assert_allclose(metrics["false_negatives"], false.sum() / kept.sum(), rtol=1e-5)


def test_examples_outside_the_batch_keep_their_state():
    """The example at a padded position keeps its state, too."""
    _, state, _, _ = run_step()
    others = np.setdiff1d(np.arange(64), INDICES[:7])
    assert np.isnan(state.thresholds[others]).all()
    assert np.isneginf(state.log_means[others]).all()


def test_warm_up_and_zero_share_disable_masking():
    s, where = scores()
    for epoch, task in [(0, TASK), (1, replace(TASK, false_negative_share=0.0))]:
        _, state, metrics, _ = run_step(epoch, task)
        assert metrics["removed"] == 0
        np.testing.assert_array_equal(state.thresholds, start()[1].thresholds)
        g = (where * np.exp(s / T)).sum(1) / where.sum(1)
        first = np.log((g[:4] + g[7:11]) / 2)
        np.testing.assert_allclose(state.log_means[NEW], first, rtol=1e-4, atol=1e-6)


def test_glofnd_masks_false_negatives_in_info_nce():
    task = tasks.GloFND(
        LINEAR, Jitter(0.3), {"temperature": T}, losses.info_nce, n_examples=64,
        false_negative_share=SHARE, threshold_rate=0.1, warm_up=1,
    )  # fmt: skip
    loss, state, _, _ = step(task, start()[1]._replace(log_means=None), jnp.int32(1))
    assert state.log_means is None
    s, where = scores()
    kept = where & (s <= np.tile(expected_thresholds(s, where), 2)[:, None] + 1e-6)
    pos = np.tile(np.diagonal(s, 7), 2)
    each = np.log1p((kept * np.exp(s / T)).sum(1) / np.exp(pos / T))
    np.testing.assert_allclose(loss, each.mean(), rtol=1e-4)


def test_rejects_invalid_n_examples_and_gamma():
    TASK.check_data(jnp.asarray(POINTS))
    with raises(ValueError, match="`n_examples` must be the number of examples 63, got 64"):
        TASK.check_data(tasks.LabelledExamples(POINTS[:63], LABELS[:63]))
    with raises(ValueError, match="`gamma` must lie in"):
        replace(TASK, gamma=0.0)


def test_sogclip_tracks_denominators_per_tower():
    task = tasks.SogCLIP(LINEAR, LINEAR, hyperparams={"temperature": T}, n_examples=64)
    pairs = jnp.asarray(POINTS)[INDICES], jnp.asarray(POINTS)[INDICES, ::-1]

    @jax.jit
    def first_step(key):
        params, state = task.init(key)
        batch = task.batch(key, train.Batch(INDICES, pairs))
        ctx = train.StepContext(key, jnp.int32(0), jnp.float32(0), REAL, jnp.float32(7))
        x, y, _ = task.encode_pairs(params, state, batch, ctx)
        loss, (new, _) = task.loss(params, state, batch, ctx)
        return x, y, loss, new.log_means

    x, y, loss, log_means = first_step(jax.random.key(0))
    s = np.float64(x)[:7] @ np.float64(y)[:7].T
    power = np.exp(s / T) * ~np.eye(7, dtype=bool)
    u = np.stack([power.sum(1), power.sum(0)]) / 6
    got = np.reshape(log_means, (2, 64))
    np.testing.assert_allclose(got[:, INDICES[:7]], np.log(u), rtol=1e-4, atol=1e-6)
    assert np.isneginf(np.delete(got, INDICES[:7], axis=1)).all()
    np.testing.assert_allclose(loss, (np.log(u) - np.diagonal(s) / T).mean(), rtol=1e-4)
    with raises(ValueError, match="`tile` must be None for SogCLIP, got 5"):
        replace(task, tile=5)
