"""Every negative sampler against its distribution, enumerated in float64."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.negatives import N_ITEMS, N_USERS, TAKEN, World, as_tables, best_of, draw
from _helpers.refusals import raises
from scipy import stats

from crl_jax import samplers
from crl_jax.data import Interactions
from crl_jax.models import Tables
from crl_jax.samplers import (
    AOBPR,
    BNS,
    DNS,
    PNS,
    RNS,
    SRNS,
    InBatch,
    MixedSampler,
    SharedRNS,
    StagedSampler,
)
from crl_jax.samplers._dynamic import truncated_geometric
from crl_jax.samplers._ecdf import draw_sample

pytestmark = pytest.mark.usefixtures("quick_compiles")

N_DRAWS = 6000
POPULARITY = np.array([3.0, 0.0, 7.0, 1.0, 4.0, 2.0, 9.0, 5.0, 0.5])
PRIOR = np.array([0.05, 0.3, 0.01, 0.6, 0.2, 0.9, 0.02, 0.1, 0.4])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def posterior(world, user, prior):
    """P(true negative) of every item by (4.14), with the eCDF over the user's unseen items."""
    s, unseen = world.scores[user], world.unseen(user)
    ecdf = np.array([np.mean(s[unseen] <= s[j]) for j in range(world.n_items)])
    true, false = (1 - ecdf) * (1 - prior), ecdf * prior
    return true / (true + false)


def minus_risk(world, user, prior, gain):
    s = world.scores[user]
    info = 1 - sigmoid(s[world.positive(user)] - s)
    return -info * (1 - (1 + gain) * posterior(world, user, prior))


def expected_rns(world, user):
    chances = np.zeros(world.n_items)
    chances[world.unseen(user)] = 1
    return chances


def expected_pns(world, user):
    chances = np.where(expected_rns(world, user) > 0, POPULARITY, 0)
    return chances if chances.sum() else expected_rns(world, user)


def expected_dns(world, user, m=3):
    """Returns the probabilities of the docstring's formula; enumeration gives the same."""
    unseen = world.unseen(user)
    n, chances = len(unseen), np.zeros(world.n_items)
    for rank, j in enumerate(sorted(unseen, key=lambda j: -world.scores[user, j]), start=1):
        chances[j] = ((n - rank + 1) / n) ** m - ((n - rank) / n) ** m
    return chances


def expected_aobpr(world, user):
    chances = np.zeros(world.n_items)
    order = sorted(world.unseen(user), key=lambda j: -world.scores[user, j])
    chances[order] = np.exp(-np.arange(len(order)) / 2.0)
    return chances


def expected_bns(world, user):
    return best_of(world.unseen(user), 3, minus_risk(world, user, PRIOR, 5.0))


def expected_bns_in_batch(world, user):
    """Enumerates all four candidates of an anchor with two negatives; the first two compete."""
    unseen, s = world.unseen(user), world.scores[user]
    drawn = np.array(list(itertools.product(unseen, repeat=4)))
    ecdf = (s[drawn][:, :, None] >= s[drawn][:, None, :]).sum(-1)[:, :2] / 5
    prior, info = PRIOR[drawn[:, :2]], 1 - sigmoid(s[world.positive(user)] - s[drawn[:, :2]])
    true, false = (1 - ecdf) * (1 - prior), ecdf * prior
    least = np.argmin(info * (1 - 6 * true / (true + false)), axis=1)
    return np.bincount(drawn[np.arange(len(drawn)), least], minlength=world.n_items).astype(float)


def expected_posterior(world, user):
    return best_of(world.unseen(user), 2, posterior(world, user, PRIOR))


