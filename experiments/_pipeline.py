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
from ._config import Config, DataOptions, ProtocolOptions
from ._flags import spoken
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
"""``on_epoch(phase, last_epoch, entry)``, the phase being one of :data:`PHASES`."""
OnStage = Callable[[str], None]
"""``on_stage(what)``, called with what is being done from now on."""
PHASES = ("search", "final", "use")
"""Trainings in their order: the search on validation data; the model that is scored; with
``--refit all`` the model for use. The search may be the first two in one."""


@dataclass(frozen=True)
class Problem:
    """The data of a run.

    Attributes:
      train: Training part.
      valid: Validation part: decides when to stop and among the points of a sweep.
      test: Test part: scored once, at the end.
      known: Training and validation part together: what is masked when the test set is scored.
      tau_plus: The true rate of false negatives, where the data are simulated.
    """

    train: data.Interactions
    valid: data.Interactions
    test: data.Interactions
    known: data.Interactions
    tau_plus: float | None = None

    def learned(self, phase: str, refit: str) -> tuple[str, ...]:
        """The parts, by name, that a phase learns from under ``--refit``."""
        if phase == "search" or (phase == "final" and refit == "none"):
            return ("train",)
        return ("train", "valid") if phase == "final" else ("train", "valid", "test")

    def joined(self, parts: tuple[str, ...]) -> data.Interactions:
        """Those parts together."""
        if parts == ("train", "valid"):
            return self.known
        first, *others = (getattr(self, name) for name in parts)
        return data.union(first, *others) if others else first


@dataclass(frozen=True)
class Outcome:
    """What a run comes to.

    Attributes:
      params: Parameters of the runs to save, leading axis ``seeds``.
      points: The numbers tried, one dictionary per grid point.
      choice: The choice among them on validation data.
      per_seed: Test metrics of every seed.
      scored_on: Parts that the scored runs learned from.
      saved_on: Parts that ``params`` learned from.
    """

    params: Any
    points: list[dict[str, float]]
    choice: train.Choice
    per_seed: list[dict[str, float]]
    scored_on: tuple[str, ...]
    saved_on: tuple[str, ...]


def source_name(options: DataOptions) -> str:
    """The data by a short name: of a path the last part, of a file its folder too."""
    path = Path(options.data)
    if not path.exists():
        return options.data
    return path.resolve().name if path.is_dir() else "/".join(path.resolve().parts[-2:])


def _unseen(_: str) -> None:
    pass


def named(parts: tuple[str, ...]) -> str:
    """Parts of the data as a person reads them."""
    words = {"train": "training", "valid": "validation", "test": "test"}
    return " + ".join(words[part] for part in parts) + " data"


def load_problem(options: DataOptions, on_stage: OnStage = _unseen) -> Problem:
    """Reads the data, and cuts the test part, unless it is given, and the validation part."""
    simulated_data = options.data == "simulated"
    on_stage("simulating" if simulated_data else f"reading {source_name(options)}")
    columns = {
        name: getattr(options, name)
        for name in ("user_col", "item_col", "rating_col", "time_col", "min_rating")
        if getattr(options, name) is not None
    }
    tau_plus = None
    if simulated_data:
        simulated = data.simulate()
        loaded, tau_plus = simulated.interactions, simulated.tau_plus
    elif options.test_data is not None:
        loaded = data.read_split(Path(options.data), options.test_data, **columns)
    else:
        loaded = data.load(options.data, **columns)
    on_stage("splitting")
    split = loaded if isinstance(loaded, data.Split) else _cut_test(loaded, options)
    train_part, valid, test = split.train, split.valid, split.test
    if test is None:
        raise ValueError(f"--data {options.data} has no test part; name one with --test-data.")
    if valid is not None:
        return Problem(train_part, valid, test, data.union(train_part, valid), tau_plus)
    how = "time" if options.split == "time" else "ratio"
    cut = data.with_validation(train_part, valid=options.valid, how=how)
    assert cut.valid is not None
    return Problem(cut.train, cut.valid, test, train_part, tau_plus)


