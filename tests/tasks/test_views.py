"""SimCLR, MoCo and CLIP, trained on scikit-learn's digits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.killing import Killed, kill_at
from _helpers.refusals import raises
from flax import nnx
from jax.sharding import Mesh
from sklearn.datasets import load_digits

from crl_jax import losses, train
from crl_jax.losses import normalize
from crl_jax.models import Network
from crl_jax.tasks import CLIP, MoCo, SimCLR
from crl_jax.train import ArrayBatches, Checkpoint, Optimizer, TrainConfig

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

DIGITS = (load_digits().images / 16).astype(np.float32)
TRAIN, TEST = jnp.asarray(DIGITS[:1000]), jnp.asarray(DIGITS[1000:1200])


class Encoder(nnx.Module):
    """A layer with batch statistics between two others."""

    def __init__(self, width, rngs):
        self.first = nnx.Linear(width, 64, rngs=rngs)
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.second = nnx.Linear(64, 32, rngs=rngs)

    def __call__(self, x):
        hidden = nnx.relu(self.norm(self.first(x.reshape(x.shape[0], -1))))
        return self.second(hidden)


def whole(rngs):
    return Encoder(64, rngs)


def half(rngs):
    return Encoder(32, rngs)


def shift_and_drop(key, image):
    """Randomly shifts by a pixel and sets a tenth of the pixels to 0."""
    shift_key, drop_key = jax.random.split(key)
    shift = jax.random.randint(shift_key, (2,), 0, 2)
    moved = jnp.roll(image, shift, axis=(0, 1))
    return jnp.where(jax.random.bernoulli(drop_key, 0.9, image.shape), moved, 0)


BCL = SimCLR(
    Network(whole), shift_and_drop,
    {"temperature": 0.3, "tau_plus": 0.1, "alpha": 0.9, "beta": 0.9},
    losses.bayesian_contrastive,
)  # fmt: skip
MOCO = MoCo(
    Network(whole), shift_and_drop, {"temperature": 0.2}, losses.info_nce, momentum=0.9, dim=32,
    queue=512,
)  # fmt: skip


# For runs that differ in rounding: Adam turns a gradient of pure rounding into a full step.
DESCENT = Optimizer(0.1, rule=train.sgd_l2)


def fit(task, data=TRAIN, config=None, epochs=8, optimizer=None, **rest):
    optimizer, config = optimizer or Optimizer(1e-2), config or TrainConfig(128)
    return train.fit(task, optimizer, ArrayBatches(data), config, epochs=epochs, **rest)


def found(z1, z2):
    """Returns how often the embedding nearest to a first view is that of its second view."""
    scores = np.asarray(normalize(z1) @ normalize(z2).T)
    return np.mean(scores.argmax(axis=1) == np.arange(len(scores)))


def views_found(task, params, model_state):
    keys = jax.random.split(jax.random.key(9), (2, len(TEST)))
    return found(
        *(task.embed(params, model_state, jax.vmap(shift_and_drop)(k, TEST)) for k in keys)
    )


@pytest.mark.parametrize("task", [BCL, MOCO], ids=["views", "momentum"])
def test_views_of_one_digit_come_together(task):
    before = train.initial_state(task, Optimizer(1e-3), 0)
    fitted = fit(task, epochs=20)
    model_state = jax.tree.map(lambda leaf: leaf[0], fitted.state.model_state)
    untrained = views_found(task, before.params, before.model_state)
    assert views_found(task, fitted.run(), model_state) > untrained + 0.1
    assert fitted.history[-1]["loss"][0] < fitted.history[0]["loss"][0]


def test_batch_statistics_are_those_of_the_data():
    """The running mean of the first layer's outputs, after many epochs that hardly learn."""
    task = BCL
    fitted = train.fit(
        task, Optimizer(1e-9), ArrayBatches(TRAIN), TrainConfig(128), epochs=40, eval_every=40
    )
    kernel = np.asarray(fitted.run()["first"]["kernel"], np.float64)
    rest = jax.tree.map(lambda leaf: leaf[0], fitted.state.model_state)
    keys = jax.random.split(jax.random.key(1), len(TRAIN))
    seen = np.asarray(jax.vmap(shift_and_drop)(keys, TRAIN), np.float64).reshape(len(TRAIN), -1)
    got = np.asarray(rest["norm"]["mean"])
    np.testing.assert_allclose(got, (seen @ kernel).mean(axis=0), atol=0.08)
    assert np.abs(got).max() > 0.2


