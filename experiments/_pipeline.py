"""Training pipeline of ``recommend`` without terminal output: search, selection, refit, test."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from crl_jax import data, metrics, models, tasks, train

from ._config import Config
from ._flags import spoken
from ._mesh import mesh_of
from ._options import ContrastOptions, EncoderOptions
from ._problem import OnStage, Problem, unseen
from ._processes import gathered
from ._summary import over_seeds
from ._sweep import count_search_seeds, parse_sweep
from ._update import optimizer_of
from .contrasts import resolve_contrast
from .contrasts import swept_fields as swept_of_contrast
from .encoders import resolve_encoder
from .objectives import Settled, resolve
from .sampling import SAMPLERS, Context, resolve_sampler

VALIDATION_K = 20
METRICS = (
    "ndcg", "recall", "precision", "f1", "map", "mrr", "hit_rate", "coverage", "auc",
)  # fmt: skip
OnEpoch = Callable[[str, int, dict[str, Any]], None]
"""Callback ``on_epoch(phase, last_epoch, entry)``; ``phase`` is one of :data:`PHASES`."""
PHASES = ("search", "final", "use")
"""Training phases in order: the search on validation data; the final model, which is evaluated on
the test set; with ``--refit all`` the model for use. The search may also train the final model."""


@dataclass(frozen=True)
class Trained:
    """Results of the search and of the training of the final model.

    Attributes:
      tables: Serving tables of each seed's model: vectors whose inner products are its scores.
      learned: Names of the data parts that the model was trained on.
      points: Hyper-parameter values of the grid, one dictionary per grid point.
      choice: The grid point selected on validation data.
    """

    tables: list[models.Tables]
    learned: tuple[str, ...]
    points: list[dict[str, float]]
    choice: train.Selection


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      points: Hyper-parameter values of the grid, one dictionary per grid point.
      choice: The grid point selected on validation data.
      per_seed: Test metrics of every seed.
      scored_on: Names of the data parts that the evaluated models were trained on.
      saved_on: Names of the data parts that the saved models were trained on.
    """

    points: list[dict[str, float]]
    choice: train.Selection
    per_seed: list[dict[str, float]]
    scored_on: tuple[str, ...]
    saved_on: tuple[str, ...]


def run(
    config: Config,
    problem: Problem,
    checkpoints: Path,
    on_epoch: OnEpoch,
    on_stage: OnStage = unseen,
) -> Trained:
    """Runs the search on validation data, if there are any, and trains the final model.

    Args:
      config: The configuration.
      problem: The data.
      checkpoints: Folder of the phases' checkpoints; training resumes from existing ones.
      on_epoch: Called with each entry of the history, see :data:`OnEpoch`.
      on_stage: See :data:`OnStage`.
    """
    protocol = config.protocol
    if problem.valid is None:
        told = _told(config.training.epochs)
        tables = train_again("final", config, problem, [{}], told, checkpoints, on_epoch, on_stage)
        return Trained(tables, problem.learned("final", protocol.refit), [{}], told)
    axes = parse_sweep(config)
    n_search = count_search_seeds(protocol)
    runs = train.grid(axes, range(protocol.seed, protocol.seed + n_search))
    fit = _fitter(config, resolve(config.objective, tuple(axes)), problem, tuple(axes))

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
    choice = train.select_best(searched, n_search)
    points = [
        {name: float(runs[name][i]) for name in axes} for i in range(0, searched.n_runs, n_search)
    ]
    if not np.isfinite(choice.score):
        raise train.TrainingDiverged("No run of the search came to a finite validation score.")
    learned = problem.learned("final", protocol.refit)
    if protocol.refit == "none" and n_search >= protocol.seeds:
        start = choice.point * n_search
        tables = [gathered(searched.tables(start + i)) for i in range(protocol.seeds)]
        return Trained(tables, learned, points, choice)
    tables = train_again("final", config, problem, points, choice, checkpoints, on_epoch, on_stage)
    return Trained(tables, learned, points, choice)


