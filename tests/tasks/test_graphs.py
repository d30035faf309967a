"""Two views of graphs: network inputs, convergence, and training on several devices."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.views import DESCENT, ctx, first_run, fit

from crl_jax import data, losses
from crl_jax.augment import GraphAugmentation
from crl_jax.models import GIN, BackboneWithHead, GraphArrays, Network, Projection
from crl_jax.tasks import Classification, LabelledExamples, SimCLR
from crl_jax.train import Batch, Optimizer, TrainConfig

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

GRAPHS = data.simulate_graphs(n=64, n_nodes=(4, 10), noise=0.0, seed=1)
ARRAYS = GraphArrays.from_graphs(GRAPHS)
PLACES = np.arange(64, dtype=np.int32)
SETTINGS = GIN(4, width=8, n_layers=2)
NETWORK = Network(BackboneWithHead(SETTINGS, Projection((16, 16), norm=False)))
VIEWS = GraphAugmentation(ARRAYS, kinds=("drop_nodes", "subgraph"))
TASK = SimCLR(NETWORK, VIEWS, {"temperature": 0.2}, losses.decoupled_contrastive)


def test_it_learns_the_graphs():
    fitted = fit(TASK, PLACES, epochs=15)
    history = [entry["loss"][0] for entry in fitted.history]
    assert history[-1] < history[0] - 0.2


def test_representations_are_of_graphs_as_they_are():
    params, rest = TASK.init(jax.random.key(0))
    got = TASK.represent(params, rest, jnp.asarray(PLACES[:20]), block_size=8)
    batch = ARRAYS.pack(jnp.arange(20))
    want, _ = NETWORK.apply(params, rest, batch, method="features")
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert got.shape == (20, 16)


def test_a_view_at_a_time_is_the_same():
    """An augmentation that does not support batches: each graph is padded to the largest."""

    def alone(key, place):
        return VIEWS(key, place)

    params, rest = TASK.init(jax.random.key(0))
    losses_of = []
    for task in (TASK, replace(TASK, augment=alone)):
        examples = Batch(jnp.arange(12), jnp.arange(12))
        batch = jax.jit(task.batch)(jax.random.key(3), examples)
        losses_of.append(jax.jit(task.loss)(params, rest, batch, ctx(12))[0])
    np.testing.assert_allclose(losses_of[0], losses_of[1], rtol=1e-4)


def test_many_devices_give_nearly_the_same():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("data",))
    plain = fit(TASK, PLACES, optimizer=DESCENT)
    task = replace(TASK, augment=replace(VIEWS, n_packs=8))
    spread = fit(task, PLACES, config=TrainConfig(16, mesh=mesh), optimizer=DESCENT)
    for got, want in zip(spread.history, plain.history, strict=True):
        np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-3)


def test_classes_from_features():
    labelled = LabelledExamples(PLACES, GRAPHS.labels)
    views = replace(VIEWS, kinds=("identity",))
    backbone = NETWORK.init(jax.random.key(0))
    task = Classification(NETWORK, views, backbone, dim=16, n_classes=3, finetune=True)
    fitted = fit(task, labelled, optimizer=Optimizer(3e-2), epochs=15)
    assert fitted.history[-1]["accuracy"][0] > 0.6
    found = task.classify(fitted.run(), first_run(fitted.state.model_state), jnp.asarray(PLACES))
    assert found.shape == (64,)
