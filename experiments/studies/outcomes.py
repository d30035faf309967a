"""What training a method several times comes to."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Reported:
    """What a table reports.

    Attributes:
      metrics: The metrics.
      main: By which of them methods are compared.
      cases: What the main metric is a mean over, so that methods can be compared case by case,
        such as users; None where it is none.
    """

    metrics: tuple[str, ...]
    main: str
    cases: str | None = "users"


@dataclass(frozen=True)
class Outcome:
    """What training a method several times comes to.

    Attributes:
      label: The method.
      per_seed: Test metrics of each training: every seed, of one split after the other.
      per_user: The main metric of each user, or of what else it is a mean over, averaged over
        trainings; NaN where there is none, as for users without test items.
      history: Entries of the training of all seeds, see :func:`crl_jax.tasks.fit_ranking`.
      chosen: What a search chose; empty in the published setting.
      roc: Rates of true positives at 101 even rates of false ones, of the confidence as a judge of
        which training interactions are rated above 1; empty without an estimator of it or ratings.
      splits: How many splits the trainings are of.
    """

    label: str
    per_seed: list[dict[str, float]]
    per_user: list[float]
    history: list[dict[str, Any]]
    chosen: dict[str, float]
    roc: list[float] = field(default_factory=list)
    splits: int = 1

    def by_split(self, name: str) -> np.ndarray:
        """A metric ``[splits, seeds]``."""
        return np.reshape([m[name] for m in self.per_seed], (self.splits, -1))

    def units(self, name: str) -> np.ndarray:
        """What is compared in pairs: splits, averaged over seeds, or the seeds of one split."""
        values = self.by_split(name)
        return values[0] if self.splits == 1 else values.mean(axis=1)


def pool(outcomes: Sequence[Outcome]) -> Outcome:
    """Outcomes of one method on several splits as one."""
    first = outcomes[0]
    if len(outcomes) == 1:
        return first
    users = np.array([outcome.per_user for outcome in outcomes], float)
    there = ~np.isnan(users)
    counts = there.sum(axis=0)
    mean = np.where(there, users, 0).sum(axis=0) / np.where(counts, counts, np.nan)
    return dataclasses.replace(
        first,
        per_seed=[metrics for outcome in outcomes for metrics in outcome.per_seed],
        per_user=mean.tolist(),
        roc=np.mean([outcome.roc for outcome in outcomes], axis=0).tolist() if first.roc else [],
        splits=len(outcomes),
    )


def judge(values: np.ndarray, good: np.ndarray) -> tuple[float, np.ndarray]:
    """How well ``values`` tell the good from the others: AUC, ties half, and 101 points of the ROC.

    NaN if there are none of one kind.
    """
    n_good, n_bad = int(good.sum()), int((~good).sum())
    if not n_good or not n_bad:
        return math.nan, np.full(101, math.nan)
    from scipy import stats  # takes long to import

    ranks = stats.rankdata(values)
    auc = (ranks[good].sum() - n_good * (n_good + 1) / 2) / (n_good * n_bad)
    # One point per distinct value, from the highest down: ties enter together, as a slope.
    order = np.argsort(-values, kind="stable")
    last = np.append(np.flatnonzero(np.diff(values[order])), len(order) - 1)
    true, false = (np.concatenate([[0], np.cumsum(x[order])[last]]) for x in (good, ~good))
    return float(auc), np.interp(np.linspace(0, 1, 101), false / n_bad, true / n_good)
