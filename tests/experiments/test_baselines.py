"""Tests of the comparison of a recommender with baselines."""

import numpy as np
import pytest
from scipy import stats

from crl_jax import data, metrics
from experiments.recommend import _baselines
from experiments.recommend._baselines import Comparison, advice, cheap_baselines, compare
from experiments.recommend._problem import Problem


@pytest.fixture(scope="module")
def split():
    log = data.k_core(data.simulate(n_users=60, n_items=50, n_exposed=40, seed=2).interactions, 5)
    return data.split_by_ratio(log, test=0.3, seed=0)


def test_differences_match_paired_t_test(split):
    problem = Problem(split.train, None, split.test, split.train)
    layout = problem.layout
    run_scores = np.random.default_rng(0).random(layout.n_evaluated)
    stages = []
    comparisons = [*compare(split.train, problem, (5, 20), "ndcg@5", run_scores, stages.append)]
    assert stages == ["baseline: popularity", "baseline: item-kNN", "baseline: EASE"]
    for each, baseline in zip(comparisons, cheap_baselines(split.train).values(), strict=True):
        baseline_scores = metrics.evaluate(baseline.fit(split.train), None, layout, ks=5)["ndcg@5"]
        want = stats.ttest_rel(run_scores, np.asarray(baseline_scores, float))
        assert each.difference == pytest.approx(
            run_scores.mean() - float(baseline_scores.mean()), rel=1e-5
        )
        assert each.p == pytest.approx(want.pvalue, rel=1e-4)
        assert (each.low, each.high) == pytest.approx(tuple(want.confidence_interval()), rel=1e-4)


def test_difference_from_identical_baseline_is_zero(split):
    problem = Problem(split.train, None, split.test, split.train)
    layout = problem.layout
    baseline = cheap_baselines(split.train)["popularity"].fit(split.train)
    run_scores = np.asarray(metrics.evaluate(baseline, None, layout, ks=20)["ndcg@20"], np.float64)
    first, *_ = compare(split.train, problem, (20,), "ndcg@20", run_scores, lambda _: None)
    assert (first.difference, first.low, first.high, first.p) == (0, 0, 0, 1)
    assert not [name for name in first.metrics if name.startswith("exposed")]


def test_single_user_has_no_interval_and_no_p_value(tmp_path):
    ids = {"user_ids": np.arange(2), "item_ids": np.arange(4)}
    train = data.Interactions.from_arrays([0, 0, 1, 1], [0, 1, 0, 2], **ids)
    test = data.Interactions.from_arrays([0], [3], **ids)
    problem = Problem(train, None, test, train)
    found = [*compare(train, problem, (1,), "ndcg@1", np.array([-1.0]), lambda _: None)]
    assert np.isnan([(each.low, each.high, each.p) for each in found]).all()
    assert advice(found) is None
    _baselines.write(tmp_path / "baselines.csv", found)
    rows = (tmp_path / "baselines.csv").read_text().splitlines()
    assert all(row.endswith(",,") for row in rows[1:])
    columns = _baselines.table(found, "ndcg@1", -1).columns
    assert [[*column.cells][1:] for column in columns[2:]] == [["-1.0000"] * 3, [""] * 3]


def test_reports_baseline_metrics_on_exposed_items(split):
    relevant = split.test.select(np.arange(len(split.test)) % 2 == 0)
    problem = Problem(split.train, None, relevant, split.train, exposed=split.test)
    run_scores = np.zeros(problem.layout.n_evaluated)
    first, *_ = compare(split.train, problem, (1,), "ndcg@1", run_scores, lambda _: None)
    hits = []
    for user in np.unique(relevant.users):
        exposed, relevant_items = (part.items[slice(*part.indptr[user : user + 2])] for part in
                           (split.test, relevant))  # fmt: skip
        hits.append(exposed[np.argmax(split.train.item_counts[exposed])] in relevant_items)
    assert first.metrics["exposed_precision@1"] == pytest.approx(np.mean(hits))


def test_skips_ease_on_large_data(split, monkeypatch):
    monkeypatch.setattr(_baselines, "_MAX_EASE_SIDE", 9)
    assert list(cheap_baselines(split.train)) == ["popularity", "item-kNN"]


def test_advice_names_best_significant_baseline():
    def row(name, difference, high):
        return Comparison(name, {"ndcg@20": 0.1}, 0.1, difference, 2 * difference - high, high, 0.5)

    assert advice([row("a", 0.1, 0.2), row("b", -0.1, 0.1)]) is None
    message = advice([row("a", -0.1, -0.05), row("b", -0.2, -0.1), row("c", -0.3, 0.1)])
    assert message is not None
    assert message.startswith("b scores higher than this run")
