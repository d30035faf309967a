"""Cold-item benchmark: features, references, selection and metrics."""

import jax
import numpy as np
import pytest
from _helpers import list_metrics
from _helpers.files import write

from benchmarks import cold_items
from crl_jax import data, models
from experiments.recommend._features import dense_features

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


@pytest.fixture(scope="module")
def parts():
    """Features, and training, warm test and cold interactions."""
    simulated = data.simulate(n_users=80, n_items=90, n_exposed=60, seed=2)
    table = data.simulate_features(simulated.item_factors, noise=0.0)
    outer = data.hold_out_items(simulated.interactions, fraction=0.3)
    cut = data.split_by_ratio(outer.train, test=0.1)
    return table, cut.train, cut.test, outer.test


@pytest.fixture(scope="module")
def cold_problem(parts):
    table, train, warm, cold = parts
    return cold_items.make_problem(data.ColdItemSplit(train, cold), table, warm)


def items_by_user(log, shift=0):
    """Returns the items of each user."""
    return [log.items[log.users == user] + shift for user in range(log.n_users)]


def mean_ndcg(scores, known, held_out):
    """Returns the mean NDCG@20 of the users with held-out items."""
    values = [
        list_metrics.ndcg(*user)
        for user in zip(scores, known, held_out, strict=True)
        if user[2].size
    ]
    return np.mean(values)


def test_films_have_genres_and_decades(tmp_path):
    lines = "1::Toy Story (1995)::Animation|Comedy\n2::Seven | Eight (1987)::Drama\n"
    table = cold_items.read_films(write(tmp_path / "movies.dat", lines))
    assert list(table.bags["genres"]) == [("Animation", "Comedy"), ("Drama",)]
    assert list(table.bags["decade"]) == [("1990s",), ("1980s",)]


def test_references_beat_random_where_informative(cold_problem):
    found = cold_items.references(cold_problem)
    assert found["popularity"]["all"] == 0  # no cold item is above a warm one
    assert found["content kNN"]["cold"] > found["random"]["cold"] + 0.1
    assert found["popularity"]["warm"] > found["random"]["warm"]


def test_encoder_metrics_match_explicit_scores(cold_problem, parts):
    _, train, warm, cold = parts
    encoder = models.FeatureEncoder(
        train.n_users, train.n_items, 4, item_features=cold_problem.warm
    )
    params = jax.jit(encoder.init)(jax.random.key(0))

    class Task:
        pass

    Task.encoder = encoder
    got = cold_items.measure(cold_problem.layouts, cold_problem.cold, Task, params, None)
    users, items = (np.asarray(params[side], np.float64) for side in ("users", "items"))
    part = params["item_features"]
    weights = np.concatenate([part["categories"], part["dense"]])
    warm_scores = users @ (items + dense_features(cold_problem.warm) @ weights).T
    cold_scores = users @ (dense_features(cold_problem.cold) @ weights).T

    known, none = items_by_user(train), [[]] * train.n_users
    want = {
        "cold": mean_ndcg(cold_scores, none, items_by_user(cold)),
        "all": mean_ndcg(
            np.hstack([warm_scores, cold_scores]), known, items_by_user(cold, train.n_items)
        ),
        "warm": mean_ndcg(warm_scores, known, items_by_user(warm)),
    }
    assert {name: float(value) for name, value in got.items()} == pytest.approx(want, rel=1e-5)


def test_each_rate_is_selected_by_its_best_epoch():
    rates = cold_items.RATES
    runs = {"rate": np.repeat(rates, 2), "lr": np.tile([0.1, 0.2], len(rates))}
    history = []
    for epoch, best in ((3, 0), (6, 1)):
        scores = np.zeros(2 * len(rates))
        scores[best::2] = 0.1 * epoch
        history.append({"epoch": epoch, "cold": scores})
    history[0]["cold"][0] = 1.0
    found = cold_items.select_best(history, runs)
    assert found[rates[0]] == (0.1, 3)
    assert {found[rate] for rate in rates[1:]} == {(0.2, 6)}
