"""Simulated data follow the model that their docstring states."""

import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax.data import simulate, simulate_features, split_by_ratio


def interaction_mask(result):
    mask = np.zeros(result.likes.shape, bool)
    mask[result.interactions.users, result.interactions.items] = True
    return mask


@pytest.fixture(scope="module")
def result():
    return simulate()


def test_default_size_and_reproducibility(result):
    data = result.interactions
    assert (data.n_users, data.n_items) == result.likes.shape == result.exposed.shape == (600, 800)
    assert 30_000 < len(data) < 60_000
    assert data.degrees.min() >= 20
    assert simulate().interactions.fingerprint() == data.fingerprint()
    assert simulate(seed=1).interactions.fingerprint() != data.fingerprint()
    with raises(ValueError, match="read-only"):
        result.likes[0, 0] = True


def test_interactions_are_exposed_likes_and_false_positives(result):
    mask = interaction_mask(result)
    assert not np.any(mask & ~result.exposed)
    assert np.all(mask[result.exposed & result.likes])
    false = np.sum(mask & ~result.likes)
    np.testing.assert_allclose(false / mask.sum(), 0.1, atol=1e-4)
    assert result.likes.sum(axis=1).tolist() == [120] * 600
    assert result.tau_plus == result.likes[~mask].mean()


def test_false_positive_rate_keeps_likes_and_exposure(result):
    clean = simulate(false_positive_rate=0.0)
    np.testing.assert_array_equal(clean.likes, result.likes)
    np.testing.assert_array_equal(clean.exposed, result.exposed)
    np.testing.assert_array_equal(interaction_mask(clean), result.likes & result.exposed)


def test_preferences_have_planted_rank():
    # Rank 1: every user likes one end or the other of a single line of items.
    likes = simulate(rank=1).likes
    assert len(np.unique(likes, axis=0)) == 2
    assert len(np.unique(simulate(rank=2).likes, axis=0)) > 100


@pytest.mark.parametrize(("n_exposed", "skew"), [(100, 0.0), (400, 0.5), (400, 2.0), (799.0, 1.0)])
def test_exposure_has_given_mean_and_skew(n_exposed, skew):
    shares = simulate(n_exposed=n_exposed, popularity_skew=skew).exposed.mean(axis=0)
    # A sum of independent Bernoullis: its variance is at most a quarter of their number.
    assert abs(shares.sum() - n_exposed) < 5 * np.sqrt(800 / 4 / 600)
    # The definition, solved by bisection instead of by sorting.
    weights = np.arange(1.0, 801) ** -skew
    low, high = 0.0, 1e9
    for _ in range(200):
        middle = (low + high) / 2
        too_few = np.minimum(1, middle * weights).sum() < n_exposed
        low, high = (middle, high) if too_few else (low, middle)
    expected = np.sort(np.minimum(1, low * weights))
    np.testing.assert_allclose(np.sort(shares), expected, atol=0.08)


def test_n_exposed_may_cover_all_items():
    assert simulate(n_users=20, n_items=30, n_exposed=30).exposed.all()


def test_low_rank_model_beats_popularity(result):
    split = split_by_ratio(result.interactions)  # and no user is left without training data
    train, test = (np.zeros(result.likes.shape) for _ in range(2))
    train[split.train.users, split.train.items] = 1
    test[split.test.users, split.test.items] = 1
    popularity = np.broadcast_to(train.sum(axis=0), train.shape)
    basis = np.random.default_rng(0).normal(size=(train.shape[1], 8))
    for _ in range(8):  # the space of the largest singular vectors, nearly
        basis, _ = np.linalg.qr(train.T @ (train @ basis))
    low_rank = train @ basis @ basis.T

    def precision_at_10(scores):
        top = np.argsort(-np.where(train > 0, -np.inf, scores), axis=1)[:, :10]
        return np.take_along_axis(test, top, axis=1).mean()

    assert precision_at_10(low_rank) > 3 * precision_at_10(popularity)


@pytest.mark.parametrize(
    "argument",
    [
        {"n_users": 0},
        {"rank": 0},
        {"like_rate": 0.0},
        {"like_rate": 1.0},
        {"n_exposed": 0},
        {"n_exposed": 801},
        {"popularity_skew": -1},
        {"false_positive_rate": 1.0},
        {"false_positive_rate": 0.99},  # more than the exposed unliked items allow
    ],
)
def test_rejects_arguments_out_of_range(argument):
    with raises(ValueError, match=next(iter(argument))):
        simulate(**argument)


def test_rejects_simulation_without_interactions():
    with raises(ValueError, match="No interaction"):
        simulate(n_users=1, n_items=2, like_rate=0.1, n_exposed=1)


def test_features_follow_item_factors(result):
    exact = simulate_features(result.item_factors, noise=0.0, n_tags=5, seed=1)
    numbers = np.stack([exact.numbers[f"x{index}"] for index in range(6)], axis=1)
    np.testing.assert_array_equal(numbers, result.item_factors)
    scores = result.user_factors @ numbers.T
    lowest_liked = np.where(result.likes, scores, np.inf).min(axis=1)
    assert np.all(lowest_liked >= np.where(result.likes, -np.inf, scores).max(axis=1))
    for tag in range(5):  # the rows of a tag lie on one side of a plane
        has = np.array([f"t{tag}" in bag for bag in exact.bags["tags"]])
        assert has.mean() == pytest.approx(0.25, abs=0.01)
        target = np.where(has, 1.0, -1.0)
        weights = np.linalg.lstsq(np.c_[numbers, np.ones(800)], target)[0]
        assert np.corrcoef(np.c_[numbers, np.ones(800)] @ weights, target)[0, 1] > 0.7
    noisy = simulate_features(result.item_factors, noise=0.5, n_tags=0)
    error = np.stack([noisy.numbers[f"x{i}"] for i in range(6)], axis=1) - result.item_factors
    assert error.std() == pytest.approx(0.5, rel=0.05)
    assert not noisy.bags
    with raises(ValueError, match=r"`noise` must lie in \[0, inf\), got -1"):
        simulate_features(result.item_factors, noise=-1.0)
