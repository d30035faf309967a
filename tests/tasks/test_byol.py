"""BYOL: steps against the formulas in float64, padding, and the momentum."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import in_one
from _helpers.views import LINEAR, POINTS, SQUARE, ctx, jitter, unit

from crl_jax import train
from crl_jax.tasks import BYOL
from crl_jax.train import Optimizer, TrainConfig

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def mean_and_gradients(w, q, target, v1, v2):
    """Loss (Eq. 2, both directions) of linear maps, and its gradients by hand."""
    loss, dw, dq = 0.0, np.zeros_like(w), np.zeros_like(q)
    for here, there in ((v1, v2), (v2, v1)):
        hidden = here @ w
        prediction, projection = hidden @ q, unit(there @ target)
        length = np.linalg.norm(prediction, axis=1, keepdims=True)
        cos = np.sum(prediction / length * projection, axis=1, keepdims=True)
        loss += np.mean(2 - 2 * cos)
        slope = -2 * (projection - cos * prediction / length) / length / len(here)
        dq += hidden.T @ slope
        dw += here.T @ (slope @ q.T)
    return loss, dw, dq


def test_step_matches_float64_reference():
    """Two steps of gradient descent: the second has a target that differs from the network."""
    task = BYOL(LINEAR, jitter, SQUARE, momentum=0.75)
    optimizer = Optimizer(0.5, rule=train.sgd_l2)
    state = in_one(lambda seed: train.initial_state(task, optimizer, seed), 0)
    w, q = (
        np.asarray(state.params[name]["linear"]["kernel"], np.float64)
        for name in ("network", "predictor")
    )
    target, losses = w.copy(), []
    steps = train.ArrayBatches(jnp.asarray(POINTS[:8])).epoch(jax.random.key(3), TrainConfig(4))
    run = partial(train.run_steps, task, optimizer, config=TrainConfig(4), progress=0.25)
    after, means = jax.jit(run)(state, steps, data=jnp.asarray(POINTS[:8]))
    momentum = 1 - 0.25 * (np.cos(np.pi / 4) + 1) / 2
    draw = jax.jit(task.batch)
    for key, index in zip(steps.key, np.asarray(steps.indices), strict=True):
        batch = draw(key, train.Batch(index, POINTS[index]))
        v1, v2 = (np.asarray(v, np.float64) for v in (batch.first, batch.second))
        loss, dw, dq = mean_and_gradients(w, q, target, v1, v2)
        losses.append(loss)
        w, q = w - 0.5 * dw, q - 0.5 * dq
        target = momentum * target + (1 - momentum) * w
    np.testing.assert_allclose(means["loss"], np.mean(losses), rtol=1e-5)
    for got, want in (
        (after.params["network"], w), (after.params["predictor"], q), (after.model_state.target,
        target),
    ):  # fmt: skip
        np.testing.assert_allclose(got["linear"]["kernel"], want, rtol=1e-4, atol=1e-6)
    assert after.model_state.momentum == pytest.approx(momentum)


def test_padding_does_not_change_loss():
    task = BYOL(LINEAR, jitter, SQUARE)
    params, model_state = in_one(task.init, jax.random.key(0))
    batch = in_one(
        task.batch, jax.random.key(1), train.Batch(jnp.arange(8), jnp.asarray(POINTS[:8]))
    )
    few = jax.tree.map(lambda x: x[:3], batch)
    padded = in_one(task.loss, params, model_state, batch, ctx(8, 3))[0]
    np.testing.assert_allclose(
        padded, in_one(task.loss, params, model_state, few, ctx(3))[0], rtol=1e-6
    )


def test_momentum_increases_to_one():
    task = BYOL(LINEAR, jitter, SQUARE, momentum=0.9)
    params, model_state = in_one(task.init, jax.random.key(0))
    batch = in_one(
        task.batch, jax.random.key(1), train.Batch(jnp.arange(8), jnp.asarray(POINTS[:8]))
    )
    loss = jax.jit(task.loss)
    for progress, share in ((0.0, 1.0), (0.5, 0.5), (1.0, 0.0)):
        _, (after, _) = loss(params, model_state, batch, ctx(8, progress=progress))
        np.testing.assert_allclose(after.momentum, 1 - 0.1 * share, rtol=1e-6)
