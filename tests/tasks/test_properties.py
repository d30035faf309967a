"""Properties of all tasks but ranking: two steps of gradient descent, the second one padded."""

import re
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.bert import TINY, leave, tokens
from _helpers.programs import counted
from _helpers.refusals import raises
from _helpers.views import LABELS, LINEAR, NORMED, POINTS, Jitter
from flax import nnx
from jax.sharding import Mesh

from crl_jax import data, losses, tasks, train
from crl_jax.augment import GraphAugmentation
from crl_jax.models import GIN, BackboneWithHead, GraphArrays, Network, Projection, SASRec
from crl_jax.train import TrainConfig
from crl_jax.train._epoch import replace_leaf

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

ORDER = np.arange(64).reshape(4, 16).T.ravel()  # neighbours are of different classes
X, Y = jnp.asarray(POINTS[ORDER]), jnp.asarray(LABELS[ORDER], jnp.int32)
LABELLED = tasks.LabelledExamples(X, Y)
SOME = tasks.LabelledExamples(X, jnp.where(Y < 2, 0, -1))
PAIRS = tasks.LabelledExamples((X, X[:, ::-1]), Y)
POOL = tasks.ClassPool.from_labels(LABELLED)
TEXTS = jax.tree.map(jnp.asarray, tokens(n=24))
GRAPHS = GraphArrays.from_graphs(data.simulate_graphs(n=64, n_nodes=(4, 10), noise=0.0, seed=1))
VIEWS = GraphAugmentation(GRAPHS, kinds=("drop_nodes", "subgraph"))
GRAPH_NETWORK = Network(BackboneWithHead(GIN(4, width=8, n_layers=1), Projection((8,), norm=False)))
SEQUENCES = jnp.asarray(
    data.leave_one_out(
        data.item_sequences(data.simulate_sequences(n_users=64, n_items=12, length=7))
    ).train
)
SEQUENCE_NETWORK = Network(SASRec(12, width=8, n_layers=1, n_positions=4))
BCL = {"temperature": 0.5, "tau_plus": 0.25, "beta": 0.9}
ALPHA = tasks.AlphaFromLabels(0.9)
JITTER = Jitter(0.1)


def predictor(rngs):
    return nnx.Linear(8, 8, rngs=rngs)


class Row(NamedTuple):
    """A task, its data, leaves that may be swept, and whether it reads batch statistics."""

    task: Any
    data: Any
    leaves: tuple[str, ...]
    is_normed: bool = False


