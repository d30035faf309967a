"""Compiled programs of :func:`crl_jax.train.fit`: epochs of all runs, or chunks of host batches."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Integer, Key

from ._batches import HostBatches
from ._hooks import EpochReport, Hook
from ._jit import jit
from ._optimizers import AnyOptimizer, Optimizer, RowOptimizer
from ._scan import Steps, TrainConfig, run_steps
from ._sharding import Sharding
from ._task import State, Task, stream
from ._validation import check_metric_names, replace_leaf


class RunStates(NamedTuple):
    """Training states of all runs; every leaf has the leading axis ``runs``.

    Attributes:
      state: States of the runs.
      hook_states: States of the hooks.
      stopped: Whether each run has stopped: by a hook, by its length, or by divergence.
    """

    state: State
    hook_states: tuple[Any, ...]
    stopped: Bool[Array, "runs"]


@dataclass(frozen=True)
class StaticInputs:
    """Static arguments of the compiled programs; ``swept_paths`` are replaced for each run."""

    config: TrainConfig
    swept_paths: tuple[str, ...]
    updates_per_epoch: int | None
    sharding: Sharding | None = None


class Inputs(NamedTuple):
    """Array arguments of the compiled programs that training does not change."""

    task: Task
    optimizer: AnyOptimizer
    batches: Any
    hooks: tuple[Hook, ...]

    @property
    def is_row_optimizer(self) -> bool:
        """Whether steps update the rows of a batch only."""
        return isinstance(self.optimizer, RowOptimizer)


def trace_chunk(batches: HostBatches, state: RunStates, **kwargs: Any) -> Any:
    """Traces the steps on the first batches from the host, which determine the shapes."""
    steps = next(batches.chunks(0, kwargs["static"].config))
    return _run_chunk.trace(state, state.state.key, steps, **kwargs)


def _with_run_params(
    inputs: Inputs, run: dict[str, Array], static: StaticInputs
) -> tuple[Task, AnyOptimizer]:
    """Task and optimizer with the swept hyper-parameters of one run."""
    parts = {"task": inputs.task, "optimizer": inputs.optimizer}
    for path in static.swept_paths:
        parts = replace_leaf(parts, path, run[path])
    optimizer = parts["optimizer"]
    if isinstance(optimizer, (Optimizer, RowOptimizer)) and static.updates_per_epoch is not None:
        n_steps = run["epochs"] * static.updates_per_epoch
        optimizer = dataclasses.replace(optimizer, n_steps=n_steps)
    return parts["task"], optimizer


@partial(jit, static_argnames="static")
def start_runs(runs: dict[str, Array], inputs: Inputs, *, static: StaticInputs) -> RunStates:
    """Initial states of the runs."""

    def one(run: dict[str, Array]) -> RunStates:
        task, optimizer = _with_run_params(inputs, run, static)
        state = initial_state(task, optimizer, run["seed"])
        hook_states = tuple(hook.init(task, state) for hook in inputs.hooks)
        return RunStates(state, hook_states, jnp.bool_(False))

    state = jax.vmap(one)(runs)
    return state if static.sharding is None else static.sharding.pad(state)


@partial(jit, static_argnames=("static", "n_epochs"), donate_argnames="state")
def run_epochs(
    state: RunStates,
    *,
    runs: dict[str, Array],
    inputs: Inputs,
    epoch: Int[Array, ""],
    static: StaticInputs,
    n_epochs: int,
) -> tuple[RunStates, dict[str, Array]]:
    """Trains every run for ``n_epochs`` epochs and returns their report."""

    def one(before: RunStates, run: dict[str, Array]) -> tuple[RunStates, dict[str, Array]]:
        task, optimizer = _with_run_params(inputs, run, static)
        batches = inputs.batches

        def run_epoch(state: State, epoch: Array) -> tuple[State, dict[str, Array]]:
            state, key = _start_epoch(task, state, epoch, static.sharding)
            state, means = run_steps(
                task,
                optimizer,
                state,
                batches.epoch(key, static.config),
                config=static.config,
                data=batches.data,
                epoch=epoch,
                progress=_progress(epoch, run),
            )
            return _flush_lazy_updates(optimizer, state, static.config), means

        epochs = epoch + jnp.arange(n_epochs, dtype=jnp.int32)
        after, reports = jax.lax.scan(run_epoch, before.state, epochs)
        report = jax.tree.map(jnp.mean, reports)
        return _measure(
            task, inputs.hooks, before._replace(state=after), run, report, epochs[-1] + 1, static
        )

    return _over_runs(one, (state, runs), inputs, static)


def run_epochs_from_host(
    batches: HostBatches,
    state: RunStates,
    *,
    runs: dict[str, Array],
    inputs: Inputs,
    epoch: np.int32,
    static: StaticInputs,
    n_epochs: int,
) -> tuple[RunStates, dict[str, Array]]:
    """:func:`run_epochs` on batches from the host, one chunk per compiled call."""
    sums: dict[str, Array] = {}
    total = 0.0
    fixed = dict(runs=runs, inputs=inputs, static=static)
    for current in range(int(epoch), int(epoch) + n_epochs):
        state, keys = _start_epoch_of_runs(state, epoch=np.int32(current), **fixed)
        # All runs see the same examples with separate random keys.
        for steps in batches.chunks(current, static.config):
            state, report = _run_chunk(state, keys, steps, epoch=np.int32(current), **fixed)
            n = float(np.sum(steps.n))
            total += n
            sums = {name: sums.get(name, 0) + n * value for name, value in report.items()}
        if inputs.is_row_optimizer:
            state = _flush_runs(state, **fixed)
    if not total:
        raise ValueError(f"`batches` must hold an example in each epoch, got none in {epoch}.")
    report = {name: value / total for name, value in sums.items()}
    return _measure_runs(state, report, epoch=np.int32(epoch + n_epochs), **fixed)


@partial(jit, static_argnames="static", donate_argnames="state")
def _start_epoch_of_runs(
    state: RunStates, *, runs: dict[str, Array], inputs: Inputs, epoch: Array, static: StaticInputs
) -> tuple[RunStates, Key[Array, "runs"]]:
    def one(before: RunStates, run: dict[str, Array]) -> tuple[RunStates, Array]:
        task, _ = _with_run_params(inputs, run, static)
        after, key = _start_epoch(task, before.state, epoch, static.sharding)
        return before._replace(state=after), key

    return _over_runs(one, (state, runs), inputs, static)


@partial(jit, static_argnames="static", donate_argnames="state")
def _run_chunk(
    state: RunStates,
    keys: Key[Array, "runs"],
    steps: Steps,
    *,
    runs: dict[str, Array],
    inputs: Inputs,
    epoch: Array,
    static: StaticInputs,
) -> tuple[RunStates, dict[str, Array]]:
    def one(
        before: RunStates, run: dict[str, Array], key: Array
    ) -> tuple[RunStates, dict[str, Array]]:
        task, optimizer = _with_run_params(inputs, run, static)
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(steps.key)
        after, report = run_steps(
            task, optimizer, before.state, steps._replace(key=keys),
            config=static.config, epoch=epoch, progress=_progress(epoch, run),
        )  # fmt: skip
        return before._replace(state=after), report

    return _over_runs(one, (state, runs, keys), inputs, static)


@partial(jit, static_argnames="static", donate_argnames="state")
def _flush_runs(
    state: RunStates, *, runs: dict[str, Array], inputs: Inputs, static: StaticInputs
) -> RunStates:
    def one(before: RunStates, run: dict[str, Array]) -> RunStates:
        _, optimizer = _with_run_params(inputs, run, static)
        return before._replace(state=_flush_lazy_updates(optimizer, before.state, static.config))

    return _over_runs(one, (state, runs), inputs, static)


@partial(jit, static_argnames="static", donate_argnames="state")
def _measure_runs(
    state: RunStates,
    report: dict[str, Array],
    *,
    runs: dict[str, Array],
    inputs: Inputs,
    epoch: Array,
    static: StaticInputs,
) -> tuple[RunStates, dict[str, Array]]:
    def one(
        before: RunStates, run: dict[str, Array], report: Any
    ) -> tuple[RunStates, dict[str, Array]]:
        task, _ = _with_run_params(inputs, run, static)
        return _measure(task, inputs.hooks, before, run, report, epoch, static)

    return _over_runs(one, (state, runs, report), inputs, static)


def initial_state(task: Task, optimizer: AnyOptimizer, seed: Integer[Array, ""] | int) -> State:
    """Returns the state of a run before the first step; a pure function."""
    key = jax.random.key(seed)
    params, model_state = jax.tree.map(_strong_type, task.init(key))
    return State(
        step=jnp.int32(0),
        key=stream(key, "epochs"),
        params=params,
        opt_state=optimizer.init(params),
        model_state=model_state,
    )


def _strong_type(x: Array) -> Array:
    """Converts weakly typed arrays to strong types, so that the second epoch does not recompile.

    Initializers such as ``nnx.initializers.ones`` return weak types, training steps do not.
    """
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x
    return jax.lax.convert_element_type(x, x.dtype)


def _start_epoch(
    task: Task, state: State, epoch: Array, sharding: Sharding | None
) -> tuple[State, Key[Array, ""]]:
    key = jax.random.fold_in(state.key, epoch)
    params = state.params if sharding is None else sharding.unpad(state.params, n_batch_axes=0)
    model_state = task.start_epoch(key, params, state.model_state, epoch)
    return state._replace(model_state=model_state), key


def _flush_lazy_updates(optimizer: AnyOptimizer, state: State, config: TrainConfig) -> State:
    """Applies pending lazy updates, since hooks and the start of an epoch read whole tables."""
    if not isinstance(optimizer, RowOptimizer):
        return state
    params, opt_state = optimizer.flush_lazy_updates(
        state.params, state.opt_state, state.step, config.mesh
    )
    return state._replace(params=params, opt_state=opt_state)


def _progress(epoch: Array, run: dict[str, Array]) -> Array:
    return epoch.astype(jnp.float32) / run["epochs"].astype(jnp.float32)


def _measure(
    task: Task,
    hooks: tuple[Hook, ...],
    runs: RunStates,
    run: dict[str, Array],
    values: dict[str, Array],
    epoch: Array,
    static: StaticInputs,
) -> tuple[RunStates, dict[str, Array]]:
    """Evaluates the hooks of one run and whether it stops."""
    if static.sharding is not None:
        runs = static.sharding.unpad(runs, n_batch_axes=0)
    stopped = (epoch >= run["epochs"]) | ~jnp.isfinite(values["loss"])
    hook_states = []
    for hook, hook_state in zip(hooks, runs.hook_states, strict=True):
        report = EpochReport(epoch, values, runs.stopped, static.config.mesh)
        hook_state, metrics, stop = hook.measure(task, runs.state, hook_state, report)
        check_metric_names(metrics, values)
        hook_states.append(hook_state)
        values, stopped = {**values, **metrics}, stopped | stop
    return RunStates(runs.state, tuple(hook_states), runs.stopped | stopped), values


def _over_runs(
    one: Callable[..., Any], arguments: tuple[Any, ...], inputs: Inputs, static: StaticInputs
) -> Any:
    """Maps ``one`` over runs.

    By ``vmap``, except that a single run is not batched, since batched gathers cost more, and that
    runs with row updates are mapped sequentially: batching brings them nothing and costs them cache
    locality. The run states, which come first in arguments and results, are sharded by
    ``static.sharding``.
    """
    sharding = static.sharding
    if sharding is not None:
        # Padding copies tables: row updates must not pay for this in each step.
        constrain = sharding.pad if inputs.is_row_optimizer else sharding.unpad
        arguments = (constrain(arguments[0]), *arguments[1:])
    if len(jax.tree.leaves(arguments)[0]) == 1:
        single = jax.tree.map(lambda leaf: leaf[0], arguments)
        outputs = jax.tree.map(lambda leaf: leaf[None], one(*single))
    elif inputs.is_row_optimizer:
        outputs = jax.lax.map(lambda x: one(*x), arguments)
    else:
        outputs = jax.vmap(one)(*arguments)
    if sharding is None:
        return outputs
    if isinstance(outputs, RunStates):
        return sharding.pad(outputs)
    return (sharding.pad(outputs[0]), *sharding.replicate(outputs[1:]))
