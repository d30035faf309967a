"""Criteria, priors and the eCDF of each user's unseen items, against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.negatives import N_ITEMS, N_USERS, World, as_tables, interactions_of
from _helpers.refusals import raises

from crl_jax import samplers, stats
from crl_jax.samplers import _ecdf, informativeness, sampling_risk, unbiasedness
from crl_jax.samplers._positives import pack_bits

pytestmark = pytest.mark.usefixtures("quick_compiles")


def test_unbiasedness_matches_posterior_of_equation_4_14():
    unit = np.float32([0, 1e-30, 1e-6, *np.linspace(0.01, 0.99, 25), 1 - 1e-6, 1])
    ecdf, prior = np.meshgrid(unit, unit, indexing="ij")
    got = np.asarray(unbiasedness(jnp.asarray(ecdf), jnp.asarray(prior)))
    ecdf, prior = ecdf.astype(float), prior.astype(float)
    below = 1 - ecdf - prior + 2 * ecdf * prior
    want = (1 - ecdf) * (1 - prior) / np.maximum(below, 1e-30)
    np.testing.assert_allclose(got, np.where(below > 1e-6, want, got), atol=1e-5)
    assert ((got >= 0) & (got <= 1)).all()
    # At the corners of 0 / 0, the prior decides.
    np.testing.assert_array_equal(got[[-1, 0, -1, 0], [0, -1, -1, 0]], [1, 0, 0, 1])


def test_unbiasedness_propagates_nan_under_jit():
    """Under tracing, where no range is checked."""
    ok, nan = jnp.array([0.5]), jnp.array([jnp.nan])
    for pair in ((nan, ok), (ok, nan), (nan, nan)):
        assert np.isnan(jax.jit(unbiasedness)(*pair)).all()


def test_ecdf_of_nan_score_is_nan():
    world = World()
    items = jnp.array([[8, 7], [0, 1]])  # unseen by users 0 and 2
    world.scores[0, 7] = np.nan
    world.tables = as_tables(world.scores)
    batch = world.batch([0, 2])
    sample = shared_sample(world, [0, 4, 8])

    @jax.jit
    def all_ecdfs(batch):
        return (
            _ecdf.exact_ecdf(batch, items).ecdf,
            _ecdf.sampled_ecdf(batch, batch.scores(items), sample),
            _ecdf.user_table(batch, batch.users).ecdf[jnp.arange(2)[:, None], items],
        )

    for got in all_ecdfs(batch):
        np.testing.assert_array_equal(np.isnan(got), [[False, True], [False, False]])


def test_risk_and_informativeness_match_formulas():
    pos, neg = jnp.array([[0.3]]), jnp.array([[0.3, -1.2, 4.0]])
    info = informativeness(pos, neg)
    np.testing.assert_allclose(info, 1 / (1 + np.exp(0.3 - np.array(neg, float))), rtol=1e-6)
    unbias = jnp.array([[0.9, 0.5, 0.1]])
    want = np.asarray(info, float) * (1 - 6 * np.array([[0.9, 0.5, 0.1]]))
    np.testing.assert_allclose(sampling_risk(info, unbias, risk_lambda=5.0), want, rtol=1e-5)
    great = sampling_risk(info, unbias, risk_lambda=1e6)
    assert np.argmin(great) == np.argmax(np.asarray(info * unbias))


@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_extreme_scores_have_finite_criteria(scale):
    scores = jnp.array([[-scale, 0.0, scale]])
    for dtype in (jnp.float32, jnp.bfloat16):
        info = informativeness(scores[:, 1:2].astype(dtype), scores.astype(dtype))
        assert info.dtype == jnp.float32
        np.testing.assert_allclose(info, [[0, 0.5, 1]], atol=1e-6)


def test_range_errors_name_the_argument():
    half = jnp.array([0.5])
    for call, name in (
        (lambda: unbiasedness(half + 1, half), "ecdf"),
        (lambda: unbiasedness(half, half - 1), "prior"),
        (lambda: sampling_risk(half, half, risk_lambda=-1.0), "risk_lambda"),
        (lambda: samplers.oracle_prior(World().train, false=1.5), "false"),
    ):
        with raises(ValueError, match=f"`{name}` must lie in"):
            call()


def numpy_ecdf(world, users, items):
    out = []
    for user, row in zip(users, items, strict=True):
        pool = world.scores[user, world.unseen(user)].astype(np.float32)
        out.append([np.mean(pool <= np.float32(world.scores[user, j])) for j in row])
    return out


@pytest.mark.parametrize(
    "limits", [{}, {"_MAX_SCORES": 1}, {"_MAX_SCORES": 3 * N_ITEMS}, {"_COUNTS_PER_USER": 1}]
)
def test_exact_ecdf_matches_counts_of_unseen_items(monkeypatch, limits):
    """Computes ranks at once, by anchor, in blocks that do not divide evenly, or per user."""
    for name, value in limits.items():
        monkeypatch.setattr(_ecdf, name, value)
    world = World()
    users = [0, 3, 3, 5, 1, 7, 2, 0]
    batch = world.batch(users)
    items = jnp.asarray([np.resize(world.unseen(user), 6) for user in users])
    result = jax.jit(lambda *args: _ecdf.exact_ecdf(*args))(batch, items)
    np.testing.assert_allclose(result.ecdf, numpy_ecdf(world, users, np.asarray(items)), rtol=1e-6)
    np.testing.assert_allclose(
        result.scores, world.scores[np.array(users)[:, None], items], rtol=1e-6
    )
    own = [[world.scores[user, world.positive(user)]] for user in users]
    np.testing.assert_allclose(result.pos, own, rtol=1e-6)


def shared_sample(world, items):
    """Returns a catalogue sample with a bitmap of the users that have seen each item."""
    taken = [[j in row for row in world.taken] for j in items]
    return _ecdf.CatalogueSample(jnp.array(items), pack_bits(jnp.array(taken)))


def test_sampled_ecdf_excludes_seen_items():
    world = World()
    users = list(range(N_USERS))
    batch = world.batch(users)
    sample = [1, 1, 4, 8, 6, 2]
    items = jnp.asarray([np.resize(world.unseen(user), 3) for user in users])
    shared = shared_sample(world, sample)
    got = jax.jit(lambda batch: _ecdf.sampled_ecdf(batch, batch.scores(items), shared))(batch)
    for user in users:
        pool = [world.scores[user, j] for j in sample if j not in world.taken[user]]
        for k, j in enumerate(np.asarray(items[user])):
            want = np.mean(np.array(pool) <= world.scores[user, j]) if pool else 0.5
            assert got[user, k] == pytest.approx(want)


def test_candidate_ecdf_counts_ties_and_ignores_nan():
    """Ties count in full; a NaN has no rank and counts for no other."""
    scores = jnp.array([[2.0, 1.0, 2.0, 7.0], [jnp.nan, 1.0, 3.0, -jnp.inf]])
    want = [[3 / 5, 1 / 5, 3 / 5, 4 / 5], [np.nan, 2 / 5, 3 / 5, 1 / 5]]
    np.testing.assert_allclose(_ecdf.candidate_ecdf(scores), want, rtol=1e-6)
    assert _ecdf.candidate_ecdf(scores.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_candidate_ecdf_matches_mean_of_order_statistics():
    draws = np.sort(np.random.default_rng(0).uniform(size=(20_000, 4)))  # F(x) = x
    got = _ecdf.candidate_ecdf(jnp.asarray(draws[:1], jnp.float32))[0]
    np.testing.assert_allclose(got, draws.mean(axis=0), atol=0.005)


def test_draw_sample_packs_seen_bitmap():
    world = World()
    sample = _ecdf.draw_sample(jax.random.key(0), world.positives, 70)
    assert sample.seen.shape == (3, N_USERS)
    want = shared_sample(world, np.asarray(sample.items).tolist())
    np.testing.assert_array_equal(sample.seen, want.seen)


def test_start_epoch_redraws_sample():
    world = World()
    sampler = samplers.BNS(jnp.full(N_ITEMS, 0.1), ecdf_samples=20)
    first = world.state(sampler)
    second = sampler.start_epoch(jax.random.key(1), world.positives, world.tables, first)
    assert np.any(np.asarray(first.items) != np.asarray(second.items))


def test_dkw_error_inverts_the_inequality():
    for n, confidence in ((1, 0.5), (100, 0.95), (5000, 0.999)):
        error = stats.dkw_error(n, confidence=confidence)
        assert 2 * np.exp(-2 * n * error**2) == pytest.approx(1 - confidence)
    with raises(ValueError, match="`n` must lie in"):
        stats.dkw_error(0)
    with raises(ValueError, match="`confidence` must lie in"):
        stats.dkw_error(5, confidence=1.0)


def test_popularity_and_uniform_priors():
    train = interactions_of([[0, 1], [1, 3], [1]], 5)
    np.testing.assert_allclose(samplers.popularity_prior(train), [0.2, 0.6, 0, 0.2, 0], rtol=1e-6)
    np.testing.assert_allclose(samplers.uniform_prior(4), [0.25] * 4)


def test_group_prior_matches_hand_computed_table():
    """Items 0, 1, 2 have 3, 2, 0 interactions, of which 2, 1, 0 are by group 0."""
    train = interactions_of([[0], [0, 1], [0, 1]], 3)
    prior = samplers.group_prior(train, np.array([0, 0, 2]))
    counts = np.array([[2, 1, 0], [0, 0, 0], [1, 1, 0]])
    most = np.array([2, 1, 1])
    table = np.array([3, 2, 0]) / 5 * (1 + (counts - counts.mean(axis=0)) / most)
    items = jnp.array([[0, 1, 2], [2, 1, 0], [1, 0, 1]])
    got = prior(jnp.array([0, 1, 2]), items)
    want = [table[group, row] for group, row in zip([0, 0, 2], np.asarray(items), strict=True)]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    with raises(ValueError, match="`groups` must have shape"):
        samplers.group_prior(train, np.array([0, 1]))
    with raises(ValueError, match="`groups` must be integers from 0"):
        samplers.group_prior(train, np.array([0, -1, 1]))


def test_oracle_prior_marks_held_out_items():
    prior = samplers.oracle_prior(interactions_of([[0, 2], [1]], 3))
    np.testing.assert_allclose(prior, [[0.64, 0.04, 0.64], [0.04, 0.64, 0.04]], rtol=1e-6)
