"""Blends of models, against standardised scores in float64."""

import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax.models import Tables, blend

N_USERS, N_ITEMS = 9, 40


def random_tables(seed, dim, scale=1.0):
    rng = np.random.default_rng(seed)
    users, items = rng.normal(size=(N_USERS, dim)), 0.5 + rng.normal(size=(N_ITEMS, dim))
    return Tables(jnp.float32(scale * users), jnp.float32(items))


def scores(tables):
    return np.asarray(tables.users, np.float64) @ np.asarray(tables.items, np.float64).T


def standardized(tables):
    found = scores(tables)
    centred = found - found.mean(axis=1, keepdims=True)
    return centred / found.std(axis=1, keepdims=True)


def centred(tables):
    found = scores(tables)
    return found - found.mean(axis=1, keepdims=True)


@pytest.mark.parametrize("weights", [None, (1.0, 0.3, 2.0), (0.0, 1.0, 0.0)])
def test_scores_are_sums_of_standardised_scores(weights):
    members = [random_tables(0, 3), random_tables(1, 8, scale=1e4), random_tables(2, 5, scale=1e-6)]
    found = blend(members, weights)
    want = sum(w * standardized(m) for w, m in zip(weights or (1, 1, 1), members, strict=True))
    assert [each.shape for each in found] == [(N_USERS, 16), (N_ITEMS, 16)]
    np.testing.assert_allclose(centred(found), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_scales_do_not_change_blend(scale):
    members = [random_tables(0, 3), random_tables(1, 8)]
    extreme = [Tables(scale * m.users, jnp.float32(1e-5) * m.items) for m in members]
    np.testing.assert_allclose(scores(blend(extreme)), scores(blend(members)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("what", ["a user of zeros", "equal items"])
def test_ignores_members_with_constant_scores_for_user(what):
    one, other = random_tables(0, 3), random_tables(1, 4)
    if what == "a user of zeros":
        one, users = Tables(one.users.at[2].set(0.0), one.items), [2]
    else:
        one, users = (
            Tables(one.users, jnp.broadcast_to(one.items[:1], one.items.shape)),
            slice(None),
        )
    found = blend([one, other])
    np.testing.assert_allclose(
        centred(found)[users], standardized(other)[users], rtol=1e-4, atol=1e-4
    )


def test_rejects_invalid_members_and_weights():
    one = random_tables(0, 3)
    fewer = Tables(one.users[1:], one.items)
    with raises(ValueError, match="`members` must hold at least one model, got none"):
        blend([])
    with raises(
        ValueError, match=r"equal numbers of users and of items, got \[\(9, 40\), \(8, 40\)\]"
    ):
        blend([one, fewer])
    for weights in ([1.0], [1.0, -1.0], [1.0, np.nan]):
        with raises(ValueError, match="`weights` must be 2 finite numbers of at least 0") as caught:
            blend([one, one], weights)
        assert str(caught.value).endswith(f"got {weights}.")
