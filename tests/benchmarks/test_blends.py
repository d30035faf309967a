"""Blends of filters and trained models, compared with a per-user reference."""

import jax.numpy as jnp
import numpy as np
import pytest
from _helpers import list_metrics
from scipy import stats

from benchmarks import blends
from crl_jax import data, models, serving

pytestmark = pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")


@pytest.fixture(scope="module")
def split():
    log = data.simulate(n_users=40, n_items=60, n_exposed=30, seed=1).interactions
    return data.split_by_ratio(log, test=0.2, seed=0)


def standardized(table):
    deviation = table.std(1, keepdims=True)
    return (table - table.mean(1, keepdims=True)) / np.where(deviation == 0, 1, deviation)


def reference(split, scores):
    """Returns the metrics of the users with test items, from scores of all users."""
    values = {"recall@20": [], "ndcg@20": []}
    for user in np.unique(split.test.users):
        known, held_out = (log.items[log.users == user] for log in (split.train, split.test))
        values["recall@20"].append(list_metrics.recall(scores[user], known, held_out))
        values["ndcg@20"].append(list_metrics.ndcg(scores[user], known, held_out))
    return values


def test_blend_metrics_match_per_user_reference(split, monkeypatch):
    """Also if the top items are in another order, which NumPy sorts in short rows on some CPUs."""
    partition = np.argpartition

    def reverse_top(scores, kth, axis):
        found = partition(scores, kth, axis=axis)
        found[:, :kth] = found[:, :kth][:, ::-1]
        return found

    monkeypatch.setattr(np, "argpartition", reverse_top)
    monkeypatch.setattr(blends, "_BLOCK_SIZE", 7)
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(40, 60)), 100 * rng.normal(size=(40, 60)) + 3]
    (found,) = blends.evaluate(split, [lambda u, t=t: t[u] for t in tables], [(1.0, 0.5)])
    one, other = map(standardized, tables)
    for name, values in reference(split, one + 0.5 * other).items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-7, err_msg=name)


def test_evaluates_subset_of_users(split):
    scores = np.random.default_rng(0).normal(size=(40, 60))
    (all_users,) = blends.evaluate(split, [lambda u: scores[u]], [(1.0,)])
    (subset,) = blends.evaluate(split, [lambda u: scores[u]], [(1.0,)], 5)
    assert len(subset["ndcg@20"]) == 5
    assert np.isin(subset["ndcg@20"], all_users["ndcg@20"]).all()
    (complete,) = blends.evaluate(split, [lambda u: scores[u]], [(1.0,)], 40)
    np.testing.assert_array_equal(complete["ndcg@20"], all_users["ndcg@20"])


def test_standardized_constant_scores_are_zero():
    np.testing.assert_array_equal(blends.standardize(np.full((2, 5), 3.0)), 0)


def test_member_scores_follow_ids_of_split(split):
    """The trained model has read the same data in another order."""
    order = np.random.default_rng(1).permutation(len(split.train))
    ids = split.train.user_ids[split.train.users], split.train.item_ids[split.train.items]
    known = data.Interactions.from_arrays(*(each[order][::-1] for each in ids))
    rng = np.random.default_rng(2)
    users, items = (jnp.float32(rng.normal(size=(n, 3))) for n in (known.n_users, known.n_items))
    tables = models.Tables(users, items)
    recommender = serving.Recommender.from_tables(tables, known)
    train = data.Interactions.from_arrays(*ids)
    of_model = blends.recommender_scores(train, recommender)
    chosen = np.array([5, 0])
    for place, user in enumerate(chosen):
        there = known.user_index(int(train.user_ids[user]))
        want = [users[there] @ items[known.item_index(int(item))] for item in train.item_ids]
        np.testing.assert_allclose(of_model(chosen)[place], want, rtol=1e-5, atol=1e-5)


def test_blend_gain_uses_paired_t_test_over_users():
    rng = np.random.default_rng(0)
    scores = {name: rng.random(50) for name in ("a", "b", "a + b")}
    found = {n: [{"ndcg@20": x, "recall@20": x}] for n, x in scores.items()}
    rows = blends.compare_with_blend(found, "a + b")
    difference = scores["a + b"] - scores["a"]
    assert rows[0]["gain_of_blend"] == pytest.approx(difference.mean())
    t = difference.mean() / (difference.std(ddof=1) / np.sqrt(50))
    assert rows[0]["p_users"] == pytest.approx(2 * stats.t.sf(abs(t), 49))
    assert "p_users" not in rows[2]


def test_blend_with_several_seeds_reports_mean():
    rng = np.random.default_rng(1)
    seeds = [{"ndcg@20": rng.random(30), "recall@20": rng.random(30)} for _ in range(3)]
    alone, blend = blends.compare_with_blend({"a": seeds[:1], "a + b": seeds}, "a + b")
    means = [np.mean(of_seed["ndcg@20"]) for of_seed in seeds]
    assert blend["ndcg@20"] == pytest.approx(np.mean(means))
    assert blend["ndcg@20_std"] == pytest.approx(np.std(means, ddof=1))
    assert alone["ndcg@20_std"] is None
    assert alone["gain_of_blend"] == pytest.approx(np.mean(means) - means[0])


def test_weights_are_selected_sequentially(split):
    """The members are noise, a model that knows the test part, and one with equal scores."""
    known = np.zeros((40, 60))
    known[split.test.users, split.test.items] = 1
    noise = np.random.default_rng(3).normal(size=known.shape)
    useless = np.zeros_like(known)
    members = [lambda users, table=t: table[users] for t in (noise, known, useless)]
    first, second, third = blends.choose_weights(split, members)
    smaller = max(w for w in (0.0, *blends.WEIGHTS) if w < second)
    below, chosen = (
        np.mean(reference(split, standardized(noise) + weight * standardized(known))["ndcg@20"])
        for weight in (smaller, second)
    )
    assert first == 1
    assert below < 1
    assert chosen == pytest.approx(1, rel=1e-12)
    assert third == 0
