"""Popularity: the same list for every user."""

from dataclasses import dataclass

import numpy as np

from ..data import Interactions
from ._baseline import Baseline, FittedBaseline, check_not_empty


@dataclass(frozen=True)
class Popularity(Baseline):
    """Scores each item by its number of interactions.

    >>> from crl_jax.data import Interactions
    >>> log = Interactions.from_arrays([0, 1, 1], [0, 0, 1])
    >>> print(Popularity().fit(log).scores([0]))
    [[2. 1.]]
    """

    def fit(self, train: Interactions) -> FittedBaseline:
        """See :meth:`Baseline.fit`; O(number of interactions)."""
        check_not_empty(train)
        counts = train.item_counts.astype(np.float32)
        return FittedBaseline(train, lambda rows: np.tile(counts, (len(rows.indptr) - 1, 1)))
