"""Contrastive learning of texts: dropout views, weights, fine-tuning, triplets by class."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.bert import TINY, leave, tokens
from _helpers.programs import apply, in_one, initial
from _helpers.refusals import raises
from _helpers.views import LABELS, LINEAR, NORMED, POINTS, Given, ctx, jitter
from _helpers.views import unit as normalized
from scipy import stats

from crl_jax import tasks, train
from crl_jax.models import BackboneWithHead, Network, Projection
from crl_jax.tasks import Classification, ClassPool, ClassTriplets, LabelledExamples, SimCLR
from crl_jax.train import Optimizer, TrainConfig

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

SMALL = replace(TINY, n_layers=1, dropout=0.2)
NET = Network(SMALL)
TEXTS = tokens(n=24)
SIMCSE = SimCLR(NET, leave, {"temperature": 0.2})


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_simcse_loss_matches_two_dropout_views():
    params, model_state = in_one(SIMCSE.init, jax.random.key(0))
    examples = train.Batch(jnp.arange(24), TEXTS)
    batch = SIMCSE.batch(jax.random.key(1), examples)
    assert_equal(batch.first, TEXTS)
    assert_equal(batch.second, TEXTS)
    got, (after, _) = in_one(SIMCSE.loss, params, model_state, batch, ctx(24))
    both = jax.tree.map(lambda x: jnp.concatenate([x, x]), TEXTS)
    z, rest = apply(NET, params, model_state, both, train=True)
    other_run = in_one(SIMCSE.init, jax.random.key(1))[1]
    assert not np.array_equal(model_state["dropout_key"], other_run["dropout_key"])
    assert_equal(after, rest)
    z = normalized(z)
    assert np.all(np.abs(z[:24] - z[24:]).max(axis=1) > 1e-3)
    e = np.exp(z @ z.T / 0.2)
    np.fill_diagonal(e, 0)
    other = np.roll(np.arange(48), 24)
    want = -np.mean(np.log(e[np.arange(48), other] / e.sum(axis=1)))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_target_network_has_independent_dropout():
    """Otherwise the key would equal the query as long as the two networks are equal."""
    task = tasks.MoCo(NET, leave, dim=12, queue=32)
    params, model_state = in_one(task.init, jax.random.key(0))
    assert_equal(params, model_state.target)
    assert not np.array_equal(
        model_state.network_state["dropout_key"], model_state.target_state["dropout_key"]
    )
    batch = in_one(task.batch, jax.random.key(1), train.Batch(jnp.arange(8), tokens(n=8)))
    query, _, after, _ = in_one(task.queue_loss, params, model_state, batch, ctx(8))
    apart = np.abs(normalized(query) - np.asarray(after.queue[:8]))
    assert np.all(apart.max(axis=1) > 1e-3)


@pytest.mark.parametrize("kind", [SimCLR, tasks.MoCo, tasks.BYOL])
def test_init_starts_from_pretrained_parameters(kind):
    network = Network(BackboneWithHead(SMALL, Projection((6,), norm=False)))
    given = initial(NET, 9)[0]
    more = {tasks.MoCo: {"dim": 6, "queue": 32}, tasks.BYOL: {"predictor": LINEAR}}
    task = kind(network, leave, pretrained={"backbone": given}, **more.get(kind, {}))
    params, model_state = in_one(task.init, jax.random.key(0))
    network_params, _ = task.network_variables(params, model_state)
    assert_equal(network_params["backbone"], given)
    plain = initial(network)[0]
    assert jax.tree.structure(network_params) == jax.tree.structure(plain)
    if kind is not SimCLR:
        assert_equal(model_state.target, network_params)


def test_rejects_mismatched_pretrained_parameters():
    wrong = {
        "must name parameters of the network, got": {"head": {}},
        r"must have norm/scale of shape \(12,\), got \(5,\)": {"norm": {"scale": jnp.zeros(5)}},
        "must name parameters of norm, got": {"norm": jnp.zeros(12)},
        r"must have norm/scale of shape \(12,\), got a dictionary": {"norm": {"scale": {}}},
    }
    for message, given in wrong.items():
        with raises(ValueError, match=f"`pretrained` {message}"):
            replace(SIMCSE, pretrained=given).init(jax.random.key(0))


def test_finetuning_applies_dropout_and_evaluation_does_not():
    backbone = initial(NET)
    task = Classification(NET, leave, backbone, dim=12, n_classes=2, finetune=True)
    params, before = in_one(task.init, jax.random.key(0))
    kernel = jax.random.normal(jax.random.key(1), (12, 2))  # initially zeros
    params = {**params, "layer": {**params["layer"], "kernel": kernel}}
    batch = TEXTS, jnp.zeros(24, jnp.int32)
    loss = jax.jit(task.loss)
    first, (after, _) = loss(params, before, batch, ctx(24))
    assert not np.array_equal(after["dropout_key"], before["dropout_key"])
    assert loss(params, after, batch, ctx(24))[0] != first
    assert_equal(*(in_one(task.logits, params, state, TEXTS) for state in (before, after)))
    assert replace(task, finetune=False).init(jax.random.key(0))[1] == {}


def test_linear_schedule_decays_after_warm_up():
    optimizer = Optimizer(2.0, decay=0.0, warm_up=0.25, n_steps=8, schedule=train.linear)
    got = [float(optimizer.rate(step)) for step in range(9)]
    # The schedule of BERT's code after the warm-up: the line that starts at the first step.
    np.testing.assert_allclose(got[2:], [2 * (1 - step / 8) for step in range(2, 9)], rtol=1e-6)
    np.testing.assert_allclose(got[:2], [0, 2 * 0.5 * 7 / 8], rtol=1e-6)
    assert float(train.linear(jnp.float32(1), 0.1)) == pytest.approx(0.1)


OWN = np.array([0, 1, 0, 2, 2, 0, 1, 2, 0, 0, 5])  # class 5 has one example, 3 and 4 none


def test_class_pool_samples_positives_and_negatives_uniformly():
    """Samples another example of the class, or one of the other classes, uniformly."""
    pool = ClassPool.from_labels(LabelledExamples(jnp.arange(11), jnp.asarray(OWN)))
    draw = jax.jit(pool.sample_pairs)
    n = 4000
    for place, own in enumerate(OWN):
        pos, neg = draw(jax.random.key(place), jnp.full(n, place))
        like = np.flatnonzero((own == OWN) & (np.arange(11) != place))
        unlike = np.flatnonzero(own != OWN)
        for drawn, among in ((pos, like if len(like) else [place]), (neg, unlike)):
            counts = np.bincount(drawn, minlength=11)
            assert counts[among].sum() == n
            if len(among) > 1:
                assert stats.chisquare(counts[among]).pvalue > 1e-5


def test_resampled_batches_draw_uniformly():
    batches = tasks.ResampledBatches(jnp.arange(7.0), n_draws=5000)
    steps = batches.epoch(jax.random.key(0), TrainConfig(64))
    places = np.asarray(steps.indices)[np.asarray(steps.where)]
    assert places.size == 5000
    assert stats.chisquare(np.bincount(places, minlength=7)).pvalue > 1e-5
    other = batches.epoch(jax.random.key(1), TrainConfig(64))
    assert not np.array_equal(steps.indices, other.indices)
    with raises(ValueError, match="`n_draws` must be at least 1, got 0"):
        tasks.ResampledBatches(jnp.arange(7), n_draws=0)


def triplets(**more):
    pool = ClassPool.from_labels(LabelledExamples(jnp.asarray(POINTS), jnp.asarray(LABELS)))
    return ClassTriplets(NORMED, jitter, {"temperature": 0.2}, pool=pool, **more)


@pytest.mark.parametrize("n_real", [6, 4])
def test_class_triplets_match_published_loss(n_real):
    """Softmax over both matrices side by side by loops, with its target on the left diagonal."""
    z = np.random.default_rng(3).normal(size=(18, 5))
    task = replace(triplets(), network=Given(z), hyperparams={"temperature": 0.07})
    batch = in_one(task.batch, jax.random.key(0), train.Batch(jnp.arange(0, 60, 10), None))
    loss, (_, metrics) = in_one(task.loss, {}, {}, batch, ctx(6, n_real))
    q, pos, neg = (part[:n_real] for part in np.split(normalized(z), 3))
    want = []
    for i in range(n_real):
        e = [np.exp(q[i] @ k / 0.07) for k in (*pos, *neg)]
        want.append(-np.log(e[i] / sum(e)))
    np.testing.assert_allclose(loss, np.mean(want), rtol=1e-5)
    labels = np.asarray(batch.labels).reshape(3, 6)[:, :n_real]
    np.testing.assert_array_equal(labels[0], labels[1])
    assert np.all(labels[0] != labels[2])
    keys = np.concatenate(labels[1:])
    is_same = labels[0][:, None] == keys
    others = ~np.eye(n_real, 2 * n_real, dtype=bool)
    np.testing.assert_allclose(metrics["false_negatives"], is_same[others].mean(), rtol=1e-6)


def test_triplet_batch_holds_given_queries_and_labels():
    pool = ClassPool.from_labels(LabelledExamples(jnp.asarray(POINTS), jnp.asarray(LABELS)))
    task = ClassTriplets(NORMED, lambda key, x: x, pool=pool)
    places = jnp.arange(0, 64, 4)
    batch = in_one(task.batch, jax.random.key(0), train.Batch(places, None))
    assert_equal(batch.query, POINTS[places])
    label_of = {tuple(x): y for x, y in zip(POINTS.tolist(), LABELS, strict=True)}
    found = [label_of[tuple(x)] for part in batch[:3] for x in np.asarray(part).tolist()]
    assert_equal(batch.labels, found)
    assert not np.any(np.all(batch.pos == batch.query, axis=1))


def test_class_pool_rejects_missing_labels_and_single_class():
    with raises(ValueError, match="`data` must have a class for every example, got a negative"):
        ClassPool.from_labels(LabelledExamples(jnp.arange(2), jnp.array([0, -1])))
    with raises(ValueError, match="`data` must have two classes or more, got one"):
        ClassPool.from_labels(LabelledExamples(jnp.arange(2), jnp.array([3, 3])))
