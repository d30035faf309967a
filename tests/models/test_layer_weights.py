"""Several weighted sums of the layers of one propagation, and noise on the layers."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.graphs import (
    GRAPHS,
    LAYOUTS,
    heavy_and_empty,
    interactions,
    normalised,
    some_tables,
    stacked,
)
from _helpers.programs import counted
from _helpers.refusals import raises

from crl_jax.models import (
    InteractionGraph,
    LayerNoise,
    LightGCN,
    Tables,
    propagate,
    propagate_mixes,
)

pytestmark = pytest.mark.usefixtures("quick_compiles", "narrow_blocks")

MIXES = ((0.5, 0.0, 0.25, 1.0), (0.0, 1.0), (2.0,), (0.0, 0.0))


def powers(seen, tables, weights):
    """The weighted sum of layers, written out in float64."""
    matrix, layer = normalised(seen), stacked(tables)
    total = np.zeros_like(layer)
    for weight in weights:
        total = total + weight * layer
        layer = matrix @ layer
    return total


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", GRAPHS)
def test_mixes_and_gradients_match_dense_formula(name, layout):
    seen = GRAPHS[name]
    graph = InteractionGraph.from_interactions(interactions(seen), layout=layout)
    tables = some_tables(seen)
    slopes = [some_tables(seen, seed=10 + i) for i in range(len(MIXES))]

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def slope_of(tables):
        made = propagate_mixes(graph, tables, MIXES)
        products = jax.tree.map(lambda x, s: jnp.sum(x * s), list(made), slopes)
        return sum(jax.tree.leaves(products)), made

    slope, made = slope_of(tables)
    for weights, got in zip(MIXES, made, strict=True):
        want = powers(seen, tables, weights)
        np.testing.assert_allclose(stacked(got), want, rtol=2e-5, atol=2e-6)
        assert [table.dtype for table in got] == [np.float32] * 2
    lonely = ~np.concatenate([seen.any(1), seen.any(0)])
    assert np.all(stacked(made[1])[lonely] == 0)
    # The operator is symmetric: the gradient of s · A E is A s.
    want = sum(powers(seen, s, weights) for s, weights in zip(slopes, MIXES, strict=True))
    np.testing.assert_allclose(stacked(slope), want, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_noise_has_given_norm_and_signs_of_row(layout):
    seen = heavy_and_empty()
    graph = InteractionGraph.from_interactions(interactions(seen), layout=layout)
    tables, noise = some_tables(seen), LayerNoise(0.3, jax.random.key(4))
    layers = jax.jit(lambda t: propagate_mixes(graph, t, np.eye(4).tolist(), noise))(tables)
    layers = [stacked(x) for x in layers]
    linked = np.concatenate([seen.any(1), seen.any(0)])
    samples = []
    for before, after in itertools.pairwise(layers):
        plain = normalised(seen) @ before
        added = after - plain
        np.testing.assert_allclose(np.linalg.norm(added, axis=1)[linked], 0.3, rtol=1e-4)
        assert np.all(added[~linked] == 0)
        clear = np.abs(plain) > 1e-5
        assert np.all((np.sign(added) == np.sign(plain))[clear])
        samples.append(np.abs(added[linked]))
    np.testing.assert_array_equal(layers[0], stacked(tables))
    assert not np.allclose(samples[0], samples[1], atol=1e-3)  # redrawn for each layer
    directions = samples[0] / 0.3
    assert directions.min() < 0.1  # not all in one direction
    assert directions.max() > 0.8


def test_noise_does_not_change_gradient():
    seen = heavy_and_empty()
    graph = InteractionGraph.from_interactions(interactions(seen))
    tables, slopes = some_tables(seen), some_tables(seen, seed=2)
    weights = (0.25, 0.5, 1.0)

    def loss(tables, noise):
        made = propagate_mixes(graph, tables, (weights,), noise)[0]
        return sum(jnp.sum(x * s) for x, s in zip(made, slopes, strict=True))

    noisy = jax.jit(jax.grad(loss))(tables, LayerNoise(0.3, jax.random.key(0)))
    np.testing.assert_allclose(stacked(noisy), powers(seen, slopes, weights), rtol=1e-5, atol=1e-6)


def test_noise_requires_key_and_norm_does_not_recompile():
    seen = heavy_and_empty()
    log = interactions(seen)
    encode, traced = counted(lambda encoder, params, key: encoder.encode(params, key))
    quiet, loud = (
        LightGCN.from_interactions(log, 4, 2, noise=jnp.float32(length), layout="rows")
        for length in (0.1, 0.5)
    )
    params = quiet.init(jax.random.key(0))
    plain = encode(quiet, params, None)
    want = powers(seen, Tables(**params), (1 / 3,) * 3)
    np.testing.assert_allclose(stacked(plain), want, rtol=1e-5, atol=1e-6)
    near, far = (encode(e, params, jax.random.key(1)) for e in (quiet, loud))
    assert (
        np.abs(stacked(far) - stacked(plain)).max() > np.abs(stacked(near) - stacked(plain)).max()
    )
    again = encode(quiet, params, jax.random.key(2))
    assert np.abs(stacked(again) - stacked(near)).max() > 1e-3
    assert len(traced) == 2  # with and without a key


def test_rejects_invalid_arguments():
    log = interactions(np.ones((3, 4), bool))
    graph, tables = (
        InteractionGraph.from_interactions(log),
        Tables(jnp.ones((3, 2)), jnp.ones((4, 2))),
    )
    with raises(ValueError, match="`layer_weights` must have at least one weight"):
        propagate_mixes(graph, tables, ((1.0,), ()))
    with raises(ValueError, match="`noise` must lie in"):
        LightGCN.from_interactions(log, noise=-0.1)
    with raises(ValueError, match="`layer_weights` must have at least one weight"):
        propagate(graph, tables, ())
