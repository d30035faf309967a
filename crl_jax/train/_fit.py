"""The host's loop: some epochs in one compiled call, a report, and on."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from ._batches import ArrayBatches, HostBatches
from ._callbacks import Callback, TrainingLoop
from ._epoch import (
    Inputs,
    Program,
    RunStates,
    run_epochs,
    run_epochs_from_host,
    start_runs,
    trace_chunk,
)
from ._fingerprint import describe, hash_program
from ._hooks import EarlyStopping, Hook
from ._optimizers import AnyOptimizer, OptaxOptimizer
from ._scan import TrainConfig, updates_per_epoch
from ._sharding import Sharding, put_everywhere
from ._task import State, Task
from ._validation import broadcast_run_params, check_fit, check_run_params


class TrainingDiverged(RuntimeError):
    """Every run's loss became infinite or NaN."""


@dataclass(frozen=True)
class FitResult:
    """What :func:`fit` returns.

    Attributes:
      params: Best parameters of every run, leading axis ``runs``; without :class:`EarlyStopping`
        those
        after its last epoch.
      state: All that changed, after the last epoch, leading axis ``runs``.
      memories: What the hooks remember, in their order.
      numbers: The numbers each run trained with, arrays of length ``runs``.
      best_epoch: Epochs after which the best parameters were taken, ``[runs]``.
      best_score: Their score, ``[runs]``; NaN without one.
      history: One dictionary per report: ``epoch``; ``loss``, the metrics of the task and of the
        hooks (lists over runs); ``seconds``.
    """

    params: Any
    state: State
    memories: tuple[Any, ...]
    numbers: dict[str, np.ndarray]
    best_epoch: np.ndarray
    best_score: np.ndarray
    history: list[dict[str, Any]]

    @property
    def n_runs(self) -> int:
        """Number of runs trained together."""
        return len(self.best_epoch)

    def run(self, index: int = 0) -> Any:
        """Parameters of one run, without the leading axis."""
        return jax.tree.map(lambda leaf: leaf[index], self.params)


def fit(
    task: Task,
    optimizer: AnyOptimizer | optax.GradientTransformation,
    batches: ArrayBatches | HostBatches,
    config: TrainConfig,
    *,
    epochs: Any,
    seeds: Any = 0,
    sweep: Mapping[str, Any] | None = None,
    hooks: Sequence[Hook | Callback] = (),
    eval_every: int = 1,
    stop_at: int | None = None,
) -> FitResult:
    """Trains a task, one run or many at once.

    With :class:`ArrayBatches` everything between two reports is one compiled call. The same call
    on the same machine gives the same bits, resumed or not. A second call whose functions and
    shapes are those of the first compiles nothing.

    Args:
      task: What is trained.
      optimizer: An :class:`Optimizer` or, for large tables, a :class:`RowOptimizer`, whose numbers
        can be swept; or an Optax transformation with its own schedules.
      batches: The examples.
      plan: How steps are taken.
      epochs: Length of the training; may be an array ``[runs]``.
      seeds: Seed or seeds, ``[runs]``; each fixes a run's initial values, orders and draws.
      sweep: Arrays ``[runs]``, or numbers for all, by the path of the leaf that they replace:
        ``"task.hyperparams.tau_plus"``, ``"optimizer.learning_rate"``. The runs train side by
        side under ``vmap``.
      hooks: What is measured and who looks on. Hooks on the device see what those before them
        measured. A :class:`Checkpoint` stands before a :class:`Progress`.
      eval_every: Epochs between two reports.
      stop_at: Ends all runs after this many epochs without changing the schedule.

    Returns:
      The :class:`FitResult` runs.

    Raises:
      ValueError: If an argument is out of range, or the number of runs is not the same everywhere.
      TrainingDiverged: If every run's loss became infinite or NaN.
    """
    if isinstance(optimizer, optax.GradientTransformation):
        optimizer = OptaxOptimizer(optimizer)
    check_fit(config, task, optimizer, batches, eval_every=eval_every, stop_at=stop_at)
    numbers = broadcast_run_params({"epochs": epochs, "seed": seeds, **(sweep or {})})
    swept = {path: numbers[path] for path in sweep or {}}
    check_run_params({"task": task, "optimizer": optimizer}, swept)
    on_device = tuple(hook for hook in hooks if isinstance(hook, Hook))
    arrays = batches if isinstance(batches, ArrayBatches) else None
    fixed = Inputs(task, optimizer, arrays, on_device)
    per_epoch = None if batches.n is None else updates_per_epoch(batches.n, config)
    sharding = None if config.mesh is None else Sharding.from_task(config.mesh, task)
    program = Program(config, tuple(sweep or {}), per_epoch, sharding)
    runs = {name: jnp.asarray(value) for name, value in numbers.items()}
    placed = {"runs": runs, "fixed": fixed}
    if config.mesh is not None:
        placed["fixed"] = fixed._replace(task=task.shard(config.mesh))
        placed = put_everywhere(config.mesh, placed)
    state = start_runs(**placed, program=program)
    advance: Callable[..., Any] = partial(run_epochs, **placed, program=program)
    if isinstance(batches, HostBatches):
        advance = partial(run_epochs_from_host, batches, **placed, program=program)

    last_epoch = int(min(stop_at or np.inf, numbers["epochs"].max()))
    loop = TrainingLoop(state, 0, [], 0.0, sharding=sharding)
    del state  # the loop donates it
    # A checkpoint goes on with other devices too: a training is told by the program for one.
    program = Program(dataclasses.replace(config, mesh=None), program.paths, per_epoch)
    # Of shapes alone: arrays would stay in memory.
    whole = jax.eval_shape(loop.whole)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), whole)
    trace = partial(run_epochs.trace, shapes, n_epochs=min(eval_every, last_epoch))
    if isinstance(batches, HostBatches):
        trace = partial(trace_chunk, batches, shapes)
    trace = partial(trace, runs=runs, fixed=fixed, epoch=np.int32(0), program=program)
    loop.identity = partial(_identify, numbers, fixed, [stop_at, eval_every], trace)
    _go(loop, advance, last_epoch, eval_every, [h for h in hooks if isinstance(h, Callback)])
    return _fitted(loop, on_device, numbers)


