"""Small-loss weights, reliability weights and the drop-rate schedule."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import counted, jitted
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.test_util import check_grads

from crl_jax import weights

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(weights)

small_loss_weights = jax.jit(weights.small_loss_weights)
RATES = ["0", "0.05", "0.1", "0.25", "0.29", "0.3", "0.5", "0.7", "0.99", "1"]


def np_small(losses, where, rate):
    """Reference: repeatedly removes the largest, the last among equals, in exact arithmetic."""
    keep = np.array(where).ravel()
    losses = np.where(np.isnan(losses), np.inf, losses).ravel()
    for _ in range(int(Fraction(rate) * int(keep.sum()))):
        left = np.flatnonzero(keep)
        keep[left[losses[left] == losses[left].max()][-1]] = False
    return keep.reshape(where.shape)


@given(
    hnp.arrays(
        np.float32,
        (3, 7),
        elements=st.one_of(
            st.sampled_from([0.0, 1.0, 1e30, np.nan]),
            # Some processors and compilers flush subnormal numbers to 0.
            st.floats(0, 2, width=32, allow_subnormal=False),
        ),
    ),
    hnp.arrays(bool, (3, 7)),
    st.sampled_from(RATES),
)
@settings(max_examples=50, deadline=None)
def test_drops_largest_unmasked_losses(losses, where, rate):
    got = small_loss_weights(losses, drop_rate=float(rate), where=where)
    np.testing.assert_array_equal(got, np_small(losses, where, rate))
    corrupted = np.where(where, losses, np.float32(np.nan))
    np.testing.assert_array_equal(
        small_loss_weights(corrupted, drop_rate=float(rate), where=where), got
    )
    got = small_loss_weights(losses, drop_rate=float(rate))
    np.testing.assert_array_equal(got, np_small(losses, np.ones((3, 7), bool), rate))


def test_drops_last_of_equal_losses_first():
    got = small_loss_weights(jnp.array([[1.0, 2.0], [2.0, 2.0], [0.0, 2.0]]), drop_rate=0.5)
    np.testing.assert_array_equal(got, [[1, 1], [0, 0], [1, 0]])
    # A NaN is larger than infinity, at any position.
    got = small_loss_weights(jnp.array([jnp.nan, jnp.inf, 1.0]), drop_rate=0.4)
    np.testing.assert_array_equal(got, [0, 1, 1])


def test_drop_rate_of_k_over_n_drops_k():
    """Holds although k/n in float32, and so the product, may be slightly too small."""

    def keep_weights(losses, rate):
        return quick.small_loss_weights(losses, drop_rate=rate)

    for n in (7, 1000):
        rates = jnp.arange(n + 1, dtype=jnp.float32) / n
        kept = jax.vmap(keep_weights, (None, 0))(jnp.ones(n), rates)
        np.testing.assert_array_equal(kept.sum(-1), np.arange(n, -1, -1))
    assert small_loss_weights(jnp.ones(4096), drop_rate=0.4999).sum() == 4096 - 2047


def test_shapes_and_types():
    for shape in [(), (0,), (2, 0), (1,), (2, 3, 4)]:
        got = small_loss_weights(jnp.zeros(shape, jnp.bfloat16), drop_rate=0.25)
        assert (got.shape, got.dtype) == (shape, jnp.float32)
    assert small_loss_weights(jnp.zeros(()), drop_rate=1.0) == 0
    with jax.enable_x64(True):
        assert small_loss_weights(jnp.zeros(3, jnp.float64), drop_rate=0.25).dtype == np.float64


def test_rate_and_mask_do_not_retrace():
    f, traces = counted(lambda x, r, w: weights.small_loss_weights(x, drop_rate=r, where=w))
    losses = jnp.arange(5.0)
    for rate, want in [(0.0, [1, 1, 0, 1, 1]), (0.5, [1, 1, 0, 0, 0]), (1.0, [0] * 5)]:
        got = f(losses, rate, jnp.arange(5) != 2)
        np.testing.assert_array_equal(got, want)
    assert len(traces) == 1


def np_reliability(logits, exponent):
    return (1 / (1 + np.exp(-np.asarray(logits, np.float64)))) ** exponent


def test_reliability_is_power_of_probability():
    logits = jnp.tile(jnp.linspace(-25, 25, 41), (4, 1))
    exponent = jnp.array([[0.0], [0.25], [1.0], [3.0]])
    got = quick.reliability_weights(logits, exponent=exponent)
    np.testing.assert_allclose(got, np_reliability(logits, np.asarray(exponent)), rtol=2e-5)
    assert got.dtype == jnp.float32
    assert (got[0] == 1).all()


def test_reliability_gradients_match_finite_differences():
    f = jax.jit(lambda logits, b: weights.reliability_weights(logits, exponent=b))
    with jax.enable_x64(True):
        check_grads(f, (jnp.linspace(-4.0, 4.0, 9), jnp.asarray(0.3)), order=1, modes=["rev"])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("exponent", [0.0, 0.3, 1.0, 1e4])
def test_reliability_gradients_are_finite_at_extreme_logits(dtype, exponent):
    logits = jnp.array([-1e4, -100, 0, 100, 1e4], dtype)
    slopes = jax.grad(lambda s, b: quick.reliability_weights(s, exponent=b).sum(), argnums=(0, 1))(
        logits, exponent
    )
    assert all(np.isfinite(slope).all() for slope in slopes)


@pytest.mark.parametrize("rate", [-0.1, 1.1, np.nan])
def test_rejects_drop_rate_out_of_range(rate):
    with raises(ValueError, match="`drop_rate` must lie in"):
        weights.small_loss_weights(jnp.ones(3), drop_rate=rate)
    with raises(ValueError, match="`drop_rate` must lie in"):
        weights.ramp_drop_rate(jnp.float32(0.5), drop_rate=rate)


@pytest.mark.parametrize("exponent", [-0.1, np.inf, np.nan])
def test_rejects_exponent_out_of_range(exponent):
    with raises(ValueError, match="`exponent` must lie in"):
        weights.reliability_weights(jnp.ones(3), exponent=exponent)


def test_shape_errors_name_the_argument():
    for wrong in ({"where": jnp.ones(2, bool)}, {"drop_rate": jnp.ones(3)}):
        with raises(Exception, match=next(iter(wrong))):
            weights.small_loss_weights(jnp.ones(3), **{"drop_rate": 0.5} | wrong)
    with raises(ValueError, match="`exponent` must be a scalar or broadcast"):
        weights.reliability_weights(jnp.ones(3), exponent=jnp.ones(2))


@pytest.mark.parametrize(("drop_rate", "until"), [(0.2, 0.5), (1.0, 1.0), (0.0, 0.3), (0.3, 0.0)])
def test_drop_rate_ramp_is_linear_then_constant(drop_rate, until):
    progress = jnp.array([0.0, 0.1, 0.25, 0.5, 0.99])
    p = np.asarray(progress, np.float64)
    want = drop_rate * np.minimum(p / until, 1) if until else np.full(5, drop_rate)
    got = weights.ramp_drop_rate(progress, drop_rate=drop_rate, until=until)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert (got[p >= until] == np.float32(drop_rate)).all()
    assert weights.ramp_drop_rate(jnp.bfloat16(0.5), drop_rate=0.5).dtype == jnp.float32
    with raises(ValueError, match="`until` must lie in"):
        weights.ramp_drop_rate(progress, drop_rate=drop_rate, until=1.1)
