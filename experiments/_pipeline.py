"""The main job without its screen: data, search, choice, refit and one scoring."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from crl_jax import data, metrics, models, train

from . import _samplers as samplers
from ._config import Config, DataOptions, check_number
from ._objectives import KNOBS, Objective, resolve

OPTIMIZERS = {"adam": train.adam_l2, "adamw": train.adamw, "sgd": train.sgd_l2}
SCHEDULES = {"constant": train.constant, "step": train.halfway, "cosine": train.cosine}
VALIDATION_K = 20
SWEEPABLE = (
    "lr", "weight_decay", "decay", "init_scale", "epochs", *KNOBS, *samplers.SWEEPABLE,
)  # fmt: skip
METRICS = (
    "ndcg", "recall", "precision", "f1", "map", "mrr", "hit_rate", "coverage", "auc",
)  # fmt: skip
OnEpoch = Callable[[str, int, dict[str, Any]], None]
"""``on_epoch(phase, last_epoch, entry)``, the phase being ``"search"`` or ``"final"``."""


@dataclass(frozen=True)
class Problem:
    """The data of a run.

    Attributes:
      train: Training part.
      valid: Validation part: decides when to stop and among the points of a sweep.
      test: Test part: scored once, at the end.
      known: Training and validation part together: what the final model learns from, and what is
        masked when the test set is scored.
      tau_plus: The true rate of false negatives, where the data are simulated.
    """

    train: data.Interactions
    valid: data.Interactions
    test: data.Interactions
    known: data.Interactions
    tau_plus: float | None = None


@dataclass(frozen=True)
class Trained:
    """What the training of a run comes to.

    Attributes:
      model: The encoder's pure functions.
      params: Parameters of the final runs, leading axis ``seeds``.
      points: The numbers tried, one dictionary per grid point.
      choice: The choice among them on validation data.
    """

    model: models.Functional
    params: Any
    points: list[dict[str, float]]
    choice: train.Choice


@dataclass(frozen=True)
class Outcome:
    """What a run comes to.

    Attributes:
      points: The numbers tried, one dictionary per grid point.
      choice: The choice among them on validation data.
      per_seed: Test metrics of every seed.
    """

    points: list[dict[str, float]]
    choice: train.Choice
    per_seed: list[dict[str, float]]


def load_problem(options: DataOptions) -> Problem:
    """Reads the data, and cuts the test part, unless it is given, and the validation part.

    Raises:
      ValueError: If the data are not as the flags say, or leave nothing to learn or to score.
    """
    columns = {
        name: getattr(options, name)
        for name in ("user_col", "item_col", "rating_col", "time_col", "min_rating")
        if getattr(options, name) is not None
    }
    tau_plus = None
    if options.data == "simulated":
        if columns or options.test_data is not None:
            flag = next(iter(columns), "test_data").replace("_", "-")
            raise ValueError(f"--data simulated has no use for --{flag}; leave it out.")
        simulated = data.simulate()
        loaded, tau_plus = simulated.interactions, simulated.tau_plus
    elif options.test_data is not None:
        loaded = data.read_split(Path(options.data), options.test_data, **columns)
    else:
        loaded = data.load(options.data, **columns)
    split = loaded if isinstance(loaded, data.Split) else _cut_test(loaded, options)
    train_part, valid, test = split.train, split.valid, split.test
    if test is None:
        raise ValueError(f"--data {options.data} has no test part; name one with --test-data.")
    if valid is not None:
        problem = Problem(train_part, valid, test, data.union(train_part, valid), tau_plus)
    else:
        how = "time" if options.split == "time" else "ratio"
        cut = data.with_validation(train_part, valid=options.valid, how=how)
        assert cut.valid is not None
        problem = Problem(cut.train, cut.valid, test, train_part, tau_plus)
    for name in ("train", "valid", "test"):
        if not len(getattr(problem, name)):
            raise ValueError(f"--data {options.data} has no interactions in its {name} part.")
    degrees = problem.train.degrees
    if not ((degrees > 0) & (degrees < problem.train.n_items)).any():
        raise ValueError(
            f"--data {options.data}: everyone took every item; there is nothing to compare with."
        )
    return problem


def run(config: Config, problem: Problem, checkpoints: Path, on_epoch: OnEpoch) -> Trained:
    """Searches on validation data and trains the final runs.

    Args:
      config: The configuration.
      problem: The data.
      checkpoints: Folder of the two phases' checkpoints; a run goes on from what is there.
      on_epoch: Called with each entry of the history, see :data:`OnEpoch`.
    """
    protocol = config.protocol
    axes = parse_sweep(config)
    objective = resolve(config.objective, tuple(axes))
    seeds = list(range(protocol.seed, protocol.seed + protocol.seeds))
    # A grid is searched with one seed, and its best point trained with all of them.
    search_seeds = seeds[:1] if axes else seeds
    runs = train.grid(axes, search_seeds)
    fit = _fitter(config, objective, problem, tuple(axes))

    searched = fit(
        problem.train,
        problem.valid,
        numbers=runs,
        checkpoint=checkpoints / "search.npz",
        on_epoch=partial(
            on_epoch, "search", int(np.max(runs.get("epochs", config.training.epochs)))
        ),
    )
    choice = train.choose(searched, len(search_seeds))
    points = [
        {name: float(runs[name][i]) for name in axes}
        for i in range(0, searched.n_runs, len(search_seeds))
    ]
    if not np.isfinite(choice.score):
        raise train.TrainingDiverged("No run of the search came to a finite validation score.")
    if protocol.refit or len(search_seeds) < len(seeds):
        best = {name: np.float32(value) for name, value in points[choice.point].items()}
        fitted = fit(
            problem.known if protocol.refit else problem.train,
            None,
            numbers={**best, "seeds": np.asarray(seeds)},
            checkpoint=checkpoints / "final.npz",
            on_epoch=partial(on_epoch, "final", choice.epochs),
            stop_at=choice.epochs,
        )
        params = fitted.params
    else:
        fitted = searched
        start = choice.point * len(seeds)
        params = jax.tree.map(lambda leaf: leaf[start : start + len(seeds)], searched.params)
    return Trained(fitted.model, params, points, choice)


def score_seeds(trained: Trained, problem: Problem, ks: tuple[int, ...]) -> list[dict[str, float]]:
    """Test metrics of every seed of the final runs."""
    plan = metrics.ranking_plan(problem.known, problem.test)
    n_seeds = len(jax.tree.leaves(trained.params)[0])
    return [
        score(trained.model, jax.tree.map(lambda leaf, i=i: leaf[i], trained.params), plan, ks)
        for i in range(n_seeds)
    ]


def score(
    model: models.Functional, params: Any, plan: metrics.RankingPlan, ks: tuple[int, ...]
) -> dict[str, float]:
    """Test metrics of one run, in the order that a person reads them."""
    values = metrics.summarize(metrics.evaluate(model.score_all, params, plan, ks=ks))
    shown = [name for name in values if name.partition("@")[0] in METRICS]
    return {name: values[name] for name in sorted(shown, key=_reading_order)}


def parse_sweep(config: Config) -> dict[str, list[float]]:
    """Turns ``--sweep lr=1e-3,3e-3 …`` into values by name.

    Raises:
      ValueError: If a specification is not of that form, or names what cannot be swept, or a
        value is out of range.
    """
    axes: dict[str, list[float]] = {}
    for spec in config.protocol.sweep:
        name, _, values = spec.partition("=")
        if name not in SWEEPABLE:
            raise ValueError(f"--sweep takes one of {', '.join(SWEEPABLE)}, got {name!r}.")
        if name in axes:
            raise ValueError(f"--sweep {name} is given twice.")
        try:
            axes[name] = [float(value) for value in values.split(",")]
        except ValueError:
            raise ValueError(f"--sweep must be NAME=NUMBER,NUMBER,…, got {spec!r}.") from None
        for value in axes[name]:
            try:
                check_number(name, value, config.objective.loss)
            except ValueError as wanted:
                raise ValueError(
                    f"--sweep {name} must be {wanted}, got {value:g} in {spec!r}."
                ) from None
    return axes


def summary(outcome: Outcome, history: list[dict[str, Any]]) -> dict[str, Any]:
    """What ``metrics.json`` holds.

    Args:
      outcome: What the run came to.
      history: All entries of its history.

    Returns:
      By name, the mean of each metric over the seeds, and, of several, the standard deviation as
      ``NAME_std``; under ``chosen`` what validation chose: the ``epochs``, the ``point`` of the
      sweep by name, and its ``valid_ndcg@20``; and the ``seconds`` that the training took.
    """
    per_seed, choice = outcome.per_seed, outcome.choice
    found: dict[str, Any] = {
        name: float(np.mean([m[name] for m in per_seed])) for name in per_seed[0]
    }
    if len(per_seed) > 1:
        for name in per_seed[0]:
            found[f"{name}_std"] = float(np.std([m[name] for m in per_seed], ddof=1))
    found["chosen"] = {
        "epochs": choice.epochs,
        "point": outcome.points[choice.point],
        f"valid_ndcg@{VALIDATION_K}": choice.score,
    }
    last = {entry["phase"]: entry["seconds"] for entry in history}
    return found | {"seconds": round(sum(last.values()), 3)}


def _reading_order(name: str) -> tuple[int, int]:
    metric, _, k = name.partition("@")
    return METRICS.index(metric), int(k or 0)


def _fitter(
    config: Config, objective: Objective, problem: Problem, swept: tuple[str, ...]
) -> Callable[..., train.Fitted]:
    options = config.training

    def build(rngs: nnx.Rngs) -> models.MatrixFactorization:
        return models.MatrixFactorization(
            problem.known.n_users, problem.known.n_items, options.dim, rngs=rngs
        )

    def fit(
        part: data.Interactions,
        valid: data.Interactions | None,
        *,
        numbers: dict[str, Any],
        **rest: Any,
    ) -> train.Fitted:
        numbers = dict(numbers)
        knobs = samplers.sampler_knobs(numbers)
        for name in samplers.SWEEPABLE:
            numbers.pop(name, None)
        return train.fit(
            part,
            valid,
            loss=objective.loss,
            build=build,
            sampler=samplers.resolve_sampler(
                config.sampling, part, config.source.data, swept, own=objective.sampler
            ),
            credence=objective.credence and objective.credence(part, options),
            knob_schedule=objective.knob_schedule,
            n_group=objective.n_group,
            sampler_knobs=knobs,
            # What the model must not see, of which the history tells how often it is sampled.
            held_out=problem.test if valid is None else data.union(valid, problem.test),
            n_neg=objective.n_neg,
            n_pos=objective.n_pos or 0,
            seeds=numbers.pop("seeds"),
            init_scale=numbers.pop("init_scale", options.init_scale),
            learning_rate=numbers.pop("lr", options.lr),
            weight_decay=numbers.pop("weight_decay", options.weight_decay),
            decay=numbers.pop("decay", options.decay),
            epochs=numbers.pop("epochs", options.epochs),
            knobs={**objective.knobs, **numbers},
            optimizer=OPTIMIZERS[options.optimizer],
            schedule=SCHEDULES[options.schedule],
            batch_size=options.batch_size,
            patience=options.patience,
            eval_every=options.eval_every,
            k=VALIDATION_K,
            checkpoint_seconds=config.output.checkpoint_seconds,
            **rest,
        )

    return fit


def _cut_test(loaded: data.Interactions, options: DataOptions) -> data.Split:
    match options.split:
        case "ratio":
            return data.split_by_ratio(loaded, test=options.test)
        case "time":
            return data.split_by_time(loaded, test=options.test)
        case "leave_k_out":
            return data.leave_k_out(loaded, k=options.leave_k)
        case "clean":
            return data.split_clean(loaded)