bayesian = losses.bayesian_contrastive
ROWS = {
    "SimCLR": Row(
        tasks.SimCLR(LINEAR, JITTER, BCL, bayesian, alpha=ALPHA),
        LABELLED, ("hyperparams.beta", "augment.size", "alpha.decay"),
    ),
    "SimCLR, tiled": Row(
        tasks.SimCLR(LINEAR, JITTER, BCL, bayesian, alpha=ALPHA, tile=5),
        LABELLED, ("hyperparams.beta",),
    ),
    "SupCon": Row(
        tasks.SupCon(LINEAR, JITTER, {"temperature": 0.5}), LABELLED, ("hyperparams.temperature",)
    ),
    "SupervisedOracle": Row(
        tasks.SupervisedOracle(LINEAR, JITTER, {"temperature": 0.5}),
        LABELLED, ("hyperparams.temperature",),
    ),
    "PuNCE": Row(
        tasks.PuNCE(LINEAR, JITTER, {"temperature": 0.5, "tau_plus": 0.3}),
        SOME, ("hyperparams.tau_plus",),
    ),
    "MoCo": Row(
        tasks.MoCo(LINEAR, JITTER, BCL, bayesian, alpha=ALPHA, momentum=0.9, dim=5, queue=24),
        LABELLED, ("hyperparams.beta", "momentum"),
    ),
    "MultiView": Row(
        tasks.MultiView(
            LINEAR, JITTER, {"temperature": 0.5, "pos_scale": 0.5}, n_positives=3
        ),
        LABELLED, ("hyperparams.temperature", "hyperparams.pos_scale"),
    ),
    "SogCLR": Row(
        tasks.SogCLR(
            LINEAR, JITTER, {"temperature": 0.5}, n_examples=64, gamma=0.7,
            false_negative_share=0.2, warm_up=0.0,
        ),
        LABELLED, ("hyperparams.temperature", "gamma", "false_negative_share", "warm_up"),
    ),
    "GloFND": Row(
        tasks.GloFND(
            LINEAR, JITTER, BCL, bayesian, alpha=ALPHA, n_examples=64, false_negative_share=0.2,
            warm_up=0.0,
        ),
        LABELLED, ("hyperparams.beta", "false_negative_share", "warm_up"),
    ),
    "MemoryBank": Row(
        tasks.MemoryBank(
            LINEAR, JITTER, BCL, bayesian, alpha=ALPHA, momentum=0.4, dim=5, n_examples=64, n_neg=24
        ),
        LABELLED, ("hyperparams.beta", "momentum"),
    ),
    "BYOL": Row(
        tasks.BYOL(NORMED, JITTER, Network(predictor), momentum=0.5),
        X, ("augment.size", "momentum"), is_normed=True,
    ),
    "PCL": Row(
        tasks.PCL(
            LINEAR, JITTER, {"temperature": 0.2}, momentum=0.9, dim=5, queue=24, data=X,
            clusters=(4,), n_iterations=3, warm_up=0.0,
        ),
        X, ("hyperparams.temperature", "warm_up"),
    ),
    "CLIP": Row(
        tasks.CLIP(
            LINEAR, LINEAR, 0.5, loss_fn=bayesian, hyperparams={"tau_plus": 0.25, "beta": 0.9},
            alpha=ALPHA, augment_first=JITTER,
        ),
        PAIRS, ("hyperparams.beta", "augment_first.size"),
    ),
    "SogCLIP": Row(
        tasks.SogCLIP(
            LINEAR, LINEAR, 0.5, augment_first=JITTER, n_examples=64, gamma=0.7,
            false_negative_share=0.2, warm_up=0.0,
        ),
        PAIRS, ("gamma", "false_negative_share", "warm_up"),
    ),
    "CLIP, tiled": Row(
        tasks.CLIP(
            LINEAR, LINEAR, 0.5, loss_fn=losses.sigmoid_contrastive, bias=-1.0, tile=5,
        ),
        PAIRS, (),
    ),
    "ClassTriplets": Row(
        tasks.ClassTriplets(LINEAR, JITTER, {"temperature": 0.2}, pool=POOL),
        X, ("hyperparams.temperature",),
    ),
    "Classification": Row(
        tasks.Classification(
            NORMED, JITTER, NORMED.init(jax.random.key(5)), dim=16, n_classes=4, finetune=True
        ),
        LABELLED, ("augment.size",), is_normed=True,
    ),
    "texts": Row(
        tasks.SimCLR(
            Network(replace(TINY, n_layers=1, dropout=0.2)), leave, {"temperature": 0.2}
        ),
        TEXTS, ("hyperparams.temperature",),
    ),
    "sequences": Row(
        tasks.NextItem(
            SEQUENCE_NETWORK, 12, 4, losses.gbce, {"sampling_rate": 0.2, "temperature": 0.1},
            n_neg=2,
        ),
        SEQUENCES, ("hyperparams.sampling_rate",),
    ),
    "sequences, all items": Row(
        tasks.NextItem(
            SEQUENCE_NETWORK, 12, 4, bayesian, {**BCL, "temperature": 0.1}, negatives="all", tile=9
        ),
        SEQUENCES, ("hyperparams.beta",),
    ),
    "graphs": Row(
        tasks.SimCLR(GRAPH_NETWORK, VIEWS, {"temperature": 0.2}, losses.decoupled_contrastive),
        jnp.arange(64), (), is_normed=True,
    ),
}  # fmt: skip
# Packs of graphs are drawn per device.
SHARDED = {"graphs": replace(ROWS["graphs"].task, augment=replace(VIEWS, n_packs=8))}
MESH = Mesh(np.array(jax.devices()[:8]), ("data",))
PLAIN = TrainConfig(8)
SGD = train.Optimizer(0.05, rule=train.sgd_l2)
STEPS = train.Steps(
    jax.random.split(jax.random.key(1), 2),
    jnp.arange(16, dtype=jnp.int32).reshape(2, 8) % 12,
    jnp.arange(16).reshape(2, 8) < 12,
    jnp.array([[8.0], [4.0]]),
)
each_task = pytest.mark.parametrize("name", ROWS)


@cache
def program(config):
    """Returns compiled steps of ``(task, state, steps, data)``, and a list of their traces."""

    def steps(task, state, steps, data):
        return train.run_steps(task, SGD, state, steps, config=config, data=data)

    return counted(steps)


@cache
def start(name):
    task = ROWS[name].task

    @jax.jit
    def initial(key):
        state = train.initial_state(task, SGD, 0)
        model_state = task.start_epoch(key, state.params, state.model_state, jnp.int32(0))
        return state._replace(model_state=model_state)

    return initial(jax.random.key(2))


