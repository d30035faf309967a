"""Simulated shards follow the distribution that their docstring states."""

import itertools

import numpy as np
import polars as pl
import pytest
from _helpers.refusals import raises
from scipy import optimize

from crl_jax.data import Interactions, load, simulate_shards

SIZES = {"n_users": 5000, "n_items": 700, "n_interactions": 40_000}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return pl.read_parquet(simulate_shards(tmp_path_factory.mktemp("shards"), **SIZES))


def within(count, expected):
    """Whether counts lie within five standard deviations of sums of independent events."""
    return np.all(np.abs(count - expected) < 5 * np.sqrt(expected) + 1)


def test_counts_and_false_positive_rate_match_arguments(table):
    assert within(len(table), 40_000)
    assert within((~table["liked"]).sum(), 4_000)
    assert len(table.unique(["user", "item"])) == len(table)
    assert (table["user"].max(), table["item"].max()) == (4999, 699)


def test_number_of_shards_does_not_change_draws(tmp_path, table):
    paths = simulate_shards(tmp_path, **SIZES, n_shards=3)
    assert [path.name for path in paths] == [
        f"interactions-0000{i}-of-00003.parquet" for i in "012"
    ]
    parts = [pl.read_parquet(path) for path in paths]
    assert pl.concat(parts).equals(table)
    bounds = [(part["user"].min(), part["user"].max()) for part in parts]
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(bounds))
    (again,) = simulate_shards(tmp_path / "one", **SIZES, n_shards=3, shards=[1])
    assert pl.read_parquet(again).equals(parts[1])
    assert [path.name for path in (tmp_path / "one").iterdir()] == [paths[1].name]


def test_seed_changes_draws(tmp_path, table):
    other = pl.read_parquet(simulate_shards(tmp_path, **SIZES, seed=1))
    shared = len(other.join(table, on=["user", "item"]))
    assert shared < 0.1 * len(table)


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.5])
def test_popularity_follows_stated_distribution(tmp_path, skew):
    paths = simulate_shards(tmp_path, **SIZES, popularity_skew=skew, activity_spread=0)
    table = pl.read_parquet(paths)
    assert within(len(table), 40_000)
    assert within((~table["liked"]).sum(), 4_000)
    counts = np.sort(np.bincount(table["item"], minlength=700))
    attention = np.arange(1, 701) ** -skew
    observed_rate = 0.15 / 0.9  # share of the shown items

    def excess(log_c):
        return -np.expm1(-np.exp(log_c) * attention).sum() - 40_000 / observed_rate / 5000

    rates = -observed_rate * np.expm1(-np.exp(optimize.brentq(excess, -30, 30)) * attention)
    draws = np.random.default_rng(0).binomial(5000, rates, (300, 700))
    expected = np.sort(draws).mean(axis=0)
    found, wanted = (x.reshape(10, 70).sum(axis=1) for x in (counts, expected))
    assert within(found, wanted)


def test_activity_spread_sets_variance(tmp_path, table):
    equal_activity = pl.read_parquet(simulate_shards(tmp_path, **SIZES, activity_spread=0))
    even, spread = (np.bincount(x["user"], minlength=5000) for x in (equal_activity, table))
    # About Poisson, against a mixture whose rate varies by sqrt(e - 1) of its mean.
    assert 0.8 < even.var() / even.mean() < 1.2
    assert 5 < spread.var() / spread.mean() < 1 + 8 * 3
    assert np.median(spread) < np.median(even)


def test_likes_have_planted_taste_directions(tmp_path):
    sizes = {"n_users": 2000, "n_items": 60, "n_interactions": 18_000}
    options = {"false_positive_rate": 0.5, "popularity_skew": 0, "activity_spread": 0}
    table = pl.read_parquet(simulate_shards(tmp_path, **sizes, **options))

    def strongest(liked):
        rows = table.filter(pl.col("liked") == liked)
        matrix = np.zeros((2000, 60))
        matrix[rows["user"], rows["item"]] = 1
        return np.linalg.eigvalsh(np.corrcoef(matrix.T))[::-1]

    # Eight taste directions exceed the noise spectrum of liked items, and no other does.
    edge = (1 + np.sqrt(60 / 2000)) ** 2  # upper edge of the eigenvalues of independent columns
    assert np.sum(strongest(True) > edge) == 8
    assert np.sum(strongest(False) > edge) <= 1


def test_shards_load_as_one_log(tmp_path, table):
    simulate_shards(tmp_path, **SIZES, n_shards=4)
    data = load(tmp_path)
    assert isinstance(data, Interactions)
    assert (
        data.fingerprint() == Interactions.from_arrays(table["user"], table["item"]).fingerprint()
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_users", 0),
        ("n_items", 0),
        ("n_interactions", 0),
        ("n_interactions", 10**6),
        ("n_shards", 6000),
        ("shards", [8]),
        ("like_rate", 1.0),
        ("false_positive_rate", 0.86),
        ("popularity_skew", -1),
        ("activity_spread", -1),
    ],
)
def test_rejects_arguments_out_of_range(tmp_path, name, value):
    with raises(ValueError, match=f"`{name}`"):
        simulate_shards(tmp_path, **SIZES | {name: value})
    assert not list(tmp_path.iterdir())
