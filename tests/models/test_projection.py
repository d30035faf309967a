"""Heads against their formulas in float64, alone and on a backbone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import apply, moved_variables
from _helpers.refusals import raises

from crl_jax.models import BackboneWithHead, FeatureSlice, Network, Projection, ResNet

pytestmark = pytest.mark.usefixtures("quick_compiles")

X = jax.random.normal(jax.random.key(3), (7, 6))
HEADS = {
    "simclr": Projection((5, 4), norm=False, n_in=6),
    "bcl": Projection((5, 4), n_in=6),
    "byol": Projection((5, 4), last_bias=False, n_in=6),
    "simsiam": Projection((5, 5, 4), last_norm=True, n_in=6),
}
# Names of layers, in their order, each with the variables that it trains.
PARAMETERS = {
    "simclr": [{"kernel", "bias"}, {"kernel", "bias"}],
    "bcl": [{"kernel"}, {"scale", "bias"}, {"kernel", "bias"}],
    "byol": [{"kernel"}, {"scale", "bias"}, {"kernel"}],
    "simsiam": [{"kernel"}, {"scale", "bias"}] * 3,
}


def reference(settings, params, rest, x, train):
    params, rest, x = jax.tree.map(lambda x: np.asarray(x, np.float64), (params, rest, x))
    for layer in range(1, len(settings.widths) + 1):
        own = params[f"linear_{layer}"]
        x = x @ own["kernel"] + own.get("bias", 0)
        if own := params.get(f"norm_{layer}"):
            stats = rest[f"norm_{layer}"]
            mean, var = (x.mean(axis=0), x.var(axis=0)) if train else (stats["mean"], stats["var"])
            x = own["scale"] * (x - mean) / np.sqrt(var + 1e-5) + own["bias"]
        if layer < len(settings.widths):
            x = np.maximum(x, 0)
    return x


@pytest.mark.parametrize("name", HEADS)
def test_published_heads_have_expected_layers(name):
    params, _ = jax.eval_shape(Network(HEADS[name]).init, jax.random.key(0))
    layers = [
        set(params[f"{kind}_{layer}"])
        for layer in range(1, 4)
        for kind in ("linear", "norm")
        if f"{kind}_{layer}" in params
    ]
    assert layers == PARAMETERS[name]
    assert HEADS[name].n_features == 4


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_embeddings_match_float64_reference(name, train):
    params, rest = moved_variables(Network(HEADS[name]))
    got, _ = apply(Network(HEADS[name]), params, rest, X, train=train)
    want = reference(HEADS[name], params, rest, X, train)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_single_layer_head_uses_lecun_initialization():
    head = Projection((400,), n_in=600)
    params, _ = jax.jit(Network(head).init)(jax.random.key(0))
    assert set(params) == {"linear_1"}
    assert np.all(params["linear_1"]["bias"] == 0)
    np.testing.assert_allclose(np.std(params["linear_1"]["kernel"]), 600**-0.5, rtol=0.01)


def test_feature_slice_has_no_parameters():
    network = Network(FeatureSlice(2))
    params, rest = network.init(jax.random.key(0))
    assert jax.tree.leaves((params, rest)) == []
    np.testing.assert_array_equal(network.apply(params, rest, X)[0], X[:, :2])


@pytest.mark.parametrize("head", [Projection((5, 4)), FeatureSlice(4)], ids=["mlp", "first"])
def test_backbone_with_head_exposes_backbone_features(head):
    backbone = ResNet((1,), width=4)
    both = BackboneWithHead(backbone, head)
    params, rest = moved_variables(Network(both))
    x = jax.random.normal(jax.random.key(1), (6, 5, 5, 3))
    features, _ = apply(Network(both), params, rest, x, method="features")
    own = params["backbone"], rest["backbone"]
    np.testing.assert_array_equal(features, apply(Network(backbone), *own, x)[0])
    got, _ = apply(Network(both), params, rest, x)
    assert got.shape == (6, both.n_features) == (6, 4)
    head_module = head if isinstance(head, FeatureSlice) else Projection(head.widths, n_in=4)
    head_variables = params.get("head", {}), rest.get("head", {})
    want, _ = apply(Network(head_module), *head_variables, features)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_masked_examples_do_not_affect_batch_statistics():
    both = BackboneWithHead(ResNet((1,), width=4), Projection((5, 4), last_norm=True))
    params, rest = moved_variables(Network(both))
    x = jax.random.normal(jax.random.key(1), (6, 5, 5, 3))
    where = jnp.array([True, False, True, True, True, False])
    got, after = apply(Network(both), params, rest, x, where, train=True)
    want, few_after = apply(Network(both), params, rest, x[where], train=True)
    check = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    check(got[where], want)
    jax.tree.map(check, after, few_after)


def test_bfloat16_is_close_to_float32():
    params, rest = moved_variables(Network(HEADS["bcl"]))
    want, _ = apply(Network(HEADS["bcl"]), params, rest, X, train=True)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    got, _ = apply(Network(HEADS["bcl"]), half, rest, X.astype(jnp.bfloat16), train=True)
    assert got.dtype == jnp.bfloat16
    assert np.abs(got.astype(np.float32) - want).max() < 0.05 * np.abs(want).max()


def test_rejects_invalid_settings():
    with raises(ValueError, match=r"`widths` must be one or more, .* got \(\)"):
        Projection(())
    with raises(ValueError, match=r"`widths` must be one or more, .* got \(8, 0\)"):
        Projection((8, 0))
    with raises(ValueError, match="`n_in` must be at least 1, got 0"):
        Projection(n_in=0)
    with raises(ValueError, match="`n_in` must be given"):
        Network(Projection()).init(jax.random.key(0))
    with raises(ValueError, match="`n_features` must be at least 1, got 0"):
        FeatureSlice(0)
    with raises(ValueError, match="`n_features` must be at most 6, got 7"):
        Network(FeatureSlice(7)).apply({}, {}, X)
