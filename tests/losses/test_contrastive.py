"""Contrastive losses and their denominators: relations to each other and limiting cases."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.compare import same
from _helpers.programs import quick_jit
from _helpers.refusals import raises

from crl_jax import losses, weights


def test_special_cases_meet(pos, neg):
    bayesian, hard = jax.jit(losses.bayesian_contrastive), jax.jit(losses.hard_contrastive)
    debiased = jax.jit(losses.debiased_contrastive)
    nce = jax.jit(losses.info_nce)(pos, neg)
    for alpha in (0.5, 0.8, 1.0):
        same(bayesian(pos, neg, tau_plus=0.0, alpha=alpha, beta=0.5), nce)
    same(debiased(pos, neg, tau_plus=0.0), nce)
    same(hard(pos, neg, tau_plus=0.1, beta=0.0), debiased(pos, neg, tau_plus=0.1))


def test_a_prior_that_only_float64_tells_from_1(pos, neg):
    """The dtype of the scores decides which priors round to 1, whether or not x64 is enabled."""
    prior = 1 - 1e-8
    with jax.enable_x64(True):
        wide = (jnp.asarray(np.asarray(x), jnp.float64) for x in (pos, neg))
        got = losses.debiased_contrastive(*wide, tau_plus=prior, min_score=0.0)
        x, s = np.exp(np.asarray(pos, float)), np.exp(np.asarray(neg, float))
        g = 8 * np.maximum((s.mean(axis=1) - prior * x) / (1 - prior), 1)
        same(got, np.log1p(g / x).mean(), rtol=1e-6)
        for loss, more in [
            (losses.debiased_contrastive, {}),
            (losses.debiased_pairwise, {}),
            (losses.bayesian_contrastive, {"alpha": 0.8, "beta": 0.5}),
        ]:
            with raises(ValueError, match=r"got 0.99999999, which is 1.0 in float32"):
                loss(pos, neg, tau_plus=prior, **more)


def test_without_a_tilt_the_spread_of_scores_does_not_matter():
    """The difference of these scores overflows float32, and its product with a beta of 0 is NaN."""
    pos, neg = jnp.array([3e38, -1.0]), jnp.array([[3e38, -3e38], [1.0, -3e38]])
    hyper = dict(tau_plus=0.1, min_score=-3e38, reduce_fn=None)

    @jax.jit
    @partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def hard(neg, beta):
        each = losses.hard_contrastive(pos, neg, beta=beta, **hyper)
        return each.sum(), (each, losses.debiased_contrastive(pos, neg, **hyper))

    (_, (each, debiased)), slopes = hard(neg, 0.0)
    np.testing.assert_allclose(each, debiased, rtol=1e-6)
    assert np.isfinite(each).all()
    assert all(np.isfinite(slope).all() for slope in slopes)


def test_one_negative_is_bpr(pos, neg):
    for scale in (1.0, 100.0):
        nce = losses.info_nce(scale * pos, scale * neg[:, :1], reduce_fn=None)
        np.testing.assert_array_equal(
            nce, losses.bpr(scale * pos, scale * neg[:, :1], reduce_fn=None)
        )


def test_temperature_limits(pos, neg):
    same(losses.info_nce(pos, neg, temperature=1e6), np.log(1 + 8), rtol=1e-5)
    below = jnp.minimum(neg, pos[:, None] - 0.1)  # none above its positive
    assert losses.info_nce(pos, below, temperature=1e-3) == 0
    same(losses.info_nce(pos, pos[:, None] * jnp.ones(7)[None]), np.log(8))


def test_a_low_temperature_sees_only_negatives_above_the_positive(pos, neg):
    t, above = 0.01, neg > pos[:, None]
    gap = jnp.abs(neg - pos[:, None]).min()
    assert gap > 0.01  # otherwise these values do not show the limit
    assert above.any()
    assert not above.all()
    got, slope = jax.value_and_grad(losses.info_nce, argnums=1)(pos, neg, temperature=t)
    seen = losses.info_nce(pos, neg, where=above, temperature=t, reduce_fn=None)
    same(got, seen.sum() / len(pos), rtol=1e-3)
    best = jnp.maximum(neg.max(axis=1) - pos, 0) / t
    same(got, best.mean(), rtol=1e-2)
    assert jnp.abs(slope).max() > 1
    np.testing.assert_allclose(jnp.where(above, 0, slope), 0, atol=np.exp(-gap / t) / t)


def test_losses_are_softplus_of_their_estimators(pos, neg):
    where = jax.random.bernoulli(jax.random.key(2), 0.6, neg.shape).at[:, 0].set(True)
    common = dict(temperature=0.5, where=where)
    prior, bayes = dict(tau_plus=0.1), dict(tau_plus=0.1, alpha=0.8, beta=0.7)
    extra = jax.random.normal(jax.random.key(3), (6, 3))
    both = jnp.concatenate([pos[:, None], extra], axis=1)
    pairs = [
        (losses.info_nce(pos, neg, **common), losses.biased_log_sum(neg, **common)),
        (
            losses.bayesian_contrastive(pos, neg, **bayes, **common),
            losses.bayesian_log_sum(neg, **bayes, **common),
        ),
    ]
    for own, draws in [(pos, pos[:, None]), (both, extra), (pos[:, None], pos[:, None])]:
        pairs += [
            (
                losses.debiased_contrastive(own, neg, **prior, **common),
                losses.debiased_log_sum(neg, draws, **prior, **common),
            ),
            (
                losses.hard_contrastive(own, neg, **prior, beta=0.8, **common),
                losses.hard_log_sum(neg, draws, **prior, beta=0.8, **common),
            ),
        ]
    for loss, log_sum in pairs:
        same(loss, jax.nn.softplus(log_sum - pos / 0.5).mean(), rtol=1e-5)


def test_hard_estimator_is_a_mean_under_hard_weights(neg):
    w = weights.hard_weights(neg, beta=0.7, temperature=0.5)
    want = jnp.log((w * jnp.exp(neg / 0.5)).sum(-1))
    got = losses.hard_log_sum(neg, neg[:, :1], tau_plus=0.0, beta=0.7, temperature=0.5)
    same(got, want, rtol=1e-5)


ESTIMATORS = {
    "biased": lambda neg, **kw: losses.biased_log_sum(neg, **kw),
    "debiased": lambda neg, **kw: losses.debiased_log_sum(
        neg, jnp.ones((*neg.shape[:-1], 2)), tau_plus=0.1, **kw
    ),
    "debiased_no_prior": lambda neg, **kw: losses.debiased_log_sum(
        neg, jnp.ones((*neg.shape[:-1], 2)), tau_plus=0.0, min_score=-jnp.inf, **kw
    ),
    "hard": lambda neg, **kw: losses.hard_log_sum(
        neg, jnp.ones((*neg.shape[:-1], 2)), tau_plus=0.1, beta=0.8, **kw
    ),
    "oracle": lambda neg, **kw: losses.oracle_log_sum(
        neg, true_negative=jnp.broadcast_to(jnp.arange(neg.shape[-1]) < 3, neg.shape), **kw
    ),
    "bayesian": lambda neg, **kw: losses.bayesian_log_sum(
        neg, tau_plus=0.1, alpha=0.8, beta=0.8, **kw
    ),
}
each_estimator = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)


@each_estimator
def test_an_estimate_of_nothing_is_minus_infinity_without_gradient(neg, estimate):
    where = jnp.ones_like(neg, bool).at[2].set(False).at[:, 3].set(False)

    @quick_jit
    def pull_back(neg, t):
        log_sum, vjp = jax.vjp(lambda s, t: estimate(s, where=where, temperature=t), neg, t)
        return log_sum, vjp(jnp.ones(6))

    log_sum, slopes = pull_back(neg, 1.0)
    assert log_sum[2] == -jnp.inf
    cut = quick_jit(estimate)(np.delete(neg, 3, axis=1))
    same(np.delete(log_sum, 2), np.delete(cut, 2), rtol=1e-5)
    np.testing.assert_array_equal(slopes[0][2], 0)
    assert all(np.isfinite(g).all() for g in slopes)
    for junk in (jnp.nan, jnp.inf):
        soiled = pull_back(jnp.where(where, neg, junk), 1.0)
        jax.tree.map(np.testing.assert_array_equal, soiled, (log_sum, slopes))


@each_estimator
def test_estimators_check_their_arguments(neg, estimate):
    with raises(ValueError, match="`temperature` must lie in"):
        estimate(neg, temperature=0.0)
    with raises(Exception, match="temperature"):
        estimate(neg, temperature=jnp.ones(6))
    with raises(Exception, match="where"):
        estimate(neg, where=jnp.ones(8, bool))
    assert estimate(neg.astype(jnp.bfloat16)).dtype == jnp.float32


def test_debiased_estimators_check_the_draws(neg):
    for function in (
        losses.debiased_log_sum,
        lambda *a, **k: losses.hard_log_sum(*a, **k, beta=1.0),
    ):
        with raises(Exception, match="pos"):
            function(neg, jnp.ones((5, 2)), tau_plus=0.1)


def test_floor_of_the_debiased_estimate():
    neg, pos = jnp.array([-1.0, -1.0]), jnp.array([3.0])  # below the false negatives' sum
    for function in (
        losses.debiased_log_sum,
        lambda *a, **k: losses.hard_log_sum(*a, **k, beta=1.0),
    ):

        def at(neg, pos, min_score, function=function):
            return function(neg, pos, tau_plus=0.5, min_score=min_score, temperature=0.5)

        at = jax.jit(jax.value_and_grad(at, argnums=(0, 1, 2)))
        # log N + min_score / t
        for min_score, want in [(-1.0, np.log(2) - 2), (0.25, np.log(2) + 0.5), (-np.inf, -np.inf)]:
            log_sum, slopes = at(neg, pos, min_score)
            same(log_sum, want)
            assert all((g == 0).all() for g in slopes[:2])
            assert slopes[2] == (2 if min_score > -np.inf else 0)


def test_loss_without_a_floor_is_zero_where_the_estimate_is_not_positive():
    pos, neg = jnp.array([3.0, 0.0]), jnp.array([[-1.0, -1.0], [1.0, 2.0]])

    @jax.jit
    def pull_back(pos, neg, t):
        each, vjp = jax.vjp(
            lambda p, s, t: losses.debiased_contrastive(
                p, s, tau_plus=0.5, min_score=-jnp.inf, temperature=t, reduce_fn=None
            ),
            *(pos, neg, t),
        )
        return each, vjp(jnp.array([1.0, 0.0]))

    each, slopes = pull_back(pos, neg, 1.0)
    assert each[0] == 0
    assert each[1] > 0
    assert all((g == 0).all() for g in slopes)


def test_extra_positives_stand_for_false_negatives_in_place_of_the_own():
    pos, neg = jnp.array([2.0, 0.5, -0.5]), jnp.array([1.0, 0.0])
    got = losses.debiased_contrastive(pos, neg, tau_plus=0.2)
    false = 0.2 * (np.exp(0.5) + np.exp(-0.5)) / 2
    g = 2 * ((np.exp(1.0) + 1) / 2 - false) / 0.8
    same(got, np.log(1 + g / np.exp(2.0)))


def test_a_negligible_prior_does_not_hide_a_huge_positive():
    """tau_plus e^pos vanishes at tau_plus = 0, and only there, however large the score."""
    pos, neg = jnp.array([500.0]), jnp.array([0.0, 1.0])

    @jax.jit
    def log_sum(tau_plus):
        return losses.debiased_log_sum(neg, pos, tau_plus=tau_plus, min_score=-jnp.inf)

    same(log_sum(0.0), losses.biased_log_sum(neg))
    assert log_sum(1e-37) == -jnp.inf
    assert np.isfinite(jax.grad(log_sum)(0.0))


def test_a_weight_of_zero_on_the_best_score_leaves_the_rest():
    """A perfect encoder: the best score is a false negative, the others are far below."""
    hyper = dict(tau_plus=0.5, alpha=1.0, beta=0.5)
    neg = jnp.array([0.0, 1e4])
    w = weights.bayesian_weights(neg, **hyper)
    assert w[1] == 0
    same(losses.bayesian_log_sum(neg, **hyper), jnp.log(w[0]))
    padded, where = jnp.append(neg, 7.0), jnp.array([True, True, False])
    same(losses.bayesian_log_sum(padded, **hyper, where=where), jnp.log(w[0]))
    one = jnp.array([[3.0]])  # a single one is the best
    value, slopes = jax.jit(
        jax.value_and_grad(lambda p, s: losses.bayesian_contrastive(p, s, **hyper), argnums=(0, 1))
    )(jnp.array([1.0]), one)
    assert value == 0
    assert all((g == 0).all() for g in slopes)


def test_bayesian_weights_are_constants_of_the_gradient(pos, neg):
    hyper = dict(tau_plus=0.1, alpha=0.8, beta=0.7)
    w = weights.bayesian_weights(neg, **hyper)

    def by_hand(neg):
        return jnp.log1p((w * jnp.exp(neg)).sum(-1) / jnp.exp(pos)).mean()

    def loss(neg, alpha):
        return losses.bayesian_contrastive(pos, neg, **hyper | {"alpha": alpha})

    got, slope = jax.jit(jax.grad(loss, argnums=(0, 1)))(neg, 0.8)
    same(got, jax.jit(jax.grad(by_hand))(neg), rtol=1e-5)
    assert slope == 0


def test_a_nan_in_a_hyperparameter_is_seen(pos, neg):
    loss = jax.jit(losses.bayesian_contrastive)
    for name in ("tau_plus", "alpha", "beta"):
        hyper = dict(tau_plus=0.1, alpha=0.8, beta=0.7) | {name: np.nan}
        assert np.isnan(loss(pos, neg, **hyper))


def test_an_impossible_population_is_refused(pos, neg):
    with raises(ValueError, match="`alpha` and `beta` must not both be 1"):
        losses.bayesian_contrastive(pos, neg, tau_plus=0.1, alpha=1.0, beta=1.0)


def test_bayesian_loss_by_histogram_comes_close_to_the_exact_one():
    key_pos, key_neg = jax.random.split(jax.random.key(8))
    pos, neg = jax.random.normal(key_pos, (6,)), jax.random.normal(key_neg, (6, 800))
    point = {"tau_plus": 0.1, "alpha": 0.9, "beta": 0.8}

    def loss(pos, neg, bins):
        return losses.bayesian_contrastive(pos, neg, bins=bins, **point)

    exact, coarse, fine, finest = (
        quick_jit(jax.value_and_grad(partial(loss, bins=bins), (0, 1)))(pos, neg)
        for bins in (None, 8, 512, 2**18)
    )
    assert abs(coarse[0] - exact[0]) > abs(fine[0] - exact[0])
    for got, tolerance in [(fine, 1e-4), (finest, 1e-6)]:  # finest: one score per bin
        same(got[0], exact[0], rtol=tolerance)
        jax.tree.map(partial(np.testing.assert_allclose, atol=tolerance), got[1], exact[1])


def test_which_losses_spread_embeddings_that_lie_at_one_point():
    """There, weights by rank stay as uneven as elsewhere, and weights by scores tend to 1."""
    rng, classes = np.random.default_rng(0), 8
    labels = rng.integers(classes, size=200)
    centres, noise = rng.standard_normal((classes, 16)), rng.standard_normal((2, 200, 16))

    def slope(loss, signal, **hyper):
        """Derivative of the loss with respect to the spread of the embeddings, near zero spread."""
        first, second = jnp.asarray(signal * centres[labels] + noise, jnp.float32) / 4
        off = ~np.eye(200, dtype=bool)

        def at(scale):
            scores = scale * first @ second.T
            neg = scores[off].reshape(200, 199)
            return loss(jnp.diagonal(scores), neg, temperature=0.07, **hyper)

        return jax.grad(at)(jnp.float32(1e-3))

    bayesian = {"tau_plus": 1 / classes, "alpha": 0.5}
    for signal in (0.3, 1):
        assert slope(losses.info_nce, signal) < 0
        hard = {"tau_plus": 1 / classes, "beta": 1.0, "min_score": -1.0}
        assert slope(losses.hard_contrastive, signal, **hard) < 0
        assert slope(losses.bayesian_contrastive, signal, **bayesian, beta=0.5) < 0
    assert slope(losses.bayesian_contrastive, 0.3, **bayesian, beta=0.9) > 0
    assert slope(losses.bayesian_contrastive, 1, **bayesian, beta=0.9) < 0
