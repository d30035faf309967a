"""Training loop on the host: validation of arguments, compiled epochs, reports and callbacks."""

import dataclasses
import inspect
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jaxtyping import Array

from .._checks import check_count, check_range, check_registered
from .._mesh import DATA, TABLE
from ._batches import ArrayBatches, HostBatches
from ._device_memory import check_device_memory
from ._epoch import (
    Inputs,
    RunStates,
    StaticInputs,
    fits_batched,
    replace_leaf,
    run_epochs,
    run_epochs_by_threads,
    run_epochs_from_host,
    slice_run,
    start_runs,
    trace_chunk,
)
from ._fingerprint import fingerprint
from ._hooks import Callback, EarlyStopping, Hook, TrainingLoop
from ._optimizers import AnyOptimizer, DenseOptimizer, OptaxOptimizer, RowOptimizer
from ._scan import TrainConfig
from ._sharding import Sharding, replicate
from ._task import RowTask, State, Task


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

    def get_params(self, index: int = 0) -> Any:
        """Returns the parameters of one run, without the leading axis.

        Raises:
          IndexError: If there is no such run.
        """
        if not -self.n_runs <= index < self.n_runs:  # JAX would take the nearest run
            raise IndexError(f"`index` must be less than the {self.n_runs} runs, got {index}.")
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
      hooks: Hooks and callbacks, with at most one :class:`EarlyStopping`. A hook sees the metrics
        of preceding hooks. A :class:`Checkpoint` must precede a :class:`Progress`.
      eval_every: Number of epochs between two reports.
      stop_at: Number of epochs after which all runs stop, without changing the schedule.

    Returns:
      A :class:`FitResult`.

    Raises:
      ValueError: If an argument is invalid, the numbers of runs differ, or the training state does
        not fit into the memory of a device, where the device states its memory.
      TrainingDiverged: If the losses of all runs are infinite or NaN.
    """
    if isinstance(optimizer, DenseOptimizer) and not isinstance(optimizer, type):
        has_step = "step" in inspect.signature(optimizer.update).parameters
        optimizer = optimizer if has_step else OptaxOptimizer(optimizer)
    _check_fit(config, task, optimizer, batches, eval_every, stop_at)
    _check_hooks(hooks)
    run_params = broadcast_run_params({"epochs": epochs, "seed": seeds, **(sweep or {})})
    swept = {path: run_params[path] for path in sweep or {}}
    for values in set(zip(*(array.tolist() for array in swept.values()), strict=True)):
        parts = {"task": task, "optimizer": optimizer}  # constructors check the ranges
        for path, value in zip(swept, values, strict=True):
            parts = replace_leaf(parts, path, np.float32(value))
    device_hooks = tuple(hook for hook in hooks if isinstance(hook, Hook))
    arrays = batches if isinstance(batches, ArrayBatches) else None
    inputs = Inputs(task, optimizer, arrays, device_hooks)
    update_size = config.batch_size * config.accumulate
    n_updates = None if batches.n is None else -(-batches.n // update_size)
    mesh = config.mesh
    sharding = None if mesh is None else Sharding.from_task(mesh, task, optimizer)
    static = StaticInputs(config, tuple(swept), n_updates, sharding)
    runs = {name: jnp.asarray(value) for name, value in run_params.items()}
    placed = {"runs": runs, "inputs": inputs}
    if config.mesh is not None:
        placed["inputs"] = inputs._replace(task=task.shard(config.mesh))
        placed = replicate(config.mesh, placed)
    device = placed["runs"]["seed"].addressable_shards[0].device
    trace_state = partial(start_runs.trace, **placed, static=static)
    check_device_memory(device, lambda: trace_state().out_info, placed, optimizer, sharding)
    state = start_runs(**placed, static=static)
    advance: Callable[..., Any] = partial(run_epochs, **placed, static=static)
    if isinstance(batches, HostBatches):
        advance = partial(run_epochs_from_host, batches, **placed, static=static)
    elif config.mesh is None and not fits_batched(state, isinstance(optimizer, RowOptimizer)):
        advance = partial(run_epochs_by_threads, **placed, static=static)

    last_epoch = int(min(stop_at or np.inf, run_params["epochs"].max()))
    loop = TrainingLoop(state, 0, [], 0.0, sharding=sharding)
    del state  # donated by the loop
    # Checkpoints may be resumed on other devices: the fingerprint is that of the program of one run
    # on a single device, which JAX has traced already where runs train sequentially.
    static = StaticInputs(dataclasses.replace(config, mesh=None), static.swept_paths, n_updates)
    # Shapes only, so that no arrays are kept alive.
    unpadded = jax.eval_shape(loop.unpadded_state)
    first_state, first_run = jax.eval_shape(slice_run, (unpadded, runs), 0)
    trace = partial(run_epochs.trace, first_state, n_epochs=min(eval_every, last_epoch))
    if isinstance(batches, HostBatches):
        trace = partial(trace_chunk, batches, first_state)
    trace = partial(trace, runs=first_run, inputs=inputs, epoch=np.int32(0), static=static)
    loop.fingerprint = cache(partial(fingerprint, run_params, inputs, [stop_at, eval_every], trace))
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


_copy = jax.jit(partial(jax.tree.map, jnp.copy))


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
    best = np.asarray(epoch), np.asarray(score)
    return FitResult(params, state, hook_states, run_params, *best, loop.history)


# Argument, range and dtype of the integer run parameters.
_INTEGERS: dict[str, tuple[Any, ...]] = {
    "epochs": ("epochs", 1, 2**31, np.int32),
    "seed": ("seeds", 0, 2**32, np.uint32),
}


def broadcast_run_params(run_params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Broadcasts scalars and arrays over runs to arrays ``[runs]``.

    Args:
      run_params: Scalars or arrays of equal length by path.

    Raises:
      ValueError: If a value is not a number, is out of range, or the lengths differ.
    """
    arrays = {}
    for path, value in run_params.items():
        default = path.rpartition(".")[2], np.float32
        argument, *ends, dtype = _INTEGERS.get(path, default)
        array = np.asarray(value)
        if array.dtype.kind not in "iuf" and array.dtype != jnp.bfloat16:
            raise ValueError(
                f"`{argument}` must be a number or an array of numbers, got {value!r}."
            )
        if not array.size:
            raise ValueError(f"`{argument}` must have at least one value, got none.")
        if ends:
            if np.any(array != np.floor(array)):
                raise ValueError(f"`{argument}` must be a whole number, got {value}.")
            check_range(argument, value, *ends, high_open=True, dtype=float)
        arrays[path] = array.astype(dtype)
    shapes = {path: a.shape for path, a in arrays.items() if a.ndim}
    if len(set(shapes.values())) > 1 or any(len(shape) > 1 for shape in shapes.values()):
        raise ValueError(f"Arrays over runs must all have one length, got the shapes {shapes}.")
    shape = next(iter(shapes.values()), (1,))
    return {path: np.broadcast_to(a, shape).copy() for path, a in arrays.items()}


