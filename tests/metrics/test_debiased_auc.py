"""Debiased AUC and the bound on mutual information against float64 references."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax import losses, metrics

pytestmark = pytest.mark.usefixtures("quick_compiles")
RNG = np.random.default_rng(0)
# Few values, so that there are ties.
POS, NEG = (RNG.integers(-3, 4, (2, 3, n)).astype(np.float32) for n in (5, 11))
KEEP_POS, KEEP = RNG.random(POS.shape) < 0.7, RNG.random(NEG.shape) < 0.7
KEEP_POS[..., 0] = KEEP[..., 0] = True


def compare(surrogate, a, b):
    if surrogate == "sigmoid":
        return 1 / (1 + np.exp(b - a))
    return (a > b) + 0.5 * (a == b)


def reference(pos, neg, tau_plus, surrogate):
    """The two terms of Eq. 5.17, over all pairs with unlabelled and with other positives."""
    mixed = np.mean([compare(surrogate, a, b) for a, b in itertools.product(pos, neg)])
    others = [compare(surrogate, a, b) for a, b in itertools.permutations(pos, 2)] or [0.5]
    return (mixed - tau_plus * np.mean(others)) / (1 - tau_plus)


@pytest.mark.parametrize("surrogate", ["zero_one", "sigmoid"])
def test_debiased_auc_matches_formula(surrogate):
    tau_plus = np.array([[0.0, 0.1, 0.3], [0.5, 0.9, 0.2]], np.float32)
    corrupted = np.where(KEEP_POS, POS, np.nan), np.where(KEEP, NEG, np.nan)
    got = metrics.debiased_auc(
        *map(jnp.asarray, corrupted), tau_plus=tau_plus, surrogate=surrogate,
        where_pos=KEEP_POS, where=KEEP,
    )  # fmt: skip
    assert got.shape == (2, 3)
    for at in np.ndindex(2, 3):
        pos, neg = (np.float64(x[at][m[at]]) for x, m in ((POS, KEEP_POS), (NEG, KEEP)))
        want = reference(pos, neg, np.float64(tau_plus[at]), surrogate)
        np.testing.assert_allclose(got[at], want, rtol=2e-5)
    whole = jax.jit(lambda p, n: metrics.debiased_auc(p, n, tau_plus=0.2, surrogate=surrogate))
    got = whole(POS[0, 0].astype(jnp.bfloat16), NEG[0, 0].astype(jnp.bfloat16))
    assert got.dtype == jnp.float32
    want = reference(np.float64(POS[0, 0]), np.float64(NEG[0, 0]), 0.2, surrogate)
    np.testing.assert_allclose(got, want, rtol=2e-5)


@pytest.mark.parametrize("surrogate", ["zero_one", "sigmoid"])
def test_expectation_is_auc_of_true_negatives(surrogate):
    """Lemma 5.1, exactly: the mean over all labelled draws of two positives and two samples."""
    positives, negatives, share = [0.5, 2.0, 1.0], [0.5, -1.0], 0.4
    population = [(x, share / 3) for x in positives] + [(x, (1 - share) / 2) for x in negatives]
    draws, chances = [], []
    for pos in itertools.product(positives, repeat=2):
        for sample in itertools.product(population, repeat=2):
            draws.append((pos, [x for x, _ in sample]))
            chances.append(np.prod([p for _, p in sample]) / len(positives) ** 2)
    pos, neg = (jnp.asarray(x, jnp.float32) for x in zip(*draws, strict=True))
    got = metrics.debiased_auc(pos, neg, tau_plus=share, surrogate=surrogate)
    want = np.mean([compare(surrogate, a, b) for a in positives for b in negatives])
    np.testing.assert_allclose(np.sum(chances), 1)
    np.testing.assert_allclose(np.sum(np.float64(got) * chances), want, rtol=1e-6)


def test_debiased_auc_at_extreme_scores_and_masks():
    pos, neg = jnp.array([np.inf, 1.0, -np.inf]), jnp.array([0.0, -np.inf, np.inf, 3.0])
    keep = jnp.array([True, True, True, False])
    got = metrics.debiased_auc(pos, neg, tau_plus=0.0, where=keep)
    np.testing.assert_allclose(got, (2.5 + 2 + 0.5) / 9, rtol=1e-6)
    for mask in (dict(where=jnp.zeros(4, bool)), dict(where_pos=jnp.zeros(3, bool))):
        assert metrics.debiased_auc(pos, neg, tau_plus=0.3, **mask) == 0.5
    for bad in ((pos.at[1].set(np.nan), neg), (pos, neg.at[0].set(np.nan))):
        assert np.isnan(metrics.debiased_auc(*bad, tau_plus=0.1, where=keep))


@pytest.mark.parametrize("surrogate", ["zero_one", "sigmoid"])
@pytest.mark.parametrize("sizes", [(0, 4), (3, 0), (0, 0)])
def test_estimate_without_samples_is_one_half(sizes, surrogate):
    pos, neg = (jnp.zeros((2, n)) for n in sizes)
    got = metrics.debiased_auc(pos, neg, tau_plus=0.3, surrogate=surrogate)
    np.testing.assert_array_equal(got, [0.5, 0.5])


def test_rejects_invalid_arguments():
    pos, neg = jnp.ones((2, 3)), jnp.ones((2, 4))
    for name, value in (("tau_plus", 1.0), ("surrogate", "hinge")):
        with raises(ValueError, match=f"`{name}` must"):
            metrics.debiased_auc(pos, neg, **{"tau_plus": 0.1, name: value})
    for name, value in (("where", jnp.ones((2, 3), bool)), ("where_pos", jnp.ones(3, bool))):
        with raises(ValueError, match=f"`{name}` must have shape"):
            metrics.debiased_auc(pos, neg, tau_plus=0.1, **{name: value})
    with raises(ValueError, match="`neg` must have shape"):
        metrics.debiased_auc(pos, jnp.ones(4), tau_plus=0.1)


def test_info_nce_bound_saturates_at_log_of_candidates():
    """Equal scores carry no information; separated ones as much as N + 1 candidates can show."""
    for n in (1, 15, 1000):
        neg = jnp.zeros((1, n))
        for pos, want in ((0.0, 0.0), (40.0, np.log(n + 1))):
            loss = losses.info_nce(jnp.full(1, pos), neg)
            np.testing.assert_allclose(metrics.info_nce_bound(loss, n), want, atol=1e-6)
    both = metrics.info_nce_bound(jnp.array([0.5, 1.0], jnp.bfloat16), jnp.array([3, 7]))
    assert both.dtype == jnp.float32
    np.testing.assert_allclose(both, np.log([4, 8]) - [0.5, 1.0], rtol=1e-6)
    with raises(ValueError, match="`n_neg` must"):
        metrics.info_nce_bound(jnp.ones(()), 0)