def run_two_steps(name, task=None, config=PLAIN, steps=STEPS, state=None):
    """Returns the state after the steps, and their mean loss and metrics."""
    row = ROWS[name]
    run, _ = program(config)
    return run(task or row.task, state or start(name), steps, row.data)


def values(tree):
    """Returns the leaves by path, random keys as their bits."""
    return {
        jax.tree_util.keystr(path): np.asarray(
            jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        )
        for path, x in jax.tree.leaves_with_path(tree)
    }


def assert_close(got, want, **tolerance):
    got, want = values(got), values(want)
    assert got.keys() == want.keys()
    for path, value in want.items():
        np.testing.assert_allclose(got[path], value, err_msg=path, **tolerance)


@each_task
def test_every_parameter_learns(name):
    """Gradients are finite and reach all parameters; the loss of the same two batches falls."""
    before = start(name)
    state, first = run_two_steps(name)
    for (path, old), new in zip(
        values(before.params).items(), values(state.params).values(), strict=True
    ):
        assert np.isfinite(new).all()
        # Attention shifts all scores of a query equally, whatever the bias of its keys, and a
        # classifier reads the features before the head.
        assert np.abs(new - old).max() > 1e-7 or re.search("'key'.*bias|'network'.*head", path), (
            path
        )
    for _ in range(10):
        state, last = run_two_steps(name, state=before._replace(params=state.params))
    assert last["loss"] < first["loss"]


@each_task
def test_hyperparameter_values_do_not_recompile(name):
    """They are leaves of the task that traced steps can read: they may be swept."""
    row = ROWS[name]
    want, report = run_two_steps(name)
    _, traces = program(PLAIN)
    n_traces = len(traces)
    assert_close(run_two_steps(name, replace(row.task)), (want, report), rtol=0)
    assert len(traces) == n_traces  # equal tasks share their programs
    for path in row.leaves:
        changed = replace_leaf({"task": row.task}, f"task.{path}", 0.8)["task"]
        got, other = run_two_steps(name, changed)
        assert len(traces) == n_traces
        parts = (got.params, got.model_state, other), (want.params, want.model_state, report)
        assert any(not np.array_equal(a, b) for a, b in zip(*(values(p).values() for p in parts)))


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.is_normed])
def test_padding_does_not_change_result(name):
    """Neither the examples nor the labels at masked positions."""
    indices = jnp.where(STEPS.where, STEPS.indices, jnp.array([20, 13, 17, 23, 22, 14, 19, 16]))
    assert_close(
        run_two_steps(name, steps=STEPS._replace(indices=indices)), run_two_steps(name), rtol=1e-6
    )


def test_queue_holds_keys_of_last_batches():
    """There are 12 examples in batches of 8; padding is not queued."""
    before, after = start("MoCo").model_state, run_two_steps("MoCo")[0].model_state
    assert after.pointer == 12
    moved = np.abs(after.queue - before.queue).max(axis=1)
    assert np.all(moved[:12] > 1e-2)
    assert np.all(moved[12:] < 1e-6)
    np.testing.assert_allclose(np.linalg.norm(after.queue, axis=1), 1, rtol=1e-5)
    with raises(ValueError, match="`queue` must be at least the batch size 8, got 7"):
        run_two_steps("MoCo", replace(ROWS["MoCo"].task, queue=7))


@pytest.mark.parametrize(
    "name",
    ["MoCo", "MemoryBank", "SogCLR", "BYOL", "CLIP, tiled", "texts", "graphs", "sequences"],
)
def test_multiple_devices_match_single_device(name):
    """Negatives, batch statistics, queues and dropout are those of the whole batch."""
    sharded = run_two_steps(name, SHARDED.get(name), TrainConfig(8, mesh=MESH))
    assert_close(sharded, run_two_steps(name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["BYOL", "CLIP"])
def test_bfloat16_loss_is_close_to_float32(name):
    """Losses are computed in bfloat16; parameters and states stay in float32."""
    full, want = run_two_steps(name)
    half, got = run_two_steps(name, config=TrainConfig(8, compute_dtype="bfloat16"))
    assert jax.tree.map(lambda x: x.dtype, half) == jax.tree.map(lambda x: x.dtype, full)
    assert got["loss"] != want["loss"]
    np.testing.assert_allclose(got["loss"], want["loss"], rtol=0.05)
    if name == "CLIP":  # a trainable temperature is not rounded to bfloat16
        np.testing.assert_allclose(got["temperature"], want["temperature"], rtol=1e-4)