def _check_fit(
    config: TrainConfig,
    task: Task,
    optimizer: AnyOptimizer,
    batches: ArrayBatches | HostBatches,
    eval_every: int,
    stop_at: int | None,
) -> None:
    """Raises ``ValueError`` if an argument is invalid or incompatible with the others."""
    optimizers = "train.Optimizer, train.RowOptimizer or Optax optimizer"
    parts: dict[str, tuple[Any, Any, str]] = {
        "task": (task, Task, "train.Task"),
        "optimizer": (optimizer, DenseOptimizer | RowOptimizer, optimizers),
        "config": (config, TrainConfig, "train.TrainConfig"),
    }
    for name, (value, kind, expected) in parts.items():
        if isinstance(value, type) or not isinstance(value, kind):
            raise ValueError(f"`{name}` must be a {expected}, got {value!r}.")
        if name != "config":
            check_registered(name, value)
    if isinstance(batches, ArrayBatches):
        task.check_data(batches.data)
    elif not isinstance(batches, HostBatches):
        raise ValueError(
            "`batches` must be train.ArrayBatches or train.HostBatches, got "
            f"{type(batches).__name__}."
        )
    counts = {name: getattr(config, name) for name in ("batch_size", "draw_batches", "accumulate")}
    counts |= {"eval_every": eval_every, "stop_at": 1 if stop_at is None else stop_at}
    for name, count in counts.items():
        check_count(name, count)
    if config.accumulate > 1 and config.draw_batches > 1:
        raise ValueError(
            f"`draw_batches` must be 1 with `accumulate` {config.accumulate}, "
            f"got {config.draw_batches}."
        )
    if isinstance(batches, HostBatches) and config.draw_size > config.batch_size:
        raise ValueError(
            "`accumulate` and `draw_batches` must be 1 with HostBatches, "
            f"got {config.accumulate} and {config.draw_batches}."
        )
    if isinstance(optimizer, RowOptimizer):
        _check_row_optimizer(config, task, optimizer)
    if config.mesh is not None:
        _check_mesh(config.mesh, config.batch_size)


