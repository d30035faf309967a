"""Memory bank against a float64 reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import in_one
from _helpers.views import LABELS, LINEAR, POINTS, unit

from crl_jax import losses, train
from crl_jax.tasks import LabelledExamples, MemoryBank

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def shift(key, x):
    return x + 0.1 * jax.random.normal(key, x.shape)


@pytest.mark.parametrize("n_neg", [None, 6])
def test_two_epochs_match_float64_reference(n_neg):
    """Steps along the finite differences of InfoNCE, in which the bank is a constant."""
    t, m = 0.3, 0.6
    task = MemoryBank(
        LINEAR,
        shift,
        {"temperature": t},
        losses.info_nce,
        momentum=m,
        dim=5,
        n_examples=8,
        n_neg=n_neg,
    )
    optimizer = train.Optimizer(0.5, rule=train.sgd_l2)
    state = in_one(lambda seed: train.initial_state(task, optimizer, seed), 0)
    bank = np.asarray(state.model_state.bank, np.float64)
    np.testing.assert_allclose(np.linalg.norm(bank, axis=1), 1, rtol=1e-6)
    plan, x, y = train.TrainConfig(4), jnp.asarray(POINTS[::8]), jnp.asarray(LABELS[::8], jnp.int32)
    data = LabelledExamples(x, y)
    run = jax.jit(lambda *on: train.run_steps(task, optimizer, *on, config=plan, data=data))
    classes = np.full(8, -1)

    def loss(kernel, view, index, sampled):
        f = unit(view @ kernel)
        p = np.exp(np.sum(f * bank[index], axis=1) / t)
        others = np.exp(f @ bank[sampled].T / t) * (index[:, None] != sampled[None, :])
        return -np.log(p / (p + others.sum(axis=1))).mean()

    for epoch in range(2):
        steps = train.ArrayBatches(data).epoch(jax.random.key(3 + epoch), plan)
        for i in range(2):
            one = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], steps)
            index = np.asarray(one.indices[0])
            examples = train.Batch(
                one.indices[0], LabelledExamples(x[one.indices[0]], y[one.indices[0]])
            )
            batch = in_one(task.batch, one.key[0], examples)
            sampled = np.arange(8)
            if n_neg is not None:  # the key of a step's loss is stream 3 of its key
                key = jax.random.fold_in(one.key[0], 3)
                sampled = np.asarray(jax.random.randint(key, (n_neg,), 0, 8))
            kernel = np.asarray(state.params["linear"]["kernel"], np.float64)
            view = np.asarray(batch.first, np.float64)
            slope = np.zeros_like(kernel)
            for at in np.ndindex(*kernel.shape):
                step = np.zeros_like(kernel)
                step[at] = 1e-6
                ends = (loss(kernel + sign * step, view, index, sampled) for sign in (1, -1))
                slope[at] = np.subtract(*ends) / 2e-6
            state, means = run(state, one)
            np.testing.assert_allclose(means["loss"], loss(kernel, view, index, sampled), rtol=1e-5)
            np.testing.assert_allclose(
                state.params["linear"]["kernel"], kernel - 0.5 * slope, atol=2e-5
            )
            bank[index] = unit(m * bank[index] + (1 - m) * unit(view @ kernel))
            classes[index] = LABELS[::8][index]
            np.testing.assert_allclose(state.model_state.bank, bank, atol=1e-5)
            np.testing.assert_array_equal(state.model_state.labels, classes)
