"""The host's loop: some epochs in one compiled call, a report, and on."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Int, Integer, Key

from ._batches import ArrayBatches, HostBatches
from ._callbacks import Callback, Loop
from ._fingerprint import describe, hash_program
from ._hooks import Hook, KeepBest, Report
from ._jit import jit
from ._numbers import check_fit, check_names, check_runs, put, settle_runs
from ._optimizers import AnyOptimizer, Fixed, Optimizer, RowOptimizer
from ._sharding import Sharding, put_everywhere
from ._steps import StepPlan, Steps, run_steps, updates_per_epoch
from ._task import State, Task, stream


class TrainingDiverged(RuntimeError):
    """Every run's loss became infinite or NaN."""


class Runs(NamedTuple):
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
class Fitted:
    """What :func:`fit` returns.

    Attributes:
      params: Best parameters of every run, leading axis ``runs``; without :class:`KeepBest` those
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


@dataclass(frozen=True)
class _Program:
    """The static side of a compiled call: how steps are taken, and which leaves runs replace."""

    plan: StepPlan
    paths: tuple[str, ...]
    updates_per_epoch: int | None
    sharding: Sharding | None = None


class _Fixed(NamedTuple):
    """What does not change while training; arguments of the compiled calls."""

    task: Task
    optimizer: AnyOptimizer
    batches: Any
    hooks: tuple[Hook, ...]

    @property
    def by_rows(self) -> bool:
        """Whether a step changes the rows that it reads alone."""
        return isinstance(self.optimizer, RowOptimizer)


def fit(
    task: Task,
    optimizer: AnyOptimizer | optax.GradientTransformation,
    batches: ArrayBatches | HostBatches,
    plan: StepPlan,
    *,
    epochs: Any,
    seeds: Any = 0,
    sweep: Mapping[str, Any] | None = None,
    hooks: Sequence[Hook | Callback] = (),
    eval_every: int = 1,
    stop_at: int | None = None,
) -> Fitted:
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
      The :class:`Fitted` runs.

    Raises:
      ValueError: If an argument is out of range, or the number of runs is not the same everywhere.
      TrainingDiverged: If every run's loss became infinite or NaN.
    """
    if isinstance(optimizer, optax.GradientTransformation):
        optimizer = Fixed(optimizer)
    check_fit(plan, task, optimizer, batches, eval_every=eval_every, stop_at=stop_at)
    numbers = settle_runs({"epochs": epochs, "seed": seeds, **(sweep or {})})
    swept = {path: numbers[path] for path in sweep or {}}
    check_runs({"task": task, "optimizer": optimizer}, swept)
    on_device = tuple(hook for hook in hooks if isinstance(hook, Hook))
    arrays = batches if isinstance(batches, ArrayBatches) else None
    fixed = _Fixed(task, optimizer, arrays, on_device)
    per_epoch = None if batches.n is None else updates_per_epoch(batches.n, plan)
    sharding = None if plan.mesh is None else Sharding.of(plan.mesh, task)
    program = _Program(plan, tuple(sweep or {}), per_epoch, sharding)
    runs = {name: jnp.asarray(value) for name, value in numbers.items()}
    placed = {"runs": runs, "fixed": fixed}
    if plan.mesh is not None:
        placed["fixed"] = fixed._replace(task=task.on(plan.mesh))
        placed = put_everywhere(plan.mesh, placed)
    state = _start(**placed, program=program)
    advance: Callable[..., Any] = partial(_advance, **placed, program=program)
    if isinstance(batches, HostBatches):
        advance = partial(_advance_from_host, batches, **placed, program=program)

    last_epoch = int(min(stop_at or np.inf, numbers["epochs"].max()))
    loop = Loop(state, 0, [], 0.0, sharding=sharding)
    del state  # the loop donates it
    # A checkpoint goes on with other devices too: a training is told by the program for one.
    program = _Program(dataclasses.replace(plan, mesh=None), program.paths, per_epoch)
    # Of shapes alone: arrays would stay in memory.
    whole = jax.eval_shape(loop.whole)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), whole)
    trace = partial(_advance.trace, shapes, n_epochs=min(eval_every, last_epoch))
    if isinstance(batches, HostBatches):
        trace = partial(_trace_chunk, batches, shapes)
    trace = partial(trace, runs=runs, fixed=fixed, epoch=np.int32(0), program=program)
    loop.identity = partial(_identify, numbers, fixed, [stop_at, eval_every], trace)
    _go(loop, advance, last_epoch, eval_every, [h for h in hooks if isinstance(h, Callback)])
    return _fitted(loop, on_device, numbers)


