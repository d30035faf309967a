"""Masks of zeros and ones, as data loaders return them, equal boolean masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from crl_jax import losses, metrics, stats

X = jax.random.normal(jax.random.key(0), (6, 4))
LABELS = jnp.array([0, 1, 0, 1, 1, 0])
ROWS = jnp.array([True, True, False, True, True, True])
FUNCTIONS = {
    "ranks": lambda rows, where: stats.ranks(X, where=where),
    "ecdf": lambda rows, where: stats.ecdf(X, where=where),
    "binned_ecdf": lambda rows, where: stats.binned_ecdf(X, bins=4, where=where),
    "tiled_view_loss": lambda rows, _: losses.tiled_view_loss(losses.bpr, X, X + 1, where=rows),
    "fused_view_loss": lambda rows, _: losses.fused_view_loss(
        losses.info_nce, X, X + 1, where=rows
    ),
    "knn_accuracy": lambda rows, _: metrics.knn_accuracy(
        X, LABELS, X, LABELS, n_classes=2, k=2, bank_where=rows, where=rows
    ),
    "precision_recall_f1": lambda rows, _: (
        metrics.precision_recall_f1(LABELS, 1 - LABELS, 2, where=rows).f1
    ),
    "uniformity": lambda rows, _: metrics.uniformity(losses.normalize(X), where=rows),
    "zero_shot": lambda rows, _: metrics.zero_shot(X, X, where=rows),
}


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_masks_accept_zeros_and_ones(name, dtype):
    def evaluate(mask):
        return FUNCTIONS[name](mask, jnp.broadcast_to(mask[:, None], X.shape))

    np.testing.assert_array_equal(evaluate(ROWS.astype(dtype)), evaluate(ROWS))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_masks_reject_other_numbers(name):
    mask = 2 * ROWS.astype(jnp.int32)
    masks = mask, jnp.broadcast_to(mask[:, None], X.shape)
    with pytest.raises(ValueError, match="must be boolean or contain only 0 and 1, got 2"):
        FUNCTIONS[name](*masks)
