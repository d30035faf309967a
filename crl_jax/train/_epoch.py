"""What :func:`crl_jax.train.fit` compiles: some epochs of all runs, or a few batches of them."""

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
from ._validation import check_names, put


class RunStates(NamedTuple):
    """All that changes while runs train side by side; every leaf leads with ``runs``.

    Attributes:
      state: States of the runs.
      memories: What the hooks remember.
      stopped: Whether the run has ended: by a hook, by its length, or because it diverged.
    """

    state: State
    memories: tuple[Any, ...]
    stopped: Bool[Array, "runs"]


@dataclass(frozen=True)
class Program:
    """The static side of a compiled call: how steps are taken, and which leaves runs replace."""

    config: TrainConfig
    paths: tuple[str, ...]
    updates_per_epoch: int | None
    sharding: Sharding | None = None


class Inputs(NamedTuple):
    """What does not change while training; arguments of the compiled calls."""

    task: Task
    optimizer: AnyOptimizer
    batches: Any
    hooks: tuple[Hook, ...]

    @property
    def by_rows(self) -> bool:
        """Whether a step changes the rows that it reads alone."""
        return isinstance(self.optimizer, RowOptimizer)


def trace_chunk(batches: HostBatches, state: RunStates, **rest: Any) -> Any:
    """The steps on the first batches from the host, which tell their shapes."""
    steps = next(batches.chunks(0, rest["program"].config))
    return _run_chunk.trace(state, state.state.key, steps, **rest)


def _settle(fixed: Inputs, run: dict[str, Array], program: Program) -> tuple[Task, AnyOptimizer]:
    """Task and optimiser of one run, with its own numbers in their places."""
    both = {"task": fixed.task, "optimizer": fixed.optimizer}
    for path in program.paths:
        both = put(both, path, run[path])
    optimizer = both["optimizer"]
    if isinstance(optimizer, (Optimizer, RowOptimizer)) and program.updates_per_epoch is not None:
        n_steps = run["epochs"] * program.updates_per_epoch
        optimizer = dataclasses.replace(optimizer, n_steps=n_steps)
    return both["task"], optimizer


@partial(jit, static_argnames="program")
def start_runs(runs: dict[str, Array], fixed: Inputs, *, program: Program) -> RunStates:
    """The runs before their first epoch."""

    def one(run: dict[str, Array]) -> RunStates:
        task, optimizer = _settle(fixed, run, program)
        state = initial_state(task, optimizer, run["seed"])
        memories = tuple(hook.init(task, state) for hook in fixed.hooks)
        return RunStates(state, memories, jnp.bool_(False))

    state = jax.vmap(one)(runs)
    return state if program.sharding is None else program.sharding.close(state)


@partial(jit, static_argnames=("program", "n_epochs"), donate_argnames="state")
def run_epochs(
    state: RunStates,
    *,
    runs: dict[str, Array],
    fixed: Inputs,
    epoch: Int[Array, ""],
    program: Program,
    n_epochs: int,
) -> tuple[RunStates, dict[str, Array]]:
    """``n_epochs`` epochs of every run, and their report."""

    def one(before: RunStates, run: dict[str, Array]) -> tuple[RunStates, dict[str, Array]]:
        task, optimizer = _settle(fixed, run, program)
        batches = fixed.batches

        def body(state: State, epoch: Array) -> tuple[State, dict[str, Array]]:
            state, key = _begin_epoch(task, state, epoch, program.sharding)
            state, means = run_steps(
                task,
                optimizer,
                state,
                batches.epoch(key, program.config),
                config=program.config,
                data=batches.data,
                epoch=epoch,
                progress=_progress(epoch, run),
            )
            return _awake(optimizer, state, program.config), means

        these = epoch + jnp.arange(n_epochs, dtype=jnp.int32)
        after, reports = jax.lax.scan(body, before.state, these)
        report = jax.tree.map(jnp.mean, reports)
        return _measure(
            task, fixed.hooks, before._replace(state=after), run, report, these[-1] + 1, program
        )

    return _over_runs(one, (state, runs), fixed, program)


def run_epochs_from_host(
    batches: HostBatches,
    state: RunStates,
    *,
    runs: dict[str, Array],
    fixed: Inputs,
    epoch: np.int32,
    program: Program,
    n_epochs: int,
) -> tuple[RunStates, dict[str, Array]]:
    """The same with batches that the host reads, a few in each compiled call."""
    sums: dict[str, Array] = {}
    total = 0.0
    static = dict(runs=runs, fixed=fixed, program=program)
    for now in range(int(epoch), int(epoch) + n_epochs):
        state, keys = _begin(state, epoch=np.int32(now), **static)
        # All runs see the same examples; what is drawn for these is their own.
        for steps in batches.chunks(now, program.config):
            state, report = _run_chunk(state, keys, steps, epoch=np.int32(now), **static)
            n = float(np.sum(steps.n))
            total += n
            sums = {name: sums.get(name, 0) + n * value for name, value in report.items()}
        if fixed.by_rows:
            state = _wake(state, **static)
    if not total:
        raise ValueError(f"`batches` must hold an example in each epoch, got none in {epoch}.")
    report = {name: value / total for name, value in sums.items()}
    return _finish(state, report, epoch=np.int32(epoch + n_epochs), **static)


