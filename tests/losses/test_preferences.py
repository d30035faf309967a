"""Identities of the pairwise losses that compare more than two items, or ask a group."""

import jax
import jax.numpy as jnp
import numpy as np
from _helpers.compare import same
from _helpers.refusals import raises

from crl_jax import losses


def test_a_group_without_a_say_is_bpr(pos, neg):
    group = jax.random.normal(jax.random.key(2), (6, 3))
    same(losses.gbpr(pos, neg, group=group, rho=0.0), losses.bpr(pos, neg))
    same(losses.gbpr(pos, neg, group=group, rho=1.0), losses.bpr(group.mean(1), neg))
    agreed = jnp.broadcast_to(pos[:, None], (6, 3))
    same(losses.gbpr(pos, neg, group=agreed, rho=0.3), losses.bpr(pos, neg))


def test_an_anchor_without_a_group_speaks_for_itself(pos, neg):
    group = jnp.full((6, 3), jnp.nan)
    gone = jnp.zeros((6, 3), bool)
    same(losses.gbpr(pos, neg, group=group, where_group=gone, rho=0.4), losses.bpr(pos, neg))
    same(losses.gbpr(pos, neg, group=group[:, :0], rho=0.4), losses.bpr(pos, neg))


def test_the_sides_of_the_balance(pos, neg):
    likely = jax.random.normal(jax.random.key(2), (6,))
    same(losses.mpr(pos, neg, likely=likely, balance=1.0), losses.bpr(pos, likely[:, None]))
    same(losses.mpr(pos, neg, likely=likely, balance=0.0), losses.bpr(likely, neg))


def test_positives_that_lead_each_other_raise_the_bar(pos, neg):
    likely = jax.random.normal(jax.random.key(2), (6,))
    plain = losses.mpr(pos, neg, likely=likely, balance=0.6)
    for first, second in [(1.0, 1.0), (2.0, 1.0), (1.0, 2.0)]:
        pair = jnp.broadcast_to(jnp.array([first, second]), (6, 2))
        three = jnp.concatenate([pos[:, None], pair], axis=1)
        with_pair = losses.mpr(three, neg, likely=likely, balance=0.6)
        assert np.sign(with_pair - plain) == np.sign(first - second)
    same(losses.mpr(pos[:, None], neg, likely=likely, balance=0.6), plain)


def test_mpr_takes_one_positive_or_three(pos, neg):
    with raises(Exception, match=r"`pos` must have shape \(6, 3\)"):
        losses.mpr(jnp.ones((6, 2)), neg, likely=pos, balance=0.5)


def test_the_group_has_the_axes_of_its_anchors(pos, neg):
    with raises(Exception, match="where_group"):
        losses.gbpr(pos, neg, group=neg, rho=0.5, where_group=jnp.ones((6, 3), bool))
