"""Metrics of ranked lists of one user, in NumPy."""

import numpy as np


def top_items(scores, known, k=20):
    """Returns the best items without the known ones, best first."""
    scores = np.array(scores, np.float64)
    scores[np.asarray(known, int)] = -np.inf
    return np.argsort(-scores, kind="stable")[:k]


def recall(scores, known, held_out, k=20):
    return np.isin(held_out, top_items(scores, known, k)).mean()


def ndcg(scores, known, held_out, k=20):
    hits = np.isin(top_items(scores, known, k), held_out)
    gains = 1 / np.log2(np.arange(2, k + 2))
    return (hits * gains[: len(hits)]).sum() / gains[: len(held_out)].sum()
