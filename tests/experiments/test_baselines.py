"""Tests of the comparison of a recommender with baselines."""

import numpy as np
import pytest
from scipy import stats

from crl_jax import data, metrics
from experiments import _baselines
from experiments._baselines import Comparison, advice, cheap, compare


@pytest.fixture(scope="module")
def split():
    log = data.k_core(data.simulate(n_users=60, n_items=50, n_exposed=40, seed=2).interactions, 5)
    return data.split_by_ratio(log, test=0.3, seed=0)


def test_differences_are_tested_user_by_user(split):
    layout = metrics.eval_layout(split.train, split.test)
    own = np.random.default_rng(0).random(layout.n_evaluated)
    stages = []
    found = [*compare(split.train, split.train, layout, (5, 20), "ndcg@5", own, stages.append)]
    assert stages == ["baseline: popularity", "baseline: item-kNN", "baseline: EASE"]
    for each, baseline in zip(found, cheap(split.train).values(), strict=True):
        theirs = metrics.evaluate(baseline.fit(split.train), None, layout, ks=5)["ndcg@5"]
        want = stats.ttest_rel(own, np.asarray(theirs, float))
        assert each.difference == pytest.approx(own.mean() - float(theirs.mean()), rel=1e-5)
        assert each.p == pytest.approx(want.pvalue, rel=1e-4)
        assert (each.low, each.high) == pytest.approx(tuple(want.confidence_interval()), rel=1e-4)


def test_a_run_that_equals_a_baseline_has_no_difference(split):
    layout = metrics.eval_layout(split.train, split.test)
    baseline = cheap(split.train)["popularity"].fit(split.train)
    own = np.asarray(metrics.evaluate(baseline, None, layout, ks=20)["ndcg@20"], np.float64)
    first, *_ = compare(split.train, split.train, layout, (20,), "ndcg@20", own, lambda _: None)
    assert (first.difference, first.low, first.high, first.p) == (0, 0, 0, 1)


def test_large_data_are_compared_without_ease(split, monkeypatch):
    monkeypatch.setattr(_baselines, "_MAX_EASE_SIDE", 9)
    assert list(cheap(split.train)) == ["popularity", "item-kNN"]


def test_advice_names_the_baseline_that_is_most_ahead():
    def row(name, difference, high):
        return Comparison(name, {"ndcg@20": 0.1}, 0.1, difference, 2 * difference - high, high, 0.5)

    assert advice([row("a", 0.1, 0.2), row("b", -0.1, 0.1)]) is None
    said = advice([row("a", -0.1, -0.05), row("b", -0.2, -0.1), row("c", -0.3, 0.1)])
    assert said is not None
    assert said.startswith("b scores higher than this run")
