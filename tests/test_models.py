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


class Pairs(nnx.Module):
    """An encoder that scores single pairs and nothing else."""

    def __init__(self, rngs):
        self.table = nnx.Param(jax.random.normal(rngs.params(), (4, 6)))

    def __call__(self, users, items):
        return self.table[users[:, None], items]

    def all_scores(self, users):
        return self.table[users]


@pytest.mark.parametrize("build", [Pairs, lambda rngs: MatrixFactorization(4, 6, 3, rngs=rngs)])
def test_scores_with_shared_items_are_those_of_the_pairs(build):
    model = functional(build)
    params = model.init(jax.random.key(0))
    users, items = jnp.array([3, 0, 3]), jnp.array([5, 1, 1, 0])
    got = model.score_shared(params, users, items)
    assert got.shape == (4, 3)
    np.testing.assert_allclose(got, model.score_all(params, users)[:, items].T, rtol=1e-5)


def test_scores_from_rows_are_those_of_the_tables():
    model = functional(lambda rngs: MatrixFactorization(4, 6, 3, rngs=rngs))
    params = model.init(jax.random.key(0))
    users, items = jnp.array([3, 0]), jnp.array([[5, 1], [2, 2]])
    ids = model.row_ids(users, items)
    rows = {name: params[name][ids[name]] for name in params}
    np.testing.assert_array_equal(model.row_scores(rows), model.score(params, users, items))
    assert functional(Pairs).row_ids is None
