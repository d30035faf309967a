"""Tasks on graphs: inputs of the network, views one by one, and classes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import apply, in_one, initial
from _helpers.views import ctx

from crl_jax import data, losses, train
from crl_jax.augment import GraphAugmentation
from crl_jax.models import GIN, BackboneWithHead, GraphArrays, Network, Projection
from crl_jax.tasks import Classification, LabelledExamples, SimCLR
from crl_jax.train import Batch

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

GRAPHS = data.simulate_graphs(n=64, n_nodes=(4, 10), noise=0.0, seed=1)
ARRAYS = GraphArrays.from_graphs(GRAPHS)
SETTINGS = GIN(4, width=8, n_layers=2)
NETWORK = Network(BackboneWithHead(SETTINGS, Projection((16, 16), norm=False)))
VIEWS = GraphAugmentation(ARRAYS, kinds=("drop_nodes", "subgraph"))
TASK = SimCLR(NETWORK, VIEWS, {"temperature": 0.2}, losses.decoupled_contrastive)


def test_represent_uses_unaugmented_graphs():
    params, rest = in_one(TASK.init, jax.random.key(0))
    got = in_one(TASK.represent, params, rest, jnp.arange(20), block_size=8)
    batch = in_one(ARRAYS.pack, jnp.arange(20))
    want, _ = apply(NETWORK, params, rest, batch, method="features")
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert got.shape == (20, 16)


def test_classification_on_graphs_has_expected_shapes():
    """Shapes only; the augmentation packs batches."""
    task = Classification(
        NETWORK, replace(VIEWS, kinds=("identity",)), initial(NETWORK), dim=16,
        n_classes=3, finetune=True,
    )  # fmt: skip
    index = jnp.arange(64)

    def step(key):
        params, model_state = task.init(key)
        examples = Batch(index, LabelledExamples(index, jnp.asarray(GRAPHS.labels)))
        loss, _ = task.loss(params, model_state, task.batch(key, examples), ctx(64))
        return loss, task.classify(params, model_state, index)

    loss, classes = jax.eval_shape(step, jax.random.key(0))
    assert (loss.shape, classes.shape) == ((), (64,))


def test_single_view_augmentation_matches_batched():
    """An augmentation that does not support batches: each graph is padded to the largest."""

    def alone(key, place):
        return VIEWS(key, place)

    params, rest = in_one(TASK.init, jax.random.key(0))
    losses_of = []
    for task in (TASK, replace(TASK, augment=alone)):
        examples = Batch(jnp.arange(12), jnp.arange(12))
        batch = jax.jit(task.batch)(jax.random.key(3), examples)
        losses_of.append(jax.jit(task.loss)(params, rest, batch, ctx(12))[0])
    np.testing.assert_allclose(losses_of[0], losses_of[1], rtol=1e-4)


class Interruption(Exception):
    pass


class StopAfterOneEpoch(train.Callback):
    def on_report(self, loop):
        raise Interruption


def test_multi_device_checkpoint_resumes_on_single_device(tmp_path):
    """The number of packs follows the mesh; checkpoints do not depend on it."""

    def train_on(n, *hooks):
        mesh = None if n == 1 else jax.sharding.Mesh(np.array(jax.devices()[:n]), ("data",))
        plan = train.TrainConfig(16, mesh=mesh)
        batches = train.ArrayBatches(jnp.arange(64))
        return train.fit(TASK, train.Optimizer(1e-3), batches, plan, epochs=2, hooks=hooks)

    checkpoint = train.Checkpoint(tmp_path / "state.npz", 0.0)
    with pytest.raises(Interruption):
        train_on(2, checkpoint, StopAfterOneEpoch())
    got, want = train_on(1, checkpoint), train_on(1)
    assert [entry["epoch"] for entry in got.history] == [1, 2]
    for a, b in zip(got.history, want.history, strict=True):
        np.testing.assert_allclose(a["loss"], b["loss"], rtol=1e-4)
