"""Training of recommenders: the resolved options, and :func:`tasks.fit_ranking` with them."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from crl_jax import data, models, samplers, tasks, train

from .._mesh import make_mesh
from .._processes import checkpoint
from .._program import rename_arguments
from .._registry import filled, resolve_flags
from .._study import OnEntry, Runs
from ._config import SCHEMA, Config
from ._options import ContrastOptions, EncoderOptions
from ._problem import Problem
from ._update import make_optimizer
from .contrasts import resolve_contrast, resolve_contrast_flags
from .contrasts import swept_fields as contrast_swept_fields
from .encoders import ENCODERS, resolve_encoder
from .objectives import OBJECTIVES, ResolvedObjective, resolve
from .sampling import SAMPLERS, Context, resolve_sampler, resolve_sampler_flags
from .start import default_epochs

VALIDATION_K = 20
"""Cut-off of the validation metric, NDCG."""


def swept_names(config: Config) -> tuple[str, ...]:
    """Returns the names of the swept numbers."""
    return tuple(SCHEMA.axes(config))


def fit_defaults(config: Config, part: data.Interactions) -> Config:
    """Returns the configuration with the defaults that depend on the training part."""
    training: Any = config.training
    objective: Any = config.objective
    if training.epochs is None:
        epochs = default_epochs(len(part))
        config = replace(config, training=replace(training, epochs=epochs))
    hyperparams = OBJECTIVES[objective.loss].hyperparams
    if "tau_plus" in hyperparams and hyperparams["tau_plus"].default is None:
        missing = objective.tau_plus is None and "tau_plus" not in swept_names(config)
        if missing:
            config = replace(config, objective=replace(objective, tau_plus=part.density))
    return config


def get_objective(config: Config) -> ResolvedObjective:
    """Returns the loss with its hyper-parameters and defaults."""
    return resolve(config.objective, swept_names(config))


def resolve_options(config: Config) -> Config:
    """Returns the configuration with the defaults that do not depend on the data.

    Raises:
      ValueError: If flags contradict each other.
    """
    swept, objective = swept_names(config), get_objective(config)
    resolve_sampler_flags(config.sampling, swept, objective.sampler)
    values = dict(objective.values)
    if issubclass(SAMPLERS[config.sampling.sampler].source, samplers.InBatch):
        if (n_neg := getattr(config.objective, "n_neg", None)) is not None:
            raise ValueError(
                f"--sampler {config.sampling.sampler} draws no items, as the negatives are the "
                f"other positives of the batch: omit --n-neg {n_neg}."
            )
        values.pop("n_neg", None)
    encoding = objective.resolve_similarity(config.encoding)
    encoding = filled(encoding, resolve_flags("encoder", encoding, ENCODERS, swept), swept)
    contrast_values = resolve_contrast_flags(config.contrasting, encoding.encoder, swept)
    return replace(
        config,
        objective=filled(config.objective, values, swept),
        encoding=encoding,
        contrasting=filled(config.contrasting, contrast_values, swept),
    )


def sampler_on(part: data.Interactions, config: Config) -> tuple[samplers.Sampler, dict[str, Any]]:
    """Returns the sampler for training on ``part``, and the values of its flags."""
    objective = get_objective(config)
    context = Context(part, config.source.data, objective.count("n_neg"))
    return resolve_sampler(config.sampling, context, swept_names(config), own=objective.sampler)


@lru_cache(maxsize=1)
def model_on(
    part: data.Interactions, encoding: EncoderOptions, contrasting: ContrastOptions, dim: int,
    swept: tuple[str, ...],
) -> tuple[models.Encoder, tasks.AuxiliaryLoss | None]:  # fmt: skip
    """Returns the encoder and the auxiliary loss for training on ``part``; caches the last call.

    A large graph and its singular vectors take minutes: validation and training share them.
    """
    encoder = resolve_encoder(encoding, part, dim, swept)
    return resolve_contrast(contrasting, part, encoder, swept)


def train_points(
    problem: Problem, config: Config, runs: dict[str, np.ndarray], path: Path,
    report: Callable[[dict[str, Any]], None],
) -> tasks.RankingResult:  # fmt: skip
    """Trains points of a search, see :data:`experiments.recommend._tuning.FitPoints`."""
    return train_runs(config, problem, "search", runs, path, lambda _, entry: report(entry))


def train_runs(
    config: Config, problem: Problem, phase: str, numbers: dict[str, Any], path: Path,
    on_entry: OnEntry, stop_at: int | None = None, index: int = 0,
) -> tasks.RankingResult:  # fmt: skip
    """Trains runs with these seeds and swept numbers in parallel on the data of a phase.

    ``index`` is that of the training among those of the phase, from 0.
    """
    options, protocol, objective = config.training, config.protocol, get_objective(config)
    part, valid = problem.train, problem.valid
    if phase != "search":
        part, valid = problem.union(problem.parts_for(phase, protocol.final_training)), None
    sampler, _ = sampler_on(part, config)
    encoding = objective.resolve_similarity(config.encoding)
    swept = swept_names(config)
    encoder, contrast = model_on(part, encoding, config.contrasting, options.dim, swept)
    batches, batch_size = None, int(options.batch_size)
    if options.batches == "host":
        batches = tasks.host_interactions(part, batch_size, seed=protocol.seed)
    numbers = scaled_rates(config, numbers)
    epochs = numbers.get("epochs", options.epochs)
    runs = Runs(phase, len(numbers["seeds"]), stop_at or int(np.max(epochs)), index)
    with rename_arguments(test="the validation part", train="the training part"):
        return tasks.fit_ranking(
            part,
            valid,
            loss=objective.loss,
            hyperparams=objective.hyperparams,
            encoder=encoder,
            sampler=sampler,
            n_neg=objective.count("n_neg"),
            optimizer=make_optimizer(options),
            config=train.TrainConfig(batch_size, mesh=make_mesh(config.output.mesh)),
            epochs=epochs,
            stopping=tasks.Stopping(options.patience, options.eval_every, VALIDATION_K, stop_at),
            options=tasks.RankingOptions(
                n_pos=objective.count("n_pos"),
                n_group=objective.count("n_group"),
                hyperparam_schedule=objective.entry.schedule,
                hyperparam_estimator=hyperparam_estimator(config),
                confidence=objective.confidence(part, options),
                auxiliary_loss=contrast or objective.term,
                batches=batches,
                # Counting held-out items in a shared pool would cost as much as the loss.
                held_out=None if sampler.is_shared else problem.held_out(part),
                init_scale=options.init_scale,
                l2_target=options.l2_target,
                serve_similarity=encoding.serve_similarity,
            ),
            seeds=numbers["seeds"],
            sweep=sweep_paths(config, objective, numbers),
            hooks=[
                checkpoint(path, config.output.checkpoint_seconds),
                train.Progress(partial(on_entry, runs)),
            ],
        )


def hyperparam_estimator(config: Config) -> tasks.HyperparamEstimator | None:
    """Returns the estimator of alpha of ``--debias auto``, for losses that take it."""
    is_auto = config.protocol.debias == "auto"
    hyperparams = OBJECTIVES[config.objective.loss].hyperparams
    return tasks.alpha_from_batch if is_auto and "alpha" in hyperparams else None


def scaled_rates(config: Config, numbers: dict[str, Any]) -> dict[str, Any]:
    """Multiplies the swept learning rates by ``--lr-scale``."""
    scale = config.training.lr_scale
    return {name: x * scale if name == "lr" else x for name, x in numbers.items()}


def sweep_paths(
    config: Config, objective: ResolvedObjective, numbers: dict[str, Any]
) -> dict[str, Any]:
    """Returns swept numbers by the paths of :func:`crl_jax.tasks.fit_ranking`."""
    names = {
        "lr": "optimizer.learning_rate",
        "weight_decay": "optimizer.weight_decay",
        "decay": "optimizer.decay",
        "init_scale": "task.init_scale",
    }
    paths = {names[name]: value for name, value in numbers.items() if name in names}
    fields = SAMPLERS[config.sampling.sampler].swept_fields(numbers)
    paths |= objective.swept_fields(numbers)
    paths |= contrast_swept_fields(config.contrasting, numbers)
    return paths | {f"task.sampler.{name}": value for name, value in fields.items()}