def run(
    config: Config,
    problem: Problem,
    checkpoints: Path,
    on_epoch: OnEpoch,
    on_stage: OnStage = _unseen,
) -> Outcome:
    """Searches on validation data, trains the final runs and scores them once on test data.

    Args:
      config: The configuration.
      problem: The data.
      checkpoints: Folder of the phases' checkpoints; a run goes on from what is there.
      on_epoch: Called with each entry of the history, see :data:`OnEpoch`.
      on_stage: See :data:`OnStage`.
    """
    protocol = config.protocol
    axes = parse_sweep(protocol.sweep)
    objective = resolve(config.objective, tuple(axes))
    seeds = list(range(protocol.seed, protocol.seed + protocol.seeds))
    n_search = count_search_seeds(protocol)
    runs = train.grid(axes, range(protocol.seed, protocol.seed + n_search))
    fit = _fitter(config, objective, problem, tuple(axes))

    on_stage("search: compiling and first epoch")
    searched = fit(
        problem.train,
        problem.valid,
        numbers=runs,
        checkpoint=checkpoints / "search.npz",
        on_epoch=partial(
            on_epoch, "search", int(np.max(runs.get("epochs", config.training.epochs)))
        ),
    )
    choice = train.choose(searched, n_search)
    points = [
        {name: float(runs[name][i]) for name in axes} for i in range(0, searched.n_runs, n_search)
    ]
    if not np.isfinite(choice.score):
        raise train.TrainingDiverged("No run of the search came to a finite validation score.")
    best = {name: np.float32(value) for name, value in points[choice.point].items()}

    def train_again(phase: str) -> Any:
        on_stage(f"{phase}: compiling and first epoch")
        return fit(
            problem.joined(problem.learned(phase, protocol.refit)),
            None,
            numbers={**best, "seeds": np.asarray(seeds)},
            checkpoint=checkpoints / f"{phase}.npz",
            on_epoch=partial(on_epoch, phase, choice.epochs),
            stop_at=choice.epochs,
        ).params

    if protocol.refit == "none" and n_search >= len(seeds):
        start = choice.point * n_search
        params = jax.tree.map(lambda leaf: leaf[start : start + len(seeds)], searched.params)
    else:
        params = train_again("final")
    on_stage("planning evaluation")
    with spoken(test="the test part", train="the training part"):
        plan = metrics.ranking_plan(problem.known, problem.test)
    on_stage("scoring the test set")
    per_seed = [
        score(searched.model, jax.tree.map(lambda leaf, i=i: leaf[i], params), plan, protocol.k)
        for i in range(len(seeds))
    ]
    scored_on = saved_on = problem.learned("final", protocol.refit)
    if protocol.refit == "all":  # scored already: the test part cannot judge what comes now
        params, saved_on = train_again("use"), problem.learned("use", protocol.refit)
    return Outcome(params, points, choice, per_seed, scored_on, saved_on)


def score(
    model: models.Functional, params: Any, plan: metrics.RankingPlan, ks: tuple[int, ...]
) -> dict[str, float]:
    """Test metrics of one run, in the order that a person reads them."""
    values = metrics.summarize(metrics.evaluate(model.score_all, params, plan, ks=ks))
    shown = [name for name in values if name.partition("@")[0] in METRICS]
    return {name: values[name] for name in sorted(shown, key=_reading_order)}


def count_search_seeds(protocol: ProtocolOptions) -> int:
    """Seeds that the search trains every point with: of a sweep --search-seeds, else all.

    Raises:
      ValueError: If --search-seeds is below 1, or given without a sweep.
    """
    wanted = protocol.search_seeds
    if wanted < 1:
        raise ValueError(f"--search-seeds must be at least 1, got {wanted}.")
    if wanted > 1 and not protocol.sweep:
        raise ValueError(f"--search-seeds {wanted} averages over seeds what --sweep tries: add it.")
    return wanted if protocol.sweep else protocol.seeds


def parse_sweep(specs: tuple[str, ...]) -> dict[str, list[float]]:
    """Turns ``("lr=1e-3,3e-3", …)`` into values by name.

    Raises:
      ValueError: If a specification is not of that form, or names what cannot be swept.
    """
    axes: dict[str, list[float]] = {}
    for spec in specs:
        name, _, values = spec.partition("=")
        if name not in SWEEPABLE:
            raise ValueError(f"--sweep takes one of {', '.join(SWEEPABLE)}, got {name!r}.")
        if name in axes:
            raise ValueError(f"--sweep {name} is given twice.")
        try:
            axes[name] = [float(value) for value in values.split(",")]
        except ValueError:
            raise ValueError(f"--sweep must be NAME=NUMBER,NUMBER,…, got {spec!r}.") from None
    return axes


def summary(per_seed: list[dict[str, float]]) -> dict[str, float]:
    """Mean of each metric over the seeds, and, of several, the standard deviation as NAME_std."""
    means = {name: float(np.mean([m[name] for m in per_seed])) for name in per_seed[0]}
    if len(per_seed) == 1:
        return means
    deviations = {
        f"{name}_std": float(np.std([m[name] for m in per_seed], ddof=1)) for name in per_seed[0]
    }
    return means | deviations


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
        with spoken(test="the validation part", train="the training part"):
            return train.fit(
                part,
                valid,
                loss=objective.loss,
                build=build,
                sampler=samplers.resolve_sampler(
                    config.sampling, part, config.source.data, swept, own=objective.sampler
                ),
                credence=objective.credence and objective.credence(part, options.dim),
                knob_schedule=objective.knob_schedule,
                n_group=objective.n_group,
                sampler_knobs=knobs,
                held_out=_held_out(problem, part),
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


def _held_out(problem: Problem, part: data.Interactions) -> data.Interactions | None:
    """What a model of ``part`` must not see; the history tells how often it is sampled."""
    if part is problem.train:
        return data.union(problem.valid, problem.test)
    return problem.test if part is problem.known else None


def _cut_test(loaded: data.Interactions, options: DataOptions) -> data.Split:
    if options.split in ("time", "leave_k_out") and loaded.timestamps is None:
        raise ValueError(
            f"--split {options.split} needs timestamps; --data {options.data} has none."
        )
    match options.split:
        case "ratio":
            return data.split_by_ratio(loaded, test=options.test)
        case "time":
            return data.split_by_time(loaded, test=options.test)
        case "leave_k_out":
            return data.leave_k_out(loaded, k=options.leave_k)
        case "clean":
            return data.split_clean(loaded)
