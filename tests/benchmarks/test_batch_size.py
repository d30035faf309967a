"""Batch-size benchmark: learning-rate rules, and rows on a small dataset."""

import numpy as np
import pytest

from benchmarks import batch_size
from crl_jax import data

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def test_rules_agree_at_base_size_and_scale_learning_rate():
    rates = {name: rule.learning_rate(0.01, 4096) for name, rule in batch_size.RULES.items()}
    assert rates["constant"] == 0.01
    assert rates["square root"] == rates["square root, warm-up"] == pytest.approx(0.02)
    assert rates["proportional"] == rates["proportional, warm-up"] == pytest.approx(0.04)
    assert {rule.learning_rate(0.01, 1024) for rule in batch_size.RULES.values()} == {0.01}


def test_measure_returns_one_row_per_rule():
    log = data.simulate(n_users=40, n_items=50, n_exposed=40, seed=1).interactions
    split = data.with_validation(data.split_by_ratio(log, test=0.2), valid=0.1)
    rows = batch_size.measure(split, "bpr", 4096, 2, epochs=4)
    assert [row["rule"] for row in rows] == list(batch_size.RULES)
    assert {(row["steps"], row["epochs"], row["seeds"]) for row in rows} == {(4, 4, 2)}
    (row,) = (row for row in rows if row["rule"] == "square root")
    assert row["lr"] == pytest.approx(0.01)
    for name in ("valid_ndcg@20", "ndcg@20"):
        assert len({row[name] for row in rows}) == len(rows)  # each has its learning rate
        assert all(0 < row[name] < 1 for row in rows)
    (untested, *_) = batch_size.measure(
        data.Split(split.train, split.valid), "info_nce", 4096, 1, epochs=2
    )
    assert "ndcg@20" not in untested
    assert np.isfinite(untested["valid_ndcg@20"])
