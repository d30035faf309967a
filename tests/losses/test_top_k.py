"""The softmax loss at K is a weighted InfoNCE."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from crl_jax import losses

pytestmark = pytest.mark.usefixtures("quick_compiles")


def test_softmax_at_k_is_weighted_info_nce():
    """In value and gradient, with constant weights; the threshold is the third of ten scores."""
    rng = np.random.default_rng(0)
    pos, neg = np.float32(rng.normal(size=6)), np.float32(rng.normal(size=(6, 9)))
    p, s, t = np.float64(pos), np.float64(neg), 0.7
    threshold = np.sort(np.concatenate([p[:, None], s], axis=1), axis=1)[:, -3]
    w = 1 / (1 + np.exp((threshold - p) / 0.5))
    terms = np.exp(s / t)
    share = terms / (np.exp(p / t)[:, None] + terms.sum(1, keepdims=True))
    want = (w * (np.log(np.exp(p / t) + terms.sum(1)) - p / t)).mean()
    d_neg = w[:, None] * share / t / len(p)

    @jax.jit
    @partial(jax.value_and_grad, argnums=(0, 1))
    def loss(pos, neg, threshold):
        return losses.softmax_at_k(
            pos, neg, top_fraction=0.25, weight_temperature=0.5, temperature=t, threshold=threshold
        )

    for given in (None, np.float32(threshold)):
        got, slopes = loss(pos, neg, given)
        np.testing.assert_allclose(got, want, rtol=1e-5)
        np.testing.assert_allclose(slopes[0], -d_neg.sum(1), rtol=1e-5)
        np.testing.assert_allclose(slopes[1], d_neg, rtol=1e-5)


def test_lambda_loss_ranks_positive_before_tied_negatives():
    """Ranks from 1, by hand: the positive, then the negatives."""
    cases = {
        ((0.0,), (1.0, 1.0, 1.0)): [4, 1, 1, 1],
        ((1.0,), (1.0, 2.0, 1.0)): [2, 3, 1, 3],
        ((0.0,), (1.0, 1.0, -1.0, -1.0)): [3, 1, 1, 4, 4],
    }
    for (pos, neg), ranks in cases.items():
        rank = np.float64(ranks)
        apart, last = abs(rank[1:] - rank[0]), np.maximum(rank[1:], rank[0])
        weight = 1 / np.log2(1 + apart) - 1 / np.log2(2 + apart)
        weight[last > 2] /= 1 - 1 / np.log2(1 + last[last > 2])
        want = weight @ np.logaddexp(0, np.array(neg) - pos[0]) / np.log(2)
        got = losses.lambda_loss_at_k(jnp.array(pos), jnp.array([neg]), cutoff=2.0)
        np.testing.assert_allclose(got, want, rtol=1e-5)
