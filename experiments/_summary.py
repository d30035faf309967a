"""Summary of the metrics of several seeds."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def over_seeds(per_seed: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Returns the mean of each metric and, of several seeds, the standard deviation ``NAME_std``.

    >>> over_seeds([{"auc": 0.5}])
    {'auc': 0.5}
    """
    found = {name: float(np.mean([m[name] for m in per_seed])) for name in per_seed[0]}
    if len(per_seed) > 1:
        for name in per_seed[0]:
            found[f"{name}_std"] = float(np.std([m[name] for m in per_seed], ddof=1))
    return found
