"""A tiny BERT, its weights under their published names, and its forward pass in float64."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from crl_jax.data import Tokens
from crl_jax.models import BERT

TINY = BERT(
    vocab_size=40, width=12, n_layers=2, n_heads=3, inner_width=20, n_positions=10, dropout=0.1
)


def tokens(n=5, length=8, seed=0):
    """Returns padded texts of random lengths; the first one has full length."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, length + 1, n)
    lengths[0] = length
    mask = np.arange(length) < lengths[:, None]
    ids = np.where(mask, rng.integers(1, 40, (n, length)), 0)
    return Tokens(jnp.asarray(ids, jnp.int32), jnp.asarray(mask))


def published(settings=TINY, seed=0, dtype=np.float32):
    """Returns random weights under the names of published checkpoints."""
    rng = np.random.default_rng(seed)
    width, inner = settings.width, settings.inner_width
    arrays = {}

    def add(name, *shape, around=0.0):
        arrays[name] = (around + 0.3 * rng.normal(size=shape)).astype(dtype)

    def norm(name):
        add(f"{name}.LayerNorm.weight", width, around=1.0)
        add(f"{name}.LayerNorm.bias", width)

    add("embeddings.word_embeddings.weight", settings.vocab_size, width)
    add("embeddings.position_embeddings.weight", settings.n_positions, width)
    add("embeddings.token_type_embeddings.weight", settings.n_types, width)
    norm("embeddings")
    for layer in range(settings.n_layers):
        own = f"encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            add(f"{own}.attention.{part}.weight", width, width)
            add(f"{own}.attention.{part}.bias", width)
        norm(f"{own}.attention.output")
        add(f"{own}.intermediate.dense.weight", inner, width)
        add(f"{own}.intermediate.dense.bias", inner)
        add(f"{own}.output.dense.weight", width, inner)
        add(f"{own}.output.dense.bias", width)
        norm(f"{own}.output")
    return arrays


def reference(arrays, settings, ids, mask):
    """Returns the token embeddings of each text without padding, by loops over texts and heads."""
    w = {name: np.asarray(array, np.float64) for name, array in arrays.items()}

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name, x):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + settings.epsilon)
        return x * w[f"{name}.LayerNorm.weight"] + w[f"{name}.LayerNorm.bias"]

    out = []
    for text, kept in zip(np.asarray(ids), np.asarray(mask), strict=True):
        text = text[kept]
        x = w["embeddings.word_embeddings.weight"][text]
        x = x + w["embeddings.position_embeddings.weight"][: len(text)]
        x = norm("embeddings", x + w["embeddings.token_type_embeddings.weight"][0])
        for layer in range(settings.n_layers):
            own = f"encoder.layer.{layer}"
            q, k, v = (linear(f"{own}.attention.self.{n}", x) for n in ("query", "key", "value"))
            size, heads = settings.width // settings.n_heads, []
            for head in range(settings.n_heads):
                at = slice(head * size, (head + 1) * size)
                weights = special.softmax(q[:, at] @ k[:, at].T / np.sqrt(size), axis=1)
                heads.append(weights @ v[:, at])
            taken = linear(f"{own}.attention.output.dense", np.concatenate(heads, axis=1))
            x = norm(f"{own}.attention.output", x + taken)
            inner = linear(f"{own}.intermediate.dense", x)
            inner = inner * special.ndtr(inner)
            x = norm(f"{own}.output", x + linear(f"{own}.output.dense", inner))
        out.append(x)
    return out


def leave(key, example):
    """Identity augmentation, as in SimCSE: dropout produces the views."""
    del key
    return example


def rest_of(network):
    return jax.jit(network.init)(jax.random.key(7))[1]
