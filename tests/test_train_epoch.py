"""An epoch against plain NumPy, in settings that leave nothing to chance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from crl_jax import losses
from crl_jax.data import Interactions
from crl_jax.models import MatrixFactorization, functional
from crl_jax.samplers import Positives
from crl_jax.train import Anchors, Step, adam_l2, adamw, run_epoch, sgd_l2

pytestmark = pytest.mark.usefixtures("standard_promotion")

N_USERS, N_ITEMS, DIM = 6, 5, 3


@pytest.fixture
def data():
    """Every user has left exactly one item: the only negative there is to draw."""
    missing = np.array([0, 1, 2, 3, 4, 2])
    users, items = np.nonzero(np.arange(N_ITEMS) != missing[:, None])
    return missing, Interactions.from_arrays(
        users, items, user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )


@pytest.fixture
def model():
    return functional(lambda rngs: MatrixFactorization(N_USERS, N_ITEMS, DIM, rngs=rngs))


def anchors_of(data):
    return Anchors(
        users=jnp.asarray(data.users), items=jnp.asarray(data.items), positives=Positives.of(data)
    )


def step_of(model, **changes):
    settings = {
        "score": model.score, "loss": losses.bpr, "optimizer": adam_l2, "batch_size": 24,
        "n_neg": 2, "n_pos": 0,
    }  # fmt: skip
    return Step(**{**settings, **changes})


def numpy_bpr_gradients(params, users, items, missing):
    """Mean BPR loss over all pairs against the one missing item, and its gradients."""
    w, h = (np.asarray(params[name], np.float64) for name in ("users", "items"))
    difference = np.einsum("bd,bd->b", w[users], h[items] - h[missing[users]])
    slope = -1 / (1 + np.exp(difference)) / len(users)
    grad_w, grad_h = np.zeros_like(w), np.zeros_like(h)
    for b, (user, item) in enumerate(zip(users, items, strict=True)):
        grad_w[user] += slope[b] * (h[item] - h[missing[user]])
        grad_h[item] += slope[b] * w[user]
        grad_h[missing[user]] -= slope[b] * w[user]
    return np.log1p(np.exp(-difference)).mean(), {"users": grad_w, "items": grad_h}


@pytest.mark.parametrize("optimizer", [sgd_l2, adam_l2, adamw])
def test_one_full_batch_is_one_step_by_hand(data, model, optimizer):
    missing, interactions = data
    params = model.init(jax.random.key(0))
    lr, decay = 0.1, 0.01
    loss, grads = numpy_bpr_gradients(params, interactions.users, interactions.items, missing)
    want = {}
    for name, grad in grads.items():
        value = np.asarray(params[name], np.float64)
        if optimizer is sgd_l2:
            want[name] = value - lr * (grad + decay * value)
        elif optimizer is adam_l2:  # the first step of Adam is the sign of its gradient
            grad = grad + decay * value
            want[name] = value - lr * grad / (np.abs(grad) + 1e-8)
        else:
            want[name] = value - lr * (grad / (np.abs(grad) + 1e-8) + decay * value)
    knobs = {"learning_rate": jnp.float32(lr), "weight_decay": jnp.float32(decay), "loss": {}}
    got, _, mean_loss = run_epoch(
        step_of(model, optimizer=optimizer),
        params,
        optimizer(lr, decay).init(params),
        jax.random.key(1),
        anchors_of(interactions),
        knobs,
    )
    np.testing.assert_allclose(mean_loss, loss, rtol=1e-5)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("batch_size", [1, 5, 7, 23, 24])
def test_every_interaction_counts_once_whatever_the_batch(data, model, batch_size):
    missing, interactions = data
    params = model.init(jax.random.key(0))
    loss, _ = numpy_bpr_gradients(params, interactions.users, interactions.items, missing)
    knobs = {"learning_rate": jnp.float32(0), "weight_decay": jnp.float32(0), "loss": {}}
    step = step_of(model, optimizer=sgd_l2, batch_size=batch_size)
    state = sgd_l2(0.0, 0.0).init(params)
    got, _, mean_loss = run_epoch(
        step, params, state, jax.random.key(2), anchors_of(interactions), knobs
    )
    np.testing.assert_allclose(mean_loss, loss, rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, got, params)


def test_extra_positives_are_the_users_own_and_ids_do_not_depend_on_when_they_are_drawn(
    data, model, monkeypatch
):
    missing, interactions = data
    seen = []

    def score(params, users, items):
        jax.debug.callback(lambda u, i: seen.append((u, i)), users, items, ordered=True)
        return model.score(params, users, items)

    def run():
        seen.clear()
        params = model.init(jax.random.key(0))
        knobs = {
            "learning_rate": jnp.float32(0.1),
            "weight_decay": jnp.float32(0),
            "loss": {"tau_plus": jnp.float32(0.1)},
        }
        step = step_of(
            model, score=score, loss=losses.debiased_pairwise, n_pos=3, n_neg=2, batch_size=10
        )
        out = run_epoch(
            step, params, adam_l2(0.1, 0.0).init(params), jax.random.key(3),
            anchors_of(interactions), knobs,
        )  # fmt: skip
        jax.block_until_ready(out)
        jax.effects_barrier()
        return out[0], list(seen)

    params, ids = run()
    taken = set(zip(interactions.users.tolist(), interactions.items.tolist(), strict=True))
    anchors = []
    for users, items in ids:
        for user, row in zip(users.tolist(), items.tolist(), strict=True):
            assert all((user, item) in taken for item in row[:4])
            assert row[4:] == [missing[user]] * 2
            anchors.append((user, row[0]))
    assert set(anchors) == taken
    monkeypatch.setattr("crl_jax.train._epoch._MAX_DRAWN_AHEAD", 0)
    later, _ = run()
    jax.tree.map(np.testing.assert_array_equal, params, later)
