"""Training loop on the host: compiled epochs, reports and callbacks."""

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
from jaxtyping import Array

from ._batches import ArrayBatches, HostBatches
from ._epoch import (
    Inputs,
    RunStates,
    StaticInputs,
    run_epochs,
    run_epochs_from_host,
    start_runs,
    trace_chunk,
)
from ._fingerprint import fingerprint
from ._hooks import Callback, EarlyStopping, Hook, TrainingLoop
from ._optimizers import wrap_optax
from ._scan import TrainConfig, updates_per_epoch
from ._sharding import Sharding, replicate
from ._task import State, Task
from ._validation import broadcast_run_params, check_fit, check_run_params


class TrainingDiverged(RuntimeError):
    """Raised if the losses of all runs are infinite or NaN."""


@dataclass(frozen=True)
class FitResult:
    """Result of :func:`fit`.

    Attributes:
      params: Best parameters of every run, leading axis ``runs``; without :class:`EarlyStopping`
        those after its last epoch.
      state: States after the last epoch, leading axis ``runs``.
      hook_states: Final states of the hooks, in their order.
      run_params: Seed, number of epochs and swept hyper-parameters of each run, ``[runs]``.
      best_epoch: Epochs of the best parameters, ``[runs]``.
      best_score: Their scores, ``[runs]``; NaN without a metric.
      history: One dictionary per report: ``epoch``; ``loss``, metrics of the task and of the hooks
        (lists over runs); ``seconds``.
    """

    params: Any
    state: State
    hook_states: tuple[Any, ...]
    run_params: dict[str, np.ndarray]
    best_epoch: np.ndarray
    best_score: np.ndarray
    history: list[dict[str, Any]]

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return len(self.best_epoch)

    def run(self, index: int = 0) -> Any:
        """Returns the parameters of one run, without the leading axis."""
        return jax.tree.map(lambda leaf: leaf[index], self.params)


def fit(
    task: Task,
    optimizer: Any,
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
    """Trains a task, one run or many in parallel.

    With :class:`ArrayBatches` all epochs between two reports are one compiled call. The same call
    on the same machine is reproducible bit for bit, also when resumed from a checkpoint. A second
    call with the same functions and shapes does not recompile.

    Args:
      task: The task.
      optimizer: An :class:`Optimizer` or, for large tables, a :class:`RowOptimizer`, whose
        hyper-parameters can be swept; or any Optax optimizer (an object with ``init`` and
        ``update``) with its own schedules.
      batches: Source of the examples.
      config: Configuration of the steps.
      epochs: Number of epochs; may be an array ``[runs]``.
      seeds: Seed or seeds, ``[runs]``, of initial values, orders and samples.
      sweep: Arrays ``[runs]`` or scalars by the path of the leaf that they replace:
        ``"task.hyperparams.tau_plus"``, ``"optimizer.learning_rate"``. The runs train in parallel
        under ``vmap``.
      hooks: Hooks and callbacks. A hook sees the metrics of preceding hooks. A
        :class:`Checkpoint` must precede a :class:`Progress`.
      eval_every: Number of epochs between two reports.
      stop_at: Number of epochs after which all runs stop, without changing the schedule.

    Returns:
      A :class:`FitResult`.

    Raises:
      ValueError: If an argument is invalid or the numbers of runs differ.
      TrainingDiverged: If the losses of all runs are infinite or NaN.
    """
    optimizer = wrap_optax(optimizer)
    check_fit(config, task, optimizer, batches, eval_every=eval_every, stop_at=stop_at)
    run_params = broadcast_run_params({"epochs": epochs, "seed": seeds, **(sweep or {})})
    swept = {path: run_params[path] for path in sweep or {}}
    check_run_params({"task": task, "optimizer": optimizer}, swept)
    device_hooks = tuple(hook for hook in hooks if isinstance(hook, Hook))
    arrays = batches if isinstance(batches, ArrayBatches) else None
    inputs = Inputs(task, optimizer, arrays, device_hooks)
    n_updates = None if batches.n is None else updates_per_epoch(batches.n, config)
    sharding = None if config.mesh is None else Sharding.from_task(config.mesh, task)
    static = StaticInputs(config, tuple(swept), n_updates, sharding)
    runs = {name: jnp.asarray(value) for name, value in run_params.items()}
    placed = {"runs": runs, "inputs": inputs}
    if config.mesh is not None:
        placed["inputs"] = inputs._replace(task=task.shard(config.mesh))
        placed = replicate(config.mesh, placed)
    state = start_runs(**placed, static=static)
    advance: Callable[..., Any] = partial(run_epochs, **placed, static=static)
    if isinstance(batches, HostBatches):
        advance = partial(run_epochs_from_host, batches, **placed, static=static)

    last_epoch = int(min(stop_at or np.inf, run_params["epochs"].max()))
    loop = TrainingLoop(state, 0, [], 0.0, sharding=sharding)
    del state  # donated by the loop
    # Checkpoints may be resumed on other devices: the fingerprint is that of a single device.
    static = StaticInputs(dataclasses.replace(config, mesh=None), static.swept_paths, n_updates)
    # Shapes only, so that no arrays are kept alive.
    unpadded = jax.eval_shape(loop.unpadded_state)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), unpadded)
    trace = partial(run_epochs.trace, shapes, n_epochs=min(eval_every, last_epoch))
    if isinstance(batches, HostBatches):
        trace = partial(trace_chunk, batches, shapes)
    trace = partial(trace, runs=runs, inputs=inputs, epoch=np.int32(0), static=static)
    loop.fingerprint = partial(fingerprint, run_params, inputs, [stop_at, eval_every], trace)
    _run_loop(loop, advance, last_epoch, eval_every, [h for h in hooks if isinstance(h, Callback)])
    return _result(loop, device_hooks, run_params)


