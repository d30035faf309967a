"""Draws from a user's positives and from the rest, against counting by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.negatives import interactions_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from crl_jax.data import Interactions
from crl_jax.samplers import Positives, sample_seen, sample_unseen


def looks_uniform(counts):
    """Chi-square; a single category is certain."""
    return len(counts) == 1 or stats.chisquare(counts).pvalue > 1e-3


ADVERSARIAL = {
    "one taken": [3],
    "first half": [0, 1, 2, 3, 4],
    "last half": [5, 6, 7, 8, 9],
    "every second": [0, 2, 4, 6, 8],
    "all but the first": [1, 2, 3, 4, 5, 6, 7, 8, 9],
    "all but the last": [0, 1, 2, 3, 4, 5, 6, 7, 8],
    "all but one inside": [0, 1, 2, 3, 5, 6, 7, 8, 9],
    "the ends": [0, 9],
}


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_items_of_one_side_are_uniform_and_no_others_are_drawn(name, seen):
    names, draw = list(ADVERSARIAL), sample_seen if seen else sample_unseen
    positives = Positives.from_interactions(interactions_of(list(ADVERSARIAL.values()), 10))
    user = jnp.array([names.index(name)])
    draws = np.asarray(draw(jax.random.key(0), user, positives, 5000))[0]
    own = np.array(ADVERSARIAL[name])
    side = own if seen else np.setdiff1d(np.arange(10), own)
    counts = np.bincount(draws, minlength=10)
    assert counts.sum() == counts[side].sum()
    assert looks_uniform(counts[side])


@settings(max_examples=15, deadline=None)
@given(data=st.data(), n_items=st.integers(1, 40), seed=st.integers(0, 1000))
def test_every_draw_keeps_to_its_side(data, n_items, seed):
    row = st.sets(st.integers(0, n_items - 1), max_size=n_items)
    taken = [sorted(items) for items in data.draw(st.lists(row, min_size=1, max_size=6))]
    if not any(taken):
        taken[0] = [0]
    positives = Positives.from_interactions(interactions_of(taken, n_items))
    users = jnp.arange(len(taken))
    draw_both = jax.jit(
        lambda key: (
            sample_unseen(key, users, positives, 30),
            sample_seen(key, users, positives, 30),
        )
    )
    unseen, seen = map(np.asarray, draw_both(jax.random.key(seed)))
    for user, items in enumerate(taken):
        if len(items) == n_items:
            assert (unseen[user] == n_items).all()
        else:
            assert not np.isin(unseen[user], items).any()
            assert (unseen[user] >= 0).all()
            assert (unseen[user] < n_items).all()
        if items:
            assert np.isin(seen[user], items).all()


def test_all_unseen_items_come_up_in_a_wide_catalogue():
    n_items = 70_000  # more than 2^16: both halves of the bound are at work
    taken = list(range(0, n_items, 7))
    positives = Positives.from_interactions(interactions_of([taken], n_items))
    draws = np.asarray(sample_unseen(jax.random.key(4), jnp.array([0]), positives, 2_000_000))[0]
    unseen = np.setdiff1d(np.arange(n_items), taken)
    counts = np.bincount(draws, minlength=n_items)
    assert counts.sum() == counts[unseen].sum()
    assert looks_uniform(counts[unseen])


def test_draws_are_reproducible_by_key_and_independent_of_the_batch_shape():
    positives = Positives.from_interactions(interactions_of([[0, 3], [1]], 10))
    users = jnp.array([[0, 1], [1, 0]])
    first = sample_unseen(jax.random.key(7), users, positives, 4)
    again = sample_unseen(jax.random.key(7), users, positives, 4)
    other = sample_unseen(jax.random.key(8), users, positives, 4)
    assert first.shape == (2, 2, 4)
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).any()
    assert sample_seen(jax.random.key(7), users, positives, 3).shape == (2, 2, 3)


@pytest.mark.parametrize("bitmap", [True, False])
def test_what_was_taken_is_known_by_bits_and_by_search(bitmap):
    rng = np.random.default_rng(0)
    table = rng.random((13, 70)) < np.linspace(0, 1, 13)[:, None]
    table[1] = False
    users, items = np.nonzero(table)
    log = Interactions.from_arrays(users, items, user_ids=np.arange(13), item_ids=np.arange(70))
    positives = Positives.from_interactions(log, bitmap=bitmap)
    assert (positives.bitmap is not None) == bitmap
    some_users, some_items = rng.integers(0, 13, 9), rng.integers(0, 70, 40)
    got = positives.seen(jnp.asarray(some_users), jnp.asarray(some_items))
    np.testing.assert_array_equal(got, table[some_users][:, some_items].T)
    own = rng.integers(0, 70, (9, 5))
    got = positives.contains(jnp.asarray(some_users), jnp.asarray(own))
    np.testing.assert_array_equal(got, table[some_users[:, None], own])
    words = np.asarray(positives.seen_bits(jnp.asarray(some_users)))
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32)[:, None]) & 1
    np.testing.assert_array_equal(bits.reshape(-1, 9)[:70], table[some_users].T)
    np.testing.assert_array_equal(bits.reshape(-1, 9)[70:], 0)
    np.testing.assert_array_equal(positives.n_unseen(jnp.arange(13)), (~table).sum(axis=1))


def test_too_large_a_bitmap_is_not_made(monkeypatch):
    monkeypatch.setattr("crl_jax.samplers._positives._MAX_WORDS", 1)
    assert Positives.from_interactions(interactions_of([[0], [1]], 3), bitmap=True).bitmap is None
