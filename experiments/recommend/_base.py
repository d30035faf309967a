"""Base class of the studies of recommenders: data, evaluation, comparison and reports."""

from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

from crl_jax import metrics

from .._mesh import make_mesh
from .._progress import Display, make_read_callback
from .._rundir import write_csv
from .._screen import cell, seeds_suffix
from .._study import Evaluation, OnStage, SearchResult, Study
from . import _baselines as baselines
from ._advice import advise_on_search
from ._blending import describe_blend
from ._config import SCHEMA, Config
from ._features import cold_metrics, cold_references
from ._problem import Problem, describe_parts, load_problem
from ._ranking import VALIDATION_K
from ._saved import RankingModel, score_fn_and_params
from .fitted import MODELS

BASELINES, COLD = "baselines.csv", "cold_baselines.csv"
_USER_METRICS = "ndcg", "recall", "precision", "f1", "map", "mrr", "hit_rate", "auc"
METRICS = (
    *_USER_METRICS[:-1], "coverage", "auc",
    *(f"{prefix}_{name}" for prefix in ("exposed", "cold", "cold_all") for name in _USER_METRICS),
)  # fmt: skip
"""Test metrics, in display order; those named exposed rank the items of the test part only, those
named cold rank the items held out by ``--cold-items``."""


class RecommenderStudy(Study[Config, Problem]):
    """Base class of the studies that train or fit a recommender, with the same data and reports.

    The phase ``"use"`` of ``--final-training all`` trains a model on all data, which is not
    evaluated.
    """

    schema = SCHEMA
    unit, scores, score = "triplets", (f"valid_ndcg@{VALIDATION_K}",), f"NDCG@{VALIDATION_K}"

    def load(self, config: Config, on_stage: OnStage) -> Problem:
        """See :meth:`Study.load`."""
        return load_problem(config.source, on_stage)

    def load_shown(self, config: Config, shown: Display) -> Problem:
        """See :meth:`Study.load_shown`."""
        return load_problem(config.source, shown.stage, make_read_callback(shown))

    def phases(self, config: Config) -> tuple[str, ...]:
        """See :meth:`Study.phases`."""
        return "search", "final", *(("use",) if config.protocol.final_training == "all" else ())

    def describe_data(self, config: Config, problem: Problem) -> Iterable[str]:
        """Returns the sizes of the data, and the columns read."""
        sizes = [f"{len(problem.train):,} train"]
        if problem.valid is not None:
            sizes.append(f"{len(problem.valid):,} validation")
        sizes.append(f"{len(problem.test):,} test")
        if problem.exposed is not None:
            sizes[-1] += f" of {len(problem.exposed):,} exposed"
        if problem.cold is not None:
            sizes.append(f"{len(problem.cold):,} of {problem.cold.n_items:,} cold items")
        yield (
            f"{problem.known.n_users:,} users × {problem.known.n_items:,} items; interactions: "
            f"{', '.join(sizes)}"
        )
        for columns in problem.columns:
            yield f"columns of {Path(columns.origin).name}: {columns}"

    def evaluate(
        self, config: Config, problem: Problem, learned: RankingModel, seed: int,
        on_stage: OnStage,
    ) -> Evaluation:  # fmt: skip
        """Computes the ranking metrics of the test set."""
        # Each of several processes has the whole tables by now and evaluates independently.
        mesh = make_mesh(config.output.mesh) if jax.process_count() == 1 else None
        ks = config.protocol.k
        values = metrics.evaluate(*score_fn_and_params(learned), problem.layout, ks=ks, mesh=mesh)
        summary = metrics.summarize(values)
        summary |= problem.exposed_metrics(*score_fn_and_params(learned), ks, mesh)
        summary |= cold_metrics(config.encoding, problem, learned, ks)
        shown = [name for name in summary if name.partition("@")[0] in METRICS]
        return Evaluation(
            {name: summary[name] for name in sorted(shown, key=_display_order)},
            np.asarray(values[_comparison_metric(config)], np.float64),
        )

    def compare(
        self, config: Config, problem: Problem, cases: list[np.ndarray], folder: Path,
        on_stage: OnStage,
    ) -> Iterable[str | Table]:  # fmt: skip
        """Fits the cheap baselines to the same interactions, and writes their metrics."""
        if config.protocol.baselines == "none":
            return
        own, metric = np.mean(cases, axis=0), _comparison_metric(config)
        part = problem.union(problem.parts_for("final", config.protocol.final_training))
        comparisons = [
            *baselines.compare(
                part, problem, config.protocol.k, metric, own, on_stage,
                MODELS[config.encoding.model].source,
            )
        ]  # fmt: skip
        baselines.write(folder / BASELINES, comparisons)
        yield baselines.table(comparisons, metric, float(own.mean()))
        if (advice := baselines.advice(comparisons, self.improvement(config))) is not None:
            yield f"hint: {advice}"
        if references := cold_references(config.encoding, problem, config.protocol.k):
            yield _cold_table(folder / COLD, references)

    @abstractmethod
    def improvement(self, config: Config) -> str:
        """Returns the advice for a run with lower metrics than a baseline."""

    def summary(
        self, config: Config, problem: Problem, searched: SearchResult,
        per_seed: list[dict[str, float]], history: list[dict[str, Any]],
    ) -> dict[str, Any]:  # fmt: skip
        """See :meth:`Study.summary`.

        ``chosen`` also has the number of ``epochs``, and ``trained_on`` the data parts that the
        evaluated and the saved model were trained on.
        """
        summary = super().summary(config, problem, searched, per_seed, history)
        scored, saved = _training_parts(config, problem)
        trained_on = {"scored_model": scored, "saved_model": saved}
        seconds, chosen = summary.pop("seconds"), summary.pop("chosen")
        chosen = {"epochs": searched.choice.epochs, **chosen}
        if searched.blend:
            chosen["blend"] = [
                {**searched.points[each.point], "epochs": each.epochs} for each in searched.blend
            ]
        return {**summary, "chosen": chosen, "trained_on": trained_on, "seconds": seconds}

    @abstractmethod
    def describe_choice(self, searched: SearchResult) -> str:
        """Returns a line about the result of the search."""

    def max_epochs(self, config: Config) -> int | None:
        """Returns the maximum number of epochs of a search that selects it; None for others."""
        del config
        return None

    def report(
        self, config: Config, problem: Problem, searched: SearchResult,
        per_seed: list[dict[str, float]],
    ) -> Iterable[str | Table]:  # fmt: skip
        """See :meth:`Study.report`."""
        choice, (scored, saved) = searched.choice, _training_parts(config, problem)
        if searched.description:
            yield searched.description
        yield self.describe_choice(searched)
        if searched.blend:
            yield describe_blend(searched)
        yield _metrics_table(per_seed)
        yield f"scored: a model trained on {describe_parts(scored)}"
        if saved != scored:
            yield f"saved for use: a model trained on {describe_parts(saved)}"
        if problem.valid is not None:
            n_users = int(np.count_nonzero(problem.valid.degrees))
            axes, epochs = SCHEMA.axes(config), self.max_epochs(config)
            for line in advise_on_search(axes, searched.points, choice, epochs, n_users):
                yield f"hint: {line}"


