"""Estimates of the encoder's quality and of the class prior, against known populations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.exported import exported
from _helpers.programs import counted
from _helpers.refusals import raises

from crl_jax import stats, weights

pytestmark = pytest.mark.usefixtures("quick_compiles")

estimate_alpha = jax.jit(weights.estimate_alpha, static_argnames="rule")
estimate_tau_plus = jax.jit(weights.estimate_tau_plus)


def np_auc(pos, neg):
    """AUC over all pairs, ties counting half; NaN if there is no pair."""
    pairs = np.sign(pos[:, None] - neg[None, :])
    return (pairs.mean() + 1) / 2 if pairs.size else np.nan


@pytest.fixture
def labelled():
    """Rounded scores, with ties, of 6 anchors, one without positives and one without negatives."""
    rng = np.random.default_rng(0)
    pos = np.round(rng.normal(0.8, 1, (2, 3, 7)), 1).astype(np.float32)
    neg = np.round(rng.normal(0.0, 1, (2, 3, 11)), 1).astype(np.float32)
    where_pos, where_neg = rng.random(pos.shape) < 0.6, rng.random(neg.shape) < 0.6
    where_pos[0, 1], where_neg[1, 2] = False, False
    return pos, neg, where_pos, where_neg


def np_macro_auc(pos, neg, where_pos, where_neg):
    each = [np_auc(pos[i][where_pos[i]], neg[i][where_neg[i]]) for i in np.ndindex(pos.shape[:-1])]
    return np.nanmean(np.array(each, np.float64))


def test_alpha_is_mean_auc_of_anchors_with_both_classes(labelled):
    pos, neg, where_pos, where_neg = labelled
    every = np.ones_like(where_pos), np.ones_like(where_neg)
    got = estimate_alpha(jnp.asarray(pos), jnp.asarray(neg))
    assert got == pytest.approx(np_macro_auc(pos, neg, *every), rel=1e-6)
    want = np_macro_auc(pos, neg, where_pos, where_neg)
    assert 0.55 < want < 5 / 6  # otherwise the rules agree
    pos, neg, where_pos, where_neg = map(jnp.asarray, labelled)
    got = estimate_alpha(pos, neg, where_pos=where_pos, where_neg=where_neg)
    assert got == pytest.approx(want, rel=1e-6)
    got = estimate_alpha(pos, neg, rule="model", where_pos=where_pos, where_neg=where_neg)
    assert got == pytest.approx(0.5 + 1.5 * (want - 0.5), rel=1e-6)


def test_ties_count_half_including_signed_zeros():
    pos, neg = jnp.array([0.0, jnp.inf, 2.0]), jnp.array([-0.0, 0.0, 2.0, jnp.inf])
    # 0 ties two of four, inf beats three and ties one, 2 beats two and ties one.
    want = (1.0 + 3.5 + 2.5) / 12
    assert estimate_alpha(pos, neg) == pytest.approx(want, rel=1e-6)


def test_alpha_is_clipped_to_valid_range():
    ranks = jnp.arange(20.0)
    worse, better = (ranks[:10], ranks[10:]), (ranks[10:], ranks[:10])
    assert estimate_alpha(*worse) == 0.5
    assert estimate_alpha(*better) == 1
    mixed = jnp.array([5.0, 15.0]), jnp.array([-1.0, -2.0, -3.0, -4.0, 10.0])  # AUC 0.9
    assert estimate_alpha(*mixed, rule="auc") == pytest.approx(0.9)
    assert estimate_alpha(*mixed, rule="model") == 1  # above 5/6
    none = jnp.zeros(20, bool)
    assert estimate_alpha(ranks, ranks, where_pos=none) == 0.5


@pytest.mark.parametrize("junk", [jnp.nan, jnp.inf, -jnp.inf])
def test_ignores_masked_entries_and_propagates_nan(labelled, junk):
    pos, neg, where_pos, where_neg = map(jnp.asarray, labelled)
    masks = dict(where_pos=where_pos, where_neg=where_neg)
    corrupted = jnp.where(where_pos, pos, junk), jnp.where(where_neg, neg, junk)
    want = estimate_alpha(pos, neg, **masks)
    assert estimate_alpha(*corrupted, **masks) == want
    masks = dict(where_pos=where_pos, where_unlabelled=where_neg)
    want = estimate_tau_plus(pos, neg, **masks)
    jax.tree.map(np.testing.assert_array_equal, estimate_tau_plus(*corrupted, **masks), want)
    if np.isnan(junk):
        assert np.isnan(estimate_alpha(corrupted[0], neg))
        assert np.isnan(estimate_alpha(pos, corrupted[1]))
        for pair in ((corrupted[0], neg), (pos, corrupted[1])):
            got = estimate_tau_plus(*pair)
            assert np.isnan(got.tau_plus).any()
            np.testing.assert_array_equal(np.isnan(got.tau_plus), np.isnan(got.upper))


def test_alpha_of_million_samples_stores_no_pair_matrix():
    """A million negatives and positives: their pairs would be 4 TB."""
    pos, neg = jnp.arange(1_000_000.0), jnp.arange(1_000_000.0) - 0.5
    assert estimate_alpha(pos, neg, rule="auc") == pytest.approx(0.5, abs=1e-5)


# Class prior


def np_bbe(pos, unlabelled, confidence):
    """Every threshold, as published, and the bound at each."""
    thresholds = np.unique(np.concatenate([pos, unlabelled]))
    q_p = (pos[None, :] >= thresholds[:, None]).mean(-1)
    q_u = (unlabelled[None, :] >= thresholds[:, None]).mean(-1)
    thresholds, q_u, q_p = thresholds[q_p > 0], q_u[q_p > 0], q_p[q_p > 0]
    e_p, e_u = (np.sqrt(np.log(4 / (1 - confidence)) / 2 / len(x)) for x in (pos, unlabelled))
    best = np.argmin((q_u + 1.01 * (e_u + e_p)) / q_p)
    sure = q_p > e_p
    upper = min(1, np.min((q_u[sure] + e_u) / (q_p[sure] - e_p), initial=1))
    return q_u[best] / q_p[best], upper


@pytest.mark.parametrize(("tau_plus", "confidence"), [(0.3, 0.9), (0.6, 0.5), (0.0, 0.99)])
def test_prior_matches_published_formula(tau_plus, confidence):
    rng = np.random.default_rng(3)
    pos = np.round(rng.normal(1.5, 1, 300), 2).astype(np.float32)  # with ties
    false = rng.random(700) < tau_plus
    unlabelled = np.round(rng.normal(1.5 * false, 1), 2).astype(np.float32)
    got = estimate_tau_plus(jnp.asarray(pos), jnp.asarray(unlabelled), confidence=confidence)
    np.testing.assert_allclose(got, np_bbe(pos, unlabelled, confidence), rtol=1e-5)


def test_prior_is_at_most_its_upper_bound():
    """Few positives that overlap with negatives, for which the published estimate is greater."""
    rng = np.random.default_rng(49)
    pos = rng.normal(1, 1, 120).astype(np.float32)
    hidden = rng.random(4000) < 0.02
    positives, negatives = rng.normal(1, 1, 4000), rng.normal(0, 1, 4000)
    unlabelled = np.where(hidden, positives, negatives).astype(np.float32)
    published, upper = np_bbe(pos, unlabelled, 0.9)
    assert published > upper
    got = estimate_tau_plus(jnp.asarray(pos), jnp.asarray(unlabelled))
    np.testing.assert_allclose(got, (upper, upper), rtol=1e-5)


N_POS, N_UNLABELLED, RUNS = 1000, 10_000, 50


def population(tau_plus):
    """Returns ``RUNS`` samples of positives, half above every negative, and of the mixture."""
    rng, shape = np.random.default_rng(4), (RUNS, N_UNLABELLED)
    hidden = rng.random(shape) < tau_plus
    mixed = np.where(hidden, rng.uniform(0, 1, shape), rng.uniform(-1, 0.5, shape))
    return jnp.float32(rng.uniform(0, 1, (RUNS, N_POS))), jnp.float32(mixed)


def ratio_noise(q_u, q_p):
    """Standard deviation of the ratio of the two shares, to first order."""
    relative = (1 - q_u) / (q_u * N_UNLABELLED) + (1 - q_p) / (q_p * N_POS)
    return q_u / q_p * np.sqrt(relative)


@pytest.mark.parametrize("tau_plus", [0.1, 0.7])
def test_prior_is_recovered_if_some_positives_are_separable(tau_plus):
    """Half of the positives score above every negative."""
    pos, mixed = population(tau_plus)
    got = estimate_tau_plus(pos, mixed)
    noise = ratio_noise(tau_plus * 0.5, 0.5)
    np.testing.assert_allclose(got.tau_plus, tau_plus, atol=5 * noise)
    # Smaller error on average: the noise averages out, the choice of the threshold costs less than
    # a standard deviation.
    np.testing.assert_allclose(got.tau_plus.mean(), tau_plus, atol=noise)
    assert (got.upper >= tau_plus).mean() >= 0.9
    e_p, e_u = (np.sqrt(np.log(40) / 2 / n) for n in (N_POS, N_UNLABELLED))
    assert got.upper.max() <= (tau_plus / 2 + 2 * e_u) / (0.5 - 2 * e_p)


def test_prior_depends_only_on_score_order():
    pos, mixed = population(0.1)
    pos, mixed = pos[0, :300], mixed[0, :2000]
    want = estimate_tau_plus(pos, mixed)
    np.testing.assert_array_equal(estimate_tau_plus(4 * pos + 2, 4 * mixed + 2), want)
    both = stats.ecdf(jnp.concatenate([pos, mixed]))
    np.testing.assert_array_equal(estimate_tau_plus(both[:300], both[300:]), want)


def test_prior_has_trivial_bounds_without_samples():
    pos, rest = jnp.ones((2, 5)), jnp.zeros((2, 9))
    for name, shape in (("where_pos", pos.shape), ("where_unlabelled", rest.shape)):
        keep = jnp.ones(shape, bool).at[1].set(False)
        got = estimate_tau_plus(pos, rest, **{name: keep})
        np.testing.assert_array_equal(got.tau_plus, [0, 1])
        np.testing.assert_array_equal(got.upper, [1, 1])  # five positives are not yet informative


@pytest.mark.parametrize("fn", [weights.estimate_alpha, weights.estimate_tau_plus])
def test_estimates_use_float32_and_have_zero_gradient(labelled, fn):
    pos, neg, *_ = map(jnp.asarray, labelled)
    half = pos.astype(jnp.bfloat16), neg.astype(jnp.float16)
    jitted = jax.jit(fn)
    want = jitted(half[0].astype(jnp.float32), half[1].astype(jnp.float32))
    for got, wanted in zip(jax.tree.leaves(jitted(*half)), jax.tree.leaves(want)):
        assert got.dtype == jnp.float32
        np.testing.assert_array_equal(got, wanted)

    def total(pos, neg):
        return sum(x.sum() for x in jax.tree.leaves(fn(pos, neg)))

    for grad in jax.jit(jax.grad(total, argnums=(0, 1)))(pos, neg):
        np.testing.assert_array_equal(grad, 0)


def test_jit_and_vmap_agree_and_confidence_does_not_retrace(labelled):
    pos, neg, *_ = map(jnp.asarray, labelled)
    f, traces = counted(lambda p, n, c: weights.estimate_tau_plus(p, n, confidence=c))
    for confidence in (0.5, 0.9):
        want = estimate_tau_plus(pos, neg, confidence=jnp.full((), confidence))
        np.testing.assert_allclose(f(pos, neg, confidence), want, rtol=1e-6)
    assert len(traces) == 1
    each = jax.jit(jax.vmap(jax.vmap(weights.estimate_tau_plus)))(pos, neg)
    np.testing.assert_allclose(each, want, rtol=1e-6)


def test_errors_name_the_argument(labelled):
    pos, neg, where_pos, where_neg = map(jnp.asarray, labelled)
    with raises(Exception, match="neg"):
        weights.estimate_alpha(pos, neg[0])
    with raises(Exception, match="where_pos"):
        weights.estimate_alpha(pos, neg, where_pos=where_neg)
    with raises(Exception, match="rule"):
        weights.estimate_alpha(pos, neg, rule="moments")  # type: ignore[arg-type]
    with raises(Exception, match="unlabelled"):
        weights.estimate_tau_plus(pos, neg[0])
    with raises(Exception, match="where_unlabelled"):
        weights.estimate_tau_plus(pos, neg, where_unlabelled=where_pos)
    for confidence in (0.0, 1.0, 1 - 1e-8):
        with raises(ValueError, match="`confidence` must lie in"):
            weights.estimate_tau_plus(pos, neg, confidence=confidence)


def test_exported_with_symbolic_sizes(labelled):
    def both(pos, neg, where_pos, where_neg):
        masks = dict(where_pos=where_pos, where_neg=where_neg)
        return weights.estimate_alpha(pos, neg, **masks), weights.estimate_tau_plus(pos, neg)

    function = exported(both, *labelled, b=2, m=7, n=11)
    shorter = [x[:1, :, :6] for x in labelled]
    for args in (labelled, shorter):
        got, want = function.call(*args), jax.jit(both)(*args)
        jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(got), jax.tree.leaves(want))
