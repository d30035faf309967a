"""Sampling of seen and unseen items, against explicit counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.exported import exported
from _helpers.negatives import interactions_of
from scipy import stats

from crl_jax.data import Interactions
from crl_jax.samplers import Positives, sample_absent, sample_seen, sample_unseen

pytestmark = pytest.mark.usefixtures("quick_compiles")


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
    "nothing": [],
    "everything": list(range(10)),
}


@pytest.mark.parametrize("seen", [False, True])
def test_draws_are_uniform_over_seen_or_unseen_items(seen):
    draw = sample_seen if seen else sample_unseen
    positives = Positives.from_interactions(interactions_of(list(ADVERSARIAL.values()), 10))
    rows = draw(jax.random.key(0), jnp.arange(len(ADVERSARIAL)), positives, 5000)
    for own, row in zip(ADVERSARIAL.values(), np.asarray(rows), strict=True):
        side = own if seen else np.setdiff1d(np.arange(10), own)
        if not len(side):  # positives are never sampled for users without any
            assert seen or (row == 10).all()
            continue
        counts = np.bincount(row, minlength=10)
        assert counts.sum() == counts[side].sum()
        assert looks_uniform(counts[side])


@pytest.mark.parametrize("n_items", [1, 2, 32, 33, 70])
def test_draws_never_mix_seen_and_unseen_items(n_items):
    taken = np.random.default_rng(n_items).random((6, n_items)) < [
        [0],
        [1],
        [0.1],
        [0.5],
        [0.5],
        [0.9],
    ]
    positives = Positives.from_interactions(
        interactions_of([np.flatnonzero(row) for row in taken], n_items)
    )

    @jax.jit
    def draw_both(key):
        users = jnp.arange(6)
        return sample_unseen(key, users, positives, 30), sample_seen(key, users, positives, 30)

    unseen, seen = map(np.asarray, draw_both(jax.random.key(0)))
    for row, without, with_ in zip(taken, unseen, seen, strict=True):
        if row.all():
            assert (without == n_items).all()
        else:
            assert not row[without].any()
            assert (without >= 0).all()
        if row.any():
            assert row[with_].all()


def test_unseen_draws_are_uniform_in_large_catalogue():
    n_items = 70_000  # more than 2^16: both halves of the bound are used
    taken = list(range(0, n_items, 7))
    positives = Positives.from_interactions(interactions_of([taken], n_items))
    draw = jax.jit(lambda key: sample_unseen(key, jnp.array([0]), positives, 2_000_000))
    draws = np.asarray(draw(jax.random.key(4)))[0]
    unseen = np.setdiff1d(np.arange(n_items), taken)
    counts = np.bincount(draws, minlength=n_items)
    assert counts.sum() == counts[unseen].sum()
    assert looks_uniform(counts[unseen])


def test_draws_are_reproducible_by_key_and_keep_batch_shape():
    positives = Positives.from_interactions(interactions_of([[0, 3], [1]], 10))
    users = jnp.array([[0, 1], [1, 0]])
    draw = jax.jit(lambda key: sample_unseen(key, users, positives, 4))
    first, again, other = (draw(jax.random.key(seed)) for seed in (7, 7, 8))
    assert first.shape == (2, 2, 4)
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).any()
    seen = jax.eval_shape(lambda key: sample_seen(key, users, positives, 3), jax.random.key(7))
    assert seen.shape == (2, 2, 3)


@pytest.mark.parametrize("bitmap", [True, False])
def test_seen_items_match_table_with_and_without_bitmap(bitmap):
    rng = np.random.default_rng(0)
    table = rng.random((13, 70)) < np.linspace(0, 1, 13)[:, None]
    table[1] = False
    users, items = np.nonzero(table)
    log = Interactions.from_arrays(users, items, user_ids=np.arange(13), item_ids=np.arange(70))
    positives = Positives.from_interactions(log, bitmap=bitmap)
    assert (positives.bitmap is not None) == bitmap
    some_users, some_items = rng.integers(0, 13, 9), rng.integers(0, 70, 40)
    own = rng.integers(0, 70, (9, 5))

    @jax.jit
    def look_up(positives, users):
        return (
            positives.seen(users, jnp.asarray(some_items)),
            positives.contains(users, jnp.asarray(own)),
            positives.seen_bits(users),
            positives.n_unseen(jnp.arange(13)),
        )

    seen, contained, words, n_unseen = map(np.asarray, look_up(positives, some_users))
    np.testing.assert_array_equal(seen, table[some_users][:, some_items].T)
    np.testing.assert_array_equal(contained, table[some_users[:, None], own])
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32)[:, None]) & 1
    np.testing.assert_array_equal(bits.reshape(-1, 9)[:70], table[some_users].T)
    np.testing.assert_array_equal(bits.reshape(-1, 9)[70:], 0)
    np.testing.assert_array_equal(n_unseen, (~table).sum(axis=1))


def test_omits_bitmap_above_size_limit(monkeypatch):
    monkeypatch.setattr("crl_jax.samplers._positives._MAX_WORDS", 1)
    assert Positives.from_interactions(interactions_of([[0], [1]], 3), bitmap=True).bitmap is None


def test_sample_absent_is_uniform_over_absent_items():
    """Lists in any order, with padding of any negative id and repeated items."""
    rng, lists = np.random.default_rng(0), np.full((len(ADVERSARIAL), 13), -1)
    for row, own in zip(lists, ADVERSARIAL.values(), strict=True):
        row[: len(own)] = own
        row[len(own) : len(own) + 2] = (own or [-5])[0]
        rng.shuffle(row)
    rows = jax.jit(sample_absent, static_argnums=(2, 3))(
        jax.random.key(0), jnp.asarray(lists), 10, 5000
    )
    for own, row in zip(ADVERSARIAL.values(), np.asarray(rows), strict=True):
        values, counts = np.unique(row, return_counts=True)
        np.testing.assert_array_equal(
            values, np.setdiff1d(np.arange(10), own) if len(own) < 10 else [10]
        )
        assert looks_uniform(counts)


def test_sample_unseen_exports_with_symbolic_batch():
    data = Interactions.from_arrays(
        np.repeat([0, 1], [40, 5]), np.r_[0:40, 0:5], user_ids=[0, 1], item_ids=np.arange(60)
    )
    positives = Positives.from_interactions(data)

    def draw(key, users):
        return sample_unseen(key, users, positives, 2)

    arguments = jax.random.key(0), jnp.array([0, 1, 1])
    got = exported(draw, *arguments, b=3).call(*arguments)
    np.testing.assert_array_equal(got, draw(*arguments))


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.int16])
def test_sample_absent_supports_narrow_integer_lists(dtype):
    n_items = int(jnp.iinfo(dtype).max) + 73
    lists = jnp.tile(jnp.array([[0, 3, -1, 100]], dtype), (64, 1))
    drawn = np.asarray(sample_absent(jax.random.key(0), lists, n_items, 200))
    assert drawn.min() >= 0
    assert drawn.max() < n_items
    assert not np.isin(drawn, [0, 3, 100]).any()
