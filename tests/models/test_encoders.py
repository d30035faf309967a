"""Encoders: matrix factorisation, inner-product and cosine scores, dropout, and equality."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.exported import exported
from _helpers.programs import counted, in_one
from _helpers.refusals import raises

from crl_jax.models import (
    Encoder,
    MatrixFactorization,
    Tables,
    inner_scores,
    normal,
    xavier_normal,
    xavier_uniform,
)

pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.fixture(params=["inner", "cosine"])
def encoder(request):
    return MatrixFactorization(7, 11, 5, similarity=request.param)


def reference_scores(encoder, params):
    users, items = (np.asarray(params[name], np.float64) for name in ("users", "items"))
    if encoder.similarity == "cosine":
        users, items = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (users, items))
    return users @ items.T


def test_scores_match_reference(encoder):
    params = in_one(encoder.init, jax.random.key(0))
    want = reference_scores(encoder, params)
    users, items = np.array([0, 6, 3]), np.array([[0, 10], [5, 5], [1, 2]])
    tables = in_one(encoder.encode, params)
    pairs = jax.jit(encoder.score)(tables, jnp.asarray(users), jnp.asarray(items))
    np.testing.assert_allclose(pairs, want[users[:, None], items], rtol=1e-5, atol=1e-6)
    few = np.array([5, 1, 1, 0])
    shared = in_one(encoder.score_shared, tables, jnp.asarray(users), jnp.asarray(few))
    np.testing.assert_allclose(shared, want[users][:, few].T, rtol=1e-5, atol=1e-6)
    every = jax.jit(inner_scores)(encoder.serving_tables(params), jnp.asarray(users))
    np.testing.assert_allclose(every, want[users], rtol=1e-5, atol=1e-6)


def test_gradients_of_repeated_rows_match_separate_lookups(encoder):
    params = in_one(encoder.init, jax.random.key(0))
    generator = np.random.default_rng(0)
    users, items = generator.integers(0, 7, 9), generator.integers(0, 11, (9, 4))
    weights = jnp.asarray(generator.normal(size=items.shape), jnp.float32)

    def total(params, which):
        scores = encoder.score(encoder.encode(params), users[which], items[which])
        return jnp.sum(weights[which] * scores)

    want = reference_scores(encoder, params)[users[:, None], items]
    # 9 users and 36 items repeat rows of tables of 7 and 11; one user with 4 items does not.
    value, grads = jax.jit(jax.value_and_grad(lambda p: total(p, slice(None))))(params)
    np.testing.assert_allclose(value, np.sum(weights * want), rtol=1e-5)
    alone = jax.jit(jax.grad(lambda p: sum(total(p, slice(i, i + 1)) for i in range(9))))(params)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, alone[name], rtol=1e-5, atol=1e-6)


def test_score_exports_with_symbolic_batch(encoder):
    params = in_one(encoder.init, jax.random.key(0))
    users, items = np.array([0, 6, 3], np.int32), np.array([[0, 10], [5, 5], [1, 2]], np.int32)
    tables = in_one(encoder.encode, params)
    got = exported(encoder.score, tables, users, items, b=3).call(tables, users, items)
    want = reference_scores(encoder, params)[users[:, None], items]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_zero_row_has_zero_cosine_and_finite_gradient():
    encoder = MatrixFactorization(1, 2, 3, similarity="cosine")
    tables = Tables(jnp.zeros((1, 3)), jnp.ones((2, 3)))
    ids = jnp.array([0]), jnp.array([[0, 1]])
    score = jax.jit(jax.value_and_grad(lambda t: jnp.sum(encoder.score(t, *ids))))
    value, grads = score(tables)
    assert value == 0
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(grads))


@pytest.mark.parametrize(
    ("initializer", "deviation"),
    [(None, lambda rows: np.sqrt(2 / (rows + 40))), (normal(0.1), lambda rows: 0.1),
     (xavier_uniform, lambda rows: np.sqrt(2 / (rows + 40)))],
)  # fmt: skip
def test_initial_values_match_initializer_distribution(initializer, deviation):
    further = {} if initializer is None else {"initializer": initializer}
    params = in_one(MatrixFactorization(3000, 2000, 40, **further).init, jax.random.key(1))
    for name, rows in (("users", 3000), ("items", 2000)):
        table = np.asarray(params[name])
        assert table.dtype == np.float32
        np.testing.assert_allclose(table.std(), deviation(rows), rtol=0.02)
        assert abs(table.mean()) < 4 * table.std() / np.sqrt(table.size)


def test_equal_encoders_share_compiled_program():
    one = jnp.array([0])
    score, traces = counted(lambda encoder, tables: encoder.score(tables, one, one[None]))
    tables = Tables(jnp.ones((2, 3)), jnp.ones((4, 3)))
    for _ in range(2):
        score(MatrixFactorization(2, 4, 3, initializer=normal(0.6)), tables)
    assert len(traces) == 1
    score(dataclasses.replace(MatrixFactorization(2, 4, 3), similarity="cosine"), tables)
    assert len(traces) == 2


def test_dropout_masks_and_rescales_user_embeddings():
    encoder, rate = MatrixFactorization(2000, 30, 16, dropout=0.3), 0.3
    params = jax.tree.map(lambda x: np.asarray(x) + 1, in_one(encoder.init, jax.random.key(0)))
    encode = jax.jit(encoder.encode)
    tables = encode(params, jax.random.key(1))
    users = np.asarray(tables.users)
    kept = users != 0
    np.testing.assert_allclose(users[kept], np.asarray(params["users"])[kept] / 0.7, rtol=1e-6)
    deviation = np.sqrt(rate * (1 - rate))
    assert abs(np.mean(~kept) - rate) < 4 * deviation / np.sqrt(kept.size)
    # All dimensions and all users are dropped equally often.
    assert np.abs(np.mean(~kept, axis=0) - rate).max() < 5 * deviation / np.sqrt(2000)
    assert np.abs(np.mean(~kept, axis=1) - rate).max() < 5.5 * deviation / np.sqrt(16)
    np.testing.assert_array_equal(tables.items, params["items"])
    again, other = (encode(params, jax.random.key(seed)).users for seed in (1, 2))
    np.testing.assert_array_equal(users, again)
    assert not np.array_equal(users, other)


def test_dropout_applies_in_training_and_masks_gradient():
    encoder = MatrixFactorization(7, 11, 5, dropout=0.4)
    params = in_one(encoder.init, jax.random.key(0))
    np.testing.assert_array_equal(encoder.encode(params).users, params["users"])
    np.testing.assert_array_equal(encoder.serving_tables(params).users, params["users"])

    def total(params):
        return jnp.sum(encoder.encode(params, jax.random.key(1)).users)

    kept = np.asarray(in_one(encoder.encode, params, jax.random.key(1)).users) != 0
    np.testing.assert_allclose(jax.jit(jax.grad(total))(params)["users"], kept / 0.6, rtol=1e-6)


def test_dropout_rate_does_not_recompile():
    key = jax.random.key(1)
    encode, traces = counted(lambda encoder, params: encoder.encode(params, key).users)
    params = MatrixFactorization(50, 3, 8).init(jax.random.key(0))
    found = [
        np.mean(encode(MatrixFactorization(50, 3, 8, dropout=rate), params) == 0)
        for rate in (0.0, 0.1, 0.9)
    ]
    assert found[0] == 0
    assert 0 < found[1] < 0.2
    assert 0.8 < found[2] < 1
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"dropout": 1.0}, r"`dropout` must lie in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, r"`dropout` must lie in \[0, 1\), got -0.1"),
        ({"n_users": 0}, "`n_users` must be at least 1, got 0"),
        ({"dim": -2}, "`dim` must be at least 1, got -2"),
        ({"similarity": "dot"}, "`similarity` must be one of inner, cosine, got 'dot'"),
    ],
)
def test_rejects_invalid_arguments(bad, message):
    with raises(ValueError, match=message):
        MatrixFactorization(**{"n_users": 2, "n_items": 3, **bad})


def test_encoder_base_class_is_abstract():
    with raises(TypeError, match="abstract"):
        Encoder(2, 3)  # type: ignore[abstract]


@pytest.mark.parametrize("initializer", [xavier_normal, xavier_uniform, normal(0.1)])
def test_encoders_are_picklable(initializer):
    encoder = MatrixFactorization(3, 4, 2, initializer=initializer)
    again = pickle.loads(pickle.dumps(encoder))  # noqa: S301
    assert again == encoder
    assert hash(jax.tree.structure(again)) == hash(jax.tree.structure(encoder))
