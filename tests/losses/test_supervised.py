"""Losses with labels: the oracle that debiased losses estimate, and several positives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.compare import same
from _helpers.refusals import raises

from crl_jax import losses


@pytest.fixture
def pos():
    return jax.random.normal(jax.random.key(0), (6, 3))


def test_the_oracle_of_true_negatives_alone_is_info_nce(pos, neg):
    everything = jnp.ones(neg.shape, bool)
    got = losses.oracle_contrastive(pos[:, 0], neg, true_negative=everything)
    same(got, losses.info_nce(pos[:, 0], neg))


def test_the_oracle_scales_the_sum_to_all_samples(neg):
    labels = jnp.asarray(np.arange(8) < np.arange(1, 7)[:, None])  # 1 to 6 of 8
    got = losses.oracle_log_sum(neg, true_negative=labels, temperature=0.5)
    plain = losses.biased_log_sum(neg, where=labels, temperature=0.5)
    same(jnp.exp(got - plain), 8 / np.arange(1, 7), rtol=1e-5)
    kept = jnp.broadcast_to(jnp.arange(8) < 6, neg.shape)
    got = losses.oracle_log_sum(neg, true_negative=labels, where=kept, temperature=0.5)
    same(jnp.exp(got - plain), 6 / np.arange(1, 7), rtol=1e-5)


def sample(rng, n, tau_plus, alpha=0.9, anchors=200):
    """Scores of the model behind the Bayesian weights, and the mask of true negatives."""
    low, high = np.sort(rng.uniform(-1, 1, (2, anchors, n)), axis=0)
    true = rng.random((anchors, n)) >= tau_plus
    lower = rng.random((anchors, n)) < np.where(true, alpha, 1 - alpha)
    return jnp.asarray(np.where(lower, low, high), jnp.float32), jnp.asarray(true)


def test_debiased_losses_tend_to_the_oracle():
    """Theorem 6.2: convergence as N grows, from scores without labels."""
    rng = np.random.default_rng(0)
    pos = jnp.ones(200)
    neg, true = sample(rng, 512, tau_plus=0.1)
    draws, _ = sample(rng, 512, tau_plus=1.0)
    both = jnp.concatenate([pos[:, None], draws], axis=1)

    def off(loss, *args, **hyper):
        oracle = losses.oracle_contrastive(pos, neg, true_negative=true, reduce_fn=None)
        return loss(*args, **hyper, reduce_fn=None) - oracle

    biased = off(losses.info_nce, pos, neg)
    assert biased.mean() > 0.04
    for debiased in (
        off(losses.bayesian_contrastive, pos, neg, tau_plus=0.1, alpha=0.9, beta=0.5),
        off(losses.debiased_contrastive, both, neg, tau_plus=0.1),
    ):
        assert abs(debiased.mean()) < 0.004
        assert debiased.std() < 0.03


def test_false_negatives_are_never_read(neg):
    labels = jnp.broadcast_to(jnp.arange(8) % 2 == 0, neg.shape)
    got = losses.oracle_log_sum(jnp.where(labels, neg, jnp.nan), true_negative=labels)
    same(got, losses.oracle_log_sum(neg, true_negative=labels))


@pytest.mark.parametrize("denominator", ["all", "own"])
def test_one_positive_is_info_nce(pos, neg, denominator):
    for scale in (1.0, 100.0):
        got = losses.supervised_contrastive(
            scale * pos[:, :1], scale * neg, denominator=denominator, reduce_fn=None
        )
        np.testing.assert_array_equal(
            got, losses.info_nce(scale * pos[:, 0], scale * neg, reduce_fn=None)
        )


def test_own_is_the_mean_of_info_nce_over_positives(pos, neg):
    each = [losses.info_nce(pos[:, m], neg) for m in range(3)]
    same(losses.supervised_contrastive(pos, neg, denominator="own"), np.mean(each))


def test_far_ahead_only_the_other_positives_are_left(neg):
    for lead in (20.0, 1000.0):
        pos = jnp.full((6, 3), lead)
        same(losses.supervised_contrastive(pos, neg), np.log(3), rtol=1e-6)
        assert losses.supervised_contrastive(pos, neg, denominator="own") < 1e-6


def test_positives_repel_in_the_published_denominator_alone():
    pos, neg = jnp.array([5.0, 0.0]), jnp.array([-3.0])

    def slope(denominator):
        return jax.grad(losses.supervised_contrastive)(pos, neg, denominator=denominator)

    assert slope("all")[0] > 0 > slope("all")[1]
    assert (slope("own") < 0).all()


def test_masked_positives_are_as_deleted(pos, neg):
    where_pos = jnp.broadcast_to(jnp.array([True, False, True]), pos.shape)
    for fn in (
        losses.supervised_contrastive,
        lambda *a, **k: losses.supervised_contrastive(*a, **k, denominator="own"),
        lambda *a, **k: losses.punce(
            *a, **k, labelled=jnp.arange(6) % 2 == 0, tau_plus=0.3
        ),
    ):  # fmt: skip
        same(fn(pos, neg, where_pos=where_pos), fn(pos[:, ::2], neg))


def test_the_denominator_is_one_of_two(pos, neg):
    with raises(Exception, match="denominator"):
        losses.supervised_contrastive(pos, neg, denominator="none")


def test_punce_of_a_labelled_anchor_and_at_the_ends_of_the_prior(pos, neg):
    labelled = jnp.zeros(6, bool)
    supervised = losses.supervised_contrastive(pos, neg)
    same(losses.punce(pos, neg, labelled=~labelled, tau_plus=0.3), supervised)
    as_negative = losses.info_nce(pos[:, 0], jnp.concatenate([pos[:, 1:], neg], axis=1))
    same(losses.punce(pos, neg, labelled=labelled, tau_plus=0.0), as_negative)
    part = 0.3 * supervised + 0.7 * as_negative
    same(losses.punce(pos, neg, labelled=labelled, tau_plus=0.3), part)


def test_punce_of_the_own_view_alone_is_info_nce(pos, neg):
    got = losses.punce(pos[:, :1], neg, labelled=jnp.arange(6) < 3, tau_plus=0.3)
    same(got, losses.info_nce(pos[:, 0], neg))


def test_punce_without_its_own_view_leaves(pos, neg):
    where_pos = jnp.ones(pos.shape, bool).at[0, 0].set(False)
    labelled = jnp.arange(6) % 2 == 0
    each = losses.punce(pos, neg, labelled=labelled, tau_plus=0.3, reduce_fn=None)
    got = losses.punce(pos, neg, labelled=labelled, tau_plus=0.3, where_pos=where_pos)
    same(got, each[1:].mean())


def np_punce(z, labelled, pi, t):
    """The published form, over a batch of two views, view 2i next to view 2i + 1."""
    n, total = len(z), 0.0
    for i in range(n):
        log_share = z @ z[i] / t
        log_share -= np.log(sum(np.exp(log_share[k]) for k in range(n) if k != i))
        own = i ^ 1
        positives = {own} | {k for k in range(n) if labelled[k] and k != i}
        as_positive = -np.mean([log_share[k] for k in positives])
        share = 1 if labelled[i] else pi
        total += share * as_positive + (1 - share) * -log_share[own]
    return total / n


def test_punce_of_a_batch_of_two_views():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(12, 5))
    labelled = np.repeat(rng.random(6) < 0.5, 2)
    assert 0 < labelled.sum() < 12
    want = np_punce(z / np.linalg.norm(z, axis=1, keepdims=True), labelled, 0.3, 0.5)

    z = jnp.asarray(z / np.linalg.norm(z, axis=1, keepdims=True), jnp.float32)
    scores, here = z @ z.T, np.arange(12)
    own = here ^ 1
    rest = (here[:, None] != here) & (own[:, None] != here)
    got = losses.punce(
        jnp.concatenate([scores[here, own][:, None], scores], axis=1),
        scores,
        labelled=jnp.asarray(labelled),
        tau_plus=0.3,
        temperature=0.5,
        where_pos=jnp.asarray(np.concatenate([np.ones((12, 1), bool), rest & labelled], axis=1)),
        where=jnp.asarray(rest & ~labelled),
    )
    same(got, want, rtol=1e-5)


def test_positives_whose_sum_is_no_number_have_a_mean():
    pos, neg = jnp.array([[3e38, 3e38]]), jnp.array([[0.0, 1.0]])
    assert losses.supervised_contrastive(pos, neg) == pytest.approx(np.log(2))
    agreed = losses.gbpr(pos[:, 0], pos[:, :1], group=pos, rho=0.5)
    assert agreed == pytest.approx(np.log(2))
