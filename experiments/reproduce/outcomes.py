"""Outcomes of repeated trainings of a method, and tests of their differences."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ReportedMetrics:
    """Metrics reported by a table.

    Attributes:
      metrics: The metrics.
      main: Metric by which methods are compared.
      cases: Unit over which the main metric is averaged, such as users, so that methods can be
        compared case by case; None if it is not an average.
    """

    metrics: tuple[str, ...]
    main: str
    cases: str | None = "users"


@dataclass(frozen=True)
class Outcome:
    """Outcome of repeated trainings of a method.

    Attributes:
      label: The method.
      per_seed: Test metrics of each training: all seeds of the first split, then of the next.
      per_user: The main metric of each user, or other unit over which it is averaged, averaged over
        trainings; NaN where undefined, as for users without test items.
      history: Entries of the training of all seeds, see :func:`crl_jax.tasks.fit_ranking`.
      chosen: Values chosen by the search; empty in the published setting.
      roc: True positive rates at 101 evenly spaced false positive rates, of the confidence as a
        classifier of training interactions rated above 1; empty without a confidence estimator or
        ratings.
      splits: Number of splits.
    """

    label: str
    per_seed: list[dict[str, float]]
    per_user: list[float]
    history: list[dict[str, Any]]
    chosen: dict[str, float]
    roc: list[float] = field(default_factory=list)
    splits: int = 1

    def by_seed(self, name: str) -> np.ndarray:
        """Returns a metric of each training."""
        return np.array([metrics[name] for metrics in self.per_seed])

    def units(self, name: str) -> np.ndarray:
        """Returns the paired units: splits, averaged over seeds, or the seeds of a single split."""
        values = self.by_seed(name)
        return values if self.splits == 1 else values.reshape(self.splits, -1).mean(axis=1)


def pool(outcomes: Sequence[Outcome]) -> Outcome:
    """Merges the outcomes of one method on several splits."""
    first = outcomes[0]
    if len(outcomes) == 1:
        return first
    users = np.ma.masked_invalid([outcome.per_user for outcome in outcomes])
    return dataclasses.replace(
        first,
        per_seed=[metrics for outcome in outcomes for metrics in outcome.per_seed],
        per_user=users.mean(axis=0).filled(np.nan).tolist(),
        roc=np.mean([outcome.roc for outcome in outcomes], axis=0).tolist() if first.roc else [],
        splits=len(outcomes),
    )


def roc_curve(values: np.ndarray, good: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the AUC of ``values`` as a classifier of ``good``, and 101 points of the ROC.

    Ties count half. Both are NaN if one of the classes is empty.
    """
    n_good, n_bad = int(good.sum()), int((~good).sum())
    if not n_good or not n_bad:
        return math.nan, np.full(101, math.nan)
    # One point per distinct value, in descending order: ties are added together, as a slope.
    order = np.argsort(-values, kind="stable")
    last = np.append(np.flatnonzero(np.diff(values[order])), len(order) - 1)
    true, false = (np.concatenate([[0], np.cumsum(x[order])[last]]) for x in (good, ~good))
    auc = float(np.trapezoid(true, false)) / (n_good * n_bad)
    return auc, np.interp(np.linspace(0, 1, 101), false / n_bad, true / n_good)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment; NaNs are kept and do not count as comparisons.

    >>> [round(p, 3) for p in holm([0.01, 0.04, float("nan"), 0.03])]
    [0.03, 0.06, nan, 0.06]
    """
    p = np.asarray(p_values, float)
    order = [i for i in np.argsort(p) if not np.isnan(p[i])]
    adjusted, worst = p.copy(), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, p[i] * (len(order) - rank)))
        adjusted[i] = worst
    return adjusted.tolist()


def paired_p_value(first: Outcome, other: Outcome, by: str, main: str) -> float:
    """Returns the two-sided p-value of a paired t-test by ``"units"`` or ``"cases"``; or NaN."""
    if other is first:
        return math.nan
    if by == "cases":
        a, b = (np.asarray(o.per_user, float) for o in (first, other))
        both = ~np.isnan(a) & ~np.isnan(b)
        a, b = a[both], b[both]
    else:
        a, b = (o.units(main) for o in (first, other))
    if len(a) < 2:
        return math.nan
    if np.ptp(b - a) == 0:  # a constant difference leaves no uncertainty
        return 1.0 if np.all(a == b) else 0.0
    from scipy import stats  # slow to import

    return float(stats.ttest_rel(b, a).pvalue)
