"""Compiled programs of :func:`crl_jax.train.fit`: epochs of all runs, or chunks of host batches."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Integer, Key

from .._threads import thread_map
from ._batches import HostBatches
from ._hooks import EpochReport, Hook
from ._jit import CompiledFunction, jit
from ._optimizers import AnyOptimizer, Optimizer, RowOptimizer
from ._scan import Steps, TrainConfig, run_steps
from ._sharding import Sharding
from ._task import State, Task, stream


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


_Measured = tuple[RunStates, dict[str, Array]]


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


class _Run(NamedTuple):
    """Run inside a compiled program: task and optimizer have its swept hyper-parameters."""

    task: Task
    optimizer: AnyOptimizer
    params: dict[str, Array]
    inputs: Inputs
    static: StaticInputs

    @classmethod
    def from_inputs(cls, params: dict[str, Array], inputs: Inputs, static: StaticInputs) -> "_Run":
        parts = {"task": inputs.task, "optimizer": inputs.optimizer}
        for path in static.swept_paths:
            parts = replace_leaf(parts, path, params[path])
        optimizer = parts["optimizer"]
        if (
            isinstance(optimizer, (Optimizer, RowOptimizer))
            and static.updates_per_epoch is not None
        ):
            n_steps = params["epochs"] * static.updates_per_epoch
            optimizer = dataclasses.replace(optimizer, n_steps=n_steps)
        return cls(parts["task"], optimizer, params, inputs, static)

    def start_epoch(self, state: State, epoch: Array) -> tuple[State, Key[Array, ""]]:
        key, params = jax.random.fold_in(state.key, epoch), state.params
        if self.static.sharding is not None:
            params = self.static.sharding.unpad(params, n_batch_axes=0)
        model_state = self.task.start_epoch(key, params, state.model_state, epoch)
        return state._replace(model_state=model_state), key

    def run_steps(
        self, state: State, steps: Steps, epoch: Array, data: Any = None
    ) -> tuple[State, dict[str, Array]]:
        progress = epoch.astype(jnp.float32) / self.params["epochs"].astype(jnp.float32)
        return run_steps(
            self.task, self.optimizer, state, steps,
            config=self.static.config, data=data, epoch=epoch, progress=progress,
        )  # fmt: skip

    def flush(self, state: State) -> State:
        """Applies pending lazy updates, since hooks and the start of an epoch read whole tables."""
        if not isinstance(self.optimizer, RowOptimizer):
            return state
        params, opt_state = self.optimizer.flush_lazy_updates(
            state.params, state.opt_state, state.step, self.static.config.mesh
        )
        return state._replace(params=params, opt_state=opt_state)

    def measure(self, before: RunStates, values: dict[str, Array], epoch: Array) -> _Measured:
        """Evaluates the hooks and whether the run stops."""
        state = before.state  # padded: to remove the padding and add it again would copy tables
        if self.static.sharding is not None:
            before = self.static.sharding.unpad(before, n_batch_axes=0)
        stopped = (epoch >= self.params["epochs"]) | ~jnp.isfinite(values["loss"])
        hook_states = []
        for hook, hook_state in zip(self.inputs.hooks, before.hook_states, strict=True):
            report = EpochReport(epoch, values, before.stopped, self.static.config.mesh)
            hook_state, metrics, stop = hook.measure(self.task, before.state, hook_state, report)
            for name in metrics:
                if name in values or name in ("epoch", "seconds"):
                    raise ValueError(
                        f"`hooks` must return unique metric names, got {name!r} twice."
                    )
            hook_states.append(hook_state)
            values, stopped = {**values, **metrics}, stopped | stop
        return RunStates(state, tuple(hook_states), before.stopped | stopped), values


@partial(jit, static_argnames="static")
def start_runs(runs: dict[str, Array], inputs: Inputs, *, static: StaticInputs) -> RunStates:
    """Initial states of the runs."""

    def one(params: dict[str, Array]) -> RunStates:
        run = _Run.from_inputs(params, inputs, static)
        state = initial_state(run.task, run.optimizer, params["seed"])
        hook_states = tuple(hook.init(run.task, state) for hook in inputs.hooks)
        return RunStates(state, hook_states, jnp.bool_(False))

    state = jax.vmap(one)(runs)
    return state if static.sharding is None else static.sharding.pad(state)


# Number of parameters above which a CPU trains runs faster one by one than batched.
_CACHED = 2**18
# Number of parameters of all runs above which copies of their states would take too much memory.
_COPIED = 2**26


def fits_batched(state: RunStates, is_row: bool = False) -> bool:
    """Whether one program should train all runs, on the device that has their state.

    A CPU is busy with one large run, and its cache has no room for several; an accelerator is not
    busy with one. A single run is not batched in any case.

    Args:
      state: States of all runs.
      is_row: Whether only rows of tables are updated. A program of several runs then maps them
        sequentially, without copies of their tables.
    """
    leaves = jax.tree.leaves(state.state.params)
    size = sum(leaf.size // len(leaf) for leaf in leaves)
    (platform,) = {device.platform for device in leaves[0].devices()}
    n_runs = len(state.stopped)
    if platform != "cpu" or n_runs == 1:
        return True
    return n_runs * size > _COPIED if is_row else size < _CACHED


_STATIC = "static", "n_epochs"


def _over_runs(one: Callable[..., Any]) -> CompiledFunction:
    """Compiles ``one(run, states, values, steps, epoch, n_epochs)`` for all runs.

    By ``vmap``, except that a single run is not batched, since batched gathers cost more, and that
    runs with row updates are mapped sequentially: batching brings them nothing and costs them cache
    locality. ``state`` is donated; it comes first in the results. ``values`` has an axis ``runs``.
    """

    def program(
        state: RunStates,
        values: Any = (),
        steps: Steps | None = None,
        *,
        runs: dict[str, Array],
        inputs: Inputs,
        epoch: Array,
        static: StaticInputs,
        n_epochs: int = 1,
    ) -> Any:
        def for_run(state: RunStates, params: dict[str, Array], values: Any) -> Any:
            return one(
                _Run.from_inputs(params, inputs, static), state, values, steps, epoch, n_epochs
            )

        sharding, is_row = static.sharding, isinstance(inputs.optimizer, RowOptimizer)
        if sharding is not None:
            # Padding copies tables: row updates must not pay for this in each step.
            state = sharding.pad(state) if is_row else sharding.unpad(state)
        arguments = state, runs, values
        if len(runs["seed"]) == 1:
            single = jax.tree.map(lambda leaf: leaf[0], arguments)
            outputs = jax.tree.map(lambda leaf: leaf[None], for_run(*single))
        elif is_row:
            outputs = jax.lax.map(lambda x: for_run(*x), arguments)
        else:
            outputs = jax.vmap(for_run)(*arguments)
        if sharding is None:
            return outputs
        return sharding.pad(outputs[0]), sharding.replicate(outputs[1])

    program.__name__ = one.__name__
    return jit(program, static_argnames=_STATIC, donate_argnames="state")


@_over_runs
def run_epochs(
    run: _Run, before: RunStates, values: Any, steps: Any, epoch: Array, n_epochs: int
) -> _Measured:
    """Trains every run for ``n_epochs`` epochs and returns their report."""
    batches = run.inputs.batches

    def run_epoch(state: State, epoch: Array) -> tuple[State, dict[str, Array]]:
        state, key = run.start_epoch(state, epoch)
        steps = batches.epoch(key, run.static.config)
        state, means = run.run_steps(state, steps, epoch, batches.data)
        return run.flush(state), means

    epochs = epoch + jnp.arange(n_epochs, dtype=jnp.int32)
    after, reports = jax.lax.scan(run_epoch, before.state, epochs)
    report = jax.tree.map(jnp.mean, reports)
    return run.measure(before._replace(state=after), report, epochs[-1] + 1)


def run_epochs_by_threads(state: RunStates, *, runs: dict[str, Array], **fixed: Any) -> _Measured:
    """:func:`run_epochs` by the program of a single run, which a few threads execute.

    One run does not keep all processor cores busy, nor do programs that one thread starts. A search
    compiles the program once for its many short trainings and the few complete ones.
    """
    first = slice_run((state, runs), 0)
    remaining = (slice_run((state, runs), i) for i in range(1, len(runs["seed"])))
    # Compiled here, since settings of JAX, such as type promotion, may hold for one thread only.
    program = run_epochs.lower(first[0], runs=first[1], **fixed).compile()
    arrays = {name: x for name, x in fixed.items() if name not in _STATIC}

    def train(run: tuple[RunStates, dict[str, Array]]) -> _Measured:
        return jax.block_until_ready(program(run[0], runs=run[1], **arrays))

    return _stack_runs([*thread_map(train, chain([first], remaining))])


@jax.jit
def slice_run(tree: Any, index: Any) -> Any:
    """Returns the arrays of one run, with an axis ``runs`` of length 1."""
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, index, 1), tree)


@jax.jit
def _stack_runs(trees: Sequence[Any]) -> Any:
    """Concatenates the slices of all runs."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)