def test_fillers_are_no_negatives():
    """The loss of 3 examples in a batch of 8 equals that of the 3 alone."""
    task, key = BCL, jax.random.key(0)
    state = train.initial_state(task, Optimizer(1e-3), 0)
    place = jnp.array([0, 1, 2, 0, 0, 0, 0, 0])
    views = task.batch(key, train.Batch(place, TRAIN[place]))
    where, nothing = jnp.arange(8) < 3, jnp.float32(0)

    @jax.jit
    def loss(views, where):
        ctx = train.StepContext(
            key, jnp.int32(0), nothing, where, jnp.sum(where).astype(jnp.float32)
        )
        z = [task.network.apply(state.params, state.model_state, view)[0] for view in views[:2]]
        eval_only = SimCLR(FixedNetwork(jnp.concatenate(z)), shift_and_drop, task.hyperparams,
                             task.loss_fn)  # fmt: skip
        return eval_only.loss({}, {}, views, ctx)[0]

    few = jax.tree.map(lambda x: x[:3], views)
    np.testing.assert_allclose(loss(views, where), loss(few, jnp.ones(3, bool)), rtol=1e-5)


class FixedNetwork(Network):
    """An encoder that returns the same embeddings for all inputs."""

    def __init__(self, z):
        object.__setattr__(self, "z", z)

    def apply(self, params, rest, *args, train=False):
        return self.z, rest


def test_a_queue_holds_the_keys_of_the_last_batches():
    """20 examples in batches of 8, the last one padded: 4 of its keys count."""
    task = MoCo(Network(whole), shift_and_drop, {}, losses.info_nce, momentum=0.5, dim=32, queue=50)
    first = train.initial_state(task, Optimizer(1e-3), 0)
    fitted = fit(task, TRAIN[:20], TrainConfig(8), epochs=1)
    after = jax.tree.map(lambda leaf: leaf[0], fitted.state.model_state)
    assert after.pointer == 20
    # Computed in another program, they may differ in their last digit.
    moved = np.abs(np.asarray(after.queue - first.model_state.queue)).max(axis=1)
    assert np.all(moved[20:] < 1e-6)
    assert np.all(moved[:20] > 1e-2)
    np.testing.assert_allclose(np.linalg.norm(after.queue, axis=1), 1, rtol=1e-5)


def test_a_queue_that_cannot_hold_a_batch_is_refused():
    task = MoCo(Network(whole), shift_and_drop, {}, dim=32, queue=15)
    with raises(ValueError, match="`queue` must be at least the batch size 16, got 15"):
        fit(task, TRAIN[:16], TrainConfig(16), epochs=1)


def test_the_target_is_the_average_of_the_parameters():
    task = MoCo(Network(whole), shift_and_drop, {}, momentum=0.75, dim=32, queue=64)
    start = train.initial_state(task, Optimizer(1e-3), 0).params
    one = fit(task, TRAIN[:16], TrainConfig(16), epochs=1)
    target = jax.tree.map(lambda leaf: leaf[0], one.state.model_state.target)
    want = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, start, one.run())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), target, want)


def test_towers_bring_the_halves_of_a_digit_together():
    task = CLIP(Network(half), Network(half))
    data = tuple(x.reshape(len(TRAIN), -1) for x in (TRAIN[:, :, :4], TRAIN[:, :, 4:]))
    fitted = fit(task, data, epochs=25)
    model_state = jax.tree.map(lambda leaf: leaf[0], fitted.state.model_state)
    test = (x.reshape(len(TEST), -1) for x in (TEST[:, :, :4], TEST[:, :, 4:]))
    share = found(*task.embed(fitted.run(), model_state, *test))
    assert share > 0.05  # by chance 1 of 200
    temperatures = [entry["temperature"][0] for entry in fitted.history]
    assert temperatures[0] == pytest.approx(0.07, rel=0.1)
    assert temperatures[-1] != temperatures[0]


@pytest.mark.parametrize("task", [BCL, MOCO], ids=["views", "momentum"])
def test_many_devices_and_half_precision_give_nearly_the_same(task):
    """Batch statistics and negatives are those of the whole batch, for every sharding."""
    plain = fit(task, TRAIN[:200], TrainConfig(64), epochs=2, optimizer=DESCENT)
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    spread = fit(task, TRAIN[:200], TrainConfig(64, mesh=mesh), epochs=2, optimizer=DESCENT)
    np.testing.assert_allclose(
        spread.history[-1]["loss"][0], plain.history[-1]["loss"][0], rtol=1e-4
    )
    config = TrainConfig(64, compute_dtype="bfloat16")
    half = fit(task, TRAIN[:200], config, epochs=2, optimizer=DESCENT)
    assert all(x.dtype != jnp.bfloat16 for x in jax.tree.leaves(half.params))
    np.testing.assert_allclose(half.history[-1]["loss"][0], plain.history[-1]["loss"][0], rtol=0.05)


def test_what_is_averaged_and_queued_survives_a_kill(tmp_path):
    whole_run = fit(MOCO, TRAIN[:200], TrainConfig(64), epochs=4)
    path = tmp_path / "state.npz"

    hooks = [Checkpoint(path, 0.0), train.Progress(kill_at(2))]
    with raises(Killed):
        fit(MOCO, TRAIN[:200], TrainConfig(64), epochs=4, hooks=hooks)
    resumed = fit(MOCO, TRAIN[:200], TrainConfig(64), epochs=4, hooks=[Checkpoint(path)])
    jax.tree.map(np.testing.assert_array_equal, whole_run.params, resumed.params)