SAMPLERS = {
    "RNS": (RNS(), expected_rns),
    "PNS": (PNS(jnp.asarray(POPULARITY, jnp.float32)), expected_pns),
    "DNS": (DNS(3), expected_dns),
    "AOBPR": (AOBPR(2.0), expected_aobpr),
    "BNS": (BNS(PRIOR, candidates=3), expected_bns),
    "BNS in batch": (BNS(PRIOR, candidates=2, ecdf="batch"), expected_bns_in_batch),
    "posterior": (BNS(PRIOR, candidates=2, criterion="posterior"), expected_posterior),
    "BNS after RNS": (StagedSampler(RNS(), BNS(PRIOR, candidates=3), 1), expected_rns),
}
OTHERS = {
    "BNS from a sample": BNS(PRIOR, ecdf_samples=4),
    "BNS from all": BNS(PRIOR, candidates=None),
    "SRNS": SRNS(memory=4, fresh=3, history=2),
    "mixed": MixedSampler((DNS(3), SRNS(memory=4, fresh=3, history=2))),
}
EVERY = {name: sampler for name, (sampler, _) in SAMPLERS.items()} | OTHERS


@pytest.fixture(scope="module")
def world():
    return World()


def assert_distributed(counts, values):
    """Chi-square test of the counts of items against probabilities up to a factor."""
    chances = np.zeros(len(counts))
    chances[: len(values)] = values / values.sum()
    possible = chances > 0
    assert counts[~possible].sum() == 0
    if possible.sum() > 1:
        assert stats.chisquare(counts[possible], chances[possible] * counts.sum()).pvalue > 1e-4


