"""Tests of the differences in NDCG@20 between losses, over seeds and over users."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from crl_jax import metrics
from experiments.recommend._saved import load_model, score_fn_and_params
from experiments.reproduce.outcomes import holm

from ._report import Row

MAIN_METRIC = "ndcg@20"


def per_user(folders: Sequence[Path]) -> np.ndarray:
    """Computes the test NDCG@20 of every user, averaged over the seeds of all runs."""
    run_ndcgs = []
    for folder in folders:
        model = load_model(folder)
        layout = metrics.eval_layout(model.known, model.test)
        for i in range(model.n_seeds):
            values = metrics.evaluate(
                *score_fn_and_params(model.select_seed(i)), layout, ks=(20,), auc=False
            )
            run_ndcgs.append(np.asarray(values[MAIN_METRIC]))
    return np.mean(run_ndcgs, axis=0)


def compare_with(
    plain: int, rows: Sequence[Row], seeds: Sequence[np.ndarray], users: Sequence[np.ndarray]
) -> None:
    """Adds the difference from the plain loss to the rows of the others, and p-values.

    ``gain`` is the difference of NDCG@20; ``p_seeds`` comes from Welch's t-test over seeds,
    ``p_users`` from a paired t-test over users, each averaged over seeds. Both are two-sided and
    adjusted by Holm's method over the losses.

    Args:
      plain: Index of the row of the plain loss.
      rows: Row of each loss.
      seeds: NDCG@20 of each seed, for each loss.
      users: NDCG@20 of each user, for each loss.
    """
    others = [i for i in range(len(rows)) if i != plain]
    tests = {
        "p_seeds": [
            stats.ttest_ind(seeds[i], seeds[plain], equal_var=False).pvalue for i in others
        ],
        "p_users": [stats.ttest_rel(users[i], users[plain]).pvalue for i in others],
    }
    for i in others:
        rows[i]["gain"] = rows[i][MAIN_METRIC] - rows[plain][MAIN_METRIC]
    for kind, p_values in tests.items():
        for i, p in zip(others, holm(p_values), strict=True):
            rows[i][kind] = p
