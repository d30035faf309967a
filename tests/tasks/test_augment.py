"""Tasks on views: augmentations as pytree leaves, unaugmented inputs, losses, checkpoints."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.killing import Killed, kill_at
from _helpers.refusals import raises
from _helpers.views import (
    DESCENT,
    LINEAR,
    NORMED,
    POINTS,
    Given,
    Jitter,
    Shrink,
    ctx,
    first_run,
    fit,
    jitter,
    unit,
)
from flax import nnx

from crl_jax import losses, train
from crl_jax.models import Network
from crl_jax.tasks import BYOL, PCL, MoCo, SimCLR, ViewBatch
from crl_jax.train import Checkpoint

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def predictor(rngs):
    return nnx.Linear(8, 8, rngs=rngs)


HYPERPARAMS = {"temperature": 0.3}
KINDS = {
    "views": partial(SimCLR, NORMED, hyperparams=HYPERPARAMS),
    "momentum": partial(
        MoCo, NORMED, hyperparams=HYPERPARAMS, momentum=0.9, dim=8, queue=48
    ),
    "byol": partial(BYOL, NORMED, predictor=Network(predictor), momentum=0.9),
    "prototypes": partial(
        PCL, NORMED, hyperparams=HYPERPARAMS, momentum=0.9, dim=8, queue=48,
        data=jnp.asarray(POINTS), clusters=(4,), warm_up=1, n_iterations=3,
    ),
}  # fmt: skip
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@each_kind
def test_an_augmentation_survives_being_taken_apart(kind):
    for augment, leaves in ((jitter, 0), (Jitter(0.3), 1), (partial(jitter), 0)):
        task, again = kind(augment), kind(augment)
        assert jax.tree.structure(task) == jax.tree.structure(again)
        assert len(jax.tree.leaves(task.augment)) == leaves
        for stand_in in (object(), None, 0, jnp.zeros(3)):
            filled = jax.tree.map(lambda _, x=stand_in: x, task)
            assert type(filled.augment) is type(task.augment)
        moved = jax.tree.map(lambda x: x, task)
        key, example = jax.random.key(0), jnp.ones(6)
        np.testing.assert_array_equal(moved.augment(key, example), augment(key, example))
    whole = jax.tree.map(lambda _: 0, kind(jitter), is_leaf=callable)  # replaces it as a whole
    assert whole.augment == 0


def test_what_is_no_function_is_refused():
    with raises(
        ValueError, match=r"`augment` must be callable as augment\(key, example\), got 0.3"
    ):
        SimCLR(LINEAR, 0.3)


def test_equal_tasks_share_programs_and_numbers_do_not_compile_anew():
    compiled, listening = [], True

    def listen(event, *rest, **more):
        if listening and "backend_compile" in event:
            compiled.append(event)

    for augment in (jitter, Jitter(0.1)):
        fit(KINDS["views"](augment))
    jax.monitoring.register_event_duration_secs_listener(listen)
    for augment in (jitter, Jitter(0.2)):
        fit(KINDS["views"](augment))
    assert compiled == []
    fit(KINDS["views"](partial(jitter)))
    assert compiled  # the listener works
    listening = False


def test_augmentations_with_equal_fields_are_told_apart():
    histories = [fit(KINDS["views"](augment)).history for augment in (Jitter(), Shrink(), Jitter())]
    of = [[entry["loss"] for entry in history] for history in histories]
    assert of[0] == of[2]
    assert abs(of[0][0][0] - of[1][0][0]) > 1e-3


@pytest.mark.parametrize("name", ["views", "byol"])
def test_numbers_of_an_augmentation_are_swept(name):
    kind = KINDS[name]
    together = fit(kind(Jitter()), sweep={"task.augment.size": [0.0, 1.0]}).history[-1]["loss"]
    alone = [fit(kind(Jitter(size))).history[-1]["loss"][0] for size in (0.0, 1.0)]
    np.testing.assert_allclose(together, alone, rtol=1e-3)
    assert abs(together[0] - together[1]) > 0.05


@each_kind
def test_evaluation_sees_examples_as_they_are(kind):
    """Evaluation applies ``plain``, which a function lacks unless it is set as an attribute."""
    task = kind(Jitter())
    state = train.initial_state(task, train.Optimizer(), 0)
    x = jnp.asarray(POINTS[:5])
    embed = [each.embed(state.params, state.model_state, x / 2) for each in (task, kind(jitter))]
    assert np.abs(embed[0] - embed[1]).max() > 1e-3
    np.testing.assert_allclose(task.embed(state.params, state.model_state, x), embed[1], rtol=1e-6)

    def shift(key, example):
        return example

    shift.plain = Jitter().plain
    np.testing.assert_allclose(
        kind(shift).embed(state.params, state.model_state, x), embed[1], rtol=1e-6
    )


@each_kind
def test_features_are_those_before_the_head(kind):
    task = kind(Jitter())
    state = train.initial_state(task, train.Optimizer(), 0)
    x = jnp.asarray(POINTS[:5])
    got = task.represent(state.params, state.model_state, x)
    params, rest = task.network_variables(state.params, state.model_state)
    hidden = np.asarray(x, np.float64) / 2 @ np.asarray(params["first"]["kernel"], np.float64)
    # Batch statistics still have their initial values: means 0, variances 1.
    np.testing.assert_allclose(got, np.maximum(hidden / np.sqrt(1 + 1e-5), 0), atol=1e-5)
    z = np.asarray(got) @ np.asarray(params["head"]["kernel"]) + np.asarray(params["head"]["bias"])
    np.testing.assert_allclose(task.embed(state.params, state.model_state, x), z, atol=1e-5)
    assert rest.keys() == {"norm"}


Z = np.random.default_rng(4).normal(size=(10, 3))


def log_sums(scores, own, t):
    """Sum of exponentials of the scores with all examples except the own one."""
    return np.log(np.sum(np.where(own, 0, np.exp(scores / t)), axis=1))


def test_the_decoupled_loss_is_that_of_its_formula():
    """Eq. 6 of Yeh et al.: the denominator excludes the positive."""
    s = unit(Z) @ unit(Z).T
    own = np.tile(np.arange(5), 2)[:, None] == np.tile(np.arange(5), 2)
    pos = np.array([s[i, (i + 5) % 10] for i in range(10)])
    want = np.mean(log_sums(s, own, 0.5) - pos / 0.5)
    task = SimCLR(Given(Z), jitter, {"temperature": 0.5}, losses.decoupled_contrastive)
    nothing = jnp.zeros((5, 1))
    np.testing.assert_allclose(
        task.loss({}, {}, ViewBatch(nothing, nothing), ctx(5))[0], want, rtol=1e-5
    )


def queue_losses(pos, neg, t, loss_fn):
    """InfoNCE and the debiased loss of one positive, by their formulas."""
    p, total, n = np.exp(pos / t), np.exp(neg / t).sum(axis=1), neg.shape[1]
    if loss_fn is losses.debiased_contrastive:
        total = n * np.maximum((total / n - 0.1 * p) / 0.9, np.exp(-1 / t))
    return -np.log(p / (p + total))


@pytest.mark.parametrize("loss_fn", [losses.info_nce, losses.debiased_contrastive])
def test_momentum_goes_by_the_published_algorithm(loss_fn):
    """Algorithm 1 of MoCo in float64: two steps of gradient descent, keys by the moving average."""
    tau = {"tau_plus": 0.1} if loss_fn is losses.debiased_contrastive else {}
    task = MoCo(LINEAR, jitter, {"temperature": 0.3, **tau}, loss_fn, momentum=0.5, dim=5, queue=8)
    optimizer = train.Optimizer(0.5, rule=train.sgd_l2)
    state = train.initial_state(task, optimizer, 0)
    queue, average = (
        np.asarray(x, np.float64)
        for x in (state.model_state.queue, state.params["linear"]["kernel"])
    )  # fmt: skip
    plan, data = train.TrainConfig(4), jnp.asarray(POINTS[:8])
    steps = train.ArrayBatches(data).epoch(jax.random.key(3), plan)
    for i in range(2):
        one = jax.tree.map(lambda x, i=i: x[i : i + 1], steps)
        batch = task.batch(one.key[0], train.Batch(one.indices[0], data[one.indices[0]]))
        now = np.asarray(state.params["linear"]["kernel"], np.float64)
        query = unit(np.asarray(batch.first, np.float64) @ now)
        key = unit(np.asarray(batch.second, np.float64) @ average)
        want = queue_losses(np.sum(query * key, axis=1), query @ queue.T, 0.3, loss_fn).mean()
        state, means = train.run_steps(task, optimizer, state, one, config=plan, data=data)
        np.testing.assert_allclose(means["loss"], want, rtol=1e-4)
        queue[4 * i : 4 * i + 4] = key
        average = 0.5 * average + 0.5 * np.asarray(state.params["linear"]["kernel"], np.float64)
        np.testing.assert_allclose(state.model_state.queue, queue, atol=1e-5)
        np.testing.assert_allclose(state.model_state.target["linear"]["kernel"], average, rtol=1e-5)
    assert state.model_state.pointer == 0  # of a queue of 8


@pytest.mark.parametrize("name", ["momentum", "byol", "prototypes"])
def test_a_resumed_training_gives_the_same_bits(name, tmp_path):
    task, path = KINDS[name](Jitter()), tmp_path / "state.npz"
    whole = fit(task, epochs=4)

    with raises(Killed):
        fit(task, epochs=4, hooks=[Checkpoint(path, 0.0), train.Progress(kill_at(2))])
    resumed = fit(task, epochs=4, hooks=[Checkpoint(path)])
    both = [(run.params, run.state.model_state) for run in (whole, resumed)]
    jax.tree.map(np.testing.assert_array_equal, *both)
    assert [entry["loss"] for entry in resumed.history] == [e["loss"] for e in whole.history]


def test_batch_statistics_are_those_of_all_devices():
    plain = fit(KINDS["views"](jitter), optimizer=DESCENT)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("data",))
    spread = fit(KINDS["views"](jitter), config=train.TrainConfig(16, mesh=mesh), optimizer=DESCENT)
    for run in (plain, spread):
        assert np.abs(first_run(run.state.model_state)["norm"]["mean"]).max() > 0.05
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        spread.state.model_state, plain.state.model_state,
    )  # fmt: skip
