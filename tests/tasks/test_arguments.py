"""Construction of tasks: wrong arguments, labels of several types, and dtypes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises
from _helpers.views import LABELS, LINEAR, NORMED, POINTS, SQUARE, Jitter, ctx, fit, jitter
from flax import linen

from crl_jax import losses, models, tasks
from crl_jax.tasks import LabelledExamples
from crl_jax.tasks._score_task import split_labels
from crl_jax.train import Batch, TrainConfig

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

BACKBONE = NORMED.init(jax.random.key(0))
DATA = LabelledExamples(POINTS, LABELS)
POOL = tasks.ClassPool.from_labels(DATA)
TASKS = {
    "SimCLR": tasks.SimCLR(LINEAR, Jitter()),
    "SimCLR with alpha": tasks.SimCLR(
        LINEAR,
        Jitter(),
        {"tau_plus": 0.1, "beta": 0.9},
        losses.bayesian_contrastive,
        alpha=tasks.AlphaFromLabels(),
    ),
    "SupCon": tasks.SupCon(LINEAR, jitter),
    "SupervisedOracle": tasks.SupervisedOracle(LINEAR, jitter),
    "PuNCE": tasks.PuNCE(LINEAR, jitter, {"tau_plus": 0.1}),
    "MoCo": tasks.MoCo(LINEAR, jitter, dim=5, queue=32),
    "MemoryBank": tasks.MemoryBank(LINEAR, jitter, dim=5, n_examples=64, n_neg=32),
    "PCL": tasks.PCL(LINEAR, jitter, dim=5, queue=32, data=DATA, clusters=(4,)),
    "BYOL": tasks.BYOL(LINEAR, jitter, SQUARE),
    "CLIP": tasks.CLIP(
        LINEAR, LINEAR, loss_fn=losses.sigmoid_contrastive, bias=0.5, augment_first=Jitter()
    ),
    "ClassTriplets": tasks.ClassTriplets(LINEAR, jitter, pool=POOL),
    "Classification": tasks.Classification(NORMED, jitter, BACKBONE, dim=16, n_classes=4),
}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tasks.SimCLR(3, jitter), r"`network` must be a models\.Network, .* got 3"),
        (lambda: tasks.SimCLR(LINEAR, None), r"`augment` must be callable .* got None"),
        (lambda: tasks.SimCLR(LINEAR, Jitter), "`augment` must be callable .* got <class"),
        (lambda: tasks.SimCLR(LINEAR, jitter, 0.5), "`hyperparams` must be a dict.* got 0.5"),
        (lambda: tasks.SimCLR(LINEAR, jitter, {}, "bpr"), "`loss_fn` must be a function"),
        (lambda: tasks.SimCLR(LINEAR, jitter, alpha=0.9), "`alpha` must be an estim.* got 0.9"),
        (
            lambda: tasks.SimCLR(LINEAR, jitter, alpha=tasks.AlphaFromLabels),
            "`alpha` must be an estimator.* got <class",
        ),
        (lambda: tasks.MoCo(LINEAR, jitter, dim=0), "`dim` must be at least 1, got 0"),
        (
            lambda: tasks.MemoryBank(LINEAR, jitter, n_examples=1),
            "`n_examples` must be at least 2, got 1",
        ),
        (
            lambda: tasks.MemoryBank(LINEAR, jitter, n_examples=8, momentum=1.5),
            r"`momentum` must lie in \[0, 1\], got 1.5",
        ),
        (
            lambda: tasks.MemoryBank(LINEAR, jitter, n_examples=8).check_data(POINTS),
            "`n_examples` must be the number of examples 64, got 8",
        ),
        (lambda: tasks.MoCo(LINEAR, jitter, queue=1.5), "`queue` must be a whole number"),
        (lambda: tasks.BYOL(LINEAR, jitter, jitter), r"`predictor` must be a models\.Network"),
        (lambda: tasks.CLIP(LINEAR, jitter), r"`second` must be a models\.Network"),
        (lambda: tasks.ClassTriplets(LINEAR, jitter, pool=DATA), "`pool` must be a tasks.Class"),
        (
            lambda: tasks.Classification(NORMED, jitter, {}, dim=16, n_classes=4),
            "`backbone` must be a pair .* got dict",
        ),
        (lambda: LabelledExamples(POINTS, LABELS[:3]), r"`labels` must have shape \(64,\), .*"),
        (lambda: LabelledExamples(POINTS, LABELS[:, None]), r"`labels` must have shape \(64,\)"),
        (lambda: LabelledExamples(POINTS, LABELS / 2), "`labels` must be integers, got float64"),
        (
            lambda: models.Network(lambda rngs: linen.Dense(3)).init(jax.random.key(0)),
            "`build` must return a module of Flax NNX, got Dense",
        ),
    ],
)  # fmt: skip
def test_rejects_invalid_arguments_before_training(make, message):
    with raises(ValueError, match=message):
        make()


def test_accepts_labels_of_any_integer_type():
    for labels in (LABELS, LABELS.tolist(), LABELS.astype(np.uint8)):
        _, got = split_labels(LabelledExamples(POINTS, labels))
        assert got.dtype == jnp.int32
        np.testing.assert_array_equal(got, LABELS)


@pytest.mark.parametrize(
    ("task", "data"),
    [
        (tasks.SimCLR(LINEAR, jitter), POINTS),
        (tasks.SupCon(LINEAR, jitter), DATA),
        (tasks.CLIP(LINEAR, LINEAR), (POINTS, POINTS)),
        (tasks.CLIP(LINEAR, LINEAR, tile=1), (POINTS, POINTS)),
    ],
)
def test_in_batch_negatives_require_batch_size_above_one(task, data):
    with raises(ValueError, match=f"`batch_size` must be at least 2 for {type(task).__name__}"):
        fit(task, data, TrainConfig(1), epochs=1)


@pytest.mark.parametrize(
    "task",
    [
        tasks.SupCon(LINEAR, jitter),
        tasks.SupervisedOracle(LINEAR, jitter),
        tasks.SimCLR(
            LINEAR, jitter, {"tau_plus": 0.1}, losses.bayesian_contrastive,
            alpha=tasks.AlphaFromLabels(),
        ),
    ],
)  # fmt: skip
def test_rejects_single_class_data(task):
    with raises(ValueError, match="must have two classes or more, got only class 0"):
        fit(task, LabelledExamples(POINTS, np.zeros(64, np.int32)), epochs=1)


def test_punce_rejects_data_without_unlabelled_examples():
    with raises(ValueError, match="`data` must have unlabelled examples"):
        fit(TASKS["PuNCE"], LabelledExamples(POINTS, np.zeros(64, np.int32)), epochs=1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (LabelledExamples(POINTS, LABELS + 1), "`labels` must be less than `n_classes` 4, got 4"),
        ((POINTS, np.full(64, -1)), "`labels` must contain a known class"),
        (POINTS, "`data` of Classification must be"),
    ],
)
def test_classification_rejects_invalid_labels(data, message):
    with raises(ValueError, match=message):
        fit(TASKS["Classification"], data, epochs=1)


@pytest.mark.parametrize("name", TASKS)
def test_training_step_passes_strict_dtype_promotion(name):
    task, x = TASKS[name], jnp.asarray(POINTS[:8])
    data = LabelledExamples((x, x) if name == "CLIP" else x, jnp.asarray(LABELS[:8]))

    def step(key):
        params, model_state = task.init(key)
        batch = task.batch(key, Batch(jnp.arange(8), data))
        model_state = task.start_epoch(key, params, model_state, jnp.int32(0))
        grad = jax.value_and_grad(task.loss, has_aux=True)
        (_, (model_state, _)), grads = grad(params, model_state, batch, ctx(8))
        return grads, task.after_update(params, model_state)

    with jax.numpy_dtype_promotion("strict"):
        grads, _ = jax.eval_shape(step, jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
