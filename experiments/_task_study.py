"""Base class of the commands that train a :class:`crl_jax.train.Task`, one run at a time."""

import dataclasses
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from crl_jax import models, train

from ._mesh import make_mesh
from ._processes import checkpoint, gather
from ._registry import filled
from ._screen import cell, seeds_suffix
from ._study import (
    C,
    OnEntry,
    OnStage,
    P,
    Run,
    SearchResult,
    Study,
    grid_points,
    no_search,
    select_point,
)
from ._study_options import make_optimizer
from ._trained_model import TrainedModel
from .view_losses import complete_loss

_LAST = 3
"""Number of last reports whose mean is the score of a run."""
OnLine = Callable[[dict[str, Any]], None]
"""Callback ``on_entry(entry)``, called with each entry of the history."""


class TaskStudy(Study[C, P]):
    """Study that trains a :class:`crl_jax.train.Task`, one run at a time.

    Attributes:
      names: Display names of the test metrics.
      curves: Display names of the plotted columns of the history.
    """

    names: ClassVar[Mapping[str, str]]
    curves: ClassVar[Mapping[str, str]]

    def complete_entries(self, config: Any, *, but: str = "", **loss_defaults: float) -> Any:
        """Returns the configuration with the defaults of the chosen loss, encoder and method.

        Args:
          config: The configuration.
          but: Choice whose flags remain unchanged.
          **loss_defaults: Defaults of the data, such as ``tau_plus``, for hyper-parameters of the
            loss without one.
        """
        swept = tuple(self.schema.axes(config))
        values = self.schema.resolve_flags(config)
        values["loss"] = complete_loss(values["loss"], loss_defaults)
        for section, choice, _ in self.schema.choices:
            if choice != but:
                options = filled(getattr(config, section), values[choice], swept)
                config = replace(config, **{section: options})
        return config

    @abstractmethod
    def task(self, config: C, problem: P, phase: str, numbers: dict[str, float]) -> train.Task:
        """Returns the training task of a phase.

        Args:
          config: The configuration.
          problem: The data.
          phase: ``"search"`` or ``"final"``.
          numbers: Values of a sweep, which override those of the flags.

        Raises:
          ValueError: If flags contradict each other or are incompatible with the data.
        """

    @abstractmethod
    def batches(self, config: C, problem: P, phase: str) -> train.ArrayBatches:
        """Returns the training examples of a phase, in host memory."""

    @abstractmethod
    def measure(self, config: C, problem: P, phase: str) -> Callable[..., Any] | None:
        """Returns the metric function of reports, see :class:`crl_jax.train.ValidationMetrics`."""

    def check_step(self, config: Any, problem: P) -> None:
        """Traces a training step at the first point of the sweep, without executing it.

        Raises:
          ValueError: If there are too few examples for a batch, or if flags contradict each other
            or are incompatible with the data.
        """
        axes = self.schema.axes(config)
        phase, size = "search" if axes else "final", config.training.batch_size
        data = self.batches(config, problem, phase).data
        n = len(jax.tree.leaves(data)[0])
        if n < size:
            raise ValueError(
                f"--batch-size must be at most the {n} training {self.unit}, got {size}."
            )
        task = self.task(config, problem, phase, {name: v[0] for name, v in axes.items()})
        trace_step(
            with_remat(task, config.training.remat), jax.tree.map(lambda leaf: leaf[:size], data)
        )

    def count(self, config: C, problem: P, phase: str, stage: str) -> int:
        """See :meth:`Study.count`."""
        del stage
        return self.batches(config, problem, phase).n

    def fit(self, config: Any, problem: P, run: Run, checkpoints: Path, on_entry: OnLine) -> Any:
        """Trains a run, resuming from its checkpoints if there are any.

        Returns:
          A training result with the ``history`` of its last stage.
        """
        return self.fit_stage(
            config, run, checkpoints, on_entry,
            task=self.task(config, problem, run.phase, run.numbers),
            batches=self.batches(config, problem, run.phase),
            measure=self.measure(config, problem, run.phase),
        )  # fmt: skip

    def fit_stage(
        self, config: Any, run: Run, checkpoints: Path, on_entry: OnLine, *, task: Any,
        batches: train.ArrayBatches, measure: Callable[..., Any] | None, stage: str = "",
        numbers: dict[str, float] | None = None,
    ) -> train.FitResult:  # fmt: skip
        """Trains one stage, see :meth:`fit`.

        Args:
          config, run, checkpoints, on_entry: See :meth:`fit`.
          task: The task.
          batches: The examples, in host or device memory.
          measure: Metric function of the reports, or None.
          stage: Name of the stage.
          numbers: Values of a sweep for the optimizer; by default those of the run.
        """
        options, output = config.training, config.output
        patience, stopping = early_stopping_patience(config), []
        if measure is not None and patience is not None:
            stopping = [train.EarlyStopping(self.selection_score(config), patience)]
        source: Any
        if getattr(options, "batches", "device") != "device":
            source = train.HostBatches.from_arrays(batches.data, options.batch_size, seed=run.seed)
        else:
            source = jax.tree.map(jnp.asarray, batches)
        name = "-".join([run.phase, str(run.index), *([stage] if stage else [])])
        fitted = train.fit(
            with_remat(task, options.remat),
            make_optimizer(options, run.numbers if numbers is None else numbers),
            source,
            train.TrainConfig(
                options.batch_size,
                compute_dtype=None if options.compute_dtype == "float32" else options.compute_dtype,
                mesh=make_mesh(output.mesh),
            ),
            epochs=self.epochs(config, stage),
            seeds=run.seed,
            eval_every=options.eval_every,
            hooks=[
                *([] if measure is None else [train.ValidationMetrics(measure)]),
                *stopping,
                checkpoint(checkpoints / f"{name}.npz", output.checkpoint_seconds),
                train.Progress(on_entry),
            ],
        )
        learned = gather((fitted.params, fitted.state.model_state))
        params, model_state = jax.tree.map(jnp.asarray, learned)
        return replace(fitted, params=params, state=fitted.state._replace(model_state=model_state))

    def trained(self, config: C, problem: P, run: Run, fitted: Any) -> Any:
        """Returns the learned model of a final run, which is evaluated, saved and plotted."""
        return TrainedModel.from_fit(self.task(config, problem, run.phase, run.numbers), fitted)

    def search(
        self, config: Any, problem: P, checkpoints: Path, on_entry: OnEntry, on_stage: OnStage
    ) -> SearchResult:
        """See :meth:`Study.search`.

        The score of a run is the mean of its last three reports, or its best with early stopping;
        that of a point is the mean over its seeds.
        """
        protocol = config.protocol
        # The score of the last stage selects the point.
        *_, epochs = (n for stage in self.stages if (n := self.epochs(config, stage)))
        axes = self.schema.axes(config)
        if not axes:
            return no_search(epochs)
        on_stage("search: compiling and first epoch")
        points = grid_points(axes)
        seeds = range(protocol.seed, protocol.seed + protocol.search_seeds)
        shape, scores, stop_epochs = (len(points), len(seeds)), [], []
        for i, (point, seed) in enumerate(itertools.product(points, seeds)):
            run = Run("search", i, math.prod(shape), seed, point)
            try:
                fitted = self.fit(config, problem, run, checkpoints, partial(on_entry, run))
            except train.TrainingDiverged:
                scores.append(np.nan)
                stop_epochs.append(0)
                continue
            if early_stopping_patience(config) is None:
                last = [entry[self.selection_score(config)][0] for entry in fitted.history[-_LAST:]]
                scores.append(float(np.mean(last)))
                stop_epochs.append(epochs)
            else:
                scores.append(float(fitted.best_score[0]))
                stop_epochs.append(int(fitted.best_epoch[0]))
        return select_point(points, np.reshape(scores, shape), np.reshape(stop_epochs, shape))

    def train_models(
        self, config: Any, problem: P, phase: str, searched: SearchResult, checkpoints: Path,
        on_entry: OnEntry, on_stage: OnStage,
    ) -> Iterator[list[Any]]:  # fmt: skip
        """See :meth:`Study.train_models`; each seed is trained when its model is requested."""
        for index in range(config.protocol.seeds):
            on_stage(f"{phase}: compiling and first epoch")
            yield [learn(self, config, problem, searched.point, index, checkpoints, on_entry)]

    def save_models(
        self, config: C, problem: P, phase: str, models: list[Any], folder: Path
    ) -> None:
        """See :meth:`Study.save_models`."""
        self.save(models[0], folder)

    @abstractmethod
    def save(self, learned: Any, folder: Path) -> None:
        """Saves the learned model of the first seed."""

    def draw_curves(
        self, config: C, problem: P, searched: SearchResult, history: list[dict[str, Any]],
        title: str, path: Path,
    ) -> None:  # fmt: skip
        """See :meth:`Study.draw_curves`."""
        from ._plots import draw_reports  # Matplotlib is slow to import

        draw_reports(path, history, title, self.curves)

    def report(
        self, config: C, problem: P, searched: SearchResult, per_seed: list[dict[str, float]]
    ) -> Iterable[str | Table]:
        """See :meth:`Study.report`."""
        table = Table(title=f"Test set{seeds_suffix(len(per_seed))}")
        table.add_column("metric")
        table.add_column("value", justify="right")
        for name in per_seed[0]:
            table.add_row(self.names[name], cell([metrics[name] for metrics in per_seed]))
        yield table


