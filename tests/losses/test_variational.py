"""VarBPR: gradients with constant posteriors, and the cases in which it equals other losses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import jitted

from crl_jax import losses

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(losses)


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    return rng.normal(size=(6, 3)), rng.normal(size=(6, 4))


def softmax(x):
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


@pytest.mark.parametrize("objective", ["compressed", "exact"])
def test_gradient_treats_posteriors_as_constants(scores, objective):
    pos, neg = scores
    alpha, beta = softmax(pos / 0.5 / 0.8), softmax((0.7 - 1 / 2.0) * neg / 0.8)
    joint = alpha[:, :, None] * beta[:, None, :]
    lead = (pos[:, :, None] - neg[:, None, :]) / 0.8
    if objective == "compressed":
        lead = (joint * lead).sum((1, 2), keepdims=True)
    slope = -joint / (1 + np.exp(lead)) / 0.8
    loss = partial(
        losses.variational_bpr, objective=objective, pos_strength=0.5, neg_strength=2.0,
        neg_hardness=0.7, temperature=0.8, reduce_fn=jnp.sum,
    )  # fmt: skip
    with jax.enable_x64(True):
        got = jax.jit(jax.grad(loss, (0, 1)))(pos, neg)
    np.testing.assert_allclose(got[0], slope.sum(2), rtol=1e-10)
    np.testing.assert_allclose(got[1], -slope.sum(1), rtol=1e-10)


def test_single_pair_matches_bpr(scores):
    pos, neg = (np.float32(x[:, 0]) for x in scores)
    want = quick.bpr(pos, neg[:, None], reduce_fn=None)
    for objective in ("compressed", "exact"):
        for own in (pos, pos[:, None]):
            got = quick.variational_bpr(own, neg[:, None], objective=objective, reduce_fn=None)
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_strong_prior_determines_posterior(scores):
    pos, neg = map(np.float32, scores)
    prior = np.log(softmax(neg[:, ::-1]))
    got = quick.variational_bpr(
        pos, neg, pos_strength=1e8, neg_strength=1e8, neg_log_prior=prior + 5.0, reduce_fn=None
    )
    lead = pos.mean(-1) - (np.exp(prior) * neg).sum(-1)
    np.testing.assert_allclose(got, np.log1p(np.exp(-lead)), rtol=1e-5)
    hidden = np.where(np.arange(4) < 2, np.float32(-1e6), 0) + np.zeros_like(neg)
    got = quick.variational_bpr(pos, neg, neg_log_prior=hidden)
    np.testing.assert_allclose(got, quick.variational_bpr(pos, neg[:, 2:]), rtol=1e-6)


def test_compressed_is_a_lower_bound_of_exact(scores):
    pos, neg = map(np.float32, scores)
    below, above = (
        quick.variational_bpr(pos, neg, objective=name, reduce_fn=None)
        for name in ("compressed", "exact")
    )
    assert (below < above).all()
