"""Filters benchmark: test metrics of training-free filters, and published results."""

import numpy as np
import pytest

from benchmarks import filters
from crl_jax import baselines, data


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
def test_recall_matches_per_user_reference():
    log = data.simulate(n_users=40, n_items=60, n_exposed=30, seed=1).interactions
    split = data.split_by_ratio(log, test=0.2, seed=0)
    model = baselines.Popularity()
    found = filters.measure(split, model)
    recalls = []
    for user in np.unique(split.test.users):
        seen = split.train.items[split.train.users == user]
        wanted = split.test.items[split.test.users == user]
        scores = np.where(np.isin(np.arange(60), seen), -1, split.train.item_counts)
        top = np.argsort(-scores, kind="stable")[:20]
        recalls.append(np.isin(wanted, top).mean())
    assert found["recall@20"] == pytest.approx(np.mean(recalls), rel=1e-5)
    assert 0 < found["ndcg@20"] < 1


@pytest.mark.parametrize(
    ("dataset", "published"),
    [("gowalla", ["GF-CF", "BSPM", "ChebyCF"]), ("yelp2018", ["GF-CF", "BSPM"])],
)
def test_published_metrics_exist_per_dataset(dataset, published):
    found = filters.models(dataset)
    assert list(found) == ["GF-CF", "BSPM", "ChebyCF"]
    columns = {"recall@20_published", "ndcg@20_published", "source"}
    assert [name for name, (_, row) in found.items() if row.keys() >= columns] == published
