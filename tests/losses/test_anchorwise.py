"""Losses marked as anchorwise are exactly those that are separable by anchor."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from crl_jax import losses

BATCH, N = 6, 4
FURTHER = {
    "gbpr": lambda: {"group": scores(2, BATCH, 3), "rho": 0.4},
    "mpr": lambda: {"likely": scores(3, BATCH), "balance": 0.5},
    "debiased_pairwise": lambda: {"tau_plus": 0.1},
    "debiased_contrastive": lambda: {"tau_plus": 0.1},
    "hard_contrastive": lambda: {"tau_plus": 0.1, "beta": 0.5},
    "bayesian_contrastive": lambda: {"tau_plus": 0.1, "alpha": 0.9, "beta": 0.9},
    "oracle_contrastive": lambda: {"true_negative": scores(4, BATCH, N) < 0.5},
    "punce": lambda: {"tau_plus": 0.1, "labelled": jnp.arange(BATCH) % 2 == 0},
    "nce": lambda: {
        "pos_log_noise": scores(5, BATCH), "neg_log_noise": -1.0,
    },
    "truncated_bce": lambda: {"drop_rate": 0.5},
    "truncated_bpr": lambda: {"drop_rate": 0.5},
    "reweighted_bce": lambda: {"exponent": 0.5},
    "reweighted_bpr": lambda: {"exponent": 0.5},
}  # fmt: skip
SEVERAL_POSITIVES = ("supervised_contrastive", "punce")
MARKED = sorted(n for n, f in vars(losses).items() if callable(f) and losses.is_per_anchor_loss(f))
ACROSS = ("truncated_bce", "truncated_bpr")


def scores(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def first_loss(name, rest):
    """Returns the first anchor's loss when the scores of the others are shifted by ``rest``."""
    others = (jnp.arange(BATCH) > 0).astype(jnp.float32)
    pos = scores(0, BATCH, 3) if name in SEVERAL_POSITIVES else scores(0, BATCH)
    pos = pos + rest * (others[:, None] if pos.ndim > 1 else others)
    neg = scores(1, BATCH, N) - rest * others[:, None]
    further = FURTHER.get(name, dict)()
    return getattr(losses, name)(pos, neg, reduce_fn=None, **further)[0]


@pytest.mark.parametrize("name", MARKED)
def test_no_anchor_depends_on_another(name):
    moved = [first_loss(name, rest) for rest in (0.0, 3.0, -3.0)]
    assert np.isfinite(moved).all()
    np.testing.assert_array_equal(moved, moved[0])


@pytest.mark.parametrize("name", ACROSS)
def test_losses_across_the_batch_are_not_marked(name):
    assert name not in MARKED
    # Next to easier anchors the first one is dropped, next to harder ones it is kept.
    assert first_loss(name, 9.0) != first_loss(name, -9.0)


def test_the_marked_are_all_that_train_on_anchors():
    assert {"bpr", "bce", "info_nce", "debiased_pairwise", "bayesian_contrastive"} <= set(MARKED)
    assert not losses.is_per_anchor_loss(lambda pos, neg, **_: pos)
