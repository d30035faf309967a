"""Thresholds of false negatives, learned from small batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import jitted
from _helpers.refusals import raises

from crl_jax import weights

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(weights)
UNKNOWN = jnp.full(2, jnp.nan)


def test_first_threshold_is_exceeded_by_share_of_negatives():
    neg = jnp.float32(np.random.default_rng(0).permuted(np.tile(np.arange(20), (2, 1)), axis=1))
    for share, above in [(0.0, 0), (0.04, 0), (0.1, 2), (0.5, 10), (0.99, 19)]:
        got = quick.update_threshold(UNKNOWN, neg, share=share)
        np.testing.assert_array_equal((neg > got[:, None]).sum(1), above)
    where = neg < jnp.array([[10.0], [0.0]])  # no negative of the second anchor
    got = quick.update_threshold(UNKNOWN, neg, share=jnp.array([0.2, 0.2]), where=where)
    np.testing.assert_array_equal(got, [7.0, np.nan])
    junk = jnp.where(where, neg, jnp.nan)
    again = quick.update_threshold(UNKNOWN, junk, share=jnp.array([0.2, 0.2]), where=where)
    np.testing.assert_array_equal(again, got)


def test_shares_of_k_over_n_are_exact_in_float32():
    for n in (37, 100, 399):  # float32(k / n) * n is below k for some of them
        neg = np.tile(np.random.default_rng(n).permutation(n).astype(np.float32), (n, 1))
        share = np.float32(np.arange(n) / n)
        got = quick.update_threshold(jnp.full(n, jnp.nan), neg, share=share)
        np.testing.assert_array_equal((neg > got[:, None]).sum(1), np.arange(n))


def test_scores_at_the_threshold_do_not_exceed_it():
    neg = jnp.array([[0.4, 0.4, 0.9, 0.1], [0.7, 0.2, 0.7, 0.7]])
    got = quick.update_threshold(jnp.array([0.4, 0.7]), neg, share=0.25)
    np.testing.assert_allclose(got, np.array([0.4 - 0.25 + 0.25, 0.7 - 0.25]), rtol=1e-6)


def test_update_matches_formula():
    neg = jnp.array([[0.1, 0.5, 0.9, 0.3], [0.2, 0.4, 0.6, 0.8]])
    old, where = jnp.array([0.4, 0.7]), jnp.array([[True, True, False, True], [True] * 4])
    got = quick.update_threshold(old, neg, share=0.25, learning_rate=0.2, where=where)
    above = np.array([1 / 3, 1 / 4])
    np.testing.assert_allclose(got, np.array([0.4, 0.7]) - 0.2 * (0.25 - above), rtol=1e-6)
    slope = jax.grad(lambda neg: quick.update_threshold(old, neg, share=0.25).sum())(neg)
    np.testing.assert_array_equal(slope, 0)
    assert quick.update_threshold(old, jnp.bfloat16(neg), share=0.25).dtype == jnp.float32


def test_batches_of_eight_converge_to_population_quantiles():
    """Quantiles of single batches would be the maximum of eight scores at best."""
    rng = np.random.default_rng(1)
    population = np.stack([rng.normal(size=4000), rng.uniform(size=4000)]).astype(np.float32)
    steps = jnp.stack([population[:, i] for i in rng.integers(0, 4000, (3000, 8))])

    def step(threshold, neg):
        return weights.update_threshold(threshold, neg, share=0.02, learning_rate=0.2), threshold

    _, path = jax.jit(lambda start: jax.lax.scan(step, start, steps))(UNKNOWN)
    found = (population > np.asarray(path[1000:]).mean(0)[:, None]).mean(1)
    np.testing.assert_allclose(found, 0.02, atol=0.005)


def test_errors_name_the_argument():
    neg = jnp.zeros((2, 3))
    for name, bad in [("share", 1.0), ("share", -0.1), ("learning_rate", -1.0)]:
        with raises(ValueError, match=f"`{name}` must lie in"):
            weights.update_threshold(UNKNOWN, neg, **{"share": 0.1} | {name: bad})
    with raises(Exception, match="threshold"):
        weights.update_threshold(jnp.zeros(3), neg, share=0.1)
    with raises(Exception, match="where"):
        weights.update_threshold(UNKNOWN, neg, share=0.1, where=jnp.ones((2, 2), bool))
