"""Linear classifiers on frozen features, and fine-tuning, on separable points."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _helpers.programs import apply, in_one, initial
from _helpers.refusals import raises
from flax import nnx
from scipy import special

from crl_jax import metrics, train
from crl_jax.models import Network
from crl_jax.tasks import Classification
from crl_jax.train import ArrayBatches, Optimizer, TrainConfig

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, 120)
CENTRES = 4 * RNG.normal(size=(3, 6))
POINTS = jnp.asarray(CENTRES[LABELS] + RNG.normal(size=(120, 6)), jnp.float32)
CLASSES = jnp.asarray(LABELS, jnp.int32)


class Normed(nnx.Module):
    """Encoder whose features are normalised with batch statistics."""

    def __init__(self, rngs):
        self.first = nnx.Linear(6, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.5, rngs=rngs)
        self.head = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(self.features(x))

    def features(self, x):
        return nnx.relu(self.norm(self.first(x)))


class Identity(nnx.Module):
    """Encoder that returns its input."""

    def __init__(self, rngs):
        pass

    def features(self, x):
        return x


NORMED, IDENTITY = Network(Normed), Network(Identity)
BACKBONE = initial(NORMED, 5)
BEFORE = jax.tree.map(np.array, BACKBONE)


def noisy(key, x):
    return x + 0.1 * jax.random.normal(key, x.shape)


def no_augmentation(key, x):
    return x


FROZEN = Classification(NORMED, noisy, BACKBONE, dim=8, n_classes=3)
FINETUNED = Classification(NORMED, noisy, BACKBONE, dim=8, n_classes=3, finetune=True)


def fit(task, data=(POINTS, CLASSES), config=None, epochs=40, optimizer=None, **rest):
    optimizer = Optimizer(0.05) if optimizer is None else optimizer
    config = TrainConfig(32) if config is None else config
    return train.fit(
        task, optimizer, ArrayBatches(data), config, epochs=epochs, eval_every=epochs, **rest
    )


def first_run(fitted):
    return fitted.get_params(), jax.tree.map(lambda leaf: leaf[0], fitted.state.model_state)


def ctx(n, real=None):
    where = jnp.arange(n) < (n if real is None else real)
    count = jnp.sum(where).astype(jnp.float32)
    return train.StepContext(jax.random.key(0), jnp.int32(0), jnp.float32(0), where, count)


def test_frozen_network_does_not_change():
    """The encoder is frozen, does not normalise by the batch, and keeps its statistics."""
    fitted = fit(FROZEN)
    params, model_state = first_run(fitted)
    assert fitted.history[-1]["accuracy"][0] > 0.97
    np.testing.assert_array_equal(in_one(FROZEN.classify, params, model_state, POINTS), CLASSES)
    assert set(params) == {"layer"}
    assert not jax.tree.leaves(model_state)
    jax.tree.map(np.testing.assert_array_equal, FROZEN.backbone, BEFORE)
    (alone, _), (among, _) = (
        in_one(FROZEN.loss, params, model_state, (POINTS[:n], CLASSES[:n]), ctx(n, real=3))
        for n in (3, 32)
    )
    np.testing.assert_allclose(alone, among, rtol=1e-5)
    # The reference loss uses the features in evaluation mode.
    z = apply(NORMED, *BACKBONE, POINTS[:3], method="features")[0]
    kernel, bias = (np.asarray(params["layer"][name], np.float64) for name in ("kernel", "bias"))
    logits = np.asarray(z, np.float64) @ kernel + bias
    want = -special.log_softmax(logits, axis=1)[np.arange(3), LABELS[:3]].mean()
    assert alone == pytest.approx(want, rel=1e-4)


def test_hidden_layer_learns_xor():
    """Exclusive or; logits agree with a reference in float64."""
    x = jnp.asarray(RNG.uniform(-1, 1, (200, 2)), jnp.float32)
    y = jnp.asarray(x[:, 0] * x[:, 1] > 0, jnp.int32)
    linear = Classification(IDENTITY, no_augmentation, ({}, {}), dim=2, n_classes=2)
    deep = Classification(IDENTITY, no_augmentation, ({}, {}), dim=2, n_classes=2, hidden=16)
    got = {}
    for name, task in (("linear", linear), ("deep", deep)):
        params, model_state = first_run(fit(task, (x, y), epochs=150))
        got[name] = np.mean(in_one(task.classify, params, model_state, x) == y)
    assert got["linear"] < 0.75
    assert got["deep"] > 0.95
    assert set(params) == {"layer", "hidden"}
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    h, o = exact["hidden"], exact["layer"]
    want = np.tanh(np.asarray(x, np.float64) @ h["kernel"] + h["bias"]) @ o["kernel"] + o["bias"]
    logits = in_one(deep.logits, params, model_state, x)
    np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-5)
    first, again = deep.init(jax.random.key(0))[0], deep.init(jax.random.key(1))[0]
    assert not np.array_equal(first["hidden"]["kernel"], again["hidden"]["kernel"])
    assert not first["layer"]["kernel"].any()
    with raises(ValueError, match="hidden"):
        Classification(IDENTITY, no_augmentation, ({}, {}), dim=2, n_classes=2, hidden=0)


def test_finetuning_updates_network_and_batch_statistics():
    fitted = fit(FINETUNED)
    params, model_state = first_run(fitted)
    assert fitted.history[-1]["accuracy"][0] > 0.97
    assert set(params) == {"layer", "network"}
    for before, after in ((BEFORE[0], params["network"]), (BEFORE[1], model_state)):
        for layer in {"first", "norm"} & set(before):
            same = jax.tree.map(np.array_equal, before[layer], after[layer])
            assert not any(jax.tree.leaves(same))
    jax.tree.map(np.testing.assert_array_equal, BACKBONE, BEFORE)
    (alone, _), (among, _) = (
        in_one(FINETUNED.loss, params, model_state, (POINTS[:n], CLASSES[:n]), ctx(n, real=3))
        for n in (3, 32)
    )
    assert abs(alone - among) > 1e-3  # batch statistics include the others


def l2_of_matrices(learning_rate, weight_decay):
    def matrices(params):
        return jax.tree.map(lambda x: x.ndim > 1, params)

    decay = optax.add_decayed_weights(weight_decay, matrices)
    return optax.chain(decay, optax.adam(learning_rate))


def test_optimum_without_augmentation_matches_linear_probe():
    """On standardised features, where L2 is the same for both. Weights agree to 1e-3."""
    x = np.random.default_rng(1).normal(size=(120, 6)) + 0.5 * CENTRES[LABELS]
    x = jnp.asarray((x - x.mean(0)) / x.std(0), jnp.float32)
    probe = metrics.linear_probe(
        x, CLASSES, x, CLASSES, n_classes=3, key=jax.random.key(0), l2=0.02, tolerance=1e-6
    )
    task = Classification(IDENTITY, no_augmentation, initial(IDENTITY), dim=6, n_classes=3)
    optimizer = Optimizer(0.03, 0.02, decay=0.0, schedule=train.cosine, rule=l2_of_matrices)
    fitted = fit(task, (x, CLASSES), TrainConfig(120), 1000, optimizer)
    params, model_state = first_run(fitted)
    np.testing.assert_allclose(params["layer"]["kernel"], probe.kernel, atol=1e-3)
    bias = params["layer"]["bias"]
    np.testing.assert_allclose(bias - bias.mean(), probe.bias - probe.bias.mean(), atol=1e-3)
    np.testing.assert_array_equal(in_one(task.classify, params, model_state, x), probe.predictions)


@pytest.mark.parametrize("soiled", ["filler", "label"])
def test_padding_and_unknown_labels_do_not_contribute(soiled):
    """Unknown labels affect neither the loss, nor the accuracy, nor the gradient."""
    params = {"layer": {"kernel": jnp.asarray(RNG.normal(size=(8, 3)), jnp.float32),
                        "bias": jnp.zeros(3)}}  # fmt: skip

    def loss_and_gradients(points, labels, ctx):
        def loss(params):
            value, (_, measured) = FROZEN.loss(params, {}, (points, labels), ctx)
            return value, measured["accuracy"]

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    want = loss_and_gradients(POINTS[:5], CLASSES[:5], ctx(5))
    if soiled == "filler":
        got = loss_and_gradients(POINTS[:8], CLASSES[:8], ctx(8, real=5))
    else:
        got = loss_and_gradients(POINTS[:8], CLASSES[:8].at[5:].set(-1), ctx(8))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), got, want)
    all_unknown = loss_and_gradients(POINTS[:2], jnp.array([-1, -2]), ctx(2))
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(all_unknown))


def test_augmentation_is_random_in_training_and_plain_in_evaluation():
    index = jnp.zeros(4, jnp.int32)
    examples = train.Batch(index, (POINTS[index], CLASSES[index]))
    one, other = (in_one(FROZEN.batch, jax.random.key(i), examples)[0] for i in (0, 1))
    assert len(np.unique(np.concatenate([one, other])[:, 0])) == 8
    np.testing.assert_array_equal(
        in_one(FROZEN.batch, jax.random.key(0), examples)[1], CLASSES[index]
    )

    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class Shifted:
        by: Any

        def __call__(self, key, x):
            return x + self.by + 0 * jax.random.normal(key, x.shape)

        def plain(self, x):
            return x + self.by

    task = Classification(IDENTITY, Shifted(jnp.float32(2)), ({}, {}), dim=6, n_classes=6)
    params = {"layer": {"kernel": jnp.eye(6), "bias": jnp.zeros(6)}}
    np.testing.assert_array_equal(in_one(task.logits, params, {}, POINTS[:4]), POINTS[:4] + 2)
    assert jax.tree.leaves(task.augment) == [2]


@pytest.mark.parametrize("block_size", [7, 500])
def test_block_size_does_not_change_predictions(block_size):
    params = {"layer": {"kernel": jnp.asarray(RNG.normal(size=(8, 3)), jnp.float32),
                        "bias": jnp.arange(3.0)}}  # fmt: skip
    got = in_one(FROZEN.logits, params, {}, POINTS, block_size=block_size)
    np.testing.assert_allclose(got, in_one(FROZEN.logits, params, {}, POINTS), rtol=1e-5, atol=1e-5)
    classes = in_one(FROZEN.classify, params, {}, POINTS, block_size=block_size)
    np.testing.assert_array_equal(classes, np.argmax(got, axis=1))


def test_rejects_invalid_arguments():
    with raises(ValueError, match="`n_classes` must be at least 2, got 1"):
        Classification(NORMED, noisy, BACKBONE, dim=8, n_classes=1)
    with raises(ValueError, match="`dim` must be at least 1"):
        Classification(NORMED, noisy, BACKBONE, dim=0, n_classes=3)
    with raises(ValueError, match=r"`dim` must be the width of the features, .*, got 9"):
        fit(Classification(NORMED, noisy, BACKBONE, dim=9, n_classes=3), epochs=1)
    with raises(ValueError, match="`augment` must be callable"):
        fit(Classification(NORMED, 3, BACKBONE, dim=8, n_classes=3), epochs=1)
    with raises(ValueError, match="`block_size` must be at least 1"):
        in_one(FROZEN.logits, {}, {}, POINTS, block_size=0)
