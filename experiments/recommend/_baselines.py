"""Comparison of a recommender with baselines, which are fitted to the same interactions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.table import Table
from scipy import stats

from crl_jax import baselines, data, metrics

from .._rundir import write_csv
from ._problem import Problem

_MAX_EASE_SIDE = 4096
"""Number of users or items up to which EASE takes seconds."""


@dataclass(frozen=True)
class Comparison:
    """A baseline, and the difference of the recommender to it.

    Attributes:
      name: Name of the baseline.
      metrics: Its test metrics.
      seconds: Time of fitting and scoring.
      difference: Mean difference of the compared metric over users; positive if the recommender is
        better.
      low, high: 95 % confidence interval of the difference; NaN for a single user.
      p: Two-sided p-value of the paired t-test over users; NaN for a single user.
    """

    name: str
    metrics: dict[str, float]
    seconds: float
    difference: float
    low: float
    high: float
    p: float


def cheap_baselines(train: data.Interactions) -> dict[str, baselines.Baseline]:
    """Returns the baselines that take seconds on interactions of this size."""
    by_name = {"popularity": baselines.Popularity(), "item-kNN": baselines.ItemKNN()}
    if min(train.n_users, train.n_items) <= _MAX_EASE_SIDE:
        by_name["EASE"] = baselines.EASE()
    return by_name


def compare(
    train: data.Interactions,
    problem: Problem,
    ks: tuple[int, ...],
    metric: str,
    own: np.ndarray,
    on_stage: Callable[[str], None],
    excluded: type | None = None,
) -> Iterator[Comparison]:
    """Fits and evaluates the cheap baselines.

    Args:
      train: The interactions that the recommender was trained on.
      problem: The test data, and the known interactions, which are left out of the lists.
      ks: Cut-offs of the metrics.
      metric: Name of the compared metric, such as ``"ndcg@20"``.
      own: Its value for each evaluated user, of the recommender.
      on_stage: Called with a description of each stage.
      excluded: Class of a baseline that is left out, because it is the recommender.
    """
    for name, baseline in cheap_baselines(train).items():
        if type(baseline) is excluded:
            continue
        on_stage(f"baseline: {name}")
        began = perf_counter()
        fitted, layout = baseline.fit(train), problem.layout
        lists, _ = fitted.recommend(layout.users, max(ks), exclude=problem.known)
        values = metrics.evaluate_lists(lists, layout, ks=ks)
        summary = metrics.summarize(values) | problem.exposed_metrics(fitted, None, ks)
        seconds = perf_counter() - began
        baseline_values = np.asarray(values[metric], np.float64)
        difference = own - baseline_values
        low, high, p = _interval(difference)
        yield Comparison(name, summary, seconds, float(difference.mean()), low, high, p)


def _interval(difference: np.ndarray) -> tuple[float, float, float]:
    """Returns the 95 % confidence interval of the mean, and the p-value that it is zero."""
    if len(difference) < 2:
        return np.nan, np.nan, np.nan
    if not difference.std():
        mean = float(difference.mean())
        return mean, mean, float(mean == 0)
    tested: Any = stats.ttest_1samp(difference, 0)
    low, high = tested.confidence_interval()
    return float(low), float(high), float(tested.pvalue)


def write(path: Path, comparisons: list[Comparison]) -> None:
    """Writes the metrics of the baselines, and the differences, as CSV."""
    names = [*comparisons[0].metrics]
    header = ["model", *names, "seconds", "difference", "low", "high", "p"]
    rows = (
        [each.name, *(each.metrics[name] for name in names), round(each.seconds, 3),
         each.difference, *("" if np.isnan(x) else x for x in (each.low, each.high, each.p))]
        for each in comparisons
    )  # fmt: skip
    write_csv(path, header, rows)


def table(comparisons: list[Comparison], metric: str, own: float) -> Table:
    """Returns the recommender and its baselines as a table; differences with 95 % intervals.

    Args:
      comparisons: The baselines.
      metric: Name of the compared metric.
      own: Its mean for the recommender.
    """
    rich_table = Table(title="Comparison with baselines, fitted to the same data")
    rich_table.add_column("model", no_wrap=True)
    for column in (metric.upper(), "this run minus it", "p"):
        rich_table.add_column(column, justify="right")
    rich_table.add_row("this run", f"{own:.4f}", "", "")
    for each in comparisons:
        interval, p = f" ± {(each.high - each.low) / 2:.4f}", f"{each.p:.1g}"
        if np.isnan(each.p):
            interval = p = ""
        elif each.p < 1e-4:
            p = "< 1e-4"
        rich_table.add_row(
            each.name,
            f"{each.metrics[metric]:.4f}",
            f"{each.difference:+.4f}{interval}",
            p,
        )
    return rich_table


TRAINING_ADVICE = (
    "Try --tune 5, which searches hyper-parameters, or no flags of the training, which chooses "
    "among losses, EASE and iALS."
)


def advice(comparisons: list[Comparison], suggestion: str = TRAINING_ADVICE) -> str | None:
    """Returns a warning, and how to improve, if a baseline is significantly better, else None."""
    better = [each for each in comparisons if each.high < 0]
    if not better:
        return None
    best = min(better, key=lambda each: each.difference)
    return f"{best.name} scores higher than this run. {suggestion}"
