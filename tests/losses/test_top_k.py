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
