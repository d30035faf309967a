"""Identities, floors and stopped gradients of the pairwise losses."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.compare import same
from _helpers.programs import jitted
from _helpers.refusals import raises

from crl_jax import losses

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(losses)


@cache
def value_and_slopes(fn):
    return jax.jit(jax.value_and_grad(fn, argnums=(0, 1)))


@pytest.mark.parametrize("difference", [-100.0, -20.0, -0.5, 0.0, 3.0, 20.0, 100.0])
def test_debiased_pairwise_with_zero_prior_matches_bpr(difference):
    own, neg = jnp.array([difference]), jnp.zeros((1, 1))
    value, slopes = value_and_slopes(losses.bpr)(own, neg)
    for pos in (own, jnp.array([[difference, 7.0, -300.0]])):
        got, got_slopes = value_and_slopes(losses.debiased_pairwise)(
            pos, neg, tau_plus=0.0, floor=0.0
        )
        np.testing.assert_allclose(got, value, rtol=3e-7)
        np.testing.assert_allclose(got_slopes[0].ravel()[0], slopes[0][0], rtol=1e-6)
        np.testing.assert_allclose(got_slopes[1], slopes[1], rtol=1e-6)


def test_nt_logistic_is_bce():
    assert losses.nt_logistic is losses.bce


@pytest.mark.parametrize("floor", [0.0, 1e-30, 1e-2, 1.0])
def test_debiased_pairwise_is_finite_and_flat_below_floor(floor):
    """The loss is finite with and without a floor; below it, the gradient is zero."""
    # The negative is preferred for sure, the other positive is not.
    pos, neg = jnp.array([[0.0, -5.0]]), jnp.array([[20.0]])
    loss = partial(losses.debiased_pairwise, tau_plus=0.5)
    value, slopes = value_and_slopes(loss)(pos, neg, floor=floor)
    want = -np.log(floor) if floor else 20 - np.log(np.finfo(np.float32).eps)
    np.testing.assert_allclose(value, want, rtol=1e-6)
    assert all((g == 0).all() for g in slopes)
    if floor == 1:
        slope = jax.jit(jax.grad(lambda floor: loss(pos, neg, floor=floor)))(0.5)
        np.testing.assert_allclose(slope, -1 / 0.5, rtol=1e-6)


def test_single_positive_column_equals_1d_positives():
    pos, neg = jnp.array([0.3, -1.0]), jnp.array([[0.1, 2.0, -1.0], [0.0, 0.5, 1.0]])
    got = quick.debiased_pairwise(pos[:, None], neg, tau_plus=0.1)
    assert got == quick.debiased_pairwise(pos, neg, tau_plus=0.1)


def test_rejects_several_positives_per_anchor():
    for fn in (losses.bpr, losses.bce, losses.info_nce):
        with raises(Exception, match="pos"):
            fn(jnp.ones((2, 3)), jnp.ones((2, 4)))


def test_gbpr_without_group_matches_bpr(pos, neg):
    group = jnp.full((6, 3), jnp.nan)
    gone = jnp.zeros((6, 3), bool)
    same(quick.gbpr(pos, neg, group=group, where_group=gone, rho=0.4), quick.bpr(pos, neg))
    same(quick.gbpr(pos, neg, group=group[:, :0], rho=0.4), quick.bpr(pos, neg))


def test_mpr_rejects_two_positives(pos, neg):
    with raises(Exception, match=r"`pos` must have shape \(6, 3\)"):
        losses.mpr(jnp.ones((6, 2)), neg, likely=pos, balance=0.5)


def test_gbpr_rejects_mismatched_where_group(pos, neg):
    with raises(Exception, match="where_group"):
        losses.gbpr(pos, neg, group=neg, rho=0.5, where_group=jnp.ones((6, 3), bool))


@pytest.mark.parametrize("kind", ["bce", "bpr"])
def test_gradient_treats_reweighting_as_constant(kind):
    """Slopes of trust · softplus(-x), with trust held constant."""
    t, b = 0.5, 0.7
    pos, neg = np.array([0.3, -1.0]), np.array([[0.1, 1.5], [-0.4, 0.2]])

    def slope(x):  # of σ(x)^b · softplus(-x), with respect to x
        p = 1 / (1 + np.exp(-x))
        return -(p**b) * (1 - p)

    if kind == "bpr":
        pair_slopes = slope((pos[:, None] - neg) / t) / 2
        want = (pair_slopes.sum(-1) / t, -pair_slopes / t)
    else:
        want = (slope(pos / t) / t, -slope(-neg / t) / 2 / t)

    fn = losses.reweighted_bpr if kind == "bpr" else losses.reweighted_bce

    def f(pos, neg, exponent):
        return fn(pos, neg, exponent=exponent, temperature=t, reduce_fn=jnp.sum)

    got = jax.jit(jax.grad(f, argnums=(0, 1, 2)))(
        jnp.float32(pos), jnp.float32(neg), jnp.float32(b)
    )
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
    assert got[2] == 0