@pytest.mark.parametrize("name", EVERY)
def test_draws_match_distribution_and_exclude_seen_items(name):
    """Draws exclude seen items and depend on the key alone, with and without a bitmap.

    Large catalogues have no bitmap, and look up every pair. The last user has seen every item.
    """
    sampler, all_items = EVERY[name], list(range(N_ITEMS))
    world = World([*TAKEN.values(), all_items])
    users = np.repeat(np.arange(N_USERS + 1), N_DRAWS // 2)
    batch, state = world.batch(users, n=2), world.state(sampler)
    first, after = draw(sampler, jax.random.key(3), batch, state)
    assert first.shape == (len(users), 2)
    assert first.dtype == jnp.int32
    later = dataclasses.replace(batch, epoch=jnp.int32(1))
    second, _ = draw(sampler, jax.random.key(6), later, after)
    for ids in (first, second):
        for user, taken in enumerate(world.taken):
            counts = np.bincount(np.asarray(ids)[users == user].ravel(), minlength=N_ITEMS)
            if user == N_USERS:
                assert counts[N_ITEMS] == N_DRAWS
                continue
            assert counts[list(taken)].sum() == 0
            if name in SAMPLERS and ids is first:
                assert_distributed(counts, SAMPLERS[name][1](world, user))

    again, _ = draw(sampler, jax.random.key(3), batch, state)
    np.testing.assert_array_equal(again, first)
    if name not in ("BNS from all", "SRNS"):  # these choose deterministically
        assert np.any(np.asarray(first) != np.asarray(second))
    if name in ("PNS", "BNS after RNS", "posterior", "mixed"):
        return  # these look up pairs as RNS, BNS and DNS do
    without_bitmap = dataclasses.replace(world.positives, bitmap=None)
    assert world.positives.bitmap is not None
    got, _ = draw(
        sampler, jax.random.key(3), dataclasses.replace(batch, positives=without_bitmap), state
    )
    np.testing.assert_array_equal(got, first)


@pytest.mark.parametrize("n_anchors", [4, 3 * N_USERS])
def test_bns_of_all_items_draws_in_order_of_risk(world, n_anchors):
    """Ranks the anchors' rows if there are fewer anchors than users, else one row per user."""
    users = np.arange(n_anchors) % N_USERS
    ids, _ = draw(BNS(PRIOR, candidates=None), jax.random.key(0), world.batch(users, n=3))
    for user, row in zip(users, np.asarray(ids).tolist(), strict=True):
        value = minus_risk(world, user, PRIOR, 5.0)
        order = sorted(world.unseen(user).tolist(), key=lambda j, value=value: -value[j])
        assert row == [order[i % len(order)] for i in range(3)]


geometric_ranks = jax.jit(truncated_geometric, static_argnums=3)


@pytest.mark.parametrize("scale", [1e12, np.inf])
def test_geometric_ranks_cover_all_of_large_catalogue(scale):
    """float32 is exact up to 2^24; its multiples of 128 below 2^31 would be all values drawn."""
    n = 2**31 - 1
    ranks = geometric_ranks(jax.random.key(0), jnp.full(2**16, n, jnp.int32), scale, n)
    assert ranks.min() >= 0
    for digit in (np.asarray(ranks) % 128, np.asarray(ranks) >> 24):
        assert stats.chisquare(np.bincount(digit, minlength=128)).pvalue > 1e-4


@pytest.mark.parametrize("scale", [50.0, 1e5])
def test_ranks_follow_truncated_geometric_distribution(scale):
    n, drawn = 10**6, 2**20
    ranks = geometric_ranks(jax.random.key(1), jnp.full(drawn, n, jnp.int32), scale, n)
    ranks = np.sort(np.asarray(ranks))
    assert ranks[-1] < n
    up_to = np.expm1(-(ranks + 1) / scale) / np.expm1(-n / scale)
    before = np.expm1(-ranks / scale) / np.expm1(-n / scale)
    seen = np.arange(1, drawn + 1) / drawn
    ks_statistic = max(np.max(before - seen), np.max(seen - 1 / drawn - up_to))
    assert ks_statistic < 2.2 / np.sqrt(drawn)  # 1e-4 of samples exceed this
    far = ranks[ranks > 8 * scale]  # so rare that duplicates are unlikely
    if scale == 1e5:
        assert len(far) > 200
        assert len(np.unique(far)) > 0.98 * len(far)


def test_bns_1_decays_risk_lambda_over_epochs(world):
    sampler = BNS(
        PRIOR, candidates=None, risk_lambda=10.0, risk_lambda_slope=0.1, risk_lambda_min=2.0
    )
    for epoch, gain in ((0, 10.0), (37, 6.3), (80, 2.0), (500, 2.0)):
        ids, _ = draw(sampler, jax.random.key(0), world.batch(range(N_USERS), epoch=epoch))
        for user in range(N_USERS):
            value = minus_risk(world, user, PRIOR, gain)
            assert ids[user, 0] == max(world.unseen(user), key=lambda j, value=value: value[j])


def test_bns_2_switches_sampler_at_given_epoch(world):
    late = BNS(PRIOR, candidates=None)
    sampler = StagedSampler(RNS(), late, 3)
    batch = world.batch([0] * 200, epoch=2)
    early, state = draw(sampler, jax.random.key(0), batch, world.state(sampler))
    assert len(np.unique(early)) == len(world.unseen(0))
    ids, _ = draw(sampler, jax.random.key(0), dataclasses.replace(batch, epoch=jnp.int32(3)), state)
    want, _ = draw(late, jax.random.key(1), batch)
    np.testing.assert_array_equal(ids, want)


def test_prior_accepts_array_table_or_function(world):
    batch = world.batch(list(range(N_USERS)), n=2)
    table = np.tile(PRIOR, (N_USERS, 1)).astype(np.float32)

    def function(users, items):
        return jnp.asarray(table)[users[:, None], items]

    want, _ = draw(BNS(PRIOR), jax.random.key(0), batch)
    for prior in (table, function, jax.tree_util.Partial(function)):
        got, _ = draw(BNS(prior), jax.random.key(0), batch)
        np.testing.assert_array_equal(want, got)
    other, _ = draw(BNS(1 - PRIOR), jax.random.key(0), batch)
    assert np.any(np.asarray(want) != np.asarray(other))


def test_hyper_parameters_do_not_recompile(world):
    traces = []

    @jax.jit
    def traced(sampler, key, batch, state):
        traces.append(type(sampler))
        return sampler(key, batch, state)

    batch = world.batch([0, 1, 2])
    for change in (1.0, 2.0, 3.0):
        for sampler in (AOBPR(change), BNS(PRIOR, risk_lambda=change), SRNS(temperature=change)):
            traced.trace(sampler, jax.random.key(0), batch, world.state(sampler))
    assert traces == [AOBPR, BNS, SRNS]


def test_srns_draws_best_of_memory_by_score_and_deviation(world):
    """Against the explicit criterion, with a history in which some scores varied more."""
    rng = np.random.default_rng(1)
    past = world.scores + rng.normal(size=(3, *world.scores.shape)) * np.linspace(0, 2, N_ITEMS)
    sampler = SRNS(memory=4, fresh=2, history=3, variance_weight=2.0, warm_up=10.0)
    state = world.state(sampler)
    assert all(
        set(row) <= set(world.unseen(user).tolist())
        for user, row in enumerate(np.asarray(state.memory).tolist())
    )
    state = state._replace(past=Tables(jnp.asarray(past, jnp.float32), jnp.zeros((3, 1, 1))))
    for epoch, ramp in ((0, 0.0), (4, 0.4), (10, 1.0), (30, 1.0)):
        ids, _ = draw(sampler, jax.random.key(0), world.batch(range(N_USERS), epoch=epoch), state)
        for user in range(N_USERS):
            i, memory = world.positive(user), np.asarray(state.memory[user])

            def near(s, user=user, i=i):
                return sigmoid(s[..., user, :] - s[..., user, i, None])

            value = near(world.scores) + 2.0 * ramp * near(past).std(axis=0)
            assert ids[user, 0] == memory[np.argmax(value[memory])]


def test_srns_keeps_items_in_memory_by_softmax_of_scores():
    world = World([[0]], 6, seed=4)
    sampler = SRNS(memory=1, fresh=1, history=1, temperature=0.7)
    state = world.state(sampler)
    held = int(state.memory[0, 0])

    @jax.jit
    @jax.vmap
    def next_memory(key):
        return sampler(key, world.batch([0]), state)[1].memory[0, 0]

    counts = np.bincount(next_memory(jax.random.split(jax.random.key(2), N_DRAWS)), minlength=6)
    odds = np.exp(world.scores[0] / 0.7)
    chances = np.zeros(6)
    for fresh in world.unseen(0):
        if fresh != held:
            chances[fresh] = odds[fresh] / (odds[fresh] + odds[held]) / 5
    chances[held] = 1 - chances.sum()
    assert_distributed(counts, chances)


def test_srns_memory_has_no_avoidable_duplicates(world):
    sampler = SRNS(memory=4, fresh=8, history=1)
    state = world.state(sampler)
    for step in range(30):
        _, state = draw(sampler, jax.random.key(step), world.batch(range(N_USERS)), state)
    for user, row in enumerate(np.asarray(state.memory).tolist()):
        assert len(set(row)) == min(4, len(world.unseen(user)))


def test_srns_updates_memory_from_first_anchor_of_user(world):
    sampler = SRNS(memory=3, fresh=3, history=1)
    state, batch = world.state(sampler), world.batch([2, 5, 2, 2, 0])

    @jax.jit
    def select_all_and_first(key):
        proposals = sampler.propose(key, batch.users, batch.positives, 1)
        alone = jax.tree.map(lambda x: x[:1], proposals)
        _, after = sampler.select(proposals, batch, state)
        return after, sampler.select(alone, world.batch([2]), state)[1]

    after, first = select_all_and_first(jax.random.key(1))
    np.testing.assert_array_equal(after.memory[2], first.memory[2])
    untouched = [1, 3, 4, 6, 7]
    np.testing.assert_array_equal(
        after.memory[jnp.array(untouched)], state.memory[jnp.array(untouched)]
    )


def test_srns_keeps_tables_of_last_epochs(world):
    sampler = SRNS(history=2)
    state = world.state(sampler)
    for value in (1.0, 2.0, 3.0):
        tables = as_tables(np.full_like(world.scores, value))
        state = sampler.start_epoch(jax.random.key(0), world.positives, tables, state)
    assert state.past.users[:, 0, 0].tolist() == [2.0, 3.0]


def test_rejects_invalid_arguments(world):
    for make, message in (
        (lambda: DNS(0), "`candidates` must be at least 1, got 0"),
        (lambda: AOBPR(0.0), "`scale` must lie in"),
        (lambda: BNS(PRIOR, risk_lambda=-1.0), "`risk_lambda` must lie in"),
        (
            lambda: BNS(PRIOR, criterion="best"),
            "`criterion` must be one of risk, posterior, got 'best'",
        ),
        (lambda: BNS(PRIOR, candidates=None, ecdf_samples=8), "`ecdf_samples` must be None"),
        (lambda: BNS(PRIOR, ecdf_samples=0), "`ecdf_samples` must be at least 1, got 0"),
        (lambda: BNS(PRIOR, ecdf="all"), "`ecdf` must be one of catalogue, batch, got 'all'"),
        (
            lambda: BNS(PRIOR, ecdf="batch", ecdf_samples=8),
            "`ecdf` must be catalogue with `candidates=None` or `ecdf_samples`, got 'batch'",
        ),
        (lambda: BNS(PRIOR, ecdf="batch", candidates=None), "`ecdf` must be catalogue with"),
        (lambda: SRNS(temperature=0.0), "`temperature` must lie in"),
        (lambda: SRNS(memory=0), "`memory` must be at least 1, got 0"),
        (lambda: StagedSampler(RNS(), RNS(), -1), "`epochs` must lie in"),
        (lambda: MixedSampler(()), "`samplers` must hold"),
        (lambda: MixedSampler((RNS(), SharedRNS())), "for each anchor, got SharedRNS"),
        (lambda: StagedSampler(InBatch(), RNS()), "for each anchor, got InBatch"),
    ):
        with raises(ValueError, match=message):
            make()
    with raises(ValueError, match="`memory` must be at least the 3 negatives, got 2"):
        SRNS(memory=2)(jax.random.key(0), world.batch([0], n=3), world.state(SRNS(memory=2)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PNS(jnp.ones(3)), r"`weights` must have shape \(\d+,\), got \(3,\)"),
        (lambda: PNS(np.full(N_ITEMS, -1.0)), "`weights` must lie in"),
        (lambda: BNS(np.full(3, 0.3)), r"`prior` must be a function or .* got \(3,\)"),
        (lambda: BNS(np.full((3, N_ITEMS), 0.3)), "`prior` must be a function or"),
        (lambda: BNS(np.full(N_ITEMS, 5.0)), r"`prior` must lie in \[0, 1\]"),
        (lambda: BNS(lambda users, items: jnp.zeros(())), "`prior` must have shape"),
        (lambda: MixedSampler((RNS(), PNS(jnp.ones(3)))), "`weights` must have shape"),
        (lambda: StagedSampler(RNS(), BNS(np.full(3, 0.3)), 1), "`prior` must be a function or"),
    ],
)
def test_rejects_arrays_of_other_datasets_under_jit(world, make, message):
    batch = world.batch([0], n=2)

    def first(key, users):
        sampler = make()
        state = sampler.init(key, batch.positives, batch.tables)
        return sampler(key, dataclasses.replace(batch, users=users), state)[0]

    with raises(ValueError, match=message):
        jax.eval_shape(first, jax.random.key(0), batch.users)


