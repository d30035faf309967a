"""Popularity: the same list for every user."""

from dataclasses import dataclass

import numpy as np

from ._baseline import Arrays, Baseline, Histories, Scorer


@dataclass(frozen=True)
class Popularity(Baseline):
    """Scores each item by its number of interactions.

    >>> from crl_jax.data import Interactions
    >>> log = Interactions.from_arrays([0, 1, 1], [0, 0, 1])
    >>> print(Popularity().fit(log).scores([0]))
    [[2. 1.]]
    """

    def arrays(self, rows: Histories) -> Arrays:
        """See :meth:`Baseline.arrays`; O(number of interactions)."""
        return {"counts": np.asarray(rows.sum(axis=0), np.float32)}

    def scorer(self, rows: Histories, arrays: Arrays) -> Scorer:
        """See :meth:`Baseline.scorer`."""
        return lambda histories: np.tile(arrays["counts"], (len(histories.indptr) - 1, 1))
