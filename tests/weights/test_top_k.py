"""Top-K thresholds: order statistics, ties, masks and arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import jitted
from _helpers.refusals import raises

from crl_jax import weights

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(weights)


def test_fraction_of_k_over_n_gives_kth_largest_score():
    rng = np.random.default_rng(0)
    for n in (1, 3, 20, 49):  # k / n, rounded to float32 and multiplied by n, can exceed k
        scores = np.float32(rng.permutation(n))
        fractions = np.float32(np.arange(1, n + 1) / n)
        rows = np.tile(scores, (n, 1))
        got = quick.top_k_threshold(rows, top_fraction=fractions)
        np.testing.assert_array_equal(got, np.arange(n)[::-1])
        assert quick.top_k_threshold(scores, top_fraction=np.float32(0)) == n - 1


def test_masks_ties_and_half_precision():
    scores = jnp.array([[3, 1, 3, 2], [jnp.nan, 5, 4, jnp.inf], [0, 0, 0, 0]], jnp.bfloat16)
    where = jnp.array([[True] * 4, [False, True, True, False], [False] * 4])
    got = quick.top_k_threshold(scores, top_fraction=jnp.array([0.75, 1.0, 0.5]), where=where)
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, [2, 4, np.inf])
    got = quick.top_k_threshold(scores[0], top_fraction=jnp.array(0.5))
    assert got == 3, "of two equal scores"


def test_nan_is_excluded_from_ranking():
    scores = jnp.array([[jnp.nan, 3, 2, 1, 0], [jnp.nan] * 5])
    for top_fraction, want in ((0.5, 2), (0.25, 3), (1.0, 0)):
        got = quick.top_k_threshold(scores, top_fraction=jnp.float32(top_fraction))
        np.testing.assert_array_equal(got, [want, np.inf])


def test_gradient_is_zero_and_errors_name_the_argument():
    scores = np.float32([[3, 1, 2], [1, 2, 3]])
    slope = jax.jit(jax.grad(lambda s: weights.top_k_threshold(s, top_fraction=0.5).sum()))(scores)
    np.testing.assert_array_equal(slope, 0)
    for bad in (-0.1, 1.1, np.nan):
        with raises(ValueError, match="`top_fraction` must lie in"):
            weights.top_k_threshold(scores, top_fraction=bad)
    with raises(Exception, match="top_fraction"):
        weights.top_k_threshold(scores, top_fraction=np.full(3, 0.5))
    with raises(Exception, match="where"):
        weights.top_k_threshold(scores, top_fraction=0.5, where=np.ones(3, bool))


@pytest.mark.parametrize("n", [2_000_001, 3_000_000])
def test_fraction_of_one_gives_minimum_of_millions_of_items(n):
    assert weights.top_k_threshold(jnp.arange(n, dtype=jnp.float32), top_fraction=1.0) == 0