def run_epochs_from_host(
    batches: HostBatches, state: RunStates, *, epoch: np.int32, n_epochs: int, **fixed: Any
) -> _Measured:
    """:func:`run_epochs` on batches from the host, one chunk per compiled call."""
    sums: dict[str, Array] = {}
    report: dict[str, Array] = {}
    previous = report
    total = 0.0
    for current in map(np.int32, range(epoch, epoch + n_epochs)):
        state, keys = _start_epoch(state, epoch=current, **fixed)
        # All runs see the same examples with separate random keys.
        for steps in batches.chunks(int(current), fixed["static"].config):
            # Without this, a fast host would copy a whole epoch to the device. Chunks there: one
            # that it computes, one that is queued, and one that was just copied.
            jax.block_until_ready(previous)
            previous = report
            state, report = _run_chunk(state, keys, steps, epoch=current, **fixed)
            n = float(np.sum(steps.n))
            total += n
            sums = {name: sums.get(name, 0) + n * value for name, value in report.items()}
        if isinstance(fixed["inputs"].optimizer, RowOptimizer):
            state, _ = _flush(state, epoch=current, **fixed)
    if not total:
        raise ValueError(f"`batches` must hold an example in each epoch, got none in {epoch}.")
    report = {name: value / total for name, value in sums.items()}
    return _measure(state, report, epoch=np.int32(epoch + n_epochs), **fixed)