def learn(
    study: TaskStudy[Any, P], config: Any, problem: P, point: dict[str, float], index: int,
    checkpoints: Path, on_entry: OnEntry,
) -> Any:  # fmt: skip
    """Trains the final run of one seed at a point of the sweep and returns the learned model."""
    protocol = config.protocol
    run = Run("final", index, protocol.seeds, protocol.seed + index, point)
    fitted = study.fit(config, problem, run, checkpoints, partial(on_entry, run))
    return study.trained(config, problem, run, fitted)


def early_stopping_patience(config: Any) -> int | None:
    """Returns the patience of early stopping; None for commands and runs without it."""
    return getattr(config.training, "patience", None)


def with_remat(task: Any, remat: models.Remat) -> Any:
    """Returns the task with networks that are rematerialised, see :data:`crl_jax.models.Remat`.

    Networks without blocks, such as a predictor, are unchanged.

    Raises:
      ValueError: If no network of the task has blocks.
    """
    if remat == "none":
        return task
    networks = {
        field.name: network for field in dataclasses.fields(task)
        if isinstance(network := getattr(task, field.name), models.Network) and network.has_blocks
    }  # fmt: skip
    if not networks:
        raise ValueError(f"--remat {remat}: the network has no blocks to rematerialise.")
    return replace(
        task, **{name: replace(network, remat=remat) for name, network in networks.items()}
    )


def trace_step(task: train.Task, examples: Any) -> Any:
    """Traces a step of a training, without executing it, and returns the shape of its loss.

    Args:
      task: The task.
      examples: A batch of its data, with leaves ``[batch, ...]``.

    Raises:
      ValueError: If numbers of the task contradict each other or are invalid for the examples.
    """
    n = len(jax.tree.leaves(examples)[0])

    def step(examples: Any) -> Any:
        key, zero = jax.random.key(0), jnp.float32(0)
        params, model_state = task.init(key)
        model_state = task.start_epoch(key, params, model_state, jnp.int32(0))
        batch = task.batch(key, train.Batch(jnp.arange(n, dtype=jnp.int32), examples))
        ctx = train.StepContext(key, jnp.int32(0), zero, jnp.ones(n, bool), jnp.float32(n))
        return task.loss(params, model_state, batch, ctx)[0]

    return jax.eval_shape(step, examples)
