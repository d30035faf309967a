"""Bayesian weights against the published formula in float64, and their theoretical properties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crl_jax import losses, weights

SETTINGS = [
    # tau_plus, alpha, beta
    (0.1, 0.9, 0.9),
    (0.1, 0.7, 0.5),
    (0.0, 0.8, 0.6),
    (0.5, 0.8, 0.7),  # the quadratic of the published root degenerates,
    (0.3, 0.5, 0.9),  # and here
    (0.7, 0.95, 0.8),  # more false negatives than true ones
    (0.999, 0.6, 0.5),
    (0.2, 1.0, 0.5),
    (0.2, 0.9, 1.0),
    (0.0, 1.0, 0.7),
]
levels = st.floats(0.5, 1.0, width=32)
priors = st.floats(0.0, 1023 / 1024, width=32)

jitted_weights = jax.jit(weights.bayesian_weights)
jitted_posterior = jax.jit(weights.true_negative_posterior)


def np_weights(u, tau_plus, alpha, beta):
    """The published formula, with the root of the quadratic in its stable form; u in (0, 1]."""
    tau_minus = 1 - tau_plus
    a = (1 - 2 * alpha) * (tau_minus - tau_plus)
    b = 2 * (alpha * tau_minus + (1 - alpha) * tau_plus)
    phi = 2 * u / (b + np.sqrt(b**2 + 4 * a * u))
    z = (1 - beta) * alpha + beta * (1 - alpha)
    below = (
        alpha * tau_minus + (1 - alpha) * tau_plus + (1 - 2 * alpha) * (tau_minus - tau_plus) * phi
    )
    return ((1 - beta) * alpha + (beta - alpha) * phi) / z / below


def np_ecdf(s):
    return (s[..., None, :] <= s[..., :, None]).mean(-1)


@pytest.fixture
def neg():
    s = jax.random.normal(jax.random.key(0), (4, 5, 13))
    return jnp.round(s, 1)  # some ties


@pytest.mark.parametrize("setting", SETTINGS)
def test_values(neg, setting):
    tau_plus, alpha, beta = setting
    u = np_ecdf(np.asarray(neg, np.float64))
    if (tau_plus, alpha) == (0.0, 1.0):  # 0/0 in the formula at the best score; see below
        u = np.minimum(u, 1 - 1e-12)
    want = np_weights(u, tau_plus, alpha, beta)
    got = weights.bayesian_weights(neg, tau_plus=tau_plus, alpha=alpha, beta=beta)
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-7)
    with jax.enable_x64(True):
        wide = jnp.asarray(np.asarray(neg, np.float64))
        got = weights.bayesian_weights(wide, tau_plus=tau_plus, alpha=alpha, beta=beta)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-5 if alpha == 1 else 1e-12, atol=1e-14)


@pytest.mark.parametrize("tau_plus", [1e-3, 1e-6, 1e-12, 1e-30])
@pytest.mark.parametrize("short", [1e-3, 1e-6])
def test_small_denominators_keep_their_digits(tau_plus, short):
    """At the best score h = (1-alpha) tau_minus + alpha tau_plus, which may be tiny."""
    alpha = float(np.float32(1 - short))
    got = weights.bayesian_weights(jnp.array([1.0, 2.0]), tau_plus=tau_plus, alpha=alpha, beta=0.75)
    h = (1 - alpha) * (1 - tau_plus) + alpha * tau_plus
    z = 0.25 * alpha + 0.75 * (1 - alpha)
    np.testing.assert_allclose(got[1], 0.75 * (1 - alpha) / z / h, rtol=1e-6)


def test_denormal_squares_do_not_look_like_zero():
    perfect = dict(alpha=1.0, beta=0.75)
    got = weights.bayesian_weights(jnp.array([1.0, 2.0]), tau_plus=1e-30, **perfect)
    assert got[1] == 0  # the best score is a false negative, however rare these are
    got = weights.bayesian_weights(jnp.array([1.0, 2.0]), tau_plus=0.0, **perfect)
    np.testing.assert_array_equal(got, 1)  # there are none


@given(priors, levels, levels)
@example(0.0, 1.0, 0.5)
@example(0.5, 0.5, 1.0)
@example(1023 / 1024, 1.0, 0.984375)
@settings(max_examples=60, deadline=None)
def test_weights_are_a_density(tau_plus, alpha, beta):
    """The weights are non-negative, and their integral over u in [0, 1] is 1."""
    if alpha + beta > 1.999:
        return
    n = 4000  # u = 1/n, ..., 1
    w = jitted_weights(jnp.arange(float(n)), tau_plus=tau_plus, alpha=alpha, beta=beta)
    w = np.asarray(w, np.float64)
    assert np.isfinite(w).all()
    assert (w >= 0).all()
    # Trapezoids, whose error on a monotone curve is below its range / 2n. Phi(0) = 0 gives
    # the weight at u = 0.
    easy = (1 - beta) * alpha
    first = easy / (easy + beta * (1 - alpha)) / (alpha * (1 - tau_plus) + (1 - alpha) * tau_plus)
    integral = (w.sum() + (first - w[-1]) / 2) / n
    np.testing.assert_allclose(integral, 1, atol=1e-5 + abs(first - w[-1]) / (2 * n))


@given(priors, levels)
@example(0.0, 1.0)
@settings(max_examples=60, deadline=None)
def test_posterior(tau_plus, alpha):
    """Theorem 6.1, and that Phi runs from 0 to 1: through the ends of the posterior."""
    s = jnp.arange(500.0)
    p = jitted_posterior(s, tau_plus=tau_plus, alpha=alpha)
    p = np.asarray(p, np.float64)
    assert (p >= 0).all()
    assert (p <= 1).all()
    assert (np.diff(p) <= 1e-6).all()  # higher scores are never more likely true negatives
    if (tau_plus, alpha) != (0.0, 1.0):
        true, false = (1 - tau_plus) * (1 - alpha), tau_plus * alpha
        np.testing.assert_allclose(p[-1], true / (true + false), rtol=1e-4, atol=1e-6)
    if alpha < 1:
        w = jitted_weights(s, tau_plus=tau_plus, alpha=alpha, beta=0.5)
        np.testing.assert_allclose(p, (1 - tau_plus) * np.asarray(w), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("tau_plus", "alpha"), [(0.1, 0.9), (0.4, 0.7), (0.8, 0.95), (0.3, 0.5)])
def test_theorem_on_a_simulated_population(tau_plus, alpha):
    """Weighted unlabelled samples have the mean of the true negatives, whose labels are unused."""
    rng = np.random.default_rng(0)
    n = 200_000
    false = rng.random(n) < tau_plus
    # Inverse distribution functions of the densities 2[alpha (1-x) + (1-alpha) x] and
    # 2[(1-alpha) (1-x) + alpha x] on [0, 1]: of a pair of equal draws, ordered rightly with
    # probability alpha, the lower and the higher.
    lead = np.where(false, 1 - alpha, alpha)
    slope, v = 1 - 2 * lead, rng.random(n)
    x = v / (lead + np.sqrt(lead**2 + slope * v))
    true, n_true = x[~false], (~false).sum()
    auc = np.searchsorted(np.sort(true), x[false]).mean() / n_true
    np.testing.assert_allclose(auc, 0.5 + (2 * alpha - 1) / 3, atol=0.01)

    score = jnp.asarray(np.exp(x), jnp.float32)
    w = jitted_weights(score, tau_plus=tau_plus, alpha=alpha, beta=0.5)
    noise = np.exp(x).std() / np.sqrt((1 - tau_plus) * n) / (1 - tau_plus)
    np.testing.assert_allclose((w * score).mean(), np.exp(true).mean(), atol=5 * noise)


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.999, 1.0])
def test_without_false_negatives_or_hardness_all_weights_are_one(neg, alpha):
    got = weights.bayesian_weights(neg, tau_plus=0.0, alpha=alpha, beta=0.5)
    np.testing.assert_allclose(got, 1, rtol=1e-6)
    got = weights.true_negative_posterior(neg, tau_plus=0.0, alpha=alpha)
    np.testing.assert_allclose(got, 1, rtol=1e-6)


def test_only_the_order_matters(neg):
    hyper = dict(tau_plus=0.1, alpha=0.8, beta=0.9)
    w = weights.bayesian_weights(neg, **hyper)
    np.testing.assert_array_equal(weights.bayesian_weights(jnp.exp(4 * neg), **hyper), w)
    order = jax.random.permutation(jax.random.key(1), neg.shape[-1])
    np.testing.assert_array_equal(weights.bayesian_weights(neg[..., order], **hyper), w[..., order])


FUNCTIONS = {
    "bayesian_weights": (weights.bayesian_weights, dict(tau_plus=0.1, alpha=0.8, beta=0.9)),
    "true_negative_posterior": (weights.true_negative_posterior, dict(tau_plus=0.1, alpha=0.8)),
}
each_function = pytest.mark.parametrize(("fn", "hyper"), FUNCTIONS.values(), ids=FUNCTIONS)


@each_function
@pytest.mark.parametrize("junk", [jnp.nan, jnp.inf, -jnp.inf])
def test_masking_is_deleting(neg, fn, hyper, junk):
    where = jnp.broadcast_to(jnp.arange(13) < 7, neg.shape).at[0, 0].set(False)
    got = fn(jnp.where(where, neg, junk), **hyper, where=where)
    np.testing.assert_array_equal(got[..., 7:], 0)
    np.testing.assert_array_equal(got[0, 0], 0)
    np.testing.assert_array_equal(got[1:, :, :7], fn(neg[1:, :, :7], **hyper))


@each_function
def test_hyperparameters_may_differ_between_anchors(neg, fn, hyper):
    for shape in [(5,), (4, 1), (4, 5)]:
        spread = {
            k: v + 0.05 * jax.random.uniform(jax.random.key(2), shape) for k, v in hyper.items()
        }
        got = fn(neg, **spread)
        full = {k: jnp.broadcast_to(v, (4, 5)) for k, v in spread.items()}
        each = jax.vmap(jax.vmap(lambda s, h: fn(s, **h)))(neg, full)
        np.testing.assert_allclose(got, each, rtol=1e-6)


@each_function
def test_jit_sweeps_and_does_not_retrace(neg, fn, hyper):
    traces = 0

    def f(hyper):
        nonlocal traces
        traces += 1
        return fn(neg, **hyper)

    sweep = jax.tree.map(lambda v: v + jnp.array([0.0, 0.05]), hyper)
    got = jax.vmap(f)(sweep)
    jitted = jax.jit(f)
    traces = 0
    for i in range(2):
        point = {k: v[i] for k, v in sweep.items()}
        np.testing.assert_allclose(jitted(point), got[i], rtol=2e-6)
        np.testing.assert_allclose(fn(neg, **point), got[i], rtol=2e-6)
    assert traces == 1


@each_function
def test_half_precision_computes_in_float32(neg, fn, hyper):
    half = neg.astype(jnp.bfloat16)
    hyper = {k: jnp.float32(v) for k, v in hyper.items()}
    got = fn(half, **hyper)
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, fn(half.astype(jnp.float32), **hyper))


@each_function
def test_scores_take_no_gradient_and_hyperparameters_a_finite_one(neg, fn, hyper):
    for edge in ({}, dict(alpha=1.0, tau_plus=0.0), dict(alpha=0.5), dict(tau_plus=0.5)):
        point = jax.tree.map(jnp.float32, hyper | edge)
        grads = jax.grad(lambda s, h: fn(s, **h).sum(), argnums=(0, 1))(neg, point)
        np.testing.assert_array_equal(grads[0], 0)
        assert all(np.isfinite(g) for g in jax.tree.leaves(grads[1]))


def test_an_impossible_population_is_refused_or_finite(neg):
    for almost in (1.0, 1 - 1e-9):  # float32 has no value between
        with raises(ValueError, match="`alpha` and `beta` must not both be 1"):
            weights.bayesian_weights(neg, tau_plus=0.1, alpha=1.0, beta=almost)
    mixed = jnp.ones(5), jnp.full(5, 0.9).at[3].set(1.0)
    with raises(ValueError, match="`alpha` and `beta`"):
        weights.bayesian_weights(neg, tau_plus=0.1, alpha=mixed[0], beta=mixed[1])

    traced = jax.jit(lambda a, b: weights.bayesian_weights(neg, tau_plus=0.1, alpha=a, beta=b))
    np.testing.assert_array_equal(traced(1.0, 1.0), traced(1.0, 0.9))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tau_plus", 1.0),
        ("tau_plus", 1 - 1e-8),
        ("tau_plus", -0.1),
        ("alpha", 0.4),
        ("alpha", 1.1),
        ("beta", 0.4),
        ("beta", 1.1),
    ],
)
def test_range_errors_name_the_argument(neg, name, value):
    hyper = dict(tau_plus=0.1, alpha=0.8, beta=0.9) | {name: value}
    with raises(ValueError, match=f"`{name}` must lie in"):
        weights.bayesian_weights(neg, **hyper)
    if name != "beta":
        del hyper["beta"]
        with raises(ValueError, match=f"`{name}` must lie in"):
            weights.true_negative_posterior(neg, **hyper)


@pytest.mark.parametrize("beta", [0.5, 1.0])  # 1 gives the lowest score a weight of 0
@pytest.mark.parametrize("bins", [None, 4])
def test_a_nan_that_is_kept_is_seen_and_one_that_is_not_is_not(neg, beta, bins):
    hyper = dict(tau_plus=0.1, alpha=0.8, beta=beta, bins=bins)
    place = jnp.zeros(neg.shape, bool).at[0, 0, 3].set(True)
    soiled = jnp.where(place, jnp.nan, neg)
    for where in (None, jnp.ones(neg.shape, bool)):
        got = weights.bayesian_weights(soiled, **hyper, where=where)
        np.testing.assert_array_equal(np.isnan(got), place)
        loss = losses.bayesian_contrastive(
            neg[..., 0], soiled, **hyper, where=where, reduce_fn=None
        )
        np.testing.assert_array_equal(np.isnan(loss), place.any(-1))
    assert np.isfinite(weights.bayesian_weights(soiled, **hyper, where=~place)).all()


def test_shape_errors_name_the_argument(neg):
    hyper = dict(tau_plus=0.1, alpha=0.8, beta=0.9)
    with raises(Exception, match="where"):
        weights.bayesian_weights(neg, **hyper, where=jnp.ones(13, bool))
    for name in hyper:
        for shape in [(3,), (4, 5, 1)]:
            with raises(ValueError, match=rf"`{name}` must be a scalar or broadcast"):
                weights.bayesian_weights(neg, **hyper | {name: jnp.full(shape, 0.6)})
