"""SASRec against a forward pass in float64: values, causality and padding."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import apply, moved_variables
from _helpers.refusals import raises

from crl_jax.models import Network, SASRec

pytestmark = pytest.mark.usefixtures("quick_compiles")

TINY = SASRec(11, width=6, n_layers=2, n_heads=3, n_positions=7, dropout=0.2)
NET = Network(TINY)
ITEMS = np.array([[-1, -1, 3, 0, 10], [4, 9, 4, 1, 2], [-1, -1, -1, -1, 7]], np.int32)


@cache
def variables():
    return moved_variables(NET)


def encode(items, network=NET, **options):
    out, rest = apply(network, *variables(), jnp.asarray(items, jnp.int32), **options)
    return np.asarray(out), rest


def layer_norm(x, of):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-8) * of["scale"] + of["bias"]


def attention(x, block, n_heads):
    """Every position attends to itself and to earlier ones, head by head."""
    q, k, v = (x @ block[name]["kernel"] for name in ("query", "key", "value"))
    width = x.shape[1] // n_heads
    out = np.zeros_like(x)
    for head in range(n_heads):
        own = slice(head * width, (head + 1) * width)
        for t in range(len(x)):
            logits = k[: t + 1, own] @ q[t, own] / np.sqrt(width)
            weights = np.exp(logits) / np.exp(logits).sum()
            out[t, own] = weights @ v[: t + 1, own]
    return out


def reference(items, params, settings):
    """Vectors of one sequence without padding, in float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    positions = p["position_embedding"][settings.n_positions - len(items) :]
    x = np.sqrt(settings.width) * p["item_embedding"][items] + positions
    for b in range(1, settings.n_layers + 1):
        block = p[f"block_{b}"]
        x = x + attention(layer_norm(x, block["norm_1"]), block, settings.n_heads)
        first, second = block["linear_1"], block["linear_2"]
        inner = np.maximum(layer_norm(x, block["norm_2"]) @ first["kernel"] + first["bias"], 0)
        x = x + inner @ second["kernel"] + second["bias"]
    return layer_norm(x, p["norm"])


def test_vectors_match_float64_reference():
    got = encode(ITEMS)[0]
    for row, items in zip(got, ITEMS, strict=True):
        kept = items >= 0
        want = reference(items[kept], variables()[0], TINY)
        np.testing.assert_allclose(row[kept], want, rtol=1e-4, atol=1e-5)


def test_vectors_are_causal():
    before = encode(ITEMS[1:2])[0][0]
    for t in range(5):
        changed = ITEMS[1:2].copy()
        changed[0, t] = 8
        after = encode(changed)[0][0]
        np.testing.assert_array_equal(after[:t], before[:t])
        assert (np.abs(after[t:] - before[t:]).max(axis=1) > 1e-3).all()


@pytest.mark.parametrize("junk", [-1, -7])
def test_padding_does_not_change_vectors(junk):
    """Neither the ids of padding nor its amount; vectors of padding are finite."""
    wide = np.concatenate([np.full((3, 2), junk), np.where(ITEMS < 0, junk, ITEMS)], axis=1)
    got, want = encode(wide)[0], encode(ITEMS)[0]
    assert np.isfinite(got).all()
    for a, b, kept in zip(got[:, 2:], want, ITEMS >= 0, strict=True):
        np.testing.assert_allclose(a[kept], b[kept], rtol=1e-5, atol=1e-6)


def test_dropout_applies_in_training_and_varies_per_call():
    params, rest = variables()
    without_dropout = replace(TINY, dropout=0.0)
    want = encode(ITEMS)[0]
    np.testing.assert_allclose(
        encode(ITEMS, Network(without_dropout), train=True)[0], want, rtol=1e-6
    )
    first, after = encode(ITEMS, train=True)
    second, _ = apply(NET, params, after, jnp.asarray(ITEMS), train=True)
    assert len({x.tobytes() for x in map(np.asarray, (want, first, second))}) == 3
    assert not np.array_equal(after["dropout_key"], rest["dropout_key"])


def test_item_vectors_are_the_input_embeddings():
    got, _ = apply(NET, *variables(), method="item_vectors")
    np.testing.assert_array_equal(got, variables()[0]["item_embedding"])


def test_bfloat16_is_close_and_remat_keeps_gradients():
    params, rest = variables()
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    got, _ = apply(NET, half, rest, jnp.asarray(ITEMS))
    assert got.dtype == jnp.bfloat16
    kept = ITEMS >= 0
    np.testing.assert_allclose(np.float32(got)[kept], encode(ITEMS)[0][kept], atol=0.1)

    def slope(network):
        def total(params):
            return jnp.sum(network.apply(params, rest, jnp.asarray(ITEMS), train=True)[0] ** 3)

        return jax.jit(jax.grad(total))(params)

    want = slope(NET)
    for got in (slope(replace(NET, remat=remat)) for remat in ("dots", "full")):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, want)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_items": 0}, "`n_items` must be at least 1, got 0"),
        ({"n_heads": 4}, "`n_heads` must divide `width`, 6, got 4"),
        ({"dropout": 1.0}, r"`dropout` must lie in \[0, 1\), got 1"),
    ],
)
def test_rejects_invalid_settings(wrong, message):
    with raises(ValueError, match=message):
        replace(TINY, **wrong)


def test_rejects_long_sequences():
    with raises(ValueError, match="`items` must have at most 7 columns, got 8"):
        NET.apply(*variables(), jnp.zeros((1, 8), jnp.int32))
