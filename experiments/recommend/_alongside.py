"""Models that are fitted alongside a search of trainings, and the selection among all of them."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from .._study import Member, OnEntry, OnStage, SearchResult
from ._baselines import cheap_baselines
from ._blending import select_blend
from ._config import Config, EncoderOptions
from ._fit import Fit, baseline_tables
from ._problem import Problem
from .fitted import BEST, COMPETITORS, MODELS, SWEEPS
from .start import may_add_models

_MAX_ROWS = 30_000
"""Number of users and items up to which iALS takes less than a minute per point."""
_MAX_ROWS_FIRST_RUN = 10_000
"""Number of users and items up to which iALS takes a few seconds in all."""
_MAX_WIDTH = 2048
"""Greatest dimension of the vectors of EASE in a blend."""


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
    competitors, blend_names = _competitors(config, problem), _blend_candidates(config, problem)
    with_vectors = {
        name: name in blend_names for name in SWEEPS if name in (*competitors, *blend_names)
    }
    searched, fitted = _fit_alongside(tuned, with_vectors, config, problem, on_entry, on_stage)
    if tuned.blend:
        if _trains_one(config):
            searched = replace(searched, blend=tuned.blend[:1])
        candidates = [fitted[name] for name in blend_names]
        searched = select_blend(searched, candidates, config, problem, on_stage)
    scores = searched.choice.scores
    best = max((fitted[name] for name in competitors), key=lambda m: scores[m.point], default=None)
    score_to_beat = np.nanmax([*tuned.choice.scores, searched.blend_score])
    if best is None or not scores[best.point] > score_to_beat:
        return searched
    choice = replace(searched.choice, point=best.point, epochs=0, score=float(scores[best.point]))
    return replace(searched, choice=choice, config=best.config, blend=(), blend_score=np.nan)


def _competitors(config: Config, problem: Problem) -> list[str]:
    """Returns the models that may be selected instead of a training."""
    if config.encoding.model != BEST:
        return []
    feasible = {type(each) for each in cheap_baselines(problem.train).values()}
    return [name for name in COMPETITORS if MODELS[name].source in feasible]


def _trains_one(config: Config) -> bool:
    """Whether a blend has one trained model, so that a short run has no second final training."""
    is_first_run = config.encoding.model == BEST or "encoder" in config.protocol.keep
    return is_first_run and not config.protocol.tune


def _blend_candidates(config: Config, problem: Problem) -> list[str]:
    """Returns the models that may be in a blend with trained ones."""
    protocol, part = config.protocol, problem.train
    is_search_or_first_run = protocol.tune or _trains_one(config)
    if protocol.blend == 1 or not is_search_or_first_run or not may_add_models(config):
        return []
    names = ["ease"] if min(part.n_users, part.n_items) <= _MAX_WIDTH else []
    max_rows = _MAX_ROWS if protocol.tune else _MAX_ROWS_FIRST_RUN
    return [*names, "ials"] if problem.n_rows <= max_rows else names


def _fit_alongside(
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
        result = study.search(own, problem, Path(), on_entry, on_stage)
        assert study.best is not None
        tables = baseline_tables(study.best) if has_vectors else None
        members[name] = Member(own, len(points) + result.choice.point, 0, tables)
        points += [{"model": name, **point} for point in result.points]
        scores = np.concatenate([scores, result.choice.scores])
        epochs = np.concatenate([epochs, result.choice.best_epochs])
    choice = replace(tuned.choice, scores=scores, best_epochs=epochs)
    seconds = time.perf_counter() - began
    description = f"{tuned.description}; fitted {', '.join(with_vectors)} in {seconds:.0f} s"
    return replace(tuned, points=points, choice=choice, description=description), members
