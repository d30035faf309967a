"""Encoder of ids and side features: values, dropout of ids, gradients, training."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import counted, in_one
from _helpers.refusals import raises
from jax.sharding import Mesh
from jax.test_util import check_grads

from crl_jax import data, losses, samplers, tasks, train
from crl_jax.models import FeatureEncoder, feature_vectors

pytestmark = pytest.mark.usefixtures("quick_compiles")

N_USERS, N_ITEMS, DIM = 6, 9, 4


def features(n, n_dense, n_categories, width, seed):
    """Random features with bags of every size from 0 to ``width``."""
    rng = np.random.default_rng(seed)
    sizes = np.arange(n) % (width + 1)
    categories = np.full((n, width), -1, np.int32)
    weights = np.zeros((n, width), np.float32)
    for row, size in enumerate(sizes):
        categories[row, :size] = rng.choice(n_categories, size, replace=False)
        weights[row, :size] = rng.random(size) + 0.5
    dense = rng.standard_normal((n, n_dense)).astype(np.float32)
    return data.Features(dense, categories, weights, n_categories)


USERS, ITEMS = features(N_USERS, 2, 5, 3, 0), features(N_ITEMS, 3, 7, 4, 1)
NEW = features(5, 3, 7, 2, 2)


@pytest.fixture
def encoder():
    return FeatureEncoder(N_USERS, N_ITEMS, DIM, user_features=USERS, item_features=ITEMS)


def np_vectors(params, own):
    """W^T x + sum of weighted category embeddings, one row at a time, in float64."""
    dense, table = (np.asarray(params[name], np.float64) for name in ("dense", "categories"))
    rows = []
    for x, categories, weights in zip(own.dense, own.categories, own.weights):
        row = np.zeros(DIM)
        for value, direction in zip(x.tolist(), dense):
            row += value * direction
        for category, weight in zip(categories.tolist(), weights.tolist()):
            if category >= 0:
                row += weight * table[category]
        rows.append(row)
    return np.array(rows)


def test_vectors_match_float64_formula(encoder):
    params = in_one(encoder.init, jax.random.key(0))
    got = in_one(encoder.encode, params)
    for ids, name, own, table in (
        ("users", "user_features", USERS, got.users),
        ("items", "item_features", ITEMS, got.items),
    ):
        want = np.asarray(params[ids], np.float64) + np_vectors(params[name], own)
        np.testing.assert_allclose(table, want, rtol=1e-5, atol=1e-6)
    want = np_vectors(params["item_features"], NEW)
    np.testing.assert_allclose(
        in_one(encoder.item_vectors, params, NEW), want, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("n_dense", "n_categories"), [(0, 7), (3, 0), (0, 0)])
def test_either_kind_of_features_may_be_absent(n_dense, n_categories):
    own = features(N_ITEMS, n_dense, n_categories, min(2, n_categories), 3)
    encoder = FeatureEncoder(N_USERS, N_ITEMS, DIM, item_features=own)
    params = in_one(encoder.init, jax.random.key(0))
    want = np_vectors(params["item_features"], own)
    np.testing.assert_allclose(
        in_one(encoder.item_vectors, params, own), want, rtol=1e-5, atol=1e-6
    )
    assert "user_features" not in params
    np.testing.assert_array_equal(in_one(encoder.encode, params).users, params["users"])


def test_bags_are_combined_by_sum_or_mean():
    films = data.FeatureTable.from_columns([0, 1], {"genre": [["a", "b", "c"], ["a"]]})
    table = np.random.default_rng(0).standard_normal((3, DIM)).astype(np.float32)
    params = {"dense": np.zeros((0, DIM), np.float32), "categories": table}
    for combine, want in (("sum", table.sum(0)), ("mean", table.mean(0))):
        own = data.FeatureSchema.fit(films, min_count=1, combine=combine).transform(films)
        got = in_one(feature_vectors, jax.tree.map(jnp.asarray, params), own)
        np.testing.assert_allclose(got, [want, table[0]], rtol=1e-6, atol=1e-7)


def test_vectors_of_new_items_do_not_depend_on_ids(encoder):
    params = in_one(encoder.init, jax.random.key(0))
    other = {**params, "items": params["items"] + 1e3, "users": params["users"] - 1e3}
    vectors = jax.jit(encoder.item_vectors)
    np.testing.assert_array_equal(vectors(params, NEW), vectors(other, NEW))
    grads = jax.grad(lambda p: jnp.sum(encoder.item_vectors(p, NEW) ** 2))(params)
    assert not grads["items"].any()
    assert not grads["users"].any()
    assert grads["item_features"]["dense"].any()


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_dropout_omits_whole_ids_without_rescaling(rate):
    n = 4000
    own = features(n, 1, 3, 1, 4)
    encoder = FeatureEncoder(2, n, DIM, item_features=own, item_id_dropout=rate)
    params = in_one(encoder.init, jax.random.key(0))
    with_ids = params["items"] + in_one(encoder.item_vectors, params, own)
    without = in_one(encoder.item_vectors, params, own)
    got = in_one(encoder.encode, params, jax.random.key(1)).items
    kept = np.isclose(got, with_ids, atol=1e-6).all(axis=1)
    dropped = np.isclose(got, without, atol=1e-6).all(axis=1)
    assert (kept ^ dropped).all()
    error = 4 * np.sqrt(rate * (1 - rate) / n)
    assert abs(dropped.mean() - rate) <= error
    served = in_one(encoder.encode, params).items
    np.testing.assert_allclose(served, without if rate == 1 else with_ids, rtol=1e-6)


def test_users_and_items_are_dropped_independently(encoder):
    encoder = replace(encoder, user_id_dropout=0.5, item_id_dropout=0.5)
    params = in_one(encoder.init, jax.random.key(0))
    zero = jax.tree.map(jnp.zeros_like, params)
    ids = zero | {"users": jnp.ones((N_USERS, DIM)), "items": jnp.ones((N_ITEMS, DIM))}
    encode = jax.jit(jax.vmap(encoder.encode, (None, 0)))
    users, items = encode(ids, jax.random.split(jax.random.key(1), 500))
    flags = np.concatenate([users[..., 0], items[..., 0]], axis=1)
    correlation = np.corrcoef(flags.T) - np.eye(N_USERS + N_ITEMS)
    assert abs(correlation).max() < 5 / np.sqrt(500)


def test_gradients_reach_only_rows_in_use(encoder):
    params = in_one(encoder.init, jax.random.key(0))
    own = replace(ITEMS, categories=np.where(ITEMS.categories == 6, 5, ITEMS.categories))
    encoder = replace(encoder, item_features=own, item_id_dropout=0.0)

    def one_score(params):
        tables = encoder.encode(params, jax.random.key(0))
        return encoder.score(tables, jnp.array([2]), jnp.array([[3]]))[0, 0]

    grads = jax.grad(one_score)(params)
    assert np.flatnonzero(grads["users"].any(axis=1)).tolist() == [2]
    assert np.flatnonzero(grads["items"].any(axis=1)).tolist() == [3]
    in_use = sorted(set(own.categories[3][own.categories[3] >= 0].tolist()))
    assert np.flatnonzero(grads["item_features"]["categories"].any(axis=1)).tolist() == in_use

    def score_of_arrays(params):  # check_grads passes NumPy arrays
        return one_score(jax.tree.map(jnp.asarray, params))

    check_grads(score_of_arrays, (params,), order=1, modes=["rev"], rtol=2e-2)


def test_preserves_bfloat16(encoder):
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), in_one(encoder.init, jax.random.key(0)))
    got = in_one(encoder.encode, params, jax.random.key(1))
    assert {got.users.dtype, got.items.dtype} == {jnp.dtype(jnp.bfloat16)}


def test_dropout_rate_does_not_recompile(encoder):
    params = in_one(encoder.init, jax.random.key(0))
    encode, traces = counted(lambda encoder, params: encoder.encode(params, jax.random.key(0)))
    for rate in (0.1, 0.9):
        encode(replace(encoder, item_id_dropout=jnp.float32(rate)), params)
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"item_features": USERS}, r"`item_features` must have a row for each of 9 items, got 6"),
        ({"user_features": None, "item_features": None}, "got neither"),
        ({"item_id_dropout": 1.5}, r"`item_id_dropout` must lie in \[0\.0, 1\.0\], got 1\.5"),
    ],
)
def test_rejects_invalid_arguments(encoder, given, message):
    with raises(ValueError, match=message):
        replace(encoder, **given)


SIMULATED = data.simulate(n_users=40, n_items=60, n_exposed=40, seed=0).interactions


@pytest.mark.parametrize("sampler", [samplers.RNS(), samplers.InBatch(), samplers.DNS()])
def test_trains_with_samplers_and_swept_dropout_rate(sampler):
    own = features(60, 2, 5, 2, 0)
    fitted = tasks.fit_ranking(
        SIMULATED,
        loss=losses.info_nce,
        encoder=FeatureEncoder(40, 60, DIM, item_features=own),
        sampler=sampler,
        epochs=3,
        optimizer=train.Optimizer(0.5, rule=train.sgd_l2),
        sweep={"task.encoder.item_id_dropout": np.array([0.0, 0.5])},
    )
    first, last = fitted.history[0]["loss"], fitted.history[-1]["loss"]
    assert np.all(np.asarray(last) < np.asarray(first))
    assert fitted.tables(1).items.shape == (60, DIM)


def test_sharded_tables_match_single_device():
    log = data.simulate(n_users=41, n_items=61, n_exposed=30, seed=1).interactions
    encoder = FeatureEncoder(
        41, 61, DIM, user_features=features(41, 1, 3, 2, 0), item_features=features(61, 2, 5, 2, 1)
    )
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "table"))
    one, many = (
        tasks.fit_ranking(
            log,
            loss=losses.bpr,
            encoder=encoder,
            optimizer=train.Optimizer(1.0, rule=train.sgd_l2),
            config=train.TrainConfig(64, mesh=mesh),
            epochs=1,
        ).get_params()
        for mesh in (None, mesh)
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), one, many)


def test_rejects_row_optimizers():
    own = features(60, 2, 5, 2, 0)
    with raises(
        ValueError, match="`encoder` must compute each embedding from one row .* FeatureEnc"
    ):
        tasks.fit_ranking(
            SIMULATED,
            loss=losses.bpr,
            encoder=FeatureEncoder(40, 60, DIM, item_features=own),
            optimizer=train.RowOptimizer(0.1),
        )


def test_id_dropout_recovers_true_preferences_for_cold_items():
    simulated = data.simulate(n_users=150, n_items=200, n_exposed=120, popularity_skew=0.0, seed=0)
    table = data.simulate_features(simulated.item_factors, noise=0.1)
    split = data.hold_out_items(simulated.interactions, fraction=0.3)
    schema = data.FeatureSchema.fit(table, split.train.item_ids)
    fitted = tasks.fit_ranking(
        split.train,
        loss=losses.bpr,
        encoder=FeatureEncoder(
            150, split.train.n_items, 8,
            item_features=schema.transform(table, split.train.item_ids), item_id_dropout=0.5,
        ),
        optimizer=train.Optimizer(3.0, rule=train.sgd_l2),
        epochs=30,
        stopping=tasks.Stopping(eval_every=30),
    )  # fmt: skip
    encoder: FeatureEncoder = fitted.encoder
    cold = schema.transform(table, split.test.item_ids)
    params = fitted.get_params()
    vectors = in_one(encoder.item_vectors, params, cold)
    scores = np.asarray(encoder.encode(params).users @ vectors.T)
    likes = simulated.likes[:, split.test.item_ids]
    auc = [(s[x][:, None] > s[~x]).mean() for s, x in zip(scores, likes, strict=True)]
    assert np.mean(auc) > 0.85
