"""Adversarial InfoNCE is the maximum over the hardness in a Kullback-Leibler ball."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import jitted

from crl_jax import losses, weights

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(losses)


@pytest.fixture
def scores():
    rng = np.random.default_rng(0)
    return np.float32(rng.normal(size=6)), np.float32(rng.normal(size=(6, 9)))


def test_loss_is_upper_bound_over_kl_ball(scores):
    pos, neg = scores
    rng = np.random.default_rng(1)
    t, radius = 0.5, 0.2
    worst = quick.adversarial_contrastive(pos, neg, radius=radius, temperature=t, reduce_fn=None)
    p = rng.dirichlet(np.full(9, 2.0), size=(500, 6))
    divergence = (p * np.log(9 * p)).sum(-1)
    ratio = (9 * p * np.exp((neg - pos[:, None]) / t)).sum(-1)
    inside = divergence <= radius
    assert 0.2 < inside.mean() < 0.9
    assert (np.log1p(ratio) <= np.asarray(worst) * (1 + 1e-6))[inside].all()
    assert (np.log1p(ratio) > np.asarray(worst)).any(), "the radius restricts nothing"


def test_radius_limits_are_info_nce_and_hardest_negative(scores):
    pos, neg = scores
    none = quick.adversarial_contrastive(pos, neg, radius=0.0, reduce_fn=None)
    np.testing.assert_allclose(none, quick.info_nce(pos, neg, reduce_fn=None), rtol=1e-6)
    for radius in (np.log(9) + 1e-3, 1e4):
        top = quick.adversarial_contrastive(pos, neg, radius=radius, reduce_fn=None)
        np.testing.assert_allclose(top, np.log1p(9 * np.exp(neg.max(-1) - pos)), rtol=1e-5)


def test_weights_of_close_and_tied_scores():
    """Weights depend on relative differences, also of small ones; ties share their weight."""
    with jax.enable_x64(True):
        w = np.asarray(weights.adversarial_weights(jnp.asarray(1e-6 * np.arange(9.0)), radius=0.3))
    np.testing.assert_allclose((w * np.log(w)).mean(-1), 0.3, rtol=1e-9)
    tied = jnp.array([[1.0, 1, 1, 0], [2, 2, 2, 2]])
    got = weights.adversarial_weights(tied, radius=9.0)
    np.testing.assert_allclose(got, [[4 / 3] * 3 + [0], [1] * 4], rtol=1e-6)