def test_group_prior_is_at_most_one():
    data = Interactions.from_arrays([0, 1], [0, 0], user_ids=[0, 1, 2], item_ids=[0])
    prior = samplers.group_prior(data, np.array([0, 0, 1]))
    assert prior(jnp.arange(3), jnp.zeros((3, 1), int)).max() == 1


def test_pns_weights_are_powers_of_popularity(world):
    counts = np.bincount(world.train.items, minlength=N_ITEMS)
    np.testing.assert_allclose(PNS.from_interactions(world.train).weights, counts**0.75, rtol=1e-6)
    np.testing.assert_allclose(PNS.from_interactions(world.train, 1.0).weights, counts, rtol=1e-6)


def test_mixed_sampler_alternates_components_by_column(world):
    """Each column follows the distribution of its component."""
    parts = ("PNS", "DNS", "RNS")
    sampler = MixedSampler(tuple(SAMPLERS[name][0] for name in parts))
    user = list(TAKEN).index("one")
    ids, _ = draw(
        sampler, jax.random.key(5), world.batch([user] * N_DRAWS, n=4), world.state(sampler)
    )
    for column, name in enumerate([*parts, parts[0]]):
        counts = np.bincount(np.asarray(ids)[:, column], minlength=N_ITEMS)
        assert_distributed(counts, SAMPLERS[name][1](world, user))


