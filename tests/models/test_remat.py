"""Rematerialization of networks: gradients, states, and memory of residuals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax import augment, models
from crl_jax.data import Tokens, load_graphs

pytestmark = pytest.mark.usefixtures("quick_compiles")

IDS = jax.random.randint(jax.random.key(2), (5, 7), 0, 20)


def graphs():
    """Returns a GIN and a batch of graphs."""
    read = load_graphs("simulated")
    views = augment.GraphAugmentation(models.GraphArrays.from_graphs(read))
    index = jnp.arange(8, dtype=jnp.int32)
    return models.GIN(read.features.shape[1], 8, 2), views.plain_batch(index)


CASES = {
    "ResNet": lambda: (
        models.BackboneWithHead(models.ResNet((1, 1), width=4), models.Projection((6, 5))),
        jax.random.normal(jax.random.key(1), (6, 8, 8, 3)),
    ),
    # Dropout draws the same masks again.
    "BERT": lambda: (models.BERT(20, 8, 1, 2, 16, 10, dropout=0.3), Tokens(IDS, IDS > 2)),
    "GIN": graphs,
}


@pytest.mark.parametrize("name", CASES)
def test_remat_keeps_gradients_and_reduces_residuals(name):
    build, x = CASES[name]()
    found, stored = {}, {}
    for remat in ("none", "dots", "full"):
        network = models.Network(build, remat=remat)
        params, rest = network.init(jax.random.key(0))

        def loss(params, network=network, rest=rest):
            out, after = network.apply(params, rest, x, train=True)
            weights = jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)
            return jnp.sum(out * weights), after

        found[remat] = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        residuals = jax.eval_shape(lambda p, loss=loss: jax.vjp(loss, p, has_aux=True)[1], params)
        stored[remat] = sum(leaf.size for leaf in jax.tree.leaves(residuals))
    assert stored["full"] < stored["dots"] < stored["none"]
    for remat in ("dots", "full"):
        for got, want in zip(*map(jax.tree.leaves, (found[remat], found["none"])), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * np.abs(want).max() + 1e-6)


def test_rejects_invalid_remat_and_unsupported_networks():
    with raises(ValueError, match="`remat` must be one of none, dots, full, got 'some'"):
        models.Network(models.ResNet(10), remat="some")
    network = models.Network(models.Projection((3,), n_in=4), remat="full")
    params, rest = network.init(jax.random.key(0))
    with raises(ValueError, match="`remat` must be 'none' for ProjectionModule, .* got 'full'"):
        network.apply(params, rest, jnp.ones((2, 4)))