def _go(
    loop: Loop,
    advance: Callable[..., tuple[Runs, dict[str, Array]]],
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


def _fitted(loop: Loop, hooks: tuple[Hook, ...], numbers: dict[str, np.ndarray]) -> Fitted:
    state, memories, _ = loop.whole()
    kept = next((m for h, m in zip(hooks, memories) if isinstance(h, KeepBest)), None)
    runs = len(numbers["seed"])
    params, score, epoch = kept or (state.params, np.full(runs, np.nan), np.full(runs, loop.epoch))
    return Fitted(
        params=params,
        state=state,
        memories=memories,
        numbers=numbers,
        best_epoch=np.asarray(epoch),
        best_score=np.asarray(score),
        history=loop.history,
    )


def _identify(
    numbers: dict[str, np.ndarray], fixed: _Fixed, choice: list[Any], trace: Callable[[], Any]
) -> dict[str, Any]:
    """What tells this training from others: its numbers, its data, what it computes."""
    return {
        "runs": {name: value.tolist() for name, value in numbers.items()},
        **describe({"batches": fixed.batches, **fixed._asdict()}),
        "choice": choice,
        "program": hash_program(trace()),
    }


def _trace_chunk(batches: HostBatches, state: Runs, **rest: Any) -> Any:
    """The steps on the first batches from the host, which tell their shapes."""
    steps = next(batches.chunks(0, rest["program"].plan))
    return _run_chunk.trace(state, state.state.key, steps, **rest)


def _settle(fixed: _Fixed, run: dict[str, Array], program: _Program) -> tuple[Task, AnyOptimizer]:
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
def _start(runs: dict[str, Array], fixed: _Fixed, *, program: _Program) -> Runs:
    """The runs before their first epoch."""

    def one(run: dict[str, Array]) -> Runs:
        task, optimizer = _settle(fixed, run, program)
        state = initial_state(task, optimizer, run["seed"])
        memories = tuple(hook.init(task, state) for hook in fixed.hooks)
        return Runs(state, memories, jnp.bool_(False))

    state = jax.vmap(one)(runs)
    return state if program.sharding is None else program.sharding.close(state)


@partial(jit, static_argnames=("program", "n_epochs"), donate_argnames="state")
def _advance(
    state: Runs,
    *,
    runs: dict[str, Array],
    fixed: _Fixed,
    epoch: Int[Array, ""],
    program: _Program,
    n_epochs: int,
) -> tuple[Runs, dict[str, Array]]:
    """``n_epochs`` epochs of every run, and their report."""

    def one(before: Runs, run: dict[str, Array]) -> tuple[Runs, dict[str, Array]]:
        task, optimizer = _settle(fixed, run, program)
        batches = fixed.batches

        def body(state: State, epoch: Array) -> tuple[State, dict[str, Array]]:
            state, key = _begin_epoch(task, state, epoch, program.sharding)
            state, means = run_steps(
                task, optimizer, state, batches.epoch(key, program.plan),
                plan=program.plan, data=batches.data, epoch=epoch, progress=_progress(epoch, run),
            )  # fmt: skip
            return _awake(optimizer, state, program.plan), means

        these = epoch + jnp.arange(n_epochs, dtype=jnp.int32)
        after, reports = jax.lax.scan(body, before.state, these)
        report = jax.tree.map(jnp.mean, reports)
        return _measure(
            task, fixed.hooks, before._replace(state=after), run, report, these[-1] + 1, program
        )

    return _over_runs(one, (state, runs), fixed, program)


def _advance_from_host(
    batches: HostBatches,
    state: Runs,
    *,
    runs: dict[str, Array],
    fixed: _Fixed,
    epoch: np.int32,
    program: _Program,
    n_epochs: int,
) -> tuple[Runs, dict[str, Array]]:
    """The same with batches that the host reads, a few in each compiled call."""
    sums: dict[str, Array] = {}
    total = 0.0
    static = dict(runs=runs, fixed=fixed, program=program)
    for now in range(int(epoch), int(epoch) + n_epochs):
        state, keys = _begin(state, epoch=np.int32(now), **static)
        # All runs see the same examples; what is drawn for these is their own.
        for steps in batches.chunks(now, program.plan):
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
    state: Runs, *, runs: dict[str, Array], fixed: _Fixed, epoch: Array, program: _Program
) -> tuple[Runs, Key[Array, "runs"]]:
    def one(before: Runs, run: dict[str, Array]) -> tuple[Runs, Array]:
        task, _ = _settle(fixed, run, program)
        after, key = _begin_epoch(task, before.state, epoch, program.sharding)
        return before._replace(state=after), key

    return _over_runs(one, (state, runs), fixed, program)