def _told(epochs: int) -> train.Selection:
    """Returns the trivial selection of a training without validation data."""
    return train.Selection(0, epochs, np.nan, np.array([np.nan]), np.array([epochs]))


def train_again(
    phase: str,
    config: Config,
    problem: Problem,
    points: list[dict[str, float]],
    choice: train.Selection,
    checkpoints: Path,
    on_epoch: OnEpoch,
    on_stage: OnStage = unseen,
) -> list[models.Tables]:
    """Trains the selected point with all seeds on the data of a phase, for the selected epochs.

    Returns:
      The serving tables of each seed's model, see :class:`Trained`.
    """
    protocol, swept = config.protocol, tuple(parse_sweep(config))
    fit = _fitter(config, resolve(config.objective, swept), problem, swept)
    best = {name: np.float32(value) for name, value in points[choice.point].items()}
    seeds = np.arange(protocol.seed, protocol.seed + protocol.seeds)
    on_stage(f"{phase}: compiling and first epoch")
    fitted = fit(
        problem.joined(problem.learned(phase, protocol.refit)),
        None,
        numbers={**best, "seeds": seeds},
        checkpoint=checkpoints / f"{phase}.npz",
        on_epoch=partial(on_epoch, phase, choice.epochs),
        stop_at=choice.epochs,
    )
    return [gathered(fitted.tables(i)) for i in range(fitted.n_runs)]


def score_seeds(
    tables: list[models.Tables],
    problem: Problem,
    ks: tuple[int, ...],
    on_stage: OnStage = unseen,
    mesh: Mesh | None = None,
) -> list[dict[str, float]]:
    """Computes the test metrics of every seed's model."""
    on_stage("planning evaluation")
    with spoken(test="the test part", train="the training part"):
        plan = metrics.eval_layout(problem.known, problem.test)
    on_stage("scoring the test set")
    return [score(of_seed, plan, ks, mesh) for of_seed in tables]


def score(
    tables: models.Tables,
    plan: metrics.EvalLayout,
    ks: tuple[int, ...],
    mesh: Mesh | None = None,
) -> dict[str, float]:
    """Computes the test metrics of one model, in display order."""
    found = metrics.evaluate(models.inner_scores, tables, plan, ks=ks, mesh=mesh)
    values = metrics.summarize(found)
    shown = [name for name in values if name.partition("@")[0] in METRICS]
    return {name: values[name] for name in sorted(shown, key=_reading_order)}


