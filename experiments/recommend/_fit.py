"""Study of ``python -m experiments.recommend --model NAME``: a baseline instead of a training."""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from crl_jax import baselines, data, metrics, models, serving

from .._program import flag
from .._registry import filled
from .._study import OnEntry, OnStage, SearchResult, grid_points, no_search, select_point
from ._base import RecommenderStudy
from ._config import SCHEMA, TRAINING, Config, anchor
from ._problem import Problem
from ._ranking import VALIDATION_K
from ._saved import RECOMMENDER, Model, save_model
from .fitted import MODELS, PREFIX, resolve_model_flags


class Fit(RecommenderStudy):
    """Baselines. A learned model is a :class:`crl_jax.baselines.FittedBaseline`.

    Attributes:
      best: The model with the best validation score of a search; None before one.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self.best: baselines.FittedBaseline | None = None

    def folder_name(self, config: Config) -> str:
        """See :meth:`Study.folder_name`."""
        return config.encoding.model

    def check(self, config: Config) -> None:
        """See :meth:`Study.check`."""
        model, protocol, swept = config.encoding.model, config.protocol, tuple(SCHEMA.axes(config))
        training_flags = [
            f"{flag(field.name)} {getattr(options, field.name)}"
            for options, default in ((getattr(config, s), getattr(Config(), s)) for s in TRAINING)
            for field in dataclasses.fields(default)
            if not field.name.startswith("model") and getattr(options, field.name) != field.default
        ]
        training_flags += [f"--sweep {name}" for name in swept if not name.startswith(PREFIX)]
        if protocol.tune is not None:
            training_flags.append(f"--tune {protocol.tune:g}")
        if protocol.blend > 1:
            training_flags.append(f"--blend {protocol.blend}")
        if protocol.search != "grid":
            training_flags.append(f"--search {protocol.search}")
        if training_flags:
            raise ValueError(f"--model {model} trains nothing: omit {', '.join(training_flags)}.")
        for name in ("mesh", "processes"):
            if (value := getattr(config.output, name)) is not None:
                raise ValueError(
                    f"--model {model} is fitted by one process on the host: omit {flag(name)} "
                    f"{value}."
                )
        for name in ("seeds", "search_seeds"):
            if (n := getattr(protocol, name)) > 1 and not MODELS[model].has_seed:
                raise ValueError(f"--model {model} has no seed: omit {flag(name)} {n}.")
        resolve_model_flags(config.encoding, swept)
        if protocol.sweep and config.source.valid_fraction == 0:
            raise ValueError("--valid-fraction 0 leaves no data to decide a --sweep on.")

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        swept = tuple(SCHEMA.axes(config))
        encoding = filled(config.encoding, resolve_model_flags(config.encoding, swept), swept)
        return replace(anchor(config), encoding=encoding)

    def check_step(self, config: Config, problem: Problem) -> None:
        """Does nothing: a model states what it does not support when it is fitted."""

    def count(self, config: Config, problem: Problem, phase: str, stage: str) -> int:
        """Returns 0: there are no epochs."""
        return 0

    def describe_training(self, config: Config) -> str:
        """See :meth:`Study.describe_training`."""
        swept = tuple(SCHEMA.axes(config))
        values = resolve_model_flags(config.encoding, swept).items()
        fixed = [
            f"{n.removeprefix(PREFIX)}={value:g}" for n, value in values if n not in swept
        ]  # fmt: skip
        name = config.encoding.model
        return f"{name} ({', '.join(fixed)})" if fixed else name

    def search(
        self, config: Config, problem: Problem, checkpoints: Path, on_entry: OnEntry,
        on_stage: OnStage,
    ) -> SearchResult:  # fmt: skip
        """Fits all points of the sweep and seeds, and selects the best on validation data."""
        axes, protocol = SCHEMA.axes(config), config.protocol
        if not axes:
            return no_search(0)
        layout, points = problem.valid_layout, grid_points(axes)
        seeds = range(protocol.seed, protocol.seed + protocol.search_seeds)
        shape, scores = (len(points), len(seeds)), []
        for i, (point, seed) in enumerate(itertools.product(points, seeds), 1):
            on_stage(f"search: {config.encoding.model} {i}/{math.prod(shape)}")
            fitted = self._fit_timed(config, problem.train, point, seed)
            lists, _ = fitted.recommend(layout.users, VALIDATION_K)
            values = metrics.evaluate_lists(lists, layout, ks=VALIDATION_K)
            score = float(metrics.summarize(values)[f"ndcg@{VALIDATION_K}"])
            if self.best is None or score > max(scores):
                self.best = fitted
            scores.append(score)
        return select_point(points, np.reshape(scores, shape), np.zeros(shape, int))

    def train_models(
        self, config: Config, problem: Problem, phase: str, searched: SearchResult,
        checkpoints: Path, on_entry: OnEntry, on_stage: OnStage,
    ) -> Iterator[list[baselines.FittedBaseline]]:  # fmt: skip
        """Fits the selected point with all seeds."""
        protocol = config.protocol
        part = problem.union(problem.parts_for(phase, protocol.final_training))
        on_stage(f"{phase}: fitting {config.encoding.model}")
        seeds = range(protocol.seed, protocol.seed + protocol.seeds)
        point = {name: searched.point[name] for name in SCHEMA.axes(config)}
        yield [self._fit_timed(config, part, point, seed) for seed in seeds]

    def improvement(self, config: Config) -> str:
        """See :meth:`RecommenderStudy.improvement`."""
        numbers = [flag(name) for name in MODELS[config.encoding.model].flags]
        return f"Search {', '.join(numbers)} by --sweep, or use it." if numbers else "Use it."

    def save_models(
        self, config: Config, problem: Problem, phase: str, models: list[Any], folder: Path
    ) -> None:
        """Saves the models of all seeds, and the recommender of the first."""
        learned = problem.parts_for(phase, config.protocol.final_training)
        save_model(folder, Model(models, problem.known, problem.test, learned), config)
        known = problem.union(problem.parts_for("use", "all"))
        serving.BaselineRecommender.from_fitted(models[0], known).save(folder / RECOMMENDER)

    def draw_curves(
        self, config: Config, problem: Problem, searched: SearchResult,
        history: list[dict[str, Any]], title: str, path: Path,
    ) -> None:  # fmt: skip
        """Draws nothing: there are no epochs."""

    def summary(
        self, config: Config, problem: Problem, searched: SearchResult,
        per_seed: list[dict[str, float]], history: list[dict[str, Any]],
    ) -> dict[str, Any]:  # fmt: skip
        """See :meth:`RecommenderStudy.summary`; ``seconds`` include those of all fits."""
        summary = super().summary(config, problem, searched, per_seed, history)
        summary["chosen"].pop("epochs")
        return {**summary, "seconds": round(summary["seconds"] + self._seconds, 3)}

    def describe_choice(self, searched: SearchResult) -> str:
        """See :meth:`RecommenderStudy.describe_choice`."""
        seconds = f"fitted in {self._seconds:.1f} s"
        if not searched.point:
            return seconds
        chosen = ", ".join(
            f"{flag(name)} {value if isinstance(value, str) else f'{value:g}'}"
            for name, value in searched.point.items()
        )
        return (
            f"{seconds}; chosen on validation data: {chosen}, {self.score} "
            f"{searched.choice.score:.4f}"
        )

    def _fit_timed(
        self, config: Config, part: data.Interactions, point: dict[str, float], seed: int
    ) -> baselines.FittedBaseline:
        began = time.perf_counter()
        fitted = fit_point(config, part, point, seed)
        self._seconds += time.perf_counter() - began
        return fitted


def fit_point(
    config: Config, part: data.Interactions, point: dict[str, float], seed: int
) -> baselines.FittedBaseline:
    """Fits the model of a configuration at a point of its sweep."""
    values = resolve_model_flags(config.encoding, tuple(point)) | point
    return MODELS[config.encoding.model].make(values, seed).fit(part)


def fitted_tables(
    config: Config, problem: Problem, phase: str, point: dict[str, Any], seed: int
) -> models.Tables:
    """Returns the vectors of a model that is fitted to the data of a phase."""
    part = problem.union(problem.parts_for(phase, config.protocol.final_training))
    return baseline_tables(fit_point(config, part, point, seed))


def baseline_tables(fitted: baselines.FittedBaseline) -> models.Tables:
    """Returns the vectors of a fitted model, whose inner products are its scores."""
    users, items = fitted.vectors()
    return models.Tables(jnp.asarray(users), jnp.asarray(items))
