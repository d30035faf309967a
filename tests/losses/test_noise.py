"""Noise-contrastive estimation on a vocabulary small enough to sum over."""

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import losses

DATA = np.array([0.5, 0.2, 0.2, 0.1])
NOISE = np.array([1, 4, 1, 2]) / 8
DRAWS = np.repeat(np.arange(4), [1, 4, 1, 2])  # a mean over them is one over the noise


def objective(scores, ratio):
    """The expectation of the loss: all items under the data, all noise for each of them."""
    q = jnp.log(jnp.asarray(NOISE, jnp.float32))
    return losses.nce(
        scores,
        jnp.broadcast_to(scores[DRAWS], (4, 8)),
        pos_log_noise=q,
        neg_log_noise=q[DRAWS],
        ratio=ratio,
        weights=jnp.asarray(DATA, jnp.float32),
        reduce_fn=jnp.sum,
    )


slope = jax.jit(jax.grad(objective))


def test_with_ever_more_noise_the_gradient_tends_to_maximum_likelihood():
    model = np.array([0.1, 0.3, 0.4, 0.2])  # normalised: u is the model's probability
    likelihood = model - DATA  # of -Σ data · log softmax(scores), with respect to scores
    gaps = []
    for k in (1.0, 10.0, 100.0, 1000.0):
        got = slope(jnp.log(jnp.asarray(model, jnp.float32)), k)
        kq = k * NOISE
        np.testing.assert_allclose(got, kq / (model + kq) * likelihood, rtol=2e-3)
        gaps.append(np.abs(got - likelihood).max())
    assert gaps[0] > 0.05
    np.testing.assert_array_less(gaps[1:], np.array(gaps[:-1]) / 3)
    assert gaps[-1] < 1e-3


def test_the_data_distribution_is_a_stationary_point_whatever_the_ratio():
    """Unlike maximum likelihood, it also fixes the sum of the model's probabilities."""
    truth = jnp.log(jnp.asarray(DATA, jnp.float32))
    for k in (0.5, 5.0, 50.0):
        np.testing.assert_allclose(slope(truth, k), 0, atol=1e-6)
        assert jnp.abs(slope(truth + 0.5, k)).max() > 1e-2


def test_the_ratio_is_the_number_of_kept_negatives_unless_given():
    pos, neg = jnp.array([0.5, -1.0]), jnp.array([[0.1, 0.7, -2.0], [1.0, 0.0, 3.0]])
    where = jnp.array([[True, True, False], [True, True, True]])
    noise = dict(pos_log_noise=-2.0, neg_log_noise=-2.0, where=where, reduce_fn=None)
    got = losses.nce(pos, neg, **noise)
    want = losses.nce(pos, neg, **noise, ratio=jnp.array([2.0, 3.0]))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    kq = 2 * np.exp(-2)
    by_hand = np.log1p(kq / np.exp(0.5)) + np.log1p(np.exp(neg[0, :2]) / kq).sum()
    np.testing.assert_allclose(got[0], by_hand, rtol=1e-6)
