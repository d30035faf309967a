"""Study of ``python -m experiments.recommend --model NAME``: a baseline instead of a training."""

import dataclasses
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crl_jax import baselines, data, metrics, serving, train

from ._baselines import cheap
from ._config import SCHEMA, TRAINING, Config, EncoderOptions, anchor
from ._problem import OnStage, Problem
from ._program import flag
from ._ranking import VALIDATION_K
from ._recommend import Recommend
from ._registry import filled
from ._saved import RECOMMENDER, Model, save_model
from ._study import OnEntry, SearchResult, no_finite_score, no_search
from .fitted import COMPETITORS, MODELS, PREFIX, settle_model


class Fit(Recommend):
    """Baselines. A learned model is a :class:`crl_jax.baselines.FittedBaseline`."""

    def __init__(self) -> None:
        self._seconds = 0.0

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

    def describe_data(self, config: Config, problem: Problem) -> Iterable[str]:
        """Returns the sizes of the data, and the columns read."""
        return self.describe_problem(problem)

    def search(
        self, config: Config, problem: Problem, checkpoints: Path, on_entry: OnEntry,
        on_stage: OnStage,
    ) -> SearchResult:  # fmt: skip
        """Fits all points of the sweep and seeds, and selects the best on validation data."""
        axes, protocol = SCHEMA.axes(config), config.protocol
        if not axes:
            return no_search(0)
        assert problem.valid is not None
        layout = metrics.eval_layout(problem.train, problem.valid)
        runs = train.grid(axes, range(protocol.seed, protocol.seed + protocol.search_seeds))
        n = len(runs["seeds"])
        all_points = [{name: float(runs[name][i]) for name in axes} for i in range(n)]
        found = []
        for i, point in enumerate(all_points):
            on_stage(f"search: {config.encoding.model} {i + 1}/{n}")
            fitted = self._fit(config, problem.train, point, int(runs["seeds"][i]))
            lists, _ = fitted.recommend(layout.users, VALIDATION_K)
            values = metrics.evaluate_lists(lists, layout, ks=VALIDATION_K)
            found.append(float(metrics.summarize(values)[f"ndcg@{VALIDATION_K}"]))
        scores = np.reshape(found, (-1, protocol.search_seeds)).mean(axis=1)
        if not np.isfinite(scores).any():
            raise no_finite_score()
        best = int(np.nanargmax(scores))
        choice = train.Selection(best, 0, scores[best], scores, np.zeros(len(scores), int))
        return SearchResult(all_points[:: protocol.search_seeds], choice)

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
        yield [self._fit(config, part, point, seed) for seed in seeds]

    def improvement(self, config: Config) -> str:
        """See :meth:`Recommend.improvement`."""
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
        """See :meth:`Recommend.summary`; ``seconds`` include those of all fits."""
        found = super().summary(config, problem, searched, per_seed, history)
        found["chosen"].pop("epochs")
        return {**found, "seconds": round(found["seconds"] + self._seconds, 3)}

    def describe_choice(self, searched: SearchResult) -> str:
        """See :meth:`Recommend.describe_choice`."""
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

    def _fit(
        self, config: Config, part: data.Interactions, point: dict[str, float], seed: int
    ) -> baselines.FittedBaseline:
        values = settle_model(config.encoding, tuple(point)) | point
        began = time.perf_counter()
        fitted = MODELS[config.encoding.model].make(values, seed).fit(part)
        self._seconds += time.perf_counter() - began
        return fitted


def with_baselines(
    trained: SearchResult, config: Config, problem: Problem, checkpoints: Path, on_entry: OnEntry,
    on_stage: OnStage,
) -> SearchResult:  # fmt: skip
    """Returns a finished search with the points of cheap baselines, and the best of all selected.

    A baseline is selected if its validation score exceeds those of all trained models.
    """
    study, began = Fit(), time.perf_counter()
    feasible = {type(each) for each in cheap(problem.train).values()}
    points, scores, epochs = [*trained.points], trained.choice.scores, trained.choice.best_epochs
    best, best_config, blend = trained.choice, trained.config, trained.blend
    best_score = np.nanmax(scores)
    for model, sweep in COMPETITORS.items():
        if MODELS[model].source not in feasible:
            continue
        protocol = replace(
            config.protocol, sweep=sweep, search_seeds=1, tune=None, search="grid", blend=1
        )
        encoding = EncoderOptions(model=model)
        own = replace(
            Config(), source=config.source, encoding=encoding, protocol=protocol,
            output=config.output,
        )  # fmt: skip
        own = study.complete(own, problem)
        found = study.search(own, problem, checkpoints, on_entry, on_stage)
        choice = found.choice
        if choice.score > best_score:
            best, best_config = replace(choice, point=choice.point + len(points)), own
            blend = ()
            best_score = choice.score
        points += [{"model": model, **point} for point in found.points]
        scores = np.concatenate([scores, choice.scores])
        epochs = np.concatenate([epochs, choice.best_epochs])
    best = replace(best, scores=scores, best_epochs=epochs)
    said = f"{trained.said}; fitted baselines in {time.perf_counter() - began:.0f} s"
    return SearchResult(points, best, config=best_config, said=said, blend=blend)
