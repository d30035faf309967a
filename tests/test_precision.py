"""Matrix products are in full float32 where scores are compared, in default precision in training.

By default, a float32 product rounds its operands to bfloat16 on TPUs, and to TF32 on GPUs.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.products import default_products, with_tpu_products
from _helpers.ranking import split

from crl_jax import augment, losses, metrics, models, samplers, tasks, train
from crl_jax.tasks._kmeans import spherical_kmeans

pytestmark = pytest.mark.usefixtures("quick_compiles")

RNG = np.random.default_rng(0)
KEY = jax.random.key(0)
LOG = split().train
N_USERS, N_ITEMS = LOG.n_users, LOG.n_items


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


X, Y, LABELS = normal(24, 8), normal(24, 8), jnp.arange(24, dtype=jnp.int32) % 3
TABLES = models.Tables(normal(N_USERS, 8), normal(N_ITEMS, 8))
USERS, ITEMS = (jnp.asarray(x[:16], jnp.int32) for x in (LOG.users, LOG.items))
MF = models.MatrixFactorization(N_USERS, N_ITEMS, 8)
UNIFORM = samplers.uniform_prior(N_ITEMS)
SAMPLERS = {
    "DNS": samplers.DNS(3),
    "AOBPR": samplers.AOBPR(2.0),
    "BNS": samplers.BNS(UNIFORM, candidates=3),
    "BNS from a sample": samplers.BNS(UNIFORM, ecdf_samples=4),
    "BNS in batch": samplers.BNS(UNIFORM, candidates=3, ecdf="batch"),
    "BNS from all": samplers.BNS(UNIFORM, candidates=None),
    "SRNS": samplers.SRNS(memory=4, fresh=3, history=2),
}


def sample(sampler, tables):
    """Returns the negatives that a sampler selects by the scores of tables."""
    positives = samplers.Positives.from_interactions(LOG)
    context = samplers.SamplingContext(USERS, ITEMS, positives, tables, jnp.int32(0), MF, 2)
    return sampler(KEY, context, sampler.init(KEY, positives, tables))[0]


def search(tables):
    scores = models.inner_scores(tables, USERS)
    own = jnp.take_along_axis(scores, ITEMS[:, None], axis=1)
    return metrics.top_k(scores, 10)[1], jnp.sum(scores > own, axis=1)


COMPARED = {
    "ranks and top-k": (search, TABLES),
    "kNN": (partial(metrics.knn_predict, labels=LABELS, n_classes=3, k=5), X, Y),
    "retrieval": (
        partial(metrics.retrieval_ranks, query_ids=LABELS, answer_ids=LABELS), X, Y,
    ),
    "linear probe": (
        lambda x: metrics.linear_probe(x, LABELS, Y, LABELS, n_classes=3, key=KEY).predictions, X,
    ),
    "ridge probe": (
        lambda x: metrics.ridge_probe(x, LABELS, Y, LABELS, n_classes=3).predictions, X,
    ),
    "k-means": (lambda x: spherical_kmeans(KEY, losses.normalize(x), 3).assignment, X),
    "confidence": (
        lambda tables: tasks.ConfidenceEM(UNIFORM, n_sample=16).estimate(
            KEY, MF, tables, USERS, ITEMS
        ),
        TABLES,
    ),
    "crops": (
        partial(augment.crop_resize, box=jnp.array([1, 1, 5, 6], jnp.int32), size=(4, 4)),
        normal(8, 8, 3),
    ),
    **{name: (partial(sample, sampler), TABLES) for name, sampler in SAMPLERS.items()},
}  # fmt: skip
BATCH = {
    "InfoNCE": losses.info_nce,
    "debiased": partial(losses.debiased_contrastive, tau_plus=0.1),
    "hard": partial(losses.hard_contrastive, tau_plus=0.1, beta=1.0),
    "BCL": partial(losses.bayesian_contrastive, alpha=0.7, beta=0.8),
    "BCL with bins": partial(losses.bayesian_contrastive, alpha=0.7, beta=0.8, bins=16),
}


def in_batch(loss, x, y):
    scores = losses.view_scores(losses.normalize(x), losses.normalize(y))
    return loss(scores.pos, scores.neg, where=scores.where, temperature=0.5)


def in_tiles(loss, x, y):
    x, y = losses.normalize(x), losses.normalize(y)
    return losses.tiled_view_loss(loss, x, y, rows=8, temperature=0.5)


@pytest.mark.parametrize("name", COMPARED)
def test_score_comparisons_use_full_precision(name):
    """Emulated TPU products therefore do not change results."""
    function, *args = COMPARED[name]
    assert default_products(function, *args) == 0


def test_training_products_are_counted_and_rounded():
    """Counts products inside calls, loops and derivatives."""
    assert default_products(losses.view_scores, X, Y) == 1
    assert default_products(partial(MF.score, items=ITEMS[:, None], users=USERS), TABLES) == 1
    tiled = jax.value_and_grad(partial(in_tiles, losses.info_nce), (0, 1))
    assert default_products(tiled, X, Y) >= 3
    first, second = (
        np.asarray(z.astype(jnp.bfloat16).astype(jnp.float32), np.float64) for z in (X, Y)
    )
    product = jax.jit(with_tpu_products(lambda x, y: x @ y.T))
    np.testing.assert_allclose(product(X, Y), first @ second.T, rtol=1e-5, atol=1e-5)
    full = partial(jnp.matmul, precision="highest")
    np.testing.assert_array_equal(with_tpu_products(full)(X, Y.T), full(X, Y.T))


@pytest.mark.parametrize("name", BATCH)
def test_batch_losses_tolerate_rounded_products(name):
    """The tiled loss matches the untiled one, which is close to the loss with exact products."""
    loss, x = BATCH[name], Y + 2 * X
    found = {}
    for way in (in_batch, in_tiles):
        function = jax.value_and_grad(partial(way, loss), (0, 1))
        found[way] = jax.jit(with_tpu_products(function))(x, Y)
    value, grads = found[in_batch]
    np.testing.assert_allclose(found[in_tiles][0], value, rtol=1e-6)
    for got, want in zip(found[in_tiles][1], grads, strict=True):
        # Gradients are rounded in products of other shapes.
        np.testing.assert_allclose(got, want, atol=2e-3 * np.abs(want).max())
    exact = jax.jit(partial(in_batch, loss))(x, Y)
    assert value != exact
    np.testing.assert_allclose(value, exact, rtol=5e-3)


def ndcg(tables):
    """Mean NDCG@20 on the validation part, in float64."""
    scores = np.asarray(tables.users, np.float64) @ np.asarray(tables.items, np.float64).T
    scores[LOG.users, LOG.items] = -np.inf
    relevant = np.zeros(scores.shape)
    relevant[split().valid.users, split().valid.items] = 1
    discounts = 1 / np.log2(np.arange(2, 22))
    top = np.argsort(-scores, axis=1)[:, :20]
    gains = np.take_along_axis(relevant, top, 1) @ discounts
    n_relevant = relevant.sum(axis=1).astype(int)
    ideal = np.concatenate([[0], np.cumsum(discounts)])[np.minimum(n_relevant, 20)]
    return np.mean(gains[ideal > 0] / ideal[ideal > 0])


@pytest.mark.usefixtures("standard_promotion")
def test_rounded_products_preserve_ranking_quality():
    task = tasks.Ranking.from_interactions(
        LOG, encoder=MF, loss=losses.bpr, sampler=samplers.DNS(2), n_neg=1
    )
    optimizer, config = train.Optimizer(1e-2), train.TrainConfig(64)
    batches, n_epochs = train.ArrayBatches(task.seen), 15

    def epoch(state, key):
        steps = batches.epoch(key, config)
        return train.run_steps(task, optimizer, state, steps, config=config, data=batches.data)[0]

    reached = []
    for each in (epoch, with_tpu_products(epoch)):
        state, step = train.initial_state(task, optimizer, 0), jax.jit(each)
        start = ndcg(MF.serving_tables(state.params))
        for key in jax.random.split(KEY, n_epochs):
            state = step(state, key)
        reached.append(MF.serving_tables(state.params))
    exact, rounded = reached
    assert np.any(exact.users != rounded.users)
    assert ndcg(exact) > start + 0.05
    np.testing.assert_allclose(ndcg(rounded), ndcg(exact), atol=0.02)


@pytest.mark.parametrize("name", ["InfoNCE", "debiased", "hard"])
def test_losses_do_not_depend_on_subnormals(name):
    """Most devices flush them to zero."""
    size = 10.0 ** np.random.default_rng(1).uniform(-42, -36, (4, 9))
    scores = jnp.asarray(size * np.resize([1, -1], size.shape), jnp.float32)
    flushed = jnp.where(jnp.abs(scores) < jnp.finfo(jnp.float32).tiny, 0, scores)

    def loss(scores):
        return BATCH[name](scores[:, 0], scores[:, 1:], temperature=0.01)

    got, want = (jax.jit(jax.value_and_grad(loss))(x) for x in (flushed, scores))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