def _check_hooks(hooks: Sequence[Hook | Callback]) -> None:
    """Raises ``ValueError`` unless all are hooks or callbacks, of which one stops the training."""
    if isinstance(hooks, str | Hook | Callback):
        raise ValueError(f"`hooks` must be a sequence, got {type(hooks).__name__}.")
    for hook in hooks:
        if not isinstance(hook, Hook | Callback):
            got = f"the class {hook.__name__}" if isinstance(hook, type) else repr(hook)
            raise ValueError(f"`hooks` must be instances of Hook or Callback, got {got}.")
        if isinstance(hook, Hook):
            check_registered("hooks", hook)
    if (n := sum(isinstance(hook, EarlyStopping) for hook in hooks)) > 1:
        raise ValueError(f"`hooks` must have at most one EarlyStopping, got {n}.")


def _check_mesh(mesh: Mesh, batch_size: int) -> None:
    if DATA not in mesh.shape or set(mesh.shape) - {DATA, TABLE}:
        raise ValueError(
            f"`mesh` must have an axis {DATA}, and may have one called {TABLE}, "
            f"got {tuple(mesh.shape)}."
        )
    if any(axis_type != AxisType.Auto for axis_type in mesh.axis_types):
        raise ValueError(
            "`mesh` must have axes of type Auto, as jax.sharding.Mesh(devices, names) has, "
            f"got axes {', '.join(each.name for each in mesh.axis_types)}: give jax.make_mesh "
            "axis_types of jax.sharding.AxisType.Auto."
        )
    if batch_size % mesh.shape[DATA]:
        raise ValueError(
            f"`batch_size` must be a multiple of the {mesh.shape[DATA]} devices along the axis "
            f"{DATA} of `mesh`, got {batch_size}."
        )


def _check_row_optimizer(config: TrainConfig, task: Task, optimizer: RowOptimizer) -> None:
    if not isinstance(task, RowTask):
        raise ValueError(
            f"`task` must be a train.RowTask with a RowOptimizer, got {type(task).__name__}."
        )
    if config.compute_dtype is not None or config.accumulate > 1:
        raise ValueError(
            "`compute_dtype` must be None and `accumulate` 1 with a RowOptimizer, "
            f"got {config.compute_dtype} and {config.accumulate}."
        )
    if optimizer.weight_decay is not None:
        raise ValueError(
            "`weight_decay` must be None with a RowOptimizer, since it would update every row: use "
            f"an L2 term on the batch's rows in the loss, got {optimizer.weight_decay}."
        )
