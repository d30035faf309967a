"""Shared negatives: sampled pools, and in-batch pools with log-Q correction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.ranking import epoch_of, fit, split, taken_by_all_but_one
from _helpers.refusals import raises

from crl_jax import losses
from crl_jax.data import Interactions
from crl_jax.models import MatrixFactorization
from crl_jax.samplers import InBatch, SharedRNS, permute

N_USERS, N_ITEMS, N = 9, 12, 40
pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")
rng = np.random.default_rng(0)
LOG = Interactions.from_arrays(
    *np.nonzero(rng.random((N_USERS, N_ITEMS)) < np.linspace(0.1, 0.7, N_ITEMS)),
    user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS),
)  # fmt: skip
# A score is the item's id, so that the loss can see the sampled items.
BY_NUMBER = {
    "users": jnp.ones((N_USERS, 1)),
    "items": jnp.arange(N_ITEMS, dtype=jnp.float32)[:, None],
}


def record_loss_arguments(batch_size, key, **flat):
    """Records the arguments of the loss in each step, ``(pos, neg, where)``."""
    seen = []

    def loss(pos, neg, *, where, reduce_fn):
        jax.debug.callback(lambda *given: seen.append([np.asarray(x) for x in given]),
                           pos, neg, where, ordered=True)  # fmt: skip
        return losses.info_nce(pos, neg, where=where, reduce_fn=reduce_fn)

    _, after, _ = epoch_of(
        LOG, key=key, params=BY_NUMBER, loss=loss, batch_size=batch_size, dim=1, **flat
    )
    jax.block_until_ready(after)
    jax.effects_barrier()
    return seen


@pytest.mark.parametrize(
    ("mask", "anchors", "lengths"),
    [("seen", None, [16]), ("seen", 7, [6, 6, 4]), ("none", 8, [8, 8]), ("none", 1, [1] * 16)],
)
def test_each_chunk_of_anchors_shares_pool_masked_by_seen_items(mask, anchors, lengths):
    key, n = jax.random.key(3), len(LOG)
    steps = record_loss_arguments(16, key, sampler=SharedRNS(mask, anchors), n_neg=N)
    order = np.asarray(permute(jax.random.split(key)[0], jnp.arange(n), n))
    excluded = np.zeros((N_USERS, N_ITEMS), bool)
    excluded[LOG.users, LOG.items] = mask == "seen"
    starts = np.cumsum([0, *lengths[:-1]])
    assert len(steps) == -(-n // 16)
    for first, (pos, neg, where) in zip(range(0, n, 16), steps, strict=True):
        rows = order[first : first + 16]
        pools = np.repeat(np.rint(neg[starts]).astype(int), lengths, axis=0)
        np.testing.assert_allclose(neg, pools, atol=1e-6)
        np.testing.assert_allclose(pos[: len(rows)], LOG.items[rows], atol=1e-6)
        unseen = ~np.take_along_axis(excluded[LOG.users[rows]], pools[: len(rows)], axis=1)
        np.testing.assert_array_equal(where[: len(rows)], unseen)
        assert not where[len(rows) :].any()  # padding
    pool_ids = [tuple(neg[start]) for _, neg, _ in steps for start in starts]
    assert len(set(pool_ids)) == len(pool_ids)


def test_a_pool_is_uniform_over_the_catalogue():
    steps = record_loss_arguments(len(LOG), jax.random.key(0), sampler=SharedRNS(), n_neg=12_000)
    counts = np.bincount(np.rint(steps[0][1][0]).astype(int), minlength=N_ITEMS)
    # Chi-squared with 11 degrees of freedom: 31.3 is passed once in a thousand.
    assert np.sum((counts - 1000) ** 2 / 1000) < 31.3


@pytest.mark.parametrize(("correction", "temperature"), [(1.0, 1.0), (0.3, 0.4)])
def test_log_q_correction_matches_reference(correction, temperature):
    """Each negative counts as often as under uniform sampling, to the power of the correction."""
    key, n = jax.random.key(4), len(LOG)
    before, _, report = epoch_of(
        LOG, key=key, sampler=InBatch.from_interactions(LOG, "self", correction),
        loss=losses.info_nce,
        hyperparams={"temperature": temperature}, batch_size=10,
    )  # fmt: skip
    w, h = (np.asarray(before.params[name], np.float64) for name in ("users", "items"))
    order = np.asarray(permute(jax.random.split(key)[0], jnp.arange(n), n))
    counts = np.bincount(LOG.items, minlength=N_ITEMS)
    total = 0.0
    for first in range(0, n, 10):
        rows = order[first : first + 10]
        users, items = LOG.users[rows], LOG.items[rows]
        terms = np.exp(w[users] @ h[items].T / temperature)
        weighted = terms * (counts[items] * N_ITEMS / n) ** -correction
        rest = np.sum(weighted * ~np.eye(len(rows), dtype=bool), axis=1)
        total += np.sum(np.log1p(rest / np.diag(terms)))
    np.testing.assert_allclose(report["loss"], total / n, rtol=1e-5)


def test_log_q_weights_make_in_batch_negatives_uniform():
    """The weighted mean over batches of any function of items is its mean over the catalogue."""
    counts = np.bincount(LOG.items, minlength=N_ITEMS)
    sampler = InBatch.from_interactions(LOG)
    pool = jnp.asarray(np.repeat(np.arange(N_ITEMS), counts), jnp.int32)
    value = rng.normal(size=N_ITEMS)
    weighted = np.exp(-np.asarray(sampler.log_ratio(pool), np.float64)) * value[np.asarray(pool)]
    np.testing.assert_allclose(weighted.mean(), value[counts > 0].sum() / N_ITEMS, rtol=1e-5)


def test_log_q_is_finite_for_items_without_interactions():
    log = Interactions.from_arrays([0, 1], [0, 0], user_ids=np.arange(2), item_ids=np.arange(3))
    assert np.isfinite(InBatch.from_interactions(log).log_q).all()


def test_zero_correction_equals_no_log_q():
    a, b = (
        epoch_of(LOG, sampler=sampler, loss=losses.info_nce, batch_size=16)[2]["loss"]
        for sampler in (InBatch(), InBatch.from_interactions(LOG, correction=0.0))
    )
    assert a == b


@pytest.mark.parametrize(
    "sampler",
    [SharedRNS(anchors=4), InBatch.from_interactions(LOG, "self")],
    ids=["runs", "batch"],
)
def test_row_l2_counts_sampled_pool_once_per_anchor(sampler):
    def zero_loss(pos, neg, *, where, reduce_fn):
        del neg, where, reduce_fn
        return jnp.zeros_like(pos)

    params = {"users": jnp.full((N_USERS, 2), 2.0), "items": jnp.full((N_ITEMS, 2), 3.0)}
    encoder = MatrixFactorization(N_USERS, N_ITEMS, 2)
    before, after, _ = epoch_of(
        LOG, params=params, encoder=encoder, sampler=sampler, n_neg=5, loss=zero_loss,
        batch_size=len(LOG), l2_target="rows", l2=0.1, learning_rate=1.0,
    )  # fmt: skip
    rows = 1 + (5 if isinstance(sampler, SharedRNS) else 0)
    for side, decrease in (("users", 0.1 * 2), ("items", 0.1 * 3 * rows)):
        moved = np.sum(before.params[side] - after.params[side], axis=0)
        np.testing.assert_allclose(moved, decrease, rtol=1e-4)


def test_true_negative_rate_counts_shared_pool():
    """Every other item is held out for one user: for that user, the whole pool is false."""
    free = np.setdiff1d(np.arange(N_ITEMS), LOG.items[LOG.users == 2])
    liked = Interactions.from_arrays(
        np.full(len(free), 2), free, user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )
    _, _, report = epoch_of(
        LOG, sampler=SharedRNS(anchors=7), n_neg=N, held_out=liked, loss=losses.info_nce,
        batch_size=len(LOG),
    )  # fmt: skip
    share = np.mean(LOG.users != 2)
    assert abs(report["tnr"] - share) < 0.1
    assert report["tnr"] < 1


def test_draw_batches_keeps_pool_shape_per_batch():
    plan = {"batch_size": 8, "draw_batches": 2}
    for sampler in (InBatch("self"), SharedRNS(anchors=3)):
        steps = record_loss_arguments(key=jax.random.key(1), sampler=sampler, n_neg=8, **plan)
        assert {(neg.shape, where.shape) for _, neg, where in steps} == {((8, 8), (8, 8))}


def test_training_is_finite_with_one_unseen_item_per_user():
    _, log = taken_by_all_but_one()
    after = fit(
        log, loss=losses.info_nce, sampler=SharedRNS(), n_neg=20, epochs=2, hooks=[], seeds=[0],
        encoder=MatrixFactorization(6, 5, 4),
    )  # fmt: skip
    assert np.isfinite(after.history[-1]["loss"]).all()


def test_the_correction_can_be_swept():
    fitted = fit(
        split().train, split().valid, loss=losses.info_nce, epochs=2, batch_size=64,
        sampler=InBatch.from_interactions(split().train), sweep={"task.sampler.correction": [0.0,
        1.0]}, seeds=[0, 0],
    )  # fmt: skip
    one = fitted.history[-1]["loss"]
    assert one[0] != one[1]


def test_rejects_invalid_arguments():
    log_q = jnp.zeros(N_ITEMS + 1)
    for call, message in (
        (lambda: InBatch("own"), "`mask` must be one of seen, self, none, got 'own'"),
        (lambda: SharedRNS("self"), "`mask` must be one of seen, none, got 'self'"),
        (lambda: SharedRNS(anchors=0), "`anchors` must be at least 1, got 0"),
        (lambda: InBatch.from_interactions(LOG, correction=1.5),
        "`correction` must lie in .* got 1.5"),
        (
            lambda: fit(LOG, loss=losses.info_nce, sampler=InBatch(log_q=log_q), epochs=1),
            "`log_q` must have shape",
        ),
    ):  # fmt: skip
        with raises(ValueError, match=message):
            call()
