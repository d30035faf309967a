"""Contrastive losses and their denominators: relations to each other and limiting cases."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers import loss_formulas as formulas
from _helpers.compare import same
from _helpers.programs import jitted
from _helpers.refusals import raises

from crl_jax import losses

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(losses)


def test_rejects_prior_rounding_to_one_only_in_float32(pos, neg):
    """The dtype of the scores decides which priors round to 1, whether or not x64 is enabled."""
    prior = 1 - 1e-8
    with jax.enable_x64(True):
        wide = (jnp.asarray(np.asarray(x), jnp.float64) for x in (pos, neg))
        got = jax.jit(partial(losses.debiased_contrastive, tau_plus=prior, min_score=0.0))(*wide)
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


def test_hard_with_zero_beta_matches_debiased_despite_overflow():
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


POS = jax.random.normal(jax.random.key(3), (6, 2))


def np_tilted(neg, where, t, tau_plus, beta=0.0):
    tilt = where * np.exp(beta * neg / t)
    mean = (tilt * np.exp(neg / t)).sum(1) / tilt.sum(1)
    true = (mean - tau_plus * np.exp(np.float64(POS) / t).mean(1)) / (1 - tau_plus)
    return where.sum(1) * np.maximum(true, np.exp(-1 / t))


def np_bayesian(neg, where, t):
    w = formulas.bayesian_weights(neg, where, tau_plus=0.1, alpha=0.8, beta=0.7)
    return (w * np.exp(neg / t)).sum(1)


ESTIMATORS = {  # each with its formula of the sum over true negatives
    "biased": (losses.biased_log_sum, lambda neg, m, t: (m * np.exp(neg / t)).sum(1)),
    "debiased": (
        partial(losses.debiased_log_sum, pos=POS, tau_plus=0.1),
        partial(np_tilted, tau_plus=0.1),
    ),
    "debiased_no_prior": (
        partial(losses.debiased_log_sum, pos=POS, tau_plus=0.0, min_score=-jnp.inf),
        partial(np_tilted, tau_plus=0.0),
    ),
    "hard": (
        partial(losses.hard_log_sum, pos=POS, tau_plus=0.1, beta=0.8),
        partial(np_tilted, tau_plus=0.1, beta=0.8),
    ),
    "oracle": (
        partial(losses.oracle_log_sum, true_negative=jnp.tile(jnp.arange(8) < 3, (6, 1))),
        lambda neg, m, t: m.sum(1) * np.exp(neg / t)[:, :3].mean(1),
    ),
    "bayesian": (
        partial(losses.bayesian_log_sum, tau_plus=0.1, alpha=0.8, beta=0.7),
        np_bayesian,
    ),
}
each_estimator = pytest.mark.parametrize(("estimate", "ref"), ESTIMATORS.values(), ids=ESTIMATORS)


@each_estimator
def test_estimators_match_formulas_and_ignore_masked_scores(neg, estimate, ref):
    """The log-sum of no valid negatives is -inf with a zero gradient; masks are respected."""
    where = jnp.ones_like(neg, bool).at[2].set(False).at[:, 3].set(False)

    @jax.jit
    def pull_back(neg, t):
        log_sum, vjp = jax.vjp(lambda s, t: estimate(s, where=where, temperature=t), neg, t)
        return log_sum, vjp(jnp.ones(6))

    log_sum, slopes = pull_back(neg, 0.5)
    assert log_sum[2] == -jnp.inf
    kept = np.array([0, 1, 3, 4, 5])
    with np.errstate(invalid="ignore", divide="ignore"):
        want = np.log(ref(np.float64(neg), np.asarray(where), 0.5))[kept]
    same(log_sum[kept], want, rtol=1e-5)
    np.testing.assert_array_equal(slopes[0][2], 0)
    assert all(np.isfinite(g).all() for g in slopes)
    for junk in (jnp.nan, jnp.inf):
        corrupted = pull_back(jnp.where(where, neg, junk), 0.5)
        jax.tree.map(np.testing.assert_array_equal, corrupted, (log_sum, slopes))


@each_estimator
def test_estimators_reject_invalid_arguments(neg, estimate, ref):
    bad = {"temperature": [0.0, jnp.ones(6)], "where": [jnp.ones(8, bool)]}
    if "pos" in getattr(estimate, "keywords", {}):
        bad["pos"] = [jnp.ones((5, 2))]
    for name, values in bad.items():
        for value in values:
            with raises(Exception, match=name):
                estimate(neg, **{name: value})
    assert jax.eval_shape(estimate, neg.astype(jnp.bfloat16)).dtype == jnp.float32


def test_debiased_estimate_is_clamped_at_min_score():
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


def test_loss_without_floor_is_zero_for_nonpositive_estimate():
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


def test_tiny_prior_keeps_term_of_huge_positive():
    """tau_plus e^pos vanishes at tau_plus = 0, and only there, however large the score."""
    pos, neg = jnp.array([500.0]), jnp.array([0.0, 1.0])

    @jax.jit
    def log_sum(tau_plus):
        return losses.debiased_log_sum(neg, pos, tau_plus=tau_plus, min_score=-jnp.inf)

    same(log_sum(0.0), quick.biased_log_sum(neg))
    assert log_sum(1e-37) == -jnp.inf
    assert np.isfinite(jax.jit(jax.grad(log_sum))(0.0))


def test_zero_weight_of_best_score_keeps_other_terms():
    """A perfect encoder: the best score is a false negative, the others are far below.

    The weights of these hyper-parameters are 2 (1 - u), of ranks u of 1/2 and 1.
    """
    hyper = dict(tau_plus=0.5, alpha=1.0, beta=0.5)
    neg = jnp.array([2.0, 1e4])
    same(quick.bayesian_log_sum(neg, **hyper), 2.0)
    padded, where = jnp.array([2.0, 1e4, 7.0]), jnp.array([True, True, False])
    same(quick.bayesian_log_sum(padded, **hyper, where=where), 2.0)
    one = jnp.array([[3.0]])  # a single score is the best one
    value, slopes = jax.jit(
        jax.value_and_grad(lambda p, s: losses.bayesian_contrastive(p, s, **hyper), argnums=(0, 1))
    )(jnp.array([1.0]), one)
    assert value == 0
    assert all((g == 0).all() for g in slopes)


def test_gradient_treats_bayesian_weights_as_constants(pos, neg):
    hyper = dict(tau_plus=0.1, alpha=0.8, beta=0.7)
    s = np.float64(neg)
    terms = formulas.bayesian_weights(s, np.ones(s.shape, bool), **hyper) * np.exp(s)
    share = terms / (np.exp(np.float64(pos))[:, None] + terms.sum(1, keepdims=True))

    def loss(neg, alpha):
        return losses.bayesian_contrastive(pos, neg, **hyper | {"alpha": alpha})

    got, slope = jax.jit(jax.grad(loss, argnums=(0, 1)))(neg, 0.8)
    same(got, share / len(s), rtol=1e-5)
    assert slope == 0


def test_histogram_bayesian_loss_approaches_exact_loss():
    key_pos, key_neg = jax.random.split(jax.random.key(8))
    pos, neg = jax.random.normal(key_pos, (6,)), jax.random.normal(key_neg, (6, 800))
    point = {"tau_plus": 0.1, "alpha": 0.9, "beta": 0.8}

    def loss(pos, neg, bins):
        return losses.bayesian_contrastive(pos, neg, bins=bins, **point)

    exact, coarse, fine, finest = (
        jax.jit(jax.value_and_grad(partial(loss, bins=bins), (0, 1)))(pos, neg)
        for bins in (None, 8, 512, 2**18)
    )
    assert abs(coarse[0] - exact[0]) > abs(fine[0] - exact[0])
    for got, tolerance in [(fine, 1e-4), (finest, 1e-6)]:  # finest: one score per bin
        same(got[0], exact[0], rtol=tolerance)
        jax.tree.map(partial(np.testing.assert_allclose, atol=tolerance), got[1], exact[1])


def test_adjusted_loss_includes_underflowing_weights():
    """The second negative has a weight of e^-106.6 and a logit of 160."""
    pos, neg = jnp.array([0.0]), jnp.array([[0.7, 8.0]])
    got = quick.adjusted_contrastive(pos, neg, mu=0.7, sigma=0.5, temperature=0.05)
    s, p = np.array([0.7, 8.0]), np.float64(0)
    log_w = -((s - 0.7) ** 2) / (2 * 0.5**2)
    log_mean_w = np.logaddexp.reduce(log_w) - np.log(2)
    want = np.logaddexp(0, np.logaddexp.reduce(log_w - log_mean_w + s / 0.05) - p / 0.05)
    same(got, want, rtol=1e-5)


def test_gradients_hold_adjusted_and_attention_weights_constant(pos, neg):
    """The gradient of softplus(log G - s⁺/t), with the factor of each score in G held fixed."""
    t, p, s = 0.7, np.float64(pos), np.float64(neg)
    gaussian = np.exp(-((s - 0.3) ** 2) / (2 * 0.4**2))
    gaussian /= gaussian.mean(1, keepdims=True)
    terms = gaussian * np.exp(s / t)
    share = terms / (np.exp(p / t)[:, None] + terms.sum(1, keepdims=True))
    adjusted = partial(losses.adjusted_contrastive, mu=0.3, sigma=0.4, temperature=t)
    d_pos, d_neg = jax.jit(jax.grad(adjusted, (0, 1)))(pos, neg)
    same(d_neg, share / t / len(p), rtol=1e-4)
    same(d_pos, -share.sum(1) / t / len(p), rtol=1e-4)

    positives = np.stack([p, np.float64(neg[:, 0]) + 1], axis=1)
    pos_w, neg_w = (np.exp(x / scale) for x, scale in ((positives, 0.5), (s, 0.8)))
    pos_w, neg_w = pos_w / pos_w.sum(1, keepdims=True), neg_w / neg_w.mean(1, keepdims=True)
    terms = np.exp(neg_w * s / t)
    own = np.exp((pos_w * positives).sum(1) / t)[:, None]
    share = terms / (own + terms.sum(1, keepdims=True))
    attention = partial(losses.attention_contrastive, pos_scale=0.5, neg_scale=0.8, temperature=t)
    slopes = jax.jit(jax.grad(attention, (0, 1)))(jnp.float32(positives), neg)
    same(slopes[1], share * neg_w / t / len(p), rtol=1e-4)
    same(slopes[0], -pos_w * share.sum(1, keepdims=True) / t / len(p), rtol=1e-4)


def test_bayesian_ranks_use_scores_before_temperature():
    """Eight adjacent float32 numbers, which division by 3 rounds to at most six distinct ones."""
    scores = np.int32(np.float32(1.5).view(np.int32) + np.arange(8)).view(np.float32)
    hyper = dict(tau_plus=0.1, alpha=0.8, beta=0.5)
    got = losses.bayesian_log_sum(jnp.asarray(scores)[None], **hyper, temperature=3.0)
    omega = formulas.bayesian_weights(np.arange(8.0), np.ones(8, bool), **hyper)
    same(got[0], np.log(omega.sum()) + 1.5 / 3, rtol=1e-6)


@pytest.mark.parametrize("name", ["bpr", "bce", "info_nce", "lambda_loss_at_k", "biased_log_sum"])
def test_rejects_empty_negative_axis(name):
    scores = {"neg": jnp.ones((4, 0))} | ({} if name.endswith("sum") else {"pos": jnp.ones(4)})
    with raises(ValueError, match=r"`neg` must have at least one negative per anchor, got .*4, 0"):
        getattr(losses, name)(**scores)


def test_rejects_temperature_of_none(pos, neg):
    with raises(
        ValueError, match="`temperature` must be a number or an array of numbers, got None"
    ):
        losses.info_nce(pos, neg, temperature=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("top", [0.7, -90.0])
def test_inclusion_is_differentiable_at_zero(top):
    """The default of 0 is MINE+: a learned weight that starts there has the one-sided gradient."""
    pos, neg = jnp.array([0.4]), jnp.array([[top, top - 0.5]])

    def loss(inclusion):
        return losses.info_nce_plus(pos, neg, inclusion=inclusion, repulsion=1.1, temperature=0.5)

    value, slope = jax.value_and_grad(loss)(0.0)
    logits, own = np.asarray(neg, np.float64)[0] / 0.5, np.float64(pos[0]) / 0.5
    np.testing.assert_allclose(value, 1.1 * np.logaddexp(*logits) - own, rtol=1e-5)
    want = 1.1 * np.exp(own - np.logaddexp(*logits))
    np.testing.assert_allclose(slope, min(want, 1.1 * np.exp(80.0)), rtol=1e-5)