@partial(jit, static_argnames="program", donate_argnames="state")
def _begin(
    state: RunStates, *, runs: dict[str, Array], fixed: Inputs, epoch: Array, program: Program
) -> tuple[RunStates, Key[Array, "runs"]]:
    def one(before: RunStates, run: dict[str, Array]) -> tuple[RunStates, Array]:
        task, _ = _settle(fixed, run, program)
        after, key = _begin_epoch(task, before.state, epoch, program.sharding)
        return before._replace(state=after), key

    return _over_runs(one, (state, runs), fixed, program)


@partial(jit, static_argnames="program", donate_argnames="state")
def _run_chunk(
    state: RunStates,
    keys: Key[Array, "runs"],
    steps: Steps,
    *,
    runs: dict[str, Array],
    fixed: Inputs,
    epoch: Array,
    program: Program,
) -> tuple[RunStates, dict[str, Array]]:
    def one(
        before: RunStates, run: dict[str, Array], key: Array
    ) -> tuple[RunStates, dict[str, Array]]:
        task, optimizer = _settle(fixed, run, program)
        own = steps._replace(key=jax.vmap(lambda i: jax.random.fold_in(key, i))(steps.key))
        after, report = run_steps(
            task, optimizer, before.state, own,
            config=program.config, epoch=epoch, progress=_progress(epoch, run),
        )  # fmt: skip
        return before._replace(state=after), report

    return _over_runs(one, (state, runs, keys), fixed, program)


@partial(jit, static_argnames="program", donate_argnames="state")
def _wake(
    state: RunStates, *, runs: dict[str, Array], fixed: Inputs, program: Program
) -> RunStates:
    def one(before: RunStates, run: dict[str, Array]) -> RunStates:
        _, optimizer = _settle(fixed, run, program)
        return before._replace(state=_awake(optimizer, before.state, program.config))

    return _over_runs(one, (state, runs), fixed, program)


@partial(jit, static_argnames="program", donate_argnames="state")
def _finish(
    state: RunStates,
    report: dict[str, Array],
    *,
    runs: dict[str, Array],
    fixed: Inputs,
    epoch: Array,
    program: Program,
) -> tuple[RunStates, dict[str, Array]]:
    def one(
        before: RunStates, run: dict[str, Array], report: Any
    ) -> tuple[RunStates, dict[str, Array]]:
        task, _ = _settle(fixed, run, program)
        return _measure(task, fixed.hooks, before, run, report, epoch, program)

    return _over_runs(one, (state, runs, report), fixed, program)


def initial_state(task: Task, optimizer: AnyOptimizer, seed: Integer[Array, ""] | int) -> State:
    """The state before the first step; a pure function."""
    key = jax.random.key(seed)
    params, model_state = jax.tree.map(_strong, task.init(key))
    return State(
        step=jnp.int32(0),
        key=stream(key, "epochs"),
        params=params,
        opt_state=optimizer.init(params),
        model_state=model_state,
    )


def _strong(x: Array) -> Array:
    """A number whose type does not give way to others': a step makes such of all that it changes.

    Initial values often are not, such as those of ``nnx.initializers.ones``. The second epoch
    would compile its program anew.
    """
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x
    return jax.lax.convert_element_type(x, x.dtype)


def _begin_epoch(
    task: Task, state: State, epoch: Array, sharding: Sharding | None
) -> tuple[State, Key[Array, ""]]:
    key = jax.random.fold_in(state.key, epoch)
    params = state.params if sharding is None else sharding.open(state.params, lead=0)
    model_state = task.start_epoch(key, params, state.model_state, epoch)
    return state._replace(model_state=model_state), key


def _awake(optimizer: AnyOptimizer, state: State, config: TrainConfig) -> State:
    """With all rows as they are by now: hooks, and the next epoch's start, read whole tables."""
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
    program: Program,
) -> tuple[RunStates, dict[str, Array]]:
    """What the hooks say of one run, and whether it has ended."""
    if program.sharding is not None:
        runs = program.sharding.open(runs, lead=0)
    ended = (epoch >= run["epochs"]) | ~jnp.isfinite(values["loss"])
    memories = []
    for hook, memory in zip(hooks, runs.memories, strict=True):
        report = EpochReport(epoch, values, runs.stopped, program.config.mesh)
        memory, measured, stop = hook.measure(task, runs.state, memory, report)
        check_names(measured, values)
        memories.append(memory)
        values, ended = {**values, **measured}, ended | stop
    return RunStates(runs.state, tuple(memories), runs.stopped | ended), values


def _over_runs(
    one: Callable[..., Any], arguments: tuple[Any, ...], fixed: Inputs, program: Program
) -> Any:
    """``vmap`` over runs, save that a single run is not batched: batched gathers cost more.

    Updates of single rows gain nothing from being batched, and lose their place in the cache: such
    runs go in turn. On several devices the states of the runs, which lead the arguments and what
    is returned, lie as ``program.sharding`` says.
    """
    sharding = program.sharding
    if sharding is not None:
        # To fill up tables costs what they cost: not in each step, where steps go by rows.
        placed = sharding.close if fixed.by_rows else sharding.open
        arguments = (placed(arguments[0]), *arguments[1:])
    if len(jax.tree.leaves(arguments)[0]) == 1:
        only = jax.tree.map(lambda leaf: leaf[0], arguments)
        made = jax.tree.map(lambda leaf: leaf[None], one(*only))
    elif fixed.by_rows:
        made = jax.lax.map(lambda x: one(*x), arguments)
    else:
        made = jax.vmap(one)(*arguments)
    if sharding is None:
        return made
    if isinstance(made, RunStates):
        return sharding.close(made)
    return (sharding.close(made[0]), *sharding.everywhere(made[1:]))
