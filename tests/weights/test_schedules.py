"""Schedules of alpha during training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax import weights

pytestmark = pytest.mark.usefixtures("quick_compiles")

progress = jnp.array([0.0, 0.1, 0.25, 0.5, 0.99])


def test_fixed_alpha_is_constant():
    np.testing.assert_array_equal(
        weights.fixed_alpha(progress, alpha=0.7), np.full(5, 0.7, np.float32)
    )


@pytest.mark.parametrize(("alpha", "until"), [(0.9, 0.5), (0.8, 1.0), (0.7, 0.1), (0.5, 0.3)])
def test_warmup_alpha_is_linear_then_constant(alpha, until):
    p = np.asarray(progress, np.float64)
    want = 0.5 + (alpha - 0.5) * np.minimum(p / until, 1)
    got = weights.warmup_alpha(progress, alpha=alpha, until=until)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert got[0] == 0.5
    # Exactly alpha at the end: an ulp above 1 would leave the range.
    assert (got[p >= until] == np.float32(alpha)).all()
    assert weights.warmup_alpha(progress, alpha=1.0, until=until).max() <= 1


def test_measured_alpha_is_weighted_mean_of_estimates():
    estimates, decay = [0.6, 0.65, 0.9, 0.7], 0.8
    state = weights.init_measured_alpha()
    assert weights.measured_alpha(state) == 0.5
    for n, estimate in enumerate(estimates, 1):
        state = weights.update_measured_alpha(state, jnp.float32(estimate), decay=decay)
        w = decay ** np.arange(n)[::-1]
        want = (w * estimates[:n]).sum() / w.sum()
        assert weights.measured_alpha(state) == pytest.approx(want, rel=1e-6)
    unmeasured = weights.update_measured_alpha(state, jnp.float32(jnp.nan), decay=decay)
    jax.tree.map(np.testing.assert_array_equal, unmeasured, state)


def test_schedules_run_inside_a_step_without_retracing():
    traces = []

    @jax.jit
    def step(state, progress, alpha, decay, pos, neg):
        traces.append(None)
        state = weights.update_measured_alpha(state, weights.estimate_alpha(pos, neg), decay=decay)
        now = weights.measured_alpha(state), weights.warmup_alpha(progress, alpha=alpha)
        w = [weights.bayesian_weights(neg, tau_plus=0.1, alpha=a, beta=0.5) for a in now]
        return state, now, w

    state = weights.init_measured_alpha()
    pos, neg = jax.random.normal(jax.random.key(0), (2, 4, 9))
    for i, (alpha, decay) in enumerate([(0.9, 0.9), (0.8, 0.5)]):
        state, now, w = step(state, jnp.float32(i / 2), alpha, decay, pos + 1, neg)
        assert now[0] == pytest.approx(float(weights.estimate_alpha(pos + 1, neg)), rel=1e-5)
        assert np.isfinite(w).all()
    assert len(traces) == 1
    assert now[1] == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: weights.fixed_alpha(progress, alpha=0.4), "alpha"),
        (lambda: weights.warmup_alpha(progress, alpha=1.1), "alpha"),
        (lambda: weights.warmup_alpha(progress, alpha=0.9, until=-0.1), "until"),
        (lambda: weights.warmup_alpha(progress, alpha=0.9, until=1.1), "until"),
        (
            lambda: weights.update_measured_alpha(
                weights.init_measured_alpha(), jnp.float32(0.7), decay=1.0
            ),
            "decay",
        ),
    ],
)
def test_range_errors_name_the_argument(call, name):
    with raises(ValueError, match=f"`{name}` must lie in"):
        call()
