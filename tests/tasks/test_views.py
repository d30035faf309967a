"""Tasks on views: augmentations, unaugmented inputs, losses, batch statistics, checkpoints."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import in_one
from _helpers.refusals import raises
from _helpers.views import LINEAR, NORMED, POINTS, Given, Jitter, ctx, jitter, unit
from flax import nnx

from crl_jax import losses, train
from crl_jax.models import Network
from crl_jax.tasks import BYOL, PCL, MoCo, SimCLR, ViewBatch

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


def test_augmentation_round_trips_as_pytree():
    kind = KINDS["views"]
    for augment, leaves in ((jitter, 0), (Jitter(0.3), 1), (partial(jitter), 0)):
        task, again = kind(augment), kind(augment)
        assert jax.tree.structure(task) == jax.tree.structure(again)
        assert len(jax.tree.leaves(task.augment)) == leaves
        for placeholder in (object(), None, 0, jnp.zeros(3)):
            filled = jax.tree.map(lambda _, x=placeholder: x, task)
            assert type(filled.augment) is type(task.augment)
        moved = jax.tree.map(lambda x: x, task)
        key, example = jax.random.key(0), jnp.ones(6)
        np.testing.assert_array_equal(moved.augment(key, example), augment(key, example))
    whole = jax.tree.map(lambda _: 0, kind(jitter), is_leaf=callable)  # replaces the whole function
    assert whole.augment == 0


def test_rejects_augmentation_that_is_not_callable():
    with raises(
        ValueError, match=r"`augment` must be callable as augment\(key, example\), got 0.3"
    ):
        SimCLR(LINEAR, 0.3)


@each_kind
def test_embed_uses_plain_transform_instead_of_augmentation(kind):
    """Evaluation applies ``plain``, which a function lacks unless it is set as an attribute."""
    task = kind(Jitter())
    state = in_one(lambda seed: train.initial_state(task, train.Optimizer(), seed), 0)
    x = jnp.asarray(POINTS[:5])
    embed = [
        in_one(each.embed, state.params, state.model_state, x / 2) for each in (task, kind(jitter))
    ]
    assert np.abs(embed[0] - embed[1]).max() > 1e-3
    np.testing.assert_allclose(
        in_one(task.embed, state.params, state.model_state, x), embed[1], rtol=1e-6
    )

    def shift(key, example):
        return example

    shift.plain = Jitter().plain
    np.testing.assert_allclose(
        in_one(kind(shift).embed, state.params, state.model_state, x), embed[1], rtol=1e-6
    )


@each_kind
def test_represent_returns_features_before_head(kind):
    task = kind(Jitter())
    state = in_one(lambda seed: train.initial_state(task, train.Optimizer(), seed), 0)
    x = jnp.asarray(POINTS[:5])
    got = in_one(task.represent, state.params, state.model_state, x)
    params, rest = task.network_variables(state.params, state.model_state)
    hidden = np.asarray(x, np.float64) / 2 @ np.asarray(params["first"]["kernel"], np.float64)
    # Batch statistics still have their initial values: means 0, variances 1.
    np.testing.assert_allclose(got, np.maximum(hidden / np.sqrt(1 + 1e-5), 0), atol=1e-5)
    z = np.asarray(got) @ np.asarray(params["head"]["kernel"]) + np.asarray(params["head"]["bias"])
    np.testing.assert_allclose(in_one(task.embed, state.params, state.model_state, x), z, atol=1e-5)
    assert rest.keys() == {"norm"}


def test_batch_statistics_include_both_views():
    """The running mean moves by a hundredth of its distance to the batch mean in each step."""
    task = SimCLR(NORMED, jitter)
    params, model_state = in_one(task.init, jax.random.key(0))
    batch = in_one(task.batch, jax.random.key(1), train.Batch(jnp.arange(64), jnp.asarray(POINTS)))
    _, (after, _) = in_one(task.loss, params, model_state, batch, ctx(64))
    both = np.concatenate(batch[:2]).astype(np.float64) @ np.asarray(params["first"]["kernel"])
    np.testing.assert_allclose(
        after["norm"]["mean"], 0.01 * both.mean(axis=0), rtol=1e-3, atol=1e-6
    )
    want = 0.99 + 0.01 * both.var(axis=0)
    np.testing.assert_allclose(after["norm"]["var"], want, rtol=1e-5)


Z = np.random.default_rng(4).normal(size=(10, 3))


def log_sums(scores, own, t):
    """Sum of exponentials of the scores with all examples except the own one."""
    return np.log(np.sum(np.where(own, 0, np.exp(scores / t)), axis=1))


def test_decoupled_loss_matches_published_formula():
    """Eq. 6 of Yeh et al.: the denominator excludes the positive."""
    s = unit(Z) @ unit(Z).T
    own = np.tile(np.arange(5), 2)[:, None] == np.tile(np.arange(5), 2)
    pos = np.array([s[i, (i + 5) % 10] for i in range(10)])
    want = np.mean(log_sums(s, own, 0.5) - pos / 0.5)
    task = SimCLR(Given(Z), jitter, {"temperature": 0.5}, losses.decoupled_contrastive)
    nothing = jnp.zeros((5, 1))
    np.testing.assert_allclose(
        in_one(task.loss, {}, {}, ViewBatch(nothing, nothing), ctx(5))[0], want, rtol=1e-5
    )


def queue_losses(pos, neg, t, loss_fn):
    """InfoNCE and the debiased loss of one positive, by their formulas."""
    p, total, n = np.exp(pos / t), np.exp(neg / t).sum(axis=1), neg.shape[1]
    if loss_fn is losses.debiased_contrastive:
        total = n * np.maximum((total / n - 0.1 * p) / 0.9, np.exp(-1 / t))
    return -np.log(p / (p + total))


@pytest.mark.parametrize("loss_fn", [losses.info_nce, losses.debiased_contrastive])
def test_moco_step_matches_published_algorithm(loss_fn):
    """Algorithm 1 of MoCo in float64: two steps of gradient descent, keys by the moving average."""
    tau = {"tau_plus": 0.1} if loss_fn is losses.debiased_contrastive else {}
    task = MoCo(LINEAR, jitter, {"temperature": 0.3, **tau}, loss_fn, momentum=0.75, dim=5, queue=8)
    optimizer = train.Optimizer(0.5, rule=train.sgd_l2)
    state = in_one(lambda seed: train.initial_state(task, optimizer, seed), 0)
    queue, average = (
        np.asarray(x, np.float64)
        for x in (state.model_state.queue, state.params["linear"]["kernel"])
    )  # fmt: skip
    plan, data = train.TrainConfig(4), jnp.asarray(POINTS[:8])
    run = jax.jit(lambda *on: train.run_steps(task, optimizer, *on, config=plan, data=data))
    steps = train.ArrayBatches(data).epoch(jax.random.key(3), plan)
    for i in range(2):
        one = jax.tree.map(lambda x, i=i: x[i : i + 1], steps)
        batch = in_one(task.batch, one.key[0], train.Batch(one.indices[0], data[one.indices[0]]))
        now = np.asarray(state.params["linear"]["kernel"], np.float64)
        query = unit(np.asarray(batch.first, np.float64) @ now)
        key = unit(np.asarray(batch.second, np.float64) @ average)
        want = queue_losses(np.sum(query * key, axis=1), query @ queue.T, 0.3, loss_fn).mean()
        state, means = run(state, one)
        np.testing.assert_allclose(means["loss"], want, rtol=1e-4)
        queue[4 * i : 4 * i + 4] = key
        moved = np.asarray(state.params["linear"]["kernel"], np.float64)
        average = 0.75 * average + 0.25 * moved
        np.testing.assert_allclose(state.model_state.queue, queue, atol=1e-5)
        np.testing.assert_allclose(state.model_state.target["linear"]["kernel"], average, rtol=1e-5)
    assert state.model_state.pointer == 0  # wraps around: the queue holds 8 keys