@partial(jit, static_argnames="program", donate_argnames="state")
def _run_chunk(
    state: Runs,
    keys: Key[Array, "runs"],
    steps: Steps,
    *,
    runs: dict[str, Array],
    fixed: _Fixed,
    epoch: Array,
    program: _Program,
) -> tuple[Runs, dict[str, Array]]:
    def one(before: Runs, run: dict[str, Array], key: Array) -> tuple[Runs, dict[str, Array]]:
        task, optimizer = _settle(fixed, run, program)
        own = steps._replace(key=jax.vmap(lambda i: jax.random.fold_in(key, i))(steps.key))
        after, report = run_steps(
            task, optimizer, before.state, own,
            plan=program.plan, epoch=epoch, progress=_progress(epoch, run),
        )  # fmt: skip
        return before._replace(state=after), report

    return _over_runs(one, (state, runs, keys), fixed, program)


@partial(jit, static_argnames="program", donate_argnames="state")
def _wake(state: Runs, *, runs: dict[str, Array], fixed: _Fixed, program: _Program) -> Runs:
    def one(before: Runs, run: dict[str, Array]) -> Runs:
        _, optimizer = _settle(fixed, run, program)
        return before._replace(state=_awake(optimizer, before.state, program.plan))

    return _over_runs(one, (state, runs), fixed, program)


@partial(jit, static_argnames="program", donate_argnames="state")
def _finish(
    state: Runs,
    report: dict[str, Array],
    *,
    runs: dict[str, Array],
    fixed: _Fixed,
    epoch: Array,
    program: _Program,
) -> tuple[Runs, dict[str, Array]]:
    def one(before: Runs, run: dict[str, Array], report: Any) -> tuple[Runs, dict[str, Array]]:
        task, _ = _settle(fixed, run, program)
        return _measure(task, fixed.hooks, before, run, report, epoch, program)

    return _over_runs(one, (state, runs, report), fixed, program)


def initial_state(task: Task, optimizer: AnyOptimizer, seed: Integer[Array, ""] | int) -> State:
    """The state before the first step; a pure function."""
    key = jax.random.key(seed)
    params, extra = jax.tree.map(_strong, task.init(key))
    return State(
        step=jnp.int32(0),
        key=stream(key, "epochs"),
        params=params,
        opt_state=optimizer.init(params),
        extra=extra,
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
    extra = task.start_epoch(key, params, state.extra, epoch)
    return state._replace(extra=extra), key


def _awake(optimizer: AnyOptimizer, state: State, plan: StepPlan) -> State:
    """With all rows as they are by now: hooks, and the next epoch's start, read whole tables."""
    if not isinstance(optimizer, RowOptimizer):
        return state
    params, opt_state = optimizer.wake_all(state.params, state.opt_state, state.step, plan.mesh)
    return state._replace(params=params, opt_state=opt_state)


def _progress(epoch: Array, run: dict[str, Array]) -> Array:
    return epoch.astype(jnp.float32) / run["epochs"].astype(jnp.float32)


def _measure(
    task: Task,
    hooks: tuple[Hook, ...],
    runs: Runs,
    run: dict[str, Array],
    values: dict[str, Array],
    epoch: Array,
    program: _Program,
) -> tuple[Runs, dict[str, Array]]:
    """What the hooks say of one run, and whether it has ended."""
    if program.sharding is not None:
        runs = program.sharding.open(runs, lead=0)
    ended = (epoch >= run["epochs"]) | ~jnp.isfinite(values["loss"])
    memories = []
    for hook, memory in zip(hooks, runs.memories, strict=True):
        report = Report(epoch, values, runs.stopped, program.plan.mesh)
        memory, measured, stop = hook.measure(task, runs.state, memory, report)
        check_names(measured, values)
        memories.append(memory)
        values, ended = {**values, **measured}, ended | stop
    return Runs(runs.state, tuple(memories), runs.stopped | ended), values


def _over_runs(
    one: Callable[..., Any], arguments: tuple[Any, ...], fixed: _Fixed, program: _Program
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
    if isinstance(made, Runs):
        return sharding.close(made)
    return (sharding.close(made[0]), *sharding.everywhere(made[1:]))