def _go(
    loop: TrainingLoop,
    advance: Callable[..., tuple[RunStates, dict[str, Array]]],
    last_epoch: int,
    eval_every: int,
    callbacks: list[Callback],
) -> None:
    """Trains until all runs have ended."""
    for callback in callbacks:
        callback.on_start(loop)
    before, started = loop.seconds, time.monotonic()
    if loop.sharding is not None:
        loop.state = loop.sharding.place(loop.state)
    # Own buffers: the loop donates them.
    loop.state = _copied(loop.state)
    while loop.epoch < last_epoch and not np.all(loop.state.stopped):
        n_epochs = min(eval_every, last_epoch - loop.epoch)
        loop.state, report = advance(loop.state, epoch=np.int32(loop.epoch), n_epochs=n_epochs)
        values = {name: value.tolist() for name, value in jax.device_get(report).items()}
        loop.epoch += n_epochs
        loop.seconds = round(before + time.monotonic() - started, 3)
        loop.history.append({"epoch": loop.epoch, **values, "seconds": loop.seconds})
        if not np.isfinite(values["loss"]).any():
            raise TrainingDiverged(
                f"The loss of every run is infinite or NaN at epoch {loop.epoch}: "
                "try a smaller learning rate or a larger temperature."
            )
        for callback in callbacks:
            callback.on_report(loop)
    for callback in callbacks:
        callback.on_end(loop)
    losses = loop.history[-1]["loss"]
    if lost := int(np.sum(~np.isfinite(losses))):
        warnings.warn(f"{lost} of {len(losses)} runs diverged.", stacklevel=3)


@jax.jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def _fitted(
    loop: TrainingLoop, hooks: tuple[Hook, ...], numbers: dict[str, np.ndarray]
) -> FitResult:
    state, memories, _ = loop.whole()
    kept = next((m for h, m in zip(hooks, memories) if isinstance(h, EarlyStopping)), None)
    runs = len(numbers["seed"])
    params, score, epoch = kept or (state.params, np.full(runs, np.nan), np.full(runs, loop.epoch))
    return FitResult(
        params=params,
        state=state,
        memories=memories,
        numbers=numbers,
        best_epoch=np.asarray(epoch),
        best_score=np.asarray(score),
        history=loop.history,
    )


def _identify(
    numbers: dict[str, np.ndarray], fixed: Inputs, choice: list[Any], trace: Callable[[], Any]
) -> dict[str, Any]:
    """What tells this training from others: its numbers, its data, what it computes."""
    return {
        "runs": {name: value.tolist() for name, value in numbers.items()},
        **describe({"batches": fixed.batches, **fixed._asdict()}),
        "choice": choice,
        "program": hash_program(trace()),
    }
