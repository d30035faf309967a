"""Matrix factorisation and modules as pure functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from crl_jax.models import MatrixFactorization, functional


@pytest.fixture
def model():
    return functional(lambda rngs: MatrixFactorization(7, 11, 5, rngs=rngs))


def test_scores_are_inner_products(model):
    params = model.init(jax.random.key(0))
    users, items = np.array([0, 6, 3]), np.array([[0, 10], [5, 5], [1, 2]])
    got = jax.jit(model.score)(params, jnp.asarray(users), jnp.asarray(items))
    tables = {name: np.asarray(table, np.float64) for name, table in params.items()}
    for row, user in enumerate(users):
        for column, item in enumerate(items[row]):
            want = tables["users"][user] @ tables["items"][item]
            np.testing.assert_allclose(got[row, column], want, rtol=1e-5, atol=1e-6)
    every = jax.jit(model.score_all)(params, jnp.asarray(users))
    want = tables["users"][users] @ tables["items"].T
    np.testing.assert_allclose(every, want, rtol=1e-5, atol=1e-6)


def test_initial_values_are_xavier_normal():
    model = functional(lambda rngs: MatrixFactorization(3000, 2000, 40, rngs=rngs))
    params = model.init(jax.random.key(1))
    for name, rows in (("users", 3000), ("items", 2000)):
        table = np.asarray(params[name])
        assert table.dtype == np.float32
        np.testing.assert_allclose(table.std(), np.sqrt(2 / (rows + 40)), rtol=0.02)
        assert abs(table.mean()) < 4 * table.std() / np.sqrt(table.size)


def test_init_under_vmap_is_init_alone(model):
    keys = jax.random.split(jax.random.key(2), 3)
    together = jax.vmap(model.init)(keys)
    alone = model.init(keys[1])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1], b), together, alone)
    assert not np.array_equal(together["users"][0], together["users"][1])
    assert not np.array_equal(np.asarray(alone["users"])[:5], np.asarray(alone["items"])[:5])


def test_a_module_with_other_state_is_refused():
    def build(rngs):
        model = MatrixFactorization(2, 3, rngs=rngs)
        model.norm = nnx.BatchNorm(3, rngs=rngs)
        return model

    with pytest.raises(ValueError, match="`build` must make a module with parameters alone"):
        functional(build)