def _run_loop(
    loop: TrainingLoop,
    advance: Callable[..., tuple[RunStates, dict[str, Array]]],
    last_epoch: int,
    eval_every: int,
    callbacks: list[Callback],
) -> None:
    """Trains until all runs have stopped."""
    for callback in callbacks:
        callback.on_start(loop)
    seconds, start = loop.seconds, time.monotonic()
    if loop.sharding is not None:
        loop.state = loop.sharding.device_put(loop.state)
    # Copies, because the loop donates its buffers.
    loop.state = _copy(loop.state)
    while loop.epoch < last_epoch and not np.all(loop.state.stopped):
        n_epochs = min(eval_every, last_epoch - loop.epoch)
        loop.state, report = advance(loop.state, epoch=np.int32(loop.epoch), n_epochs=n_epochs)
        values = {name: value.tolist() for name, value in jax.device_get(report).items()}
        loop.epoch += n_epochs
        loop.seconds = round(seconds + time.monotonic() - start, 3)
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
    if n_diverged := int(np.sum(~np.isfinite(losses))):
        warnings.warn(f"{n_diverged} of {len(losses)} runs diverged.", stacklevel=3)


@jax.jit
def _copy(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def _result(
    loop: TrainingLoop, hooks: tuple[Hook, ...], run_params: dict[str, np.ndarray]
) -> FitResult:
    state, hook_states, _ = loop.unpadded_state()
    n_runs = len(run_params["seed"])
    params, score, epoch = state.params, np.full(n_runs, np.nan), np.full(n_runs, loop.epoch)
    for hook, hook_state in zip(hooks, hook_states):
        if isinstance(hook, EarlyStopping):
            params, best_score, epoch = hook_state
            has_score = (hook.metric is not None) & (np.asarray(epoch) > 0)
            score = np.where(has_score, np.asarray(best_score), np.float32(np.nan))
            break
    return FitResult(
        params=params,
        state=state,
        hook_states=hook_states,
        run_params=run_params,
        best_epoch=np.asarray(epoch),
        best_score=np.asarray(score),
        history=loop.history,
    )
