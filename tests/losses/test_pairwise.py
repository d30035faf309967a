"""Identities and floors of the pairwise losses."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax import losses


@cache
def value_and_slopes(fn):
    return jax.jit(jax.value_and_grad(fn, argnums=(0, 1)))


@pytest.mark.parametrize("difference", [-100.0, -20.0, -0.5, 0.0, 3.0, 20.0, 100.0])
@pytest.mark.parametrize("pos_shape", ["plain", "extra"])
def test_without_a_prior_debiased_pairwise_is_bpr(difference, pos_shape):
    own, neg = jnp.array([difference]), jnp.zeros((1, 1))
    value, slopes = value_and_slopes(losses.bpr)(own, neg)
    pos = own if pos_shape == "plain" else jnp.array([[difference, 7.0, -300.0]])
    got, got_slopes = value_and_slopes(losses.debiased_pairwise)(pos, neg, tau_plus=0.0, floor=0.0)
    np.testing.assert_allclose(got, value, rtol=3e-7)
    np.testing.assert_allclose(got_slopes[0].ravel()[0], slopes[0][0], rtol=1e-6)
    np.testing.assert_allclose(got_slopes[1], slopes[1], rtol=1e-6)


def test_many_negatives_average_the_losses_of_one():
    pos, neg = jnp.array([0.3, -1.0]), jnp.array([[0.1, 2.0, -1.0], [0.0, 0.5, 1.0]])
    for fn in (losses.bpr, losses.bce, losses.triplet_margin, losses.linear_pairwise):
        each = [fn(pos, neg[:, j : j + 1]) for j in range(3)]
        np.testing.assert_allclose(fn(pos, neg), np.mean(each), rtol=1e-6)


def test_bce_of_one_negative():
    got = losses.bce(jnp.array([2.0]), jnp.array([[1.0]]))
    np.testing.assert_allclose(got, np.log(1 + np.exp(-2)) + np.log(1 + np.exp(1)), rtol=1e-6)


def test_nt_logistic_is_bce():
    assert losses.nt_logistic is losses.bce


def test_beyond_its_margin_the_triplet_loss_is_flat():
    value, slopes = value_and_slopes(losses.triplet_margin)(
        jnp.array([2.0]), jnp.array([[0.9, 1.5, 2.5]]), margin=1.0
    )
    np.testing.assert_allclose(value, (0 + 0.5 + 1.5) / 3, rtol=1e-6)
    np.testing.assert_allclose(slopes[0], [-2 / 3], rtol=1e-6)
    np.testing.assert_allclose(slopes[1], [[0, 1 / 3, 1 / 3]], rtol=1e-6)


def test_the_margin_is_not_divided_by_the_temperature():
    pos, neg = jnp.array([0.5]), jnp.array([[0.75]])
    got = losses.triplet_margin(pos, neg, margin=1.0, temperature=0.5)
    np.testing.assert_allclose(got, 0.25 / 0.5 + 1)


def test_the_linear_loss_pulls_and_pushes_alike_everywhere():
    for score in (-100.0, 0.0, 3.0):
        _, slopes = value_and_slopes(losses.linear_pairwise)(
            jnp.array([score]), jnp.array([[1.0, score]]), repulsion=0.5, temperature=0.5
        )
        np.testing.assert_array_equal(slopes[0], [-2])
        np.testing.assert_array_equal(slopes[1], [[0.5, 0.5]])


def test_an_estimate_of_preference_without_bias():
    """Lemma 5.1, in a population small enough to sum over: its mean is P(pos > true negative)."""
    positives, negatives, tau_plus = np.array([1.0, 2.0]), np.array([-1.0, 0.0, 0.5]), 0.25
    found, chance = 0.0, 0.0
    for own in positives:
        for other in positives:
            for sample in (*positives, *negatives):
                a_positive = sample in positives
                p = tau_plus / 2 if a_positive else (1 - tau_plus) / 3
                loss = losses.debiased_pairwise(
                    jnp.array([[own, other]]), jnp.array([[sample]]), tau_plus=tau_plus, floor=0.0
                )
                found += p / 4 * np.exp(-loss)
                chance += p / 4
    want = (1 / (1 + np.exp(negatives - positives[:, None]))).mean()
    np.testing.assert_allclose(chance, 1)
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_floor():
    # The negative is preferred for sure, the other positive is not.
    pos, neg = jnp.array([[0.0, -5.0]]), jnp.array([[20.0]])

    def loss(pos, neg, floor):
        return losses.debiased_pairwise(pos, neg, tau_plus=0.5, floor=floor)

    for floor in (1e-2, 1e-30, 1.0):
        np.testing.assert_allclose(loss(pos, neg, floor), -np.log(floor), rtol=1e-6)
        slopes = jax.grad(loss, argnums=(0, 1))(pos, neg, floor)
        assert all((g == 0).all() for g in slopes)
    slope = jax.grad(loss, argnums=2)(pos, neg, 0.5)
    np.testing.assert_allclose(slope, -1 / 0.5, rtol=1e-6)


def test_without_a_floor_the_loss_is_large_finite_and_without_gradient():
    pos, neg = jnp.array([[0.0, -5.0]]), jnp.array([[20.0]])

    def loss(pos, neg):
        return losses.debiased_pairwise(pos, neg, tau_plus=0.5, floor=0.0)

    eps = np.finfo(np.float32).eps
    np.testing.assert_allclose(loss(pos, neg), 20 - np.log(eps), rtol=1e-6)
    slopes = jax.grad(loss, argnums=(0, 1))(pos, neg)
    assert all((g == 0).all() for g in slopes)


def test_a_single_column_of_positives_has_no_extra():
    pos, neg = jnp.array([0.3, -1.0]), jnp.array([[0.1, 2.0, -1.0], [0.0, 0.5, 1.0]])
    got = losses.debiased_pairwise(pos[:, None], neg, tau_plus=0.1)
    assert got == losses.debiased_pairwise(pos, neg, tau_plus=0.1)


def test_the_plain_losses_take_one_positive():
    for fn in (losses.bpr, losses.bce, losses.info_nce):
        with raises(Exception, match="pos"):
            fn(jnp.ones((2, 3)), jnp.ones((2, 4)))
