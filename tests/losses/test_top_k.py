"""The softmax loss at K is a weighted InfoNCE."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from crl_jax import losses, weights

pytestmark = pytest.mark.usefixtures("quick_compiles")


def test_softmax_at_k_is_weighted_info_nce():
    """In value and gradient, with constant weights."""
    rng = np.random.default_rng(0)
    pos, neg = np.float32(rng.normal(size=6)), np.float32(rng.normal(size=(6, 9)))
    threshold = weights.top_k_threshold(jnp.concatenate([pos[:, None], neg], -1), top_fraction=0.25)
    w = jax.nn.sigmoid((pos - threshold) / 0.5)

    def direct(pos, neg, threshold=None):
        return losses.softmax_at_k(
            pos, neg, top_fraction=0.25, weight_temperature=0.5, temperature=0.7,
            threshold=threshold,
        )  # fmt: skip

    def weighted(pos, neg):
        return losses.info_nce(pos, neg, weights=w, temperature=0.7)

    want = jax.jit(jax.value_and_grad(weighted, (0, 1)))(pos, neg)
    for given in (None, threshold):
        got = jax.jit(jax.value_and_grad(direct, (0, 1)))(pos, neg, given)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-8), got, want)


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
