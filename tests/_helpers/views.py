"""Small networks and augmentations for tests of tasks on views."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from crl_jax import train
from crl_jax.models import Network
from crl_jax.train import ArrayBatches, Optimizer, TrainConfig

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(4, 6))
LABELS = np.repeat(np.arange(4), 16)
POINTS = (CENTRES[LABELS] + 0.3 * RNG.normal(size=(64, 6))).astype(np.float32)


class Linear(nnx.Module):
    """Linear map, with features that differ from its output."""

    def __init__(self, n_in, n_out, rngs):
        self.linear = nnx.Linear(n_in, n_out, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.linear(x)

    def features(self, x):
        return 2 * x


class Normed(nnx.Module):
    """Two layers with batch normalisation in between; features are the input of the second."""

    def __init__(self, rngs):
        # The gradient of a bias would be pure rounding error, which Adam scales to full steps.
        self.first = nnx.Linear(6, 16, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.head = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x):
        return self.head(self.features(x))

    def features(self, x):
        return nnx.relu(self.norm(self.first(x)))


def linear(rngs):
    return Linear(6, 5, rngs)


def square(rngs):
    return Linear(5, 5, rngs)


LINEAR, SQUARE, NORMED = Network(linear), Network(square), Network(Normed)


class Given(Network):
    """Network that returns fixed embeddings for any input."""

    def __init__(self, z):
        object.__setattr__(self, "z", jnp.asarray(z, jnp.float32))

    def apply(self, params, rest, *args, train=False, method="__call__"):
        return self.z, rest


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Jitter:
    """Adds noise, whose scale is a leaf; halves the example outside training."""

    size: Any = 0.1

    def __call__(self, key, example):
        return example + jnp.asarray(self.size, jnp.float32) * jax.random.normal(key, example.shape)

    def plain(self, example):
        return example / 2


def jitter(key, example):
    return example + 0.1 * jax.random.normal(key, example.shape)


def fit(task, data=POINTS, config=None, epochs=2, optimizer=None, **rest):
    optimizer, config = optimizer or Optimizer(1e-2), config or TrainConfig(16)
    data = jax.tree.map(jnp.asarray, data)
    return train.fit(task, optimizer, ArrayBatches(data), config, epochs=epochs, **rest)


def ctx(n, n_real=None, progress=0.0, epoch=0):
    """Returns the context of a step with ``n`` examples, all after ``n_real`` being padding."""
    n_real = n if n_real is None else n_real
    where = jnp.arange(n) < n_real
    return train.StepContext(
        jax.random.key(0), jnp.int32(epoch), jnp.float32(progress), where, jnp.float32(n_real)
    )


def first_run(tree):
    return jax.tree.map(lambda leaf: leaf[0], tree)


def unit(x):
    """Returns the rows scaled to unit norm, in float64."""
    x = np.asarray(x, np.float64)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
