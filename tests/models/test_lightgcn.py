"""LightGCN as an encoder: layers and their weights, dropout, arguments, shared programs."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import counted
from _helpers.refusals import raises
from flax import nnx

from crl_jax.data import Interactions
from crl_jax.models import LightGCN

pytestmark = pytest.mark.usefixtures("quick_compiles")

N_USERS, N_ITEMS, DIM = 12, 9, 4


@pytest.fixture(scope="module")
def train() -> Interactions:
    seen = np.random.default_rng(0).random((N_USERS, N_ITEMS)) < 0.3
    seen[2] = seen[:, 5] = False
    users, items = np.nonzero(seen)
    return Interactions.from_arrays(
        users, items, user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )


def reference_encoding(train, params, weights) -> tuple[np.ndarray, np.ndarray]:
    """Equation 3 of the paper, one link at a time."""
    user_degrees = np.bincount(train.users, minlength=N_USERS)
    item_degrees = np.bincount(train.items, minlength=N_ITEMS)
    users, items = (np.asarray(params[name], np.float64) for name in ("users", "items"))
    totals = [weights[0] * users, weights[0] * items]
    for weight in weights[1:]:
        new_users, new_items = np.zeros_like(users), np.zeros_like(items)
        for user, item in zip(train.users, train.items):
            norm = np.sqrt(user_degrees[user]) * np.sqrt(item_degrees[item])
            new_users[user] += items[item] / norm
            new_items[item] += users[user] / norm
        users, items = new_users, new_items
        totals = [totals[0] + weight * users, totals[1] + weight * items]
    return totals[0], totals[1]


@pytest.mark.parametrize(
    ("n_layers", "layer_weights", "used"),
    [(3, None, [0.25] * 4), (1, [0.0, 1.0], [0.0, 1.0]), (2, (1.0, -0.5, 2), [1.0, -0.5, 2.0])],
)
def test_encoding_is_the_weighted_sum_of_layers(train, n_layers, layer_weights, used):
    encoder = LightGCN.from_interactions(train, DIM, n_layers, layer_weights=layer_weights)
    params = encoder.init(jax.random.key(0))
    tables = jax.jit(lambda encoder, params: encoder.encode(params))(encoder, params)
    for got, want in zip(tables, reference_encoding(train, params, used)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_edges_are_dropped_only_with_a_key_and_a_rate(train):
    without_dropout = LightGCN.from_interactions(train, DIM, 1)
    params = without_dropout.init(jax.random.key(0))
    with_dropout = LightGCN.from_interactions(train, DIM, 1, edge_dropout=0.5)
    encode = jax.jit(lambda encoder, key=None: encoder.encode(params, key).users)
    key, whole = jax.random.key(7), encode(without_dropout)
    np.testing.assert_array_equal(encode(without_dropout, key), whole)
    np.testing.assert_allclose(encode(with_dropout), whole, rtol=1e-6)
    first, second = encode(with_dropout, key), encode(with_dropout, key)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, encode(with_dropout, jax.random.key(8)))
    assert not np.array_equal(first, whole)


def test_gradient_uses_same_dropped_edges(train):
    encoder = LightGCN.from_interactions(train, DIM, 2, edge_dropout=0.4)
    params, key = encoder.init(jax.random.key(0)), jax.random.key(1)
    cotangents = encoder.init(jax.random.key(2))

    def loss(params):
        tables = encoder.encode(params, key)
        return jnp.vdot(tables.users, cotangents["users"]) + jnp.vdot(
            tables.items, cotangents["items"]
        )

    value, slopes = jax.jit(jax.value_and_grad(loss))(params)
    # The loss is linear: it is the inner product with its own gradient.
    inner = sum(jnp.vdot(slopes[name], params[name]) for name in params)
    np.testing.assert_allclose(value, inner, rtol=1e-5)
    np.testing.assert_allclose(
        slopes["users"], jax.jit(encoder.encode)(cotangents, key).users, rtol=1e-5, atol=1e-7
    )


def test_initial_values_match_default_and_given_initializer(train):
    params = LightGCN.from_interactions(train, 4000).init(jax.random.key(0))
    for name, rows in (("users", N_USERS), ("items", N_ITEMS)):
        assert params[name].shape == (rows, 4000)
        np.testing.assert_allclose(np.std(params[name]), 0.1, rtol=0.05)
    even = LightGCN.from_interactions(
        train, 4000, initializer=nnx.initializers.xavier_uniform()
    ).init(jax.random.key(0))
    limit = np.sqrt(6 / (N_USERS + 4000))
    assert 0.99 * limit < np.abs(even["users"]).max() <= limit


def test_equal_encoders_share_compiled_program(train):
    encode, traces = counted(lambda encoder, params: encoder.encode(params))
    first, second = LightGCN.from_interactions(train, DIM), LightGCN.from_interactions(train, DIM)
    params = first.init(jax.random.key(0))
    np.testing.assert_array_equal(encode(first, params).users, encode(second, params).users)
    assert len(traces) == 1
    assert jax.tree.structure(first) == jax.tree.structure(second)
    # Encoders of one graph are equal, too; graphs are compared by identity.
    assert first == replace(first)
    assert hash(first) == hash(replace(first))
    assert first != second
    assert first != replace(first, similarity="cosine")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layers": 0}, r"`n_layers` must lie in \[1, 64\], got 0"),
        ({"n_layers": 65}, r"`n_layers` must lie in \[1, 64\], got 65"),
        ({"layer_weights": [0.5, 0.5]}, "`layer_weights` must have 4 weights"),
        ({"layer_weights": [0.5, 0.5, np.nan, 0]}, "finite"),
        ({"edge_dropout": 1.0}, r"`edge_dropout` must lie in \[0, 1\), got 1.0"),
        ({"edge_dropout": -0.1}, "`edge_dropout` must lie in"),
        ({"dim": 0}, "`dim` must be at least 1, got 0"),
        ({"similarity": "dot"}, "`similarity` must be one of inner, cosine"),
        ({"layout": "csr"}, "`layout` must be one of auto, rows, dense"),
    ],
)
def test_rejects_invalid_arguments(train, change, message):
    with raises(ValueError, match=message):
        LightGCN.from_interactions(train, **change)
