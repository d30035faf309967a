"""SigLIP loss of a square score matrix, against Eq. 1 and algorithm 1 of its publication."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from crl_jax import losses


def embeddings(n=6, dim=4, seed=0):
    z = np.random.default_rng(seed).normal(size=(2, n, dim))
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


def np_siglip(x, y, scale, bias):
    """Algorithm 1: labels 1 on the diagonal and -1 elsewhere, the sum divided by the batch size."""
    logits = scale * x @ y.T + bias
    labels = 2 * np.eye(len(x)) - 1
    return -np.sum(np.log(1 / (1 + np.exp(-labels * logits)))) / len(x)


def siglip(x, y, temperature, bias):
    pos, neg, where = losses.tower_scores(x, y)
    return losses.sigmoid_contrastive(pos, neg, where=where, temperature=temperature, bias=bias)


@pytest.mark.parametrize(("temperature", "bias"), [(0.1, -10.0), (1.0, 0.0), (0.02, 3.0)])
def test_the_mean_is_the_published_loss(temperature, bias):
    x, y = embeddings()
    want = np_siglip(x, y, 1 / temperature, bias)
    x, y = (jnp.asarray(z, jnp.float32) for z in (x, y))
    np.testing.assert_allclose(siglip(x, y, temperature, bias), want, rtol=1e-5)
    np.testing.assert_allclose(siglip(y, x, temperature, bias), want, rtol=1e-5)  # transposed


def test_temperature_and_bias_are_learned():
    with jax.enable_x64(True):
        x, y = (jnp.asarray(z) for z in embeddings())
        at = (x, y, jnp.float64(0.3), jnp.float64(-2.0))
        check_grads(jax.jit(siglip), at, order=1, modes=["rev"], rtol=1e-5)
        # Shifting the bias manually: the slope is that of Eq. 1.
        h = 1e-5
        slope = jax.grad(siglip, 3)(*at)
        up, down = (np_siglip(*map(np.asarray, at[:2]), 1 / 0.3, -2.0 + d) for d in (h, -h))
        np.testing.assert_allclose(slope, (up - down) / (2 * h), rtol=1e-8)


def test_what_is_far_apart_costs_nothing_and_keeps_its_digits():
    """Large logits: a loss of e^-40 and one of 10^6 are both exact."""
    pos, neg = jnp.array([40.0, -1e6]), jnp.array([[-40.0], [-1e6]])
    got = losses.sigmoid_contrastive(pos, neg, reduce_fn=None)
    np.testing.assert_allclose(got, [2 * np.exp(-40.0), 1e6], rtol=1e-6)


def test_a_bias_for_each_anchor():
    pos, neg = jnp.array([0.3, 0.1]), jnp.array([[0.2, -0.4], [0.5, 0.0]])
    both = losses.sigmoid_contrastive(pos, neg, bias=jnp.array([-1.0, 2.0]), reduce_fn=None)
    for i, bias in enumerate((-1.0, 2.0)):
        one = losses.sigmoid_contrastive(pos[i], neg[i], bias=bias)
        np.testing.assert_allclose(both[i], one, rtol=1e-6)
