"""An epoch against plain NumPy, in settings that leave nothing to chance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from crl_jax import losses
from crl_jax.data import Interactions
from crl_jax.models import MatrixFactorization, functional
from crl_jax.samplers import BNS, RNS, Positives, permute
from crl_jax.train import Anchors, EpochState, Step, adam_l2, adamw, run_epoch, sgd_l2

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
        "model": model, "loss": losses.bpr, "optimizer": adam_l2, "batch_size": 24,
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
    state, report = run_epoch(
        step_of(model, optimizer=optimizer),
        EpochState(params, optimizer(lr, decay).init(params)),
        jax.random.key(1),
        anchors_of(interactions),
        RNS(),
        knobs,
    )
    np.testing.assert_allclose(report["loss"], loss, rtol=1e-5)
    for name in want:
        np.testing.assert_allclose(state.params[name], want[name], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("batch_size", [1, 5, 7, 23, 24])
def test_every_interaction_counts_once_whatever_the_batch(data, model, batch_size):
    missing, interactions = data
    params = model.init(jax.random.key(0))
    loss, _ = numpy_bpr_gradients(params, interactions.users, interactions.items, missing)
    knobs = {"learning_rate": jnp.float32(0), "weight_decay": jnp.float32(0), "loss": {}}
    step = step_of(model, optimizer=sgd_l2, batch_size=batch_size)
    before = EpochState(params, sgd_l2(0.0, 0.0).init(params))
    state, report = run_epoch(
        step, before, jax.random.key(2), anchors_of(interactions), RNS(), knobs
    )
    np.testing.assert_allclose(report["loss"], loss, rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, state.params, params)


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
            model._replace(score=score),
            loss=losses.debiased_pairwise,
            n_pos=3,
            n_neg=2,
            batch_size=10,
        )
        state, _ = run_epoch(
            step, EpochState(params, adam_l2(0.1, 0.0).init(params)), jax.random.key(3),
            anchors_of(interactions), RNS(), knobs,
        )  # fmt: skip
        jax.block_until_ready(state)
        jax.effects_barrier()
        return state.params, list(seen)

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


def draw_all(data, model, **settings):
    """One epoch in which nothing changes, and its report."""
    held_out = settings.pop("held_out", None)
    anchors = Anchors(
        users=jnp.asarray(data.users),
        items=jnp.asarray(data.items),
        positives=Positives.of(data),
        held_out=None if held_out is None else Positives.of(held_out),
    )
    params = model.init(jax.random.key(0))
    knobs = {"learning_rate": jnp.float32(0), "weight_decay": jnp.float32(0), "loss": {}}
    step = step_of(model, optimizer=sgd_l2, **settings)
    before = EpochState(params, sgd_l2(0.0, 0.0).init(params))
    return params, run_epoch(step, before, jax.random.key(2), anchors, RNS(), knobs)[1]


@pytest.mark.parametrize(("batch_size", "draw_batches"), [(24, 1), (7, 1), (5, 3), (1, 10)])
def test_quality_of_the_negatives_by_hand(data, model, batch_size, draw_batches):
    """Users 0 to 3 turn out to like what they left, users 4 and 5 do not."""
    missing, interactions = data
    liked = Interactions.from_arrays(
        np.arange(4), missing[:4], user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )
    params, report = draw_all(
        interactions, model, held_out=liked, batch_size=batch_size, draw_batches=draw_batches
    )
    users, items = interactions.users, interactions.items
    w, h = (np.asarray(params[name], np.float64) for name in ("users", "items"))
    info = 1 / (1 + np.exp(np.einsum("bd,bd->b", w[users], h[items] - h[missing[users]])))
    np.testing.assert_allclose(report["tnr"], np.mean(users >= 4), rtol=1e-6)
    np.testing.assert_allclose(report["inf"], np.mean(np.where(users < 4, -info, info)), rtol=1e-5)


def test_without_positives_held_out_nothing_is_said_of_the_negatives(data, model):
    assert set(draw_all(data[1], model)[1]) == {"loss"}


def sequential_sgd(params, users, items, missing, lr, decay):
    """The published loop: one triplet after another, L2 on its three rows."""
    w, h = (np.array(params[name], np.float64) for name in ("users", "items"))
    for u, i in zip(users, items, strict=True):
        j = missing[u]
        slope = 1 / (1 + np.exp(w[u] @ (h[i] - h[j])))
        step_w = slope * (h[i] - h[j]) - decay * w[u]
        step_i, step_j = slope * w[u] - decay * h[i], -slope * w[u] - decay * h[j]
        w[u] += lr * step_w
        h[i] += lr * step_i
        h[j] += lr * step_j
    return {"users": w, "items": h}


@pytest.mark.parametrize("draw_batches", [1, 7])
def test_row_by_row_is_the_published_loop(data, model, draw_batches):
    missing, interactions = data
    params = model.init(jax.random.key(0))
    knobs = {"learning_rate": jnp.float32(0.3), "weight_decay": jnp.float32(0.1), "loss": {}}
    step = step_of(
        model, optimizer=sgd_l2, batch_size=1, n_neg=1, draw_batches=draw_batches, row_wise=True
    )
    key, n = jax.random.key(4), len(interactions)
    state, _ = run_epoch(
        step, EpochState(params, sgd_l2(0.3, 0.1).init(params)), key, anchors_of(interactions),
        RNS(), knobs,
    )  # fmt: skip
    order = np.asarray(permute(jax.random.split(key)[0], jnp.arange(n), n))
    want = sequential_sgd(
        params, interactions.users[order], interactions.items[order], missing, 0.3, 0.1
    )
    for name in want:
        np.testing.assert_allclose(state.params[name], want[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch_size", [24, 5])
def test_rows_change_as_the_whole_tables_do_but_for_l2(data, model, batch_size):
    """Without L2 the gradient of a row is all there is; items that stand twice add up."""
    _, interactions = data
    params = model.init(jax.random.key(0))
    knobs = {"learning_rate": jnp.float32(0.3), "weight_decay": jnp.float32(0), "loss": {}}
    out = []
    for row_wise in (False, True):
        step = step_of(model, optimizer=sgd_l2, batch_size=batch_size, row_wise=row_wise)
        state, report = run_epoch(
            step, EpochState(params, sgd_l2(0.3, 0.0).init(params)), jax.random.key(4),
            anchors_of(interactions), RNS(), knobs,
        )  # fmt: skip
        out.append((state.params, report))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *out)


def test_l2_of_rows_is_the_mean_over_the_batch(data, model):
    """The gradient of mean [loss + decay/2 · ‖rows of the anchor‖²], worked out by hand."""
    missing, interactions = data
    params = model.init(jax.random.key(0))
    lr, decay, n = 0.1, 0.2, len(interactions)
    knobs = {"learning_rate": jnp.float32(lr), "weight_decay": jnp.float32(decay), "loss": {}}
    step = step_of(model, optimizer=sgd_l2, n_neg=1, row_wise=True)
    state, _ = run_epoch(
        step, EpochState(params, sgd_l2(lr, decay).init(params)), jax.random.key(4),
        anchors_of(interactions), RNS(), knobs,
    )  # fmt: skip
    users, items = interactions.users, interactions.items
    _, grads = numpy_bpr_gradients(params, users, items, missing)
    times = {
        "users": np.bincount(users, minlength=N_USERS),
        "items": np.bincount(np.concatenate([items, missing[users]]), minlength=N_ITEMS),
    }
    for name, grad in grads.items():
        value = np.asarray(params[name], np.float64)
        want = value - lr * (grad + decay * value * times[name][:, None] / n)
        np.testing.assert_allclose(state.params[name], want, rtol=1e-4, atol=1e-6)


def test_batches_drawn_together_are_steps_like_others(data, model):
    """Adam would move on batches that hold no anchor: 24 anchors are no multiple of 3 x 5."""
    _, interactions = data
    params = model.init(jax.random.key(0))
    knobs = {"learning_rate": jnp.float32(0.1), "weight_decay": jnp.float32(0.01), "loss": {}}
    out = []
    for draw_batches in (1, 3, 4):
        step = step_of(model, batch_size=5, draw_batches=draw_batches)
        state, report = run_epoch(
            step, EpochState(params, adam_l2(0.1, 0.01).init(params)), jax.random.key(4),
            anchors_of(interactions), RNS(), knobs,
        )  # fmt: skip
        out.append((state, report))
    for other in out[1:]:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), out[0], other
        )


@pytest.mark.parametrize("ahead", [True, False])
def test_samplers_see_the_encoder_of_the_moment(model, monkeypatch, ahead):
    """The best-scoring item of all, drawn with the parameters of each step and not of the start."""
    if not ahead:
        monkeypatch.setattr("crl_jax.train._epoch._MAX_DRAWN_AHEAD", 0)
    interactions = Interactions.from_arrays(
        [0, 0], [0, 1], user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )
    seen = []

    def score(params, users, items):
        jax.debug.callback(
            lambda scores, items: seen.append((scores, items[:, -1])),
            model.score_all(params, users), items, ordered=True,
        )  # fmt: skip
        return model.score(params, users, items)

    params = model.init(jax.random.key(0))
    knobs = {"learning_rate": jnp.float32(50.0), "weight_decay": jnp.float32(0), "loss": {}}
    step = step_of(model._replace(score=score), optimizer=sgd_l2, batch_size=1, n_neg=1)
    sampler = BNS(jnp.full(N_ITEMS, 1e-6), gain=1e6, candidates=None)
    state, _ = run_epoch(
        step, EpochState(params, sgd_l2(0.0, 0.0).init(params)), jax.random.key(0),
        anchors_of(interactions), sampler, knobs,
    )  # fmt: skip
    jax.block_until_ready(state)
    jax.effects_barrier()
    assert len(seen) == 2
    assert np.abs(seen[0][0] - seen[1][0]).max() > 1
    for scores, negative in seen:
        # With so small a prior and so great a gain only the very best has a lower value.
        order = 2 + np.argsort(-scores[0, 2:])
        assert negative[0] == order[1]


@pytest.mark.parametrize("row_wise", [False, True])
@pytest.mark.parametrize("batch_size", [24, 16, 5])
def test_losses_across_the_batch_do_not_see_what_fills_the_last_one_up(
    data, model, batch_size, row_wise
):
    """A quarter of each batch's real anchors is dropped, those with the largest losses."""
    missing, log = data
    params = model.init(jax.random.key(0))
    step = step_of(
        model, loss=losses.truncated_bpr, optimizer=sgd_l2, batch_size=batch_size, n_neg=1,
        row_wise=row_wise,
    )  # fmt: skip
    knobs = {"learning_rate": jnp.float32(0), "weight_decay": jnp.float32(0)}
    knobs["loss"] = {"drop_rate": 0.25}
    key = jax.random.key(4)
    state = EpochState(params, sgd_l2(0.0, 0.0).init(params))
    _, report = run_epoch(step, state, key, anchors_of(log), RNS(), knobs)

    w, h = (np.asarray(params[name], np.float64) for name in ("users", "items"))
    order = np.asarray(permute(jax.random.split(key)[0], jnp.arange(24), 24))
    each = [
        np.log1p(np.exp(w[u] @ (h[missing[u]] - h[i])))
        for u, i in zip(log.users[order], log.items[order], strict=True)
    ]
    total = 0.0
    for first in range(0, 24, batch_size):
        real = sorted(each[first : first + batch_size])
        total += sum(real[: len(real) - len(real) // 4])
    np.testing.assert_allclose(report["loss"], total / 24, rtol=1e-5)


def test_losses_without_a_mask_are_not_given_one(data, model):
    _, log = data

    def plain(pos, neg, *, reduce_fn):
        return losses.bpr(pos, neg, reduce_fn=reduce_fn)

    params = model.init(jax.random.key(0))
    knobs = {"learning_rate": jnp.float32(0.1), "weight_decay": jnp.float32(0), "loss": {}}
    out = []
    for loss in (plain, losses.bpr):
        state = EpochState(params, adam_l2(0.1, 0.0).init(params))
        step = step_of(model, loss=loss, batch_size=16)
        out.append(run_epoch(step, state, jax.random.key(4), anchors_of(log), RNS(), knobs)[1])
    np.testing.assert_array_equal(out[0]["loss"], out[1]["loss"])
