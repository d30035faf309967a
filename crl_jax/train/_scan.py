"""Training steps as a ``lax.scan``."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from .._checks import check_float_dtype
from .._floats import cast_floats
from .._mesh import DATA, use_batch_mesh
from . import rows
from ._optimizers import AnyOptimizer, DenseOptimizer, RowOptimizer
from ._sharding import Sharding
from ._task import Batch, RowTask, State, StepContext, Task

# Maximum size of the batches that are drawn before the scan (64 MiB); above it each step draws its
# own. Drawing all batches at once gives the same batches in a third of the time, since each
# operation does more work.
_MAX_DRAWN_AHEAD = 2**24
# Approximate size of the batches that a TPU draws at once: its searches for unseen items need 512
# bytes for each.
_MAX_DRAWN_AT_ONCE = 2**17


@dataclass(frozen=True)
class TrainConfig:
    """Static configuration of training steps.

    Attributes:
      batch_size: Number of examples per gradient.
      draw_batches: Number of updates whose batches are drawn together and completed with the
        parameters before the first of them, see :meth:`Task.complete_batch`.
      accumulate: Number of gradients averaged per update.
      compute_dtype: Floating dtype that parameters are cast to for the loss, such as
        ``"bfloat16"``; they are stored and updated in their own dtype. Scalars, such as a trainable
        temperature, are not cast.
      mesh: Mesh whose axis ``data`` shards the examples of a batch. An optional axis ``table``
        shards the rows of tables, see :meth:`Task.table_paths`.

    Raises:
      ValueError: If ``compute_dtype`` is not a floating dtype.
    """

    batch_size: int
    draw_batches: int = 1
    accumulate: int = 1
    compute_dtype: str | None = None
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        check_float_dtype("compute_dtype", self.compute_dtype)

    @property
    def draw_size(self) -> int:
        """Number of examples drawn together."""
        return self.batch_size * self.draw_batches * self.accumulate


class Steps(NamedTuple):
    """Input of :func:`run_steps`; every leaf has the leading axis ``draws``.

    Attributes:
      key: Random key of each draw.
      indices: Indices of the examples of each draw, ``[draws, draw_size]``.
      where: Mask that excludes the padding of the last batches, ``[draws, draw_size]``.
      n: Number of examples per gradient without padding, ``[draws, gradients]``.
      data: The examples, ``[draws, draw_size, ...]``; None gathers them from the ``data`` of
        :func:`run_steps`.
    """

    key: Key[Array, "draws"]
    indices: Int[Array, "draws drawn"]
    where: Bool[Array, "draws drawn"]
    n: Float[Array, "draws gradients"]
    data: Any = None


def run_steps(
    task: Task,
    optimizer: AnyOptimizer,
    state: State,
    steps: Steps,
    *,
    config: TrainConfig,
    data: Any = None,
    epoch: Int[Array, ""] | int = 0,
    progress: Float[Array, ""] | float = 0.0,
) -> tuple[State, dict[str, Float[Array, ""]]]:
    """Runs training steps sequentially as one scan.

    Args:
      task: The task.
      optimizer: The optimizer.
      state: State before the first step.
      steps: The steps and their examples.
      config: Configuration of the steps.
      data: Dataset from which the examples are gathered; every leaf ``[n, ...]``.
      epoch: Number of completed epochs.
      progress: Fraction of all epochs completed, in [0, 1).

    Returns:
      The state after the last step, and means over the examples of ``loss`` and the task's
      metrics.
    """
    epoch, progress = jnp.asarray(epoch, jnp.int32), jnp.asarray(progress, jnp.float32)
    is_row = isinstance(optimizer, RowOptimizer)
    update = partial(_row_update if is_row else _dense_update, task, optimizer, config)

    def draw(key: Key[Array, ""], indices: Array, examples: Any) -> Any:
        if examples is None:  # a NumPy array cannot be indexed by a traced index
            examples = jax.tree.map(
                lambda x: (jnp.asarray(x) if isinstance(x, np.ndarray) else x)[indices], data
            )
        batch = Batch(indices, examples)
        if config.accumulate == 1:
            return task.batch(key, batch)
        keys = jax.random.split(key, config.accumulate)
        return jax.vmap(task.batch)(keys, _split(batch, config.accumulate))

    def draw_and_update(state: State, inputs: tuple[Any, Steps]) -> tuple[State, dict[str, Array]]:
        batch, each = inputs
        if not draw_ahead:
            batch = draw(each.key, each.indices, each.data)
        # Streams 0 to 2 of a draw are those of its batch.
        ctx = StepContext(jax.random.fold_in(each.key, 3), epoch, progress, each.where, each.n)
        if config.draw_batches > 1 or is_row:
            params = state.params
            if isinstance(optimizer, RowOptimizer):
                params = optimizer.unpacked_params(params, state.opt_state, config.mesh)
            if is_row and config.mesh is not None:
                sharding = Sharding.from_task(config.mesh, task, optimizer)
                params = sharding.unpad(params, n_batch_axes=0)
            batch, model_state = task.complete_batch(params, state.model_state, batch, ctx)
            state = state._replace(model_state=model_state)
        if config.draw_batches > 1:
            return _update_repeatedly(update, config.draw_batches, is_row, state, batch, ctx)
        return update(state, batch, ctx if config.accumulate > 1 else ctx._replace(n=ctx.n[0]))

    if config.mesh is not None:
        sharding = NamedSharding(config.mesh, PartitionSpec(None, DATA))
        examples = steps.indices, steps.where, steps.data
        indices, where, sharded = jax.lax.with_sharding_constraint(examples, sharding)
        steps = steps._replace(indices=indices, where=where, data=sharded)
    first = jax.tree.map(lambda leaf: leaf[0], steps)
    shapes = jax.eval_shape(draw, first.key, first.indices, first.data)
    size = sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
    draw_ahead = len(steps.indices) * size <= _MAX_DRAWN_AHEAD
    batches = None
    if draw_ahead:
        batch_size = -(-_MAX_DRAWN_AT_ONCE // size)
        batches = jax.lax.platform_dependent(
            (steps.key, steps.indices, steps.data),
            tpu=partial(jax.lax.map, lambda x: draw(*x), batch_size=batch_size),
            default=lambda x: jax.vmap(draw)(*x),
        )

    def scan(state: State, inputs: Any) -> tuple[State, dict[str, Array]]:
        return jax.lax.scan(draw_and_update, state, inputs)

    def scan_packed(state: State, inputs: Any) -> tuple[State, dict[str, Array]]:
        assert isinstance(optimizer, RowOptimizer)
        tables = state.params, state.opt_state
        params, opt_state = optimizer.pack(*tables, config.mesh)
        state, sums = scan(state._replace(params=params, opt_state=opt_state), inputs)
        params, opt_state = optimizer.unpack(state.params, state.opt_state, tables, config.mesh)
        return state._replace(params=params, opt_state=opt_state), sums

    with use_batch_mesh(config.mesh):
        inputs = batches, steps
        if is_row:
            state, sums = jax.lax.platform_dependent(state, inputs, tpu=scan_packed, default=scan)
        else:
            state, sums = scan(state, inputs)
    return state, jax.tree.map(lambda x: jnp.sum(x) / jnp.sum(steps.n), sums)


_Sums = dict[str, Array]


def _update_repeatedly(
    update: Callable[..., tuple[State, _Sums]],
    n_updates: int,
    is_row: bool,
    state: State,
    batch: Any,
    ctx: StepContext,
) -> tuple[State, _Sums]:
    """Runs the updates of one draw and sums their metrics over examples."""

    def step(state: State, inputs: tuple[Any, Array, Array]) -> tuple[State, _Sums]:
        batch, where, n = inputs
        return update(state, batch, ctx._replace(where=where, n=n))

    def skip_empty(state: State, inputs: tuple[Any, Array, Array]) -> tuple[State, _Sums]:
        shapes = jax.eval_shape(step, state, inputs)[1]
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.cond(inputs[2] > 0, step, lambda state, _: (state, zeros), state, inputs)

    # Batches of the last draw that are padding only are not counted as steps.
    parts = _split((batch, ctx.where), n_updates)
    state, sums = jax.lax.scan(step if is_row else skip_empty, state, (*parts, ctx.n))
    return state, jax.tree.map(jnp.sum, sums)


def _split(tree: Any, parts: int) -> Any:
    return jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), tree)


def _dense_update(
    task: Task,
    optimizer: DenseOptimizer,
    config: TrainConfig,
    state: State,
    batch: Any,
    ctx: StepContext,
) -> tuple[State, _Sums]:
    """Update with the gradient of all parameters."""
    prepare: Callable[[Any], Any] = lambda params: params  # noqa: E731
    if config.compute_dtype is not None:
        prepare = partial(cast_floats, dtype=config.compute_dtype)
    if config.accumulate > 1:
        grads, model_state, sums = _accumulate(task, prepare, state, batch, ctx)
    else:
        grads, model_state, metrics = _gradient(task, prepare, state, state.params, batch, ctx)
        sums = _sums(metrics, ctx.n)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params, state.step)
    params = optax.apply_updates(state.params, updates)
    model_state = task.after_update(params, model_state)
    return State(state.step + 1, state.key, params, opt_state, model_state), sums


def _gradient(
    task: Task,
    prepare: Callable[[Any], Any],
    state: State,
    values: Any,
    batch: Any,
    ctx: StepContext,
) -> tuple[Any, Any, dict[str, Array]]:
    """Gradient of the loss of ``prepare(values)``, ``model_state`` and metrics."""

    def loss_fn(values: Any) -> tuple[Array, Any]:
        loss, (model_state, metrics) = task.loss(prepare(values), state.model_state, batch, ctx)
        return loss, (model_state, {"loss": loss, **metrics})

    grads, (model_state, metrics) = jax.grad(loss_fn, has_aux=True)(values)
    return grads, model_state, metrics


def _sums(metrics: dict[str, Array], n: Float[Array, ""]) -> _Sums:
    """Converts means over examples to sums; 0 if there are no examples."""
    return {k: jnp.where(n > 0, x.astype(jnp.float32) * n, 0) for k, x in metrics.items()}


def _accumulate(
    task: Task, prepare: Callable[[Any], Any], state: State, batch: Any, ctx: StepContext
) -> tuple[Any, Any, _Sums]:
    """Gradient averaged over micro-batches by their sizes, ``model_state`` and sums of metrics."""
    share = ctx.n / jnp.maximum(jnp.sum(ctx.n), 1)

    def add(carry: tuple[Any, Any], inputs: Any) -> tuple[tuple[Any, Any], _Sums]:
        model_state, total = carry
        batch, where, n, share, i = inputs
        micro_ctx = ctx._replace(key=jax.random.fold_in(ctx.key, i), where=where, n=n)
        micro_state = state._replace(model_state=model_state)
        grads, model_state, metrics = _gradient(
            task, prepare, micro_state, state.params, batch, micro_ctx
        )
        sums = _sums(metrics, n)
        # A micro-batch of padding contributes nothing, even if its gradient is NaN.
        total = jax.tree.map(
            lambda t, g: t + jnp.where(n > 0, share.astype(g.dtype) * g, 0), total, grads
        )
        return (model_state, total), sums

    zeros = jax.tree.map(jnp.zeros_like, state.params)
    order = jnp.arange(len(ctx.n), dtype=jnp.int32)
    inputs = batch, _split(ctx.where, len(ctx.n)), ctx.n, share, order
    (model_state, total), sums = jax.lax.scan(add, (state.model_state, zeros), inputs)
    return total, model_state, jax.tree.map(jnp.sum, sums)


def _row_update(
    task: RowTask,
    optimizer: RowOptimizer,
    config: TrainConfig,
    state: State,
    batch: Any,
    ctx: StepContext,
) -> tuple[State, _Sums]:
    """Update with the gradient of the rows that the batch reads."""
    rule = optimizer.row_rule
    gather = partial(rows.gather_sharded, config.mesh)
    scatter = partial(rows.scatter_sharded, config.mesh)
    if config.batch_size == 1:
        # XLA turns gathers and scatters of one row into slices and copies whole tables to
        # avoid aliasing. A second, masked example keeps the updates in place.
        batch = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), batch)
        ctx = ctx._replace(where=jnp.repeat(ctx.where, 2) & jnp.array([True, False]))
    tables, tree = jax.tree.flatten(state.params)
    states, ids = map(tree.flatten_up_to, (state.opt_state, task.rows(batch)))
    gathered, states = zip(*(gather(rule, *each, state.step) for each in zip(tables, states, ids)))
    relocated = task.relocate(batch, tree.unflatten([each.inverse for each in gathered]))
    values = [each.rows for each in gathered]
    grads, model_state, metrics = _gradient(task, tree.unflatten, state, values, relocated, ctx)
    scattered = [scatter(rule, *each, state.step) for each in zip(tables, states, gathered, grads)]
    params, opt_state = (tree.unflatten(column) for column in zip(*scattered))
    unpacked = optimizer.unpacked_params(params, opt_state, config.mesh)
    model_state = task.after_update(unpacked, model_state)
    after = State(state.step + 1, state.key, params, opt_state, model_state)
    return after, _sums(metrics, ctx.n)