def test_mixed_sampler_updates_component_states(world):
    srns = OTHERS["SRNS"]
    sampler, batch = MixedSampler((srns, RNS())), world.batch(range(N_USERS), n=2)
    state = sampler.init(jax.random.key(0), batch.positives, batch.tables)
    own_key = jax.random.split(jax.random.key(1))[0]
    ids, (after, rns_state) = draw(sampler, jax.random.key(1), batch, state)
    want, want_state = draw(srns, own_key, dataclasses.replace(batch, n=1), state[0])
    np.testing.assert_array_equal(ids[:, :1], want)
    jax.tree.map(np.testing.assert_array_equal, after, want_state)
    assert rns_state == ()


def test_pns_draws_items_of_tiny_weight():
    """A weight of 1 in 10⁹ does not round to 0, and the sum does not overflow."""
    world = World([[0], [1, 2]], 4)
    sampler = PNS(jnp.array([1e9, 1.0, 0.0, 1e3]))
    ids, _ = draw(sampler, jax.random.key(0), world.batch([0] * 4000))
    assert set(np.unique(ids)) == {1, 3}
    ids, _ = draw(sampler, jax.random.key(0), world.batch([1] * 4000))
    assert set(np.unique(ids)) <= {0, 3}


def test_large_weights_do_not_overflow():
    """The sum of these weights is not finite in float32."""
    world = World([[0], [1, 2]], 4)
    ids, _ = draw(PNS(jnp.array([3e38, 3e38, 1e38, 0])), jax.random.key(0), world.batch([0] * 4000))
    assert set(np.unique(ids)) == {1, 2}
    assert abs(np.mean(np.asarray(ids) == 1) - 0.75) < 0.04  # 5 standard deviations


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_pns_accepts_half_precision_weights(dtype):
    """The weights are exact in both dtypes, their quotients by the sum are not."""
    world = World([[0], [1, 2]], 4)
    sampler = PNS(jnp.array([1, 3, 4, 8], dtype))
    ids, _ = draw(sampler, jax.random.key(0), world.batch([0] * 4000))
    # Binomial(4000, p): the standard deviation is at most 32.
    assert np.abs(np.bincount(ids[:, 0], minlength=5) - [0, 800, 1067, 2133, 0]).max() < 160


