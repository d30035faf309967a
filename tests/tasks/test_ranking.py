"""Epochs of ranking against plain NumPy, in deterministic settings."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.ranking import Watched, bpr_gradients, epoch_of, taken_by_all_but_one

from crl_jax import losses
from crl_jax.data import Interactions
from crl_jax.models import MatrixFactorization
from crl_jax.samplers import AOBPR, BNS, SRNS, InBatch, permute
from crl_jax.train import adam_l2, adamw, sgd_l2

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

N_USERS, N_ITEMS, DIM = 6, 5, 3


@pytest.fixture
def data():
    return taken_by_all_but_one(N_USERS, N_ITEMS)


@pytest.mark.parametrize("optimizer", [sgd_l2, adam_l2, adamw])
def test_full_batch_epoch_matches_one_reference_step(data, optimizer):
    missing, interactions = data
    lr, decay = 0.1, 0.01
    before, after, report = epoch_of(
        interactions, n_neg=2, rule=optimizer, learning_rate=lr, weight_decay=decay
    )
    params = before.params
    loss, grads = bpr_gradients(params, interactions.users, interactions.items, missing)
    want = {}
    for name, grad in grads.items():
        value = np.asarray(params[name], np.float64)
        if optimizer is sgd_l2:
            want[name] = value - lr * (grad + decay * value)
        elif optimizer is adam_l2:  # the first Adam step is the sign of the gradient
            grad = grad + decay * value
            want[name] = value - lr * grad / (np.abs(grad) + 1e-8)
        else:
            want[name] = value - lr * (grad / (np.abs(grad) + 1e-8) + decay * value)
    np.testing.assert_allclose(report["loss"], loss, rtol=1e-5)
    for name in want:
        np.testing.assert_allclose(after.params[name], want[name], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("batch_size", [1, 7])
def test_epoch_visits_each_interaction_once_for_any_batch_size(data, batch_size):
    missing, interactions = data
    before, after, report = epoch_of(interactions, n_neg=2, batch_size=batch_size)
    loss, _ = bpr_gradients(before.params, interactions.users, interactions.items, missing)
    np.testing.assert_allclose(report["loss"], loss, rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, after.params, before.params)
    assert after.step == -(-24 // batch_size)


def test_extra_positives_belong_to_user_regardless_of_draw_timing(data, monkeypatch):
    missing, interactions = data
    seen = []

    def run():
        seen.clear()
        _, after, _ = epoch_of(
            interactions, encoder=Watched(N_USERS, N_ITEMS, DIM, see=lambda *a: seen.append(a)),
            loss=losses.debiased_pairwise, hyperparams={"tau_plus": 0.1}, n_pos=3, n_neg=2,
            batch_size=10, learning_rate=0.1, rule=adam_l2,
        )  # fmt: skip
        jax.block_until_ready(after)
        jax.effects_barrier()
        return after.params, [(users, items) for *_, users, items in seen]

    params, ids = run()
    observed = set(zip(interactions.users.tolist(), interactions.items.tolist(), strict=True))
    anchors = []
    for users, items in ids:
        for user, row in zip(users.tolist(), items.tolist(), strict=True):
            assert all((user, item) in observed for item in row[:4])
            assert row[4:] == [missing[user]] * 2
            anchors.append((user, row[0]))
    assert set(anchors) == observed
    monkeypatch.setattr("crl_jax.train._scan._MAX_DRAWN_AHEAD", 0)
    later, _ = run()
    jax.tree.map(np.testing.assert_array_equal, params, later)


@pytest.mark.parametrize(("batch_size", "draw_batches"), [(7, 1), (5, 3)])
def test_negative_quality_metrics_match_reference(data, batch_size, draw_batches):
    """The missing items of users 0 to 3 are held-out positives; users 4 and 5 have none."""
    missing, interactions = data
    liked = Interactions.from_arrays(
        np.arange(4), missing[:4], user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )
    before, _, report = epoch_of(
        interactions, n_neg=2, held_out=liked, batch_size=batch_size, draw_batches=draw_batches
    )
    params = before.params
    users, items = interactions.users, interactions.items
    w, h = (np.asarray(params[name], np.float64) for name in ("users", "items"))
    info = 1 / (1 + np.exp(np.einsum("bd,bd->b", w[users], h[items] - h[missing[users]])))
    np.testing.assert_allclose(report["tnr"], np.mean(users >= 4), rtol=1e-6)
    np.testing.assert_allclose(report["inf"], np.mean(np.where(users < 4, -info, info)), rtol=1e-5)
    risk = np.mean(np.where(users < 4, info, -5 * info))
    np.testing.assert_allclose(report["risk"], risk, rtol=1e-5)


def test_omits_negative_quality_without_held_out_positives(data):
    assert set(epoch_of(data[1])[2]) == {"loss"}


def test_row_updates_match_dense_updates_without_l2(data):
    """If L2 is 0, a row changes only by its gradient; duplicate items add up."""
    out = [
        epoch_of(data[1], n_neg=2, learning_rate=0.3, batch_size=5, by_rows=by_rows)
        for by_rows in (False, True)
    ]
    pairs = [(after.params, report) for _, after, report in out]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *pairs)


def reference_l2_step(params, data, lr, decay):
    """The gradient of mean [loss + decay/2 · ‖rows of the anchor‖²]."""
    missing, log = data
    _, grads = bpr_gradients(params, log.users, log.items, missing)
    times = {
        "users": np.bincount(log.users, minlength=N_USERS),
        "items": np.bincount(np.concatenate([log.items, missing[log.users]]), minlength=N_ITEMS),
    }
    for name, grad in grads.items():
        value = np.asarray(params[name], np.float64)
        yield name, value - lr * (grad + decay * value * times[name][:, None] / len(log))


def test_row_l2_is_averaged_over_batch(data):
    before, after, _ = epoch_of(data[1], learning_rate=0.1, weight_decay=0.2, by_rows=True)
    for name, want in reference_l2_step(before.params, data, 0.1, 0.2):
        np.testing.assert_allclose(after.params[name], want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("l2_target", ["rows", "encoded"])
def test_l2_on_batch_rows_matches_reference_step(data, l2_target):
    """For matrix factorisation both penalise the same rows as row-wise training."""
    before, after, report = epoch_of(data[1], learning_rate=0.1, l2=0.2, l2_target=l2_target)
    for name, want in reference_l2_step(before.params, data, 0.1, 0.2):
        np.testing.assert_allclose(after.params[name], want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(report["loss"], epoch_of(data[1])[2]["loss"], rtol=1e-6)


def test_draw_batches_does_not_change_steps(data):
    """Adam would also move on batches without anchors: 24 anchors are no multiple of 4 x 5."""
    out = []
    for draw_batches in (1, 4):
        _, after, report = epoch_of(
            data[1], n_neg=2, batch_size=5, draw_batches=draw_batches, rule=adam_l2,
            learning_rate=0.1, weight_decay=0.01,
        )  # fmt: skip
        out.append((after.params, after.opt_state, after.step, report))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *out)


@pytest.mark.parametrize("ahead", [True, False])
def test_sampler_uses_current_parameters(monkeypatch, ahead):
    """The sampled negative is the top-scoring unseen item under the parameters of the step."""
    if not ahead:
        monkeypatch.setattr("crl_jax.train._scan._MAX_DRAWN_AHEAD", 0)
    interactions = Interactions.from_arrays(
        [0, 0], [0, 1], user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )
    seen = []
    # With so small a prior and so large a risk_lambda only the best item has a lower value.
    sampler = BNS(jnp.full(N_ITEMS, 1e-6), risk_lambda=1e6, candidates=None)
    _, after, _ = epoch_of(
        interactions, encoder=Watched(N_USERS, N_ITEMS, DIM, see=lambda *a: seen.append(a)),
        batch_size=1, learning_rate=50.0, sampler=sampler,
    )  # fmt: skip
    jax.block_until_ready(after)
    jax.effects_barrier()
    both = [
        (users[0] @ items.T, ids[0, -1]) for users, items, _, ids in seen if ids.shape == (1, 2)
    ]
    assert len(both) == 2
    assert np.abs(both[0][0] - both[1][0]).max() > 1
    for scores, negative in both:
        order = 2 + np.argsort(-scores[2:])
        assert negative == order[1]


@pytest.mark.parametrize(("batch_size", "by_rows"), [(16, False), (5, True)])
def test_batch_level_losses_ignore_padding(data, batch_size, by_rows):
    """Each batch drops the quarter of its real anchors with the largest losses."""
    missing, log = data
    key = jax.random.key(4)
    before, _, report = epoch_of(
        log, key=key, loss=losses.truncated_bpr, hyperparams={"drop_rate": 0.25},
        batch_size=batch_size, by_rows=by_rows,
    )  # fmt: skip
    w, h = (np.asarray(before.params[name], np.float64) for name in ("users", "items"))
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


def test_loss_without_where_argument_receives_no_mask(data):
    def plain(pos, neg, *, reduce_fn):
        return losses.bpr(pos, neg, reduce_fn=reduce_fn)

    out = [epoch_of(data[1], loss=loss, batch_size=16)[2] for loss in (plain, losses.bpr)]
    np.testing.assert_array_equal(out[0]["loss"], out[1]["loss"])


@pytest.mark.parametrize(("mask", "similarity"), [("seen", "cosine"), ("none", "inner")])
def test_in_batch_negatives_match_numpy_softmax(data, mask, similarity):
    """The softmax over the items of the batch, restricted to the mask."""
    _, log = data
    key = jax.random.key(4)
    before, _, report = epoch_of(
        log, key=key, sampler=InBatch(mask), loss=losses.info_nce, batch_size=10,
        hyperparams={"temperature": 0.5},
        encoder=MatrixFactorization(N_USERS, N_ITEMS, DIM, similarity=similarity),
    )  # fmt: skip
    w, h = (np.asarray(before.params[name], np.float64) for name in ("users", "items"))
    if similarity == "cosine":
        w, h = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (w, h))
    observed = np.zeros((N_USERS, N_ITEMS), bool)
    observed[log.users, log.items] = True
    order = np.asarray(permute(jax.random.split(key)[0], jnp.arange(24), 24))
    total = 0.0
    for first in range(0, 24, 10):
        rows = order[first : first + 10]
        users, items = log.users[rows], log.items[rows]
        scores = w[users] @ h[items].T / 0.5
        keep = {
            "seen": ~observed[users][:, items],
            "none": np.ones((len(rows), len(rows)), bool),
        }[mask]
        pos = np.diag(scores)
        rest = np.sum(np.where(keep, np.exp(scores), 0), axis=1)
        total += np.sum(np.where(keep.any(axis=1), np.log1p(rest / np.exp(pos)), 0))
    np.testing.assert_allclose(report["loss"], total / 24, rtol=1e-5)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CountingEncoder(MatrixFactorization):
    """Records its encode calls while programs are traced."""

    see: Callable = dataclasses.field(default=print, metadata={"static": True})

    def encode(self, params, key=None):
        self.see()
        return super().encode(params, key)


@pytest.mark.parametrize(
    "sampler",
    [SRNS(), AOBPR(), BNS(jnp.full(N_ITEMS, 0.1))],
    ids=lambda sampler: type(sampler).__name__,
)
def test_sampler_and_loss_share_one_encoding_per_step(data, sampler):
    """Two more: one when the state is created and one when the epoch starts."""
    calls = []
    encoder = CountingEncoder(N_USERS, N_ITEMS, DIM, see=lambda: calls.append(1))
    jax.eval_shape(lambda: epoch_of(data[1], encoder=encoder, sampler=sampler, batch_size=8)[1:])
    assert len(calls) == 3


def test_groups_combine_with_in_batch_negatives(data):
    """The loss first sees 1 + 3 scores, of users with that item, and then the whole batch."""
    _, log = data
    shapes = []

    def see(pos, neg, *, where, reduce_fn):
        shapes.append((pos.shape, neg.shape, where.shape))
        return losses.gbpr(
            pos[:, 0], neg, group=pos[:, 1:], rho=0.4, where=where, reduce_fn=reduce_fn
        )

    # If all users of an item are alike, a group is equivalent to its anchor.
    items = np.random.default_rng(0).normal(size=(N_ITEMS, DIM)).astype(np.float32)
    alike = {"users": jnp.ones((N_USERS, DIM)), "items": jnp.asarray(items)}
    _, _, grouped = epoch_of(log, loss=see, sampler=InBatch(), n_group=3, params=alike)
    assert set(shapes) == {((24, 4), (24, 24), (24, 24))}
    _, _, single = epoch_of(log, loss=losses.bpr, sampler=InBatch(), params=alike)
    np.testing.assert_allclose(grouped["loss"], single["loss"], rtol=1e-5)


def test_true_negative_rate_counts_in_batch_negatives(data):
    """Users 0 to 3 have one held-out item each, which is a false negative in a batch."""
    missing, log = data
    liked = Interactions.from_arrays(
        np.arange(4), missing[:4], user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )
    key = jax.random.key(4)
    _, _, report = epoch_of(log, key=key, sampler=InBatch(), held_out=liked, batch_size=10)
    order = np.asarray(permute(jax.random.split(key)[0], jnp.arange(24), 24))
    shares = []
    for first in range(0, 24, 10):
        rows = order[first : first + 10]
        users, items = log.users[rows], log.items[rows]
        negative = items[None] == missing[users][:, None]  # all other items are seen
        true = negative & (users >= 4)[:, None]
        shares.append(len(rows) * true.sum() / max(negative.sum(), 1))
    np.testing.assert_allclose(report["tnr"], sum(shares) / 24, rtol=1e-5)


def test_informativeness_uses_uncorrected_scores(data):
    missing, log = data
    liked = Interactions.from_arrays(
        np.arange(4), missing[:4], user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )
    reports = [
        epoch_of(log, key=jax.random.key(4), sampler=sampler, held_out=liked, batch_size=10)[2]
        for sampler in (InBatch(), InBatch.from_interactions(log))
    ]
    assert reports[0]["loss"] != reports[1]["loss"]
    for name in ("inf", "risk"):
        np.testing.assert_allclose(reports[1][name], reports[0][name], rtol=1e-6)
