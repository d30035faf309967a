"""Losses with labels: the oracle that debiased losses estimate, and several positives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.compare import same
from _helpers.programs import jitted
from _helpers.refusals import raises

from crl_jax import losses

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(losses)


@pytest.fixture
def pos():
    return jax.random.normal(jax.random.key(0), (6, 3))


def test_supervised_loss_limits_at_high_positive_scores(neg):
    """Up to the spacing of float32 at these scores: old compilers subtract them last."""
    for lead in (20.0, 1000.0):
        pos, spacing = jnp.full((6, 3), lead), np.spacing(np.float32(lead))
        same(quick.supervised_contrastive(pos, neg), np.log(3), rtol=1e-6, atol=spacing)
        assert quick.supervised_contrastive(pos, neg, denominator="own") < 1e-6


def test_rejects_unknown_denominator(pos, neg):
    with raises(Exception, match="denominator"):
        losses.supervised_contrastive(pos, neg, denominator="none")


def test_punce_excludes_anchors_without_own_view(pos, neg):
    where_pos = jnp.ones(pos.shape, bool).at[0, 0].set(False)
    labelled = jnp.arange(6) % 2 == 0
    each = quick.punce(pos, neg, labelled=labelled, tau_plus=0.3, reduce_fn=None)
    got = quick.punce(pos, neg, labelled=labelled, tau_plus=0.3, where_pos=where_pos)
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


def test_punce_matches_published_two_view_loss():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(12, 5))
    labelled = np.repeat(rng.random(6) < 0.5, 2)
    assert 0 < labelled.sum() < 12
    want = np_punce(z / np.linalg.norm(z, axis=1, keepdims=True), labelled, 0.3, 0.5)

    z = jnp.asarray(z / np.linalg.norm(z, axis=1, keepdims=True), jnp.float32)
    scores, here = z @ z.T, np.arange(12)
    own = here ^ 1
    rest = (here[:, None] != here) & (own[:, None] != here)
    got = quick.punce(
        jnp.concatenate([scores[here, own][:, None], scores], axis=1),
        scores,
        labelled=jnp.asarray(labelled),
        tau_plus=0.3,
        temperature=0.5,
        where_pos=jnp.asarray(np.concatenate([np.ones((12, 1), bool), rest & labelled], axis=1)),
        where=jnp.asarray(rest & ~labelled),
    )
    same(got, want, rtol=1e-5)


def test_mean_of_positives_does_not_overflow():
    pos, neg = jnp.array([[3e38, 3e38]]), jnp.array([[0.0, 1.0]])
    assert quick.supervised_contrastive(pos, neg) == pytest.approx(np.log(2))
    agreed = quick.gbpr(pos[:, 0], pos[:, :1], group=pos, rho=0.5)
    assert agreed == pytest.approx(np.log(2))