def test_catalogue_sample_is_uniform():
    world = World([[0], [1, 2]], 4)
    sample = draw_sample(jax.random.key(0), world.batch([0]).positives, 4000)
    # Binomial(4000, 1/4): standard deviation 27.
    assert np.abs(np.bincount(sample.items, minlength=4) - 1000).max() < 140


def test_docstrings_of_samplers_cite_references():
    for name in ("RNS", "PNS", "DNS", "AOBPR", "SRNS", "BNS", "StagedSampler"):
        assert "References:" in getattr(samplers, name).__doc__


def test_negatives_of_shared_samplers_are_pools():
    world = World()
    batch = world.batch([0, 1, 2, 3, 4], n=4)
    real = jnp.arange(5) < 4
    ids, _ = draw(samplers.RNS(), jax.random.key(0), batch)
    plain = samplers.RNS().negatives(ids, batch, real)
    assert plain.ids is ids
    assert plain.mask is plain.log_q is None
    sampler = samplers.SharedRNS(anchors=2)
    ids, _ = draw(sampler, jax.random.key(0), batch)
    shared = jax.jit(type(sampler).negatives)(sampler, ids, batch, real)
    assert isinstance(shared.ids, samplers.Pools)
    assert shared.ids.items.shape == (3, 4)
    np.testing.assert_array_equal(ids, samplers.broadcast_pools(shared.ids.items, 5))
    want = ~np.asarray(world.positives.contains(batch.users, ids)) & np.asarray(real)[:, None]
    np.testing.assert_array_equal(shared.mask, want)
    corrected = samplers.InBatch.from_interactions(world.train)
    ids, _ = draw(corrected, jax.random.key(0), batch)
    in_batch = jax.eval_shape(type(corrected).negatives, corrected, ids, batch, real)
    assert in_batch.log_q.shape == in_batch.ids.items.shape == (1, 5)
