"""Two towers: every loss in both directions, labels, augmentations, tiles."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import in_one
from _helpers.refusals import raises
from _helpers.views import LABELS, LINEAR, POINTS, Given, Jitter, ctx, fit, unit
from sklearn.metrics import roc_auc_score

from crl_jax import losses, tasks, train
from crl_jax.tasks import CLIP, AlphaState, LabelledExamples, ViewBatch

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

OWN = np.array([0, 1, 0, 2, 1, -1])
RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(2, 6, 3))
PAIRS = (POINTS, POINTS[:, ::-1].copy())
DATA = LabelledExamples(PAIRS, LABELS)
TOWERS = CLIP(LINEAR, LINEAR)
BCL = {"tau_plus": 0.25, "beta": 0.9}
T = 0.07


def expected(loss_fn, n_real=6, excluded=((0, 0),), t=T, **hyper):
    """Mean loss over the rows and columns of the score matrix, without the excluded pairs."""
    s = (unit(X) @ unit(Y).T)[:n_real, :n_real]
    keep = ~np.eye(n_real, dtype=bool)
    keep[tuple(zip(*excluded))] = False
    pos, neg = np.tile(np.diag(s), 2), np.concatenate([s, s.T])
    where = jnp.asarray(np.concatenate([keep, keep.T]))
    loss_of_scores = partial(loss_fn, where=where, temperature=t, **hyper)
    return jax.jit(loss_of_scores)(jnp.float32(pos), jnp.float32(neg))


LOSSES = {
    "clip": (losses.info_nce, {}),
    "decoupled": (losses.decoupled_contrastive, {}),
    "debiased": (losses.debiased_contrastive, {"tau_plus": 0.1}),
    "hard": (losses.hard_contrastive, {"tau_plus": 0.1, "beta": 0.5}),
    "bayesian": (losses.bayesian_contrastive, {"tau_plus": 0.1, "alpha": 0.8, "beta": 0.9}),
    "sigmoid": (losses.sigmoid_contrastive, {"bias": -3.0}),
}


def evaluate_task(task, n_real=6, labels=OWN, model_state=None, xy=(X, Y)):
    """Returns the loss of these embeddings, the updated model state, and metrics."""
    task = dataclasses.replace(task, first=Given(xy[0]), second=Given(xy[1]))
    params, start = in_one(TOWERS.init, jax.random.key(0))
    params = {"first": {}, "second": {}, "log_scale": -jnp.log(jnp.float32(T))}
    if "temperature" in task.hyperparams:
        del params["log_scale"]
    if task.bias is not None:
        params["bias"] = jnp.float32(task.bias)
    n = len(xy[0])
    batch = ViewBatch(
        jnp.zeros((n, 1)), jnp.zeros((n, 1)), jnp.arange(n),
        None if labels is None else jnp.asarray(labels),
    )  # fmt: skip
    loss, (model_state, metrics) = in_one(
        task.loss, params, start if model_state is None else model_state, batch, ctx(n, n_real)
    )
    return loss, model_state, metrics


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("tile", [None, 2])
def test_losses_average_both_directions(name, tile):
    """The mean over rows and columns; padding is excluded from the negatives."""
    loss_fn, hyper = LOSSES[name]
    task = CLIP(LINEAR, LINEAR, loss_fn=loss_fn, hyperparams=hyper, tile=tile)
    np.testing.assert_allclose(evaluate_task(task, 4)[0], expected(loss_fn, 4, **hyper), rtol=1e-4)


@pytest.mark.parametrize("tile", [None, 4])
def test_exclude_equal_removes_pairs_with_equal_labels(tile):
    """Pairs with equal labels are not negatives of each other; unknown labels match none."""
    task = CLIP(LINEAR, LINEAR, exclude_equal=True, tile=tile)
    equal = {(0, 2), (2, 0), (1, 4), (4, 1)}
    loss, _, metrics = evaluate_task(task)
    np.testing.assert_allclose(loss, expected(losses.info_nce, excluded=equal), rtol=1e-5)
    np.testing.assert_allclose(metrics["false_negatives"], 4 / 20)
    two_unknown = np.array([0, 1, 0, -2, -2, -1])
    loss = evaluate_task(task, labels=two_unknown)[0]
    want = expected(losses.info_nce, excluded={(0, 2), (2, 0)})
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    with raises(ValueError, match=r"tasks\.LabelledExamples with `exclude_equal`"):
        evaluate_task(task, labels=None)


@pytest.mark.parametrize("tile", [None, 2])
@pytest.mark.parametrize("n_real", [6, 4])
def test_label_metrics_match_reference(tile, n_real):
    s = (unit(X) @ unit(Y).T)[:n_real, :n_real]
    own = OWN[:n_real]
    known = (own >= 0)[:, None] & (own >= 0) & ~np.eye(n_real, dtype=bool)
    same = own[:, None] == own
    by_rows = [
        roc_auc_score(same[i][known[i]], s[i][known[i]])
        for i in range(n_real) if len(set(same[i][known[i]])) == 2
    ]  # fmt: skip
    by_columns = [
        roc_auc_score(same[i][known[i]], s.T[i][known[i]])
        for i in range(n_real) if len(set(same[i][known[i]])) == 2
    ]  # fmt: skip
    aucs = by_rows if tile else [*by_rows, *by_columns]
    loss, _, metrics = evaluate_task(CLIP(LINEAR, LINEAR, tile=tile), n_real)
    np.testing.assert_allclose(metrics["false_negatives"], same[known].mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["auc"], max(np.mean(aucs), 0.5), rtol=1e-6)
    bare, _, none = evaluate_task(CLIP(LINEAR, LINEAR, tile=tile), n_real, labels=None)
    assert bare == loss
    assert none.keys() == {"temperature"}


@pytest.mark.parametrize("name", ["bayesian", "sigmoid"])
def test_tiles_change_neither_loss_nor_gradients(name):
    """Gradients of both networks, temperature and bias; tiles and batch are padded."""
    loss_fn, hyper = LOSSES[name]
    bias = hyper.get("bias")
    hyper = {key: value for key, value in hyper.items() if key != "bias"}
    batch = ViewBatch(*(jnp.asarray(half[::3]) for half in PAIRS))

    @jax.jit
    def loss_and_gradients(key):
        return [
            jax.value_and_grad(lambda p, t=task, s=rest: t.loss(p, s, batch, ctx(22, 20))[0])(
                params
            )
            for tile in (None, 5)
            for task in [CLIP(LINEAR, LINEAR, 0.3, 0.0, loss_fn, hyper, bias=bias, tile=tile)]
            for params, rest in [task.init(key)]
        ]

    whole, tiled = loss_and_gradients(jax.random.key(0))
    assert all(np.abs(x).max() > 1e-4 for x in jax.tree.leaves(whole))
    assert ("bias" in whole[1]) == (bias is not None)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6), tiled, whole
    )  # fmt: skip


def test_temperature_in_hyperparams_is_not_trained():
    task = CLIP(LINEAR, LINEAR, hyperparams={"temperature": 0.5})
    params, _ = in_one(task.init, jax.random.key(0))
    assert params.keys() == {"first", "second"}
    loss, _, metrics = evaluate_task(task)
    np.testing.assert_allclose(loss, expected(losses.info_nce, t=0.5), rtol=1e-5)
    assert "temperature" not in metrics


def test_init_starts_from_pretrained_parameters():
    """The other parameters match those initialised without pretrained ones."""
    drawn, _ = in_one(TOWERS.init, jax.random.key(0))
    kernel = drawn["second"]["linear"]["kernel"]
    task = CLIP(LINEAR, LINEAR, pretrained={"second": {"linear": {"kernel": 2 * kernel}}})
    params, _ = in_one(task.init, jax.random.key(0))
    np.testing.assert_array_equal(params["second"]["linear"]["kernel"], 2 * kernel)
    jax.tree.map(np.testing.assert_array_equal, params["first"], drawn["first"])
    assert params["log_scale"] == drawn["log_scale"]
    for given in ({"third": {}}, {"second": {"linear": {"kernel": kernel[:1]}}}):
        with raises(ValueError, match="`pretrained` must"):
            CLIP(LINEAR, LINEAR, pretrained=given).init(jax.random.key(0))


def test_learned_hyperparams_reports_temperature_and_bias():
    task = CLIP(LINEAR, LINEAR, 0.1, 0.05, loss_fn=losses.sigmoid_contrastive, bias=-10.0)
    params, _ = in_one(task.init, jax.random.key(0))
    assert task.learned_hyperparams(params)["temperature"] == pytest.approx(0.1)
    learned = task.learned_hyperparams(params | {"log_scale": -jnp.log(jnp.float32(0.02))})
    assert {name: pytest.approx(float(x)) for name, x in learned.items()} == {
        "temperature": 0.05, "bias": -10.0,
    }  # fmt: skip
    assert (
        CLIP(LINEAR, LINEAR, hyperparams={"temperature": 0.5}).learned_hyperparams({"first": 0})
        == {}
    )


@pytest.mark.parametrize("tile", [None, 3])
def test_alpha_is_measured_from_labels(tile):
    """α is 0.5 in the first step, and the AUC of that step in the second."""
    task = CLIP(
        LINEAR, LINEAR, T, loss_fn=losses.bayesian_contrastive, hyperparams=BCL,
        alpha=tasks.AlphaFromLabels(0.8), tile=tile,
    )  # fmt: skip
    _, start = in_one(task.init, jax.random.key(0))
    assert isinstance(start, AlphaState)
    loss, one, first = evaluate_task(task, model_state=start)
    _, _, second = evaluate_task(task, model_state=one, xy=(Y, X))
    assert first["alpha"] == 0.5
    np.testing.assert_allclose(second["alpha"], first["auc"], rtol=1e-6)
    want = expected(losses.bayesian_contrastive, **BCL, alpha=0.5)
    np.testing.assert_allclose(loss, want, rtol=1e-4)


def test_towers_have_separate_augmentations():
    """The first is sampled again, the second is fixed; both are plain when embedded."""
    task = CLIP(LINEAR, LINEAR, augment_first=Jitter(0.5))
    x, y = (jnp.asarray(half[:5]) for half in PAIRS)
    batch = in_one(task.batch, jax.random.key(0), train.Batch(jnp.arange(5), (x, y)))
    np.testing.assert_array_equal(batch.second, y)
    assert np.abs(batch.first - x).min() > 0
    params, model_state = in_one(task.init, jax.random.key(0))
    first, second = in_one(task.embed, params, model_state, x, y, block_size=2)
    for got, half, name in ((first, x / 2, "first"), (second, y, "second")):
        kernel = np.asarray(params[name]["linear"]["kernel"], np.float64)
        np.testing.assert_allclose(got, unit(np.asarray(half) @ kernel), atol=1e-6)
    np.testing.assert_allclose(in_one(task.embed_second, params, model_state, y), second, atol=1e-6)
    with raises(ValueError, match="`augment_second` must be callable"):
        fit(CLIP(LINEAR, LINEAR, augment_second=0.3), PAIRS, epochs=1)


def test_clip_contrastive_equals_info_nce():
    assert CLIP(LINEAR, LINEAR, loss_fn=losses.clip_contrastive) == TOWERS
    square = jnp.asarray(unit(X) @ unit(Y).T, jnp.float32)
    want = losses.clip_contrastive(square, temperature=T)
    np.testing.assert_allclose(evaluate_task(TOWERS)[0], want, rtol=1e-5)


def test_rejects_invalid_arguments():
    for change, message in (
        (
            {"bias": 1.0, "hyperparams": {"bias": 1.0}, "loss_fn": losses.sigmoid_contrastive},
            "`hyperparams` must not contain bias",
        ),
        (
            {"alpha": tasks.AlphaFromLabels(), "hyperparams": {"alpha": 0.9}},
            "`hyperparams` must not contain alpha",
        ),
    ):
        with raises(ValueError, match=message):
            CLIP(LINEAR, LINEAR, **change)
    with raises(ValueError, match="`data` of CLIP must be pairs"):
        fit(TOWERS, POINTS, epochs=1)


def temporary_bytes(tile, n):
    """Bytes of temporaries for the loss and its gradients with respect to both networks."""
    task = CLIP(LINEAR, LINEAR, tile=tile)
    params, model_state = in_one(task.init, jax.random.key(0))
    batch = ViewBatch(*(jax.ShapeDtypeStruct((n, 6), jnp.float32) for _ in range(2)))

    def loss(params, batch):
        return task.loss(params, model_state, batch, ctx(n))[0]

    compiled = jax.jit(jax.value_and_grad(loss)).lower(params, batch).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_tiles_avoid_full_score_matrix_in_memory():
    square = 2048**2 * 4
    assert temporary_bytes(None, 2048) > square
    assert 5 * temporary_bytes(16, 2048) < square
