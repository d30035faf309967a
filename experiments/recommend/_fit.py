"""Study of ``python -m experiments.recommend --model NAME``: a baseline instead of a training."""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from crl_jax import baselines, data, metrics, models, serving

from .._program import flag
from .._registry import filled
from .._study import Member, OnEntry, OnStage, SearchResult, grid_points, no_search, select_point
from ._base import RecommenderStudy
from ._baselines import cheap
from ._blending import blended
from ._config import SCHEMA, TRAINING, Config, EncoderOptions, anchor
from ._problem import Problem
from ._ranking import VALIDATION_K
from ._saved import RECOMMENDER, Model, save_model
from .fitted import BEST, COMPETITORS, MODELS, PREFIX, SWEEPS, settle_model
from .start import may_add_models

_MAX_ROWS = 30_000
"""Number of users and items up to which iALS takes less than a minute per point."""
_MAX_ROWS_OF_FIRST_RUN = 10_000
"""Number of users and items up to which iALS takes a few seconds in all."""
_MAX_WIDTH = 2048
"""Greatest dimension of the vectors of EASE in a blend."""


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
        given = [
            f"{flag(of.name)} {getattr(options, of.name)}"
            for options, default in ((getattr(config, s), getattr(Config(), s)) for s in TRAINING)
            for of in dataclasses.fields(default)
            if not of.name.startswith("model") and getattr(options, of.name) != of.default
        ]
        given += [f"--sweep {name}" for name in swept if not name.startswith(PREFIX)]
        if protocol.tune is not None:
            given.append(f"--tune {protocol.tune:g}")
        if protocol.blend > 1:
            given.append(f"--blend {protocol.blend}")
        if protocol.search != "grid":
            given.append(f"--search {protocol.search}")
        if given:
            raise ValueError(f"--model {model} trains nothing: omit {', '.join(given)}.")
        for name in ("mesh", "processes"):
            if (value := getattr(config.output, name)) is not None:
                raise ValueError(
                    f"--model {model} is fitted by one process on the host: omit {flag(name)} "
                    f"{value}."
                )
        for name in ("seeds", "search_seeds"):
            if (n := getattr(protocol, name)) > 1 and not MODELS[model].has_seed:
                raise ValueError(f"--model {model} has no seed: omit {flag(name)} {n}.")
        settle_model(config.encoding, swept)
        if protocol.sweep and config.source.valid_fraction == 0:
            raise ValueError("--valid-fraction 0 leaves no data to decide a --sweep on.")

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        swept = tuple(SCHEMA.axes(config))
        encoding = filled(config.encoding, settle_model(config.encoding, swept), swept)
        return replace(anchor(config), encoding=encoding)

    def check_step(self, config: Config, problem: Problem) -> None:
        """Does nothing: a model states what it does not support when it is fitted."""

    def count(self, config: Config, problem: Problem, phase: str, stage: str) -> int:
        """Returns 0: there are no epochs."""
        return 0

    def describe_training(self, config: Config) -> str:
        """See :meth:`Study.describe_training`."""
        swept = tuple(SCHEMA.axes(config))
        values = settle_model(config.encoding, swept).items()
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
        shape, found = (len(points), len(seeds)), []
        for i, (point, seed) in enumerate(itertools.product(points, seeds), 1):
            on_stage(f"search: {config.encoding.model} {i}/{math.prod(shape)}")
            fitted = self._timed(config, problem.train, point, seed)
            lists, _ = fitted.recommend(layout.users, VALIDATION_K)
            values = metrics.evaluate_lists(lists, layout, ks=VALIDATION_K)
            score = float(metrics.summarize(values)[f"ndcg@{VALIDATION_K}"])
            if self.best is None or score > max(found):
                self.best = fitted
            found.append(score)
        return select_point(points, np.reshape(found, shape), np.zeros(shape, int))

    def train_models(
        self, config: Config, problem: Problem, phase: str, searched: SearchResult,
        checkpoints: Path, on_entry: OnEntry, on_stage: OnStage,
    ) -> Iterator[list[baselines.FittedBaseline]]:  # fmt: skip
        """Fits the selected point with all seeds."""
        protocol = config.protocol
        part = problem.joined(problem.learned(phase, protocol.final_training))
        on_stage(f"{phase}: fitting {config.encoding.model}")
        seeds = range(protocol.seed, protocol.seed + protocol.seeds)
        point = {name: searched.point[name] for name in SCHEMA.axes(config)}
        yield [self._timed(config, part, point, seed) for seed in seeds]

    def improvement(self, config: Config) -> str:
        """See :meth:`RecommenderStudy.improvement`."""
        numbers = [flag(name) for name in MODELS[config.encoding.model].flags]
        return f"Search {', '.join(numbers)} by --sweep, or use it." if numbers else "Use it."

    def save_models(
        self, config: Config, problem: Problem, phase: str, models: list[Any], folder: Path
    ) -> None:
        """Saves the models of all seeds, and the recommender of the first."""
        learned = problem.learned(phase, config.protocol.final_training)
        save_model(folder, Model(models, problem.known, problem.test, learned), config)
        known = problem.joined(problem.learned("use", "all"))
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
        found = super().summary(config, problem, searched, per_seed, history)
        found["chosen"].pop("epochs")
        return {**found, "seconds": round(found["seconds"] + self._seconds, 3)}

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

    def _timed(
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
    values = settle_model(config.encoding, tuple(point)) | point
    return MODELS[config.encoding.model].make(values, seed).fit(part)


def fitted_tables(
    config: Config, problem: Problem, phase: str, point: dict[str, Any], seed: int
) -> models.Tables:
    """Returns the vectors of a model that is fitted to the data of a phase."""
    part = problem.joined(problem.learned(phase, config.protocol.final_training))
    return _tables(fit_point(config, part, point, seed))


def _tables(fitted: baselines.FittedBaseline) -> models.Tables:
    users, items = fitted.vectors()
    return models.Tables(jnp.asarray(users), jnp.asarray(items))


def select(
    tuned: SearchResult, config: Config, problem: Problem, on_entry: OnEntry, on_stage: OnStage
) -> SearchResult:
    """Fits models alongside a search of trainings, and selects among all, and blends of them.

    A fitted model is selected if its validation score exceeds those of all trained models and of
    the blend.

    Args:
      tuned: The search.
      config: The configuration of the trainings.
      problem: The data.
      on_entry: See :data:`experiments._study.OnEntry`.
      on_stage: See :data:`experiments._study.OnStage`.
    """
    alone, in_blends = _alone(config, problem), _in_blends(config, problem)
    with_vectors = {name: name in in_blends for name in SWEEPS if name in (*alone, *in_blends)}
    searched, fitted = _fitted_alongside(tuned, with_vectors, config, problem, on_entry, on_stage)
    if tuned.blend:
        if _trains_one(config):
            searched = replace(searched, blend=tuned.blend[:1])
        candidates = [fitted[name] for name in in_blends]
        searched = blended(searched, candidates, config, problem, on_stage)
    scores = searched.choice.scores
    best = max((fitted[name] for name in alone), key=lambda m: scores[m.point], default=None)
    least = np.nanmax([*tuned.choice.scores, searched.blend_score])
    if best is None or not scores[best.point] > least:
        return searched
    choice = replace(searched.choice, point=best.point, epochs=0, score=float(scores[best.point]))
    return replace(searched, choice=choice, config=best.config, blend=(), blend_score=np.nan)


def _alone(config: Config, problem: Problem) -> list[str]:
    """Returns the models that may be selected instead of a training."""
    if config.encoding.model != BEST:
        return []
    feasible = {type(each) for each in cheap(problem.train).values()}
    return [name for name in COMPETITORS if MODELS[name].source in feasible]


def _trains_one(config: Config) -> bool:
    """Whether a blend has one trained model, so that a short run has no second final training."""
    is_first_run = config.encoding.model == BEST or "encoder" in config.protocol.keep
    return is_first_run and not config.protocol.tune


def _in_blends(config: Config, problem: Problem) -> list[str]:
    """Returns the models that may be in a blend with trained ones."""
    protocol, part = config.protocol, problem.train
    is_search_or_first_run = protocol.tune or _trains_one(config)
    if protocol.blend == 1 or not is_search_or_first_run or not may_add_models(config):
        return []
    found = ["ease"] if min(part.n_users, part.n_items) <= _MAX_WIDTH else []
    most = _MAX_ROWS if protocol.tune else _MAX_ROWS_OF_FIRST_RUN
    return [*found, "ials"] if problem.n_rows <= most else found


def _fitted_alongside(
    tuned: SearchResult, with_vectors: Mapping[str, bool], config: Config, problem: Problem,
    on_entry: OnEntry, on_stage: OnStage,
) -> tuple[SearchResult, dict[str, Member]]:  # fmt: skip
    """Returns a search with the points of fitted models, and the best of each model by its name.

    ``with_vectors`` has the names of the models, and whether their vectors are needed.
    """
    if not with_vectors:
        return tuned, {}
    began, points, members = time.perf_counter(), [*tuned.points], {}
    scores, epochs = tuned.choice.scores, tuned.choice.best_epochs
    for name, has_vectors in with_vectors.items():
        protocol = replace(
            config.protocol, sweep=SWEEPS[name], search_seeds=1, tune=None, search="grid", blend=1
        )
        own = replace(
            Config(), source=config.source, encoding=EncoderOptions(model=name), protocol=protocol,
            output=config.output,
        )  # fmt: skip
        study = Fit()
        own = study.complete(own, problem)
        found = study.search(own, problem, Path(), on_entry, on_stage)
        assert study.best is not None
        tables = _tables(study.best) if has_vectors else None
        members[name] = Member(own, len(points) + found.choice.point, 0, tables)
        points += [{"model": name, **point} for point in found.points]
        scores = np.concatenate([scores, found.choice.scores])
        epochs = np.concatenate([epochs, found.choice.best_epochs])
    choice = replace(tuned.choice, scores=scores, best_epochs=epochs)
    seconds = time.perf_counter() - began
    said = f"{tuned.said}; fitted {', '.join(with_vectors)} in {seconds:.0f} s"
    return replace(tuned, points=points, choice=choice, said=said), members