def _training_parts(config: Config, problem: Problem) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the data parts that the evaluated and the saved models are trained on."""
    final_training = config.protocol.final_training
    scored = problem.parts_for("final", final_training)
    return scored, problem.parts_for("use", final_training) if final_training == "all" else scored


def _comparison_metric(config: Config) -> str:
    """Returns the metric by which a run is compared with baselines."""
    ks = config.protocol.k
    return f"ndcg@{VALIDATION_K if VALIDATION_K in ks else max(ks)}"


def _metric_and_cutoff(name: str) -> tuple[str, int]:
    metric, _, k = name.partition("@")
    return metric, int(k or 0)


def _cold_table(path: Path, references: dict[str, dict[str, float]]) -> Table:
    """Writes the metrics of references for cold items, and returns their NDCG as a table."""
    names = sorted(next(iter(references.values())), key=_metric_and_cutoff)
    rows = ([name, *(values[n] for n in names)] for name, values in references.items())
    write_csv(path, ["model", *names], rows)
    table = Table(title="References for cold items, without training")
    shown = [name for name in names if "_ndcg@" in name]
    for column in ("model", *shown):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, values in references.items():
        table.add_row(name, *(f"{values[column]:.4f}" for column in shown))
    return table


def _display_order(name: str) -> tuple[int, int]:
    metric, k = _metric_and_cutoff(name)
    return METRICS.index(metric), k


def _metrics_table(per_seed: list[dict[str, float]]) -> Table:
    """Metrics by rows, cut-offs by columns; those without a cut-off in the first column."""
    table = Table(title=f"Test set{seeds_suffix(len(per_seed))}")
    ks = sorted({int(name.partition("@")[2]) for name in per_seed[0] if "@" in name})
    table.add_column("metric")
    for k in ks:
        table.add_column(f"@{k}", justify="right")
    for name in dict.fromkeys(name.partition("@")[0] for name in per_seed[0]):
        keys = [name] if name in per_seed[0] else [f"{name}@{k}" for k in ks]
        table.add_row(name, *(cell([metrics[key] for metrics in per_seed]) for key in keys))
    return table
