"""What a run trains: the two stages of the flags."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from crl_jax import models, tasks, train

from .. import _traced as traced
from .._learned import Learned
from .._mesh import mesh_of
from .._registry import settle
from .._study import Run
from .._study_options import optimizer_of
from ..view_losses import parts_of_loss
from . import _reports as reports
from ._config import Config
from ._problem import Part, Problem
from .losses import LOSSES
from .methods import METHODS, Parts

PRE_TRAINING, FINE_TUNING = "pre-training", "fine-tuning"
_OF_FINE_TUNING = {"loss": "fine_tune_loss", "accuracy": "train_accuracy"}
"""Names in the history, where those of the task would stand for two things."""

OnEntry = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Trained:
    """What the stages of a training come to.

    Attributes:
      contrast: What pre-training learned, with its head; None without it.
      start: The encoder before fine-tuning: its parameters and its other variables.
      classifier: What fine-tuning learned; None without it.
      history: The entries of the last stage.
    """

    contrast: Learned | None
    start: tuple[Any, Any]
    classifier: Learned | None
    history: list[dict[str, Any]]


def fit(
    config: Config, problem: Problem, run: Run, checkpoints: Path, on_entry: OnEntry
) -> Trained:
    """Both stages, each of which goes on from its checkpoint if there is one."""
    options, contrast, classifier = config.training, None, None
    history: list[dict[str, Any]] = []

    def stage(
        name: str, task: Any, numbers: dict[str, float], batches: Any, epochs: int, measured: Any
    ) -> Learned:
        renamed = _OF_FINE_TUNING if name == FINE_TUNING else {}
        history.clear()

        def see(entry: dict[str, Any]) -> None:
            entry = {renamed.get(key, key): value for key, value in entry.items()}
            history.append(entry)
            on_entry({"stage": name, **entry})

        path = checkpoints / f"{run.phase}-{run.index}-{name}.npz"
        hooks = [train.Checkpoint(path, config.output.checkpoint_seconds), train.Progress(see)]
        if measured is not None:
            hooks.insert(0, train.ValidationMetrics(measured))
        fitted = train.fit(
            task, optimizer_of(options, numbers), batches,
            train.TrainConfig(options.batch_size, mesh=mesh_of(config.output.mesh)),
            epochs=epochs, seeds=run.seed, eval_every=options.eval_every, hooks=hooks,
        )  # fmt: skip
        return Learned.of(task, fitted)

    if METHODS[config.method.method].make is not None:
        contrast = stage(
            PRE_TRAINING, task_of(config, problem, run.phase, run.numbers), run.numbers,
            batches_of(config, problem, run.phase), options.epochs,
            reports.of_features(config, problem, run.phase),
        )  # fmt: skip
    start = start_of(config, problem, run.seed, contrast)
    if options.fine_tune_epochs:
        rate: Any = run.numbers.get("fine_tune_lr", options.fine_tune_lr)
        classifier = stage(
            FINE_TUNING, classification_of(problem, start), {**run.numbers, "lr": rate},
            train.ArrayBatches(reports.part_of(problem, run.phase).labelled.data),
            options.fine_tune_epochs, reports.right(problem) if run.phase == "search" else None,
        )  # fmt: skip
    return Trained(contrast, start, classifier, history)


def pre_trained_on(config: Config, problem: Problem, phase: str) -> Part:
    """What the pre-training of a phase learns from: with labels, only texts that have some."""
    part = reports.part_of(problem, phase)
    return part.labelled if METHODS[config.method.method].needs_labels else part


def batches_of(config: Config, problem: Problem, phase: str) -> train.ArrayBatches:
    """The texts of pre-training, each once in an epoch or drawn."""
    part = pre_trained_on(config, problem, phase)
    # Of texts that have no classes nothing is said in the history by labels.
    examples = part.data if part.classes else jnp.asarray(part.places)
    draws = settle("method", config.method, METHODS).get("draws")
    if draws is None:
        return train.ArrayBatches(examples)
    return tasks.ResampledBatches(examples, n_draws=draws)


def with_head(config: Config, problem: Problem) -> models.Network:
    """The network of pre-training."""
    head = models.Projection(config.training.head, norm=False)
    return models.Network(models.BackboneWithHead(problem.encoder.settings, head))


def task_of(config: Config, problem: Problem, phase: str, numbers: dict[str, float]) -> Any:
    """The task of pre-training, with the numbers of a sweep in place of the flags'.

    Raises:
      ValueError: If flags contradict each other or do not suit the texts.
    """
    method = METHODS[config.method.method]
    assert method.make is not None
    of_method: dict[str, Any] = settle("method", config.method, METHODS, tuple(numbers)) | numbers
    hyperparams, alpha = parts_of_loss(config.objective, of_method["temperature"], numbers, LOSSES)
    loss = {
        "hyperparams": hyperparams, "loss_fn": LOSSES[config.objective.loss].loss, "alpha": alpha,
    }  # fmt: skip
    params, labelled = problem.encoder.params, reports.part_of(problem, phase).labelled.data
    return method.make(
        Parts(
            with_head(config, problem), problem.table, labelled, loss,
            None if params is None else {"backbone": params},
        )
    )  # fmt: skip


def start_of(
    config: Config, problem: Problem, seed: int, contrast: Learned | None
) -> tuple[Any, Any]:
    """The encoder before fine-tuning: as pre-training left it, or as that would begin."""
    if contrast is not None:
        params, rest = contrast.task.network_variables(contrast.params, contrast.model_state)
    else:
        given = problem.encoder.params
        task = tasks.SimCLR(
            with_head(config, problem), problem.table,
            pretrained=None if given is None else {"backbone": given},
        )  # fmt: skip
        params, rest = task.init(jax.random.key(seed))
    return params["backbone"], rest["backbone"]


def classification_of(problem: Problem, start: tuple[Any, Any]) -> tasks.Classification:
    """The task of fine-tuning: the encoder, and a linear layer on its features."""
    settings = problem.encoder.settings
    return tasks.Classification(
        models.Network(settings), problem.table, start, dim=settings.width,
        n_classes=len(problem.train.classes), finetune=True,
    )  # fmt: skip


def trace_step(config: Config, problem: Problem, phase: str, numbers: dict[str, float]) -> Any:
    """Looks through a step of pre-training, without computing anything.

    Raises:
      ValueError: If flags contradict each other or do not suit the texts.
    """
    some = jnp.arange(config.training.batch_size, dtype=jnp.int32)
    examples = tasks.LabelledExamples(some, jnp.zeros_like(some))
    return traced.trace_step(task_of(config, problem, phase, numbers), examples)
