"""Sort-free permutation: a bijection with statistically uniform orders."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises
from scipy import stats

from crl_jax.samplers import permute

pytestmark = pytest.mark.usefixtures("quick_compiles")

full_permutation = jax.jit(lambda key, n: permute(key, jnp.arange(n), n), static_argnums=1)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 700, 1024, 1025, 65_536, 65_537, 1_000_003])
def test_is_a_bijection(n):
    for seed in range(1 if n > 10_000 else 5):
        image = np.asarray(full_permutation(jax.random.key(seed), n))
        assert image.dtype == np.int32
        np.testing.assert_array_equal(np.sort(image), np.arange(n))


def test_largest_domain_stays_in_range():
    n = 2**31 - 1
    index = jnp.asarray(np.linspace(0, n - 1, 10_001).astype(np.int32))
    image = np.asarray(permute(jax.random.key(5), index, n))
    assert image.min() >= 0
    assert image.max() < n
    assert len(np.unique(image)) == len(image)


@pytest.mark.parametrize("n", [5, 6])
def test_all_orders_of_small_domains_are_equally_frequent(n):
    orders = {order: i for i, order in enumerate(itertools.permutations(range(n)))}
    keys = jax.random.split(jax.random.key(1), len(orders) * 100)
    images = np.asarray(jax.vmap(lambda key: permute(key, jnp.arange(n), n))(keys))
    counts = np.bincount([orders[tuple(row)] for row in images.tolist()], minlength=len(orders))
    assert stats.chisquare(counts).pvalue > 1e-3


def test_positions_and_neighbour_distances_are_uniform():
    n, keys = 1025, jax.random.split(jax.random.key(2), 20_000)
    part = jnp.array([0, 1, 527, 1024])
    images = np.asarray(jax.vmap(lambda key: permute(key, part, n))(keys))
    for position in range(4):
        counts = np.bincount(images[:, position], minlength=n)
        assert stats.chisquare(counts).pvalue > 1e-3
    step = np.bincount((images[:, 1] - images[:, 0]) % n, minlength=n)[1:]
    assert stats.chisquare(step).pvalue > 1e-3


def test_partial_permutation_matches_full_permutation():
    key, n = jax.random.key(3), 1000
    everything = full_permutation(key, n)
    part = permute(key, jnp.array([[7, 999], [0, 500]]), n)
    np.testing.assert_array_equal(part, np.asarray(everything)[np.array([[7, 999], [0, 500]])])


@pytest.mark.parametrize("n", [0, -1, 2**31])
def test_rejects_size_out_of_range(n):
    with raises(ValueError, match=r"`n` must lie in"):
        permute(jax.random.key(0), jnp.arange(1), n)