def summary(outcome: Outcome, history: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the content of ``metrics.json``.

    Args:
      outcome: Results of the run.
      history: All entries of its history.

    Returns:
      The mean of each metric over the seeds and, with several seeds, its standard deviation as
      ``NAME_std``; under ``chosen`` the selection on validation data: the ``epochs``, the ``point``
      of the sweep and, if there is a validation set, its ``valid_ndcg@20``; under ``trained_on``
      the data parts that the evaluated and the saved model were trained on; and the ``seconds`` of
      training.
    """
    per_seed, choice = outcome.per_seed, outcome.choice
    found: dict[str, Any] = over_seeds(per_seed)
    found["chosen"] = {"epochs": choice.epochs, "point": outcome.points[choice.point]}
    if not np.isnan(choice.score):
        found["chosen"][f"valid_ndcg@{VALIDATION_K}"] = choice.score
    found["trained_on"] = {"scored_model": outcome.scored_on, "saved_model": outcome.saved_on}
    last = {entry["phase"]: entry["seconds"] for entry in history}
    return found | {"seconds": round(sum(last.values()), 3)}


def _reading_order(name: str) -> tuple[int, int]:
    metric, _, k = name.partition("@")
    return METRICS.index(metric), int(k or 0)


def _fitter(
    config: Config, objective: Settled, problem: Problem, swept: tuple[str, ...]
) -> Callable[..., tasks.RankingResult]:
    options, encoding = config.training, objective.similar(config.encoding)

    def fit(
        part: data.Interactions,
        valid: data.Interactions | None,
        *,
        numbers: dict[str, Any],
        checkpoint: Path,
        on_epoch: Callable[[dict[str, Any]], None],
        stop_at: int | None = None,
    ) -> tasks.RankingResult:
        context = Context(part, config.source.data, objective.count("n_neg"))
        sampler, _ = resolve_sampler(config.sampling, context, swept, own=objective.sampler)
        encoder, contrast = model_on(part, encoding, config.contrasting, options.dim, swept)
        # Counting held-out items in a pool would cost as much as the loss.
        batches = None
        if options.batches == "host":
            seed = config.protocol.seed
            batches = tasks.host_interactions(part, options.batch_size, seed=seed)
        with spoken(test="the validation part", train="the training part"):
            return tasks.fit_ranking(
                part,
                valid,
                loss=objective.entry.loss,
                hyperparams=objective.hyperparams,
                encoder=encoder,
                sampler=sampler,
                n_neg=objective.count("n_neg"),
                optimizer=optimizer_of(options),
                config=train.TrainConfig(options.batch_size, mesh=mesh_of(config.output.mesh)),
                epochs=numbers.get("epochs", options.epochs),
                stopping=tasks.Stopping(
                    options.patience, options.eval_every, VALIDATION_K, stop_at
                ),
                options=tasks.RankingOptions(
                    n_pos=objective.count("n_pos"),
                    n_group=objective.count("n_group"),
                    hyperparam_schedule=objective.entry.schedule,
                    confidence=objective.confidence(part, options),
                    auxiliary_loss=contrast or objective.term,
                    batches=batches,
                    held_out=None if sampler.is_shared else problem.held_out(part),
                    init_scale=options.init_scale,
                    l2_target=options.l2_target,
                    serve_similarity=encoding.serve_similarity,
                ),
                seeds=numbers["seeds"],
                sweep=for_fit(config, objective, numbers),
                hooks=[
                    _checkpoint(checkpoint, config.output.checkpoint_seconds),
                    train.Progress(on_epoch),
                ],
            )

    return fit


@lru_cache(maxsize=1)
def model_on(
    part: data.Interactions,
    encoding: EncoderOptions,
    contrasting: ContrastOptions,
    dim: int,
    swept: tuple[str, ...],
) -> tuple[models.Encoder, tasks.AuxiliaryLoss | None]:
    """Returns the encoder and the auxiliary loss for training on ``part``; caches the last call.

    A large graph and its singular vectors take minutes: validation and training share them.
    """
    encoder = resolve_encoder(encoding, part, dim, swept)
    return resolve_contrast(contrasting, part, encoder, swept)


def _checkpoint(path: Path, seconds: float) -> train.Callback:
    """Returns the checkpoint hook of a phase: one file, or a folder shared by several processes."""
    folder = path.with_suffix("")
    if jax.process_count() == 1 and not folder.exists():
        return train.Checkpoint(path, seconds)
    if path.exists():
        raise ValueError(f"{path} was written by one process: go on with it without --processes.")
    return train.SharedCheckpoint(folder, seconds)


def for_fit(config: Config, objective: Settled, numbers: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of the runs by their names in :func:`crl_jax.tasks.fit_ranking`."""
    names = {
        "lr": "optimizer.learning_rate",
        "weight_decay": "optimizer.weight_decay",
        "decay": "optimizer.decay",
        "init_scale": "task.init_scale",
    }
    found = {names[name]: value for name, value in numbers.items() if name in names}
    fields = SAMPLERS[config.sampling.sampler].swept_fields(numbers)
    found |= objective.swept_fields(numbers)
    found |= swept_of_contrast(config.contrasting, numbers)
    return found | {f"task.sampler.{name}": value for name, value in fields.items()}