def trace_chunk(batches: HostBatches, state: RunStates, **kwargs: Any) -> Any:
    """Traces the steps on the first batches from the host, which determine the shapes."""
    steps = next(batches.chunks(0, kwargs["static"].config))
    return _run_chunk.trace(state, state.state.key, steps, **kwargs)


@_over_runs
def _start_epoch(
    run: _Run, before: RunStates, values: Any, steps: Any, epoch: Array, _: int
) -> Any:
    state, key = run.start_epoch(before.state, epoch)
    return before._replace(state=state), key


@_over_runs
def _run_chunk(run: _Run, before: RunStates, key: Any, steps: Steps, epoch: Array, _: int) -> Any:
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(steps.key)
    state, report = run.run_steps(before.state, steps._replace(key=keys), epoch)
    return before._replace(state=state), report


@_over_runs
def _flush(run: _Run, before: RunStates, values: Any, steps: Any, epoch: Array, _: int) -> Any:
    return before._replace(state=run.flush(before.state)), ()


@_over_runs
def _measure(run: _Run, before: RunStates, report: Any, steps: Any, epoch: Array, _: int) -> Any:
    return run.measure(before, report, epoch)


def initial_state(task: Task, optimizer: AnyOptimizer, seed: Integer[Array, ""] | int) -> State:
    """Returns the state of a run before the first step; a pure function."""
    key = jax.random.key(seed)
    # Converts weak types, which initializers such as `nnx.initializers.ones` return but training
    # steps do not, so that the second epoch does not recompile.
    params, model_state = jax.tree.map(
        lambda x: (
            x
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            else jax.lax.convert_element_type(x, x.dtype)
        ),
        task.init(key),
    )
    return State(jnp.int32(0), stream(key, "epochs"), params, optimizer.init(params), model_state)


def replace_leaf(tree: Any, path: str, value: Any) -> Any:
    """Returns the tree with the leaf at a path of names, joined by dots, replaced."""
    head, _, tail = path.partition(".")
    names = list(tree) if isinstance(tree, Mapping) else [
        f.name for f in dataclasses.fields(tree) if not f.metadata.get("static")
    ]  # fmt: skip
    if head not in names:
        raise ValueError(f"`sweep` must name leaves, which are {sorted(names)}, got {head!r}.")
    if tail:
        child = tree[head] if isinstance(tree, Mapping) else getattr(tree, head)
        value = replace_leaf(child, tail, value)
    if isinstance(tree, Mapping):
        return {**tree, head: value}
    return dataclasses.replace(tree, **{head: value})
