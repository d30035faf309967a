"""Auxiliary losses of ranking, against NumPy in deterministic settings."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.graphs import interactions, normalised, stacked
from _helpers.programs import counted, in_one
from _helpers.ranking import fit_ranking, split
from _helpers.refusals import raises
from _helpers.views import ctx

from crl_jax import losses, tasks, train
from crl_jax._reduce import masked_mean
from crl_jax.models import LightGCN, MatrixFactorization, Tables
from crl_jax.tasks import (
    Clustering,
    GraphContrast,
    LayerContrast,
    NeighborContrast,
    NeighborState,
    SpectralContrast,
    Uniformity,
)

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles", "narrow_blocks")
USERS = jnp.array([3, 1, 3, 0, 2, 1])
ITEMS = jnp.array([5, 5, 2, 4, 5, 0])
REAL = jnp.array([True, True, True, True, False, True])


def tables(seed):
    rng = np.random.default_rng(seed)
    return Tables(*(jnp.asarray(rng.normal(size=(n, 4)), jnp.float32) for n in (5, 6)))


def np_info_nce(first, second, ids, real, t):
    """InfoNCE, averaged over the distinct real ids, one id at a time."""
    unit = [np.asarray(x, np.float64) / np.linalg.norm(x, axis=1, keepdims=True)
            for x in (first, second)]  # fmt: skip
    ids = np.unique(np.asarray(ids)[np.asarray(real)])
    scores = np.exp(unit[0][ids] @ unit[1][ids].T / t)
    return np.mean(-np.log(np.diag(scores) / scores.sum(1)))


def views(weight=0.3, **settings):
    plain = MatrixFactorization(5, 6, 4)
    return GraphContrast(weight, first=plain, second=plain, **settings)


def test_graph_contrast_averages_over_distinct_users_and_items():
    pair = tables(0), tables(1)
    got = in_one(views(hyperparams={"temperature": 0.4}).loss, pair, USERS, ITEMS, REAL)
    want = sum(
        np_info_nce(*arrays, ids, REAL, 0.4)
        for arrays, ids in zip(zip(*pair), (USERS, ITEMS), strict=True)
    )
    np.testing.assert_allclose(got, 0.3 * want, rtol=1e-5)


def test_graph_contrast_accepts_other_contrastive_losses():
    pair = tables(0), tables(1)
    given = {"temperature": 0.4, "tau_plus": 0.0, "alpha": 0.5, "beta": 0.5}
    even = views(hyperparams=given, loss_fn=losses.bayesian_contrastive)
    plain = views(hyperparams={"temperature": 0.4})
    hard = replace(even, hyperparams={**given, "alpha": 0.9, "beta": 0.9})
    same, simple, other = (in_one(v.loss, pair, USERS, ITEMS, REAL) for v in (even, plain, hard))
    np.testing.assert_allclose(same, simple, rtol=1e-5)
    assert not np.isclose(other, same)


def test_padding_does_not_change_graph_contrast():
    pair = tables(0), tables(1)
    others = jnp.where(REAL, USERS, 4), jnp.where(REAL, ITEMS, 1)
    loss = jax.jit(views().loss)
    np.testing.assert_array_equal(loss(pair, USERS, ITEMS, REAL), loss(pair, *others, REAL))
    assert loss(pair, USERS, ITEMS, jnp.zeros(6, bool)) == 0


def sgl(log):
    view = LightGCN.from_interactions(log, 8, 2, edge_dropout=0.2, renormalize=True)
    return replace(view, edge_dropout=0.0), GraphContrast(first=view, second=view)


def xsimgcl(log):
    view = LightGCN.from_interactions(
        log, 8, 2, layer_weights=(0, 0.5, 0.5), noise=jnp.float32(0.1)
    )
    return view, LayerContrast(layer=1)


def lightgcl(log):
    return LightGCN.from_interactions(log, 8, 2), SpectralContrast.from_interactions(log, rank=3)


def ncl(log):
    return LightGCN.from_interactions(log, 8, 2), NeighborContrast(prototype_weight=0.0, clusters=5)


def directau(log):
    return LightGCN.from_interactions(log, 8, 1, similarity="cosine"), Uniformity()


@pytest.mark.parametrize("method", [sgl, xsimgcl, lightgcl, ncl, directau])
def test_auxiliary_loss_is_linear_in_its_weight(method):
    """The loss and its gradients are linear in the weight, whose value does not recompile."""
    encoder, auxiliary_loss = method(split().train)
    loss = tasks.align_positives if method is directau else losses.bpr
    task = tasks.Ranking.from_interactions(
        split().train, encoder=encoder, loss=loss, auxiliary_loss=auxiliary_loss
    )
    params, model_state = in_one(task.init, jax.random.key(0))
    index = jnp.arange(0, 192, 3, dtype=jnp.int32)
    examples = train.Batch(index, jax.tree.map(lambda x: jnp.asarray(x)[index], task.seen))

    @counted
    def step(task):
        batch = task.batch(jax.random.key(1), examples)
        loss = jax.value_and_grad(task.loss, has_aux=True)
        return loss(params, model_state, batch, ctx(64))

    run, traces = step
    results = []
    for weight in (0.0, 0.5, 1.0):
        weighted = replace(task, auxiliary_loss=replace(auxiliary_loss, weight=weight))
        (value, (_, report)), grads = run(weighted)
        results.append((report["auxiliary_loss"], value, grads))
    assert len(traces) == 1
    (none, *without), (half, *middle), (whole, *full) = results
    assert none == 0
    np.testing.assert_allclose(2 * half, whole, rtol=1e-5)
    np.testing.assert_allclose(full[0] - without[0], whole, rtol=1e-4)
    for less, mean, more in zip(*map(jax.tree.leaves, (without, middle, full)), strict=True):
        np.testing.assert_allclose(mean, (less + more) / 2, rtol=1e-4, atol=1e-7)
        assert np.abs(more - less).max() > 1e-5


def test_layer_contrast_reuses_ranking_propagation():
    encoder, auxiliary_loss = xsimgcl(split().train)
    params = in_one(encoder.init, jax.random.key(0))
    whole, (first, own) = in_one(auxiliary_loss.encode, encoder, params, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, whole, first)
    deep = replace(auxiliary_loss, layer=2)
    _, (_, other) = in_one(deep.encode, encoder, params, jax.random.key(1))
    mean = jax.tree.map(lambda a, b: (a + b) / 2, own, other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), mean, whole)


def test_spectral_view_matches_truncated_svd():
    observed = np.random.default_rng(0).random((12, 9)) < 0.4
    log = interactions(observed)
    encoder = LightGCN.from_interactions(log, 4, 2)
    params = in_one(encoder.init, jax.random.key(0))
    contrast = SpectralContrast.from_interactions(log, 4)
    whole, (other, same) = in_one(contrast.encode, encoder, params, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, whole, same)

    graph = normalised(observed)
    left, strengths, right = np.linalg.svd(graph[:12, 12:])
    near = np.zeros_like(graph)
    near[:12, 12:] = (left[:, :4] * strengths[:4]) @ right[:4]
    near += near.T
    own = stacked((params["users"], params["items"]))
    want = (own + near @ own + near @ (graph @ own)) / 3
    np.testing.assert_allclose(stacked(other), want, rtol=1e-4, atol=1e-5)
    assert np.abs(want - stacked(whole)).max() > 1e-3  # the truncation changes the view


def test_neighbor_contrast_uses_embeddings_of_even_layer():
    observed = np.random.default_rng(0).random((12, 9)) < 0.4
    encoder = LightGCN.from_interactions(interactions(observed), 4, 3)
    params = in_one(encoder.init, jax.random.key(0))
    term = NeighborContrast(clusters=3)
    whole, (neighbours, own) = in_one(term.encode, encoder, params, jax.random.key(1))
    graph = normalised(observed)
    inputs = stacked((params["users"], params["items"]))
    np.testing.assert_allclose(stacked(own), inputs, rtol=1e-6)
    np.testing.assert_allclose(stacked(neighbours), graph @ (graph @ inputs), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        stacked(whole), stacked(in_one(encoder.encode, params)), rtol=1e-5, atol=1e-7
    )


def np_prototypes(table, centroids, assignment, ids, real, t):
    """InfoNCE with the centroid of the cluster, averaged over the distinct real ids."""
    unit = np.asarray(table, np.float64)
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    found = []
    for i in set(np.asarray(ids)[np.asarray(real)].tolist()):
        scores = np.exp(np.asarray(centroids, np.float64) @ unit[i] / t)
        found.append(-np.log(scores[assignment[i]] / scores.sum()))
    return np.mean(found)


def test_prototype_loss_matches_numpy_reference():
    rng = np.random.default_rng(2)

    def clusters(n):
        centroids = rng.normal(size=(3, 4))
        centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
        return Clustering(
            jnp.asarray(rng.integers(0, 3, n), jnp.int32), jnp.asarray(centroids, jnp.float32),
            jnp.ones(3, jnp.float32),
        )  # fmt: skip

    neighbours, own = tables(0), tables(1)
    state = NeighborState(clusters(5), clusters(6), jnp.float32(1))
    term = NeighborContrast(
        0.3, {"temperature": 0.4}, prototype_weight=jnp.float32(0.7), clusters=3
    )
    loss = jax.jit(NeighborContrast.loss)
    got = loss(term, (neighbours, own), USERS, ITEMS, REAL, state)
    structure, prototypes = (
        sum(loss_of_side(side) for side in (0, 1))
        for loss_of_side in (
            lambda i: np_info_nce(neighbours[i], own[i], (USERS, ITEMS)[i], REAL, 0.4),
            lambda i: np_prototypes(
                own[i], state[i].centroids, state[i].assignment, (USERS, ITEMS)[i], REAL, 0.4
            ),
        )
    )
    np.testing.assert_allclose(got, 0.3 * structure + 0.7 * prototypes, rtol=1e-5)
    warming_up = state._replace(warmed_up=jnp.float32(0))
    got = loss(term, (neighbours, own), USERS, ITEMS, REAL, warming_up)
    np.testing.assert_allclose(got, 0.3 * structure, rtol=1e-5)
    others = jnp.where(REAL, USERS, 4), jnp.where(REAL, ITEMS, 1)  # padding is never read
    first, second = (
        loss(term, (neighbours, own), *ids, REAL, state) for ids in ((USERS, ITEMS), others)
    )
    np.testing.assert_array_equal(first, second)


def test_clusterings_start_after_the_warm_up():
    """Each epoch clusters the users, and the items, by their input embeddings."""
    log = split().train
    encoder = LightGCN.from_interactions(log, 8, 2)
    term = NeighborContrast(clusters=5, warm_up=2)
    task = tasks.Ranking.from_interactions(
        log, encoder=encoder, loss=losses.bpr, auxiliary_loss=term
    )
    params, model_state = in_one(task.init, jax.random.key(0))
    start = jax.jit(tasks.Ranking.start_epoch)
    before = start(task, jax.random.key(1), params, model_state, jnp.int32(1))
    for old, new in zip(*map(jax.tree.leaves, (model_state, before)), strict=True):
        np.testing.assert_array_equal(old, new)
    users, items, warmed_up = start(
        task, jax.random.key(1), params, model_state, jnp.int32(2)
    ).auxiliary
    assert warmed_up == 1
    for found, name in ((users, "users"), (items, "items")):
        unit = np.asarray(params[name], np.float64)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        scores = unit @ np.asarray(found.centroids, np.float64).T
        nearest = scores[np.arange(len(unit)), np.asarray(found.assignment)]
        np.testing.assert_allclose(nearest, scores.max(1), atol=1e-6)
        assert len(set(np.asarray(found.assignment).tolist())) == 5
    assert not np.allclose(users.centroids, items.centroids)


def test_prototype_training_is_reproducible():
    log = split().train
    encoder = LightGCN.from_interactions(log, 8, 2)

    def train_with(weight):
        term = NeighborContrast(prototype_weight=weight, clusters=5, warm_up=1)
        fitted = fit_ranking(log, encoder=encoder, loss=losses.bpr, auxiliary_loss=term, epochs=3)
        return [row["auxiliary_loss"][0] for row in fitted.history]

    first, again, without = train_with(0.5), train_with(0.5), train_with(0.0)
    assert first == again
    assert first[0] == without[0]  # warm-up
    assert all(a > b for a, b in zip(first[1:], without[1:], strict=True))


INVALID_ARGUMENTS: dict[str, tuple[Any, str]] = {
    "layers": (
        {"auxiliary_loss": LayerContrast()},
        "`encoder` must be a LightGCN for this auxiliary loss, got Matrix",
    ),
    "a layer too deep": (
        lambda: {
            "auxiliary_loss": LayerContrast(layer=3),
            "encoder": LightGCN.from_interactions(split().train, 4, 2),
        },
        "`layer` must be at most 2, got 3",
    ),
    "a neighbourhood too deep": (
        lambda: {
            "auxiliary_loss": NeighborContrast(clusters=3),
            "encoder": LightGCN.from_interactions(split().train, 4, 1),
        },
        "`layer` must be at most 1, got 2",
    ),
    "more clusters than users": (
        lambda: {
            "auxiliary_loss": NeighborContrast(clusters=61),
            "encoder": LightGCN.from_interactions(split().train, 4, 2),
        },
        "`clusters` must be at most the number of users, 60, got 61",
    ),
    "a view of others": (
        {"auxiliary_loss": views()},
        "`first` must have the 60 users and 80 items of the encoder, got 5 and 6",
    ),
    "vectors of others": (
        lambda: {
            "auxiliary_loss": SpectralContrast.from_interactions(interactions(np.eye(9) > 0), 2),
            "encoder": LightGCN.from_interactions(split().train, 4, 2),
        },
        "`auxiliary_loss` must have the 60 users and 80 items of the encoder, got 9 and 9",
    ),
    "a missing number": (
        lambda: {"auxiliary_loss": alone(loss_fn=losses.nce)},
        "`hyperparams` must hold neg_log_noise, pos_log_noise, required by `loss_fn`",
    ),
    "a number out of range": (
        lambda: {"auxiliary_loss": alone(hyperparams={"temperature": 0.0})},
        "`temperature` must lie in",
    ),
    "a loss without a mask": (
        lambda: {"auxiliary_loss": alone(loss_fn=lambda pos, neg, reduce_fn, temperature: pos)},
        "`loss_fn` must accept a `where` mask",
    ),
    "a number that is not there": (
        lambda: {
            "auxiliary_loss": alone(),
            "sweep": {"task.auxiliary_loss.hyperparams.alpha": [0.6, 0.9]},
        },
        "`sweep` must name leaves, which are .'temperature'., got 'alpha'",
    ),
    "a class": (
        {"auxiliary_loss": LayerContrast},
        "`auxiliary_loss` must be an AuxiliaryLoss, such as .*, got the class LayerContrast",
    ),
    "rows": (
        lambda: {
            "auxiliary_loss": alone(),
            "encoder": MatrixFactorization(60, 80, 4),
            "optimizer": train.RowOptimizer(),
        },
        "`auxiliary_loss` must read only the embeddings of the batch .* got Graph",
    ),
}


def alone(**settings):
    """Graph contrast between two equal views of the tables."""
    plain = MatrixFactorization(60, 80, 4)
    return GraphContrast(first=plain, second=plain, **settings)


@pytest.mark.parametrize("case", INVALID_ARGUMENTS)
def test_rejects_invalid_auxiliary_loss_before_training(case, unchecked):
    given, message = INVALID_ARGUMENTS[case]
    given = given() if callable(given) else given
    with raises(ValueError, match=message):
        fit_ranking(split().train, **{"loss": losses.bpr, "epochs": 1, **given})


def np_uniformity(table, ids):
    """The log of the mean over pairs of examples, one pair at a time."""
    unit = np.asarray(table, np.float64)[ids]
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    pairs = [np.exp(-2 * ((a - b) ** 2).sum()) for i, a in enumerate(unit) for b in unit[:i]]
    return np.log(np.mean(pairs))


def test_uniformity_matches_numpy_reference():
    both = tables(0)
    got = in_one(Uniformity(0.6).loss, both, USERS, ITEMS, REAL)
    real = np.asarray(REAL)
    want = np.mean([np_uniformity(*arrays) for arrays in zip(both, (USERS[real], ITEMS[real]))])
    np.testing.assert_allclose(got, 0.6 * want, rtol=1e-5)
    # Duplicates count twice.
    once = np.unique(USERS[real])
    assert not np.isclose(np_uniformity(both.users, once), np_uniformity(both.users, USERS[real]))
    assert in_one(Uniformity().loss, both, USERS, ITEMS, jnp.zeros(6, bool)) == 0


def test_align_positives_equals_squared_distance():
    rng = np.random.default_rng(0)
    users, items = rng.normal(size=(2, 7, 3))
    users, items = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (users, items))
    pos = jnp.asarray((users * items).sum(1), jnp.float32)
    got = tasks.align_positives(pos, jnp.full((7, 1), jnp.nan))
    np.testing.assert_allclose(got, ((users - items) ** 2).sum(1), rtol=1e-5)
    mean = tasks.align_positives(pos, jnp.zeros((7, 2)), reduce_fn=masked_mean)
    np.testing.assert_allclose(mean, np.mean(got), rtol=1e-6)


def test_spectral_contrast_rejects_rank_out_of_range():
    with raises(ValueError, match="`rank` must be less than 60, got 60"):
        SpectralContrast.from_interactions(split().train, rank=60)
