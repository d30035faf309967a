"""Steps of training: the loop that everything is trained by, as a scan."""

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

from .._floats import cast_floats
from .._mesh import DATA, use_batch_mesh
from . import rows
from ._optimizers import AnyOptimizer, RowOptimizer, Updates
from ._sharding import Sharding
from ._task import Batch, RowTask, State, StepContext, Task, take

# Numbers drawn ahead of an epoch's steps; past this (64 MiB) each step draws its own. Drawing for
# all steps at once gives the same batches in a third of the time, the work per operation being
# larger.
_MAX_DRAWN_AHEAD = 2**24


@dataclass(frozen=True)
class TrainConfig:
    """How steps are taken: the static side, hashed by ``jit``.

    Attributes:
      batch_size: Examples per gradient.
      draw_batches: Updates whose batches are drawn together, and chosen from the parameters
        before the first of them.
      accumulate: Gradients that are averaged for one update.
      compute_dtype: What floating parameters are cast to for the loss, such as ``"bfloat16"``;
        they are kept and updated as they are.
      mesh: Devices that the examples of a batch are spread over, along its axis ``data``; along an
        axis ``table``, if it has one, the rows of tables are, see :meth:`Task.is_table`.
    """

    batch_size: int
    draw_batches: int = 1
    accumulate: int = 1
    compute_dtype: str | None = None
    mesh: Mesh | None = None

    @property
    def drawn(self) -> int:
        """Examples that are drawn together."""
        return self.batch_size * self.draw_batches * self.accumulate


class Steps(NamedTuple):
    """What :func:`run_steps` goes through; every leaf leads with the number of draws.

    Attributes:
      key: Random key of each draw.
      place: The examples of each draw, ``[draws, drawn]``.
      where: False for those that only fill the last batches up, ``[draws, drawn]``.
      n: How many examples of each gradient are real, ``[draws, gradients]``.
      data: The examples themselves, ``[draws, drawn, ...]``, or None: then they are taken by
        their place in the data that :func:`run_steps` gets.
    """

    key: Key[Array, "draws"]
    place: Int[Array, "draws drawn"]
    where: Bool[Array, "draws drawn"]
    n: Float[Array, "draws gradients"]
    data: Any = None


def updates_per_epoch(n: int, config: TrainConfig) -> int:
    """Updates on ``n`` examples."""
    return -(-n // (config.batch_size * config.accumulate))


def plan_steps(n: int, config: TrainConfig) -> tuple[Array, Array, Array]:
    """Places of ``n`` examples in the draws of an epoch: ``position``, ``where`` and ``n``.

    How many of each batch are real is known before anything runs: counting them in every step
    costs as much as a small product.
    """
    draws, gradients = -(-n // config.drawn), config.draw_batches * config.accumulate
    position = jnp.arange(draws * config.drawn, dtype=jnp.int32).reshape(draws, config.drawn)
    first = config.batch_size * np.arange(draws * gradients).reshape(draws, gradients)
    n_real = np.clip(n - first, 0, config.batch_size).astype(np.float32)
    return position, position < n, jnp.asarray(n_real)


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
    """Takes steps of training, one after the other, as one scan.

    Args:
      task: What is trained.
      optimizer: What a gradient changes.
      state: State before the first step.
      steps: The examples.
      plan: How steps are taken.
      data: The data that the examples are taken from; every leaf leads with their number.
      epoch: Epochs trained before this one.
      progress: Share of all epochs done.

    Returns:
      The state after the last step; and means over the examples of ``loss`` and the metrics of
      the task.
    """
    epoch, progress = jnp.asarray(epoch, jnp.int32), jnp.asarray(progress, jnp.float32)

    def draw(key: Key[Array, ""], place: Array, given: Any) -> Any:
        examples = Batch(place, take(data, place) if given is None else given)
        if config.accumulate == 1:
            return task.batch(key, examples)
        keys = jax.random.split(key, config.accumulate)
        return jax.vmap(task.batch)(keys, _split(examples, config.accumulate))

    def turn(state: State, drawn: tuple[Any, Steps]) -> tuple[State, dict[str, Array]]:
        batch, now = drawn
        if not ahead:
            batch = draw(now.key, now.place, now.data)
        # Streams 0 to 2 of a draw are those of its batch.
        ctx = StepContext(jax.random.fold_in(now.key, 3), epoch, progress, now.where, now.n)
        return _take_turn(task, optimizer, config, state, batch, ctx)

    steps = steps._replace(
        place=_spread(steps.place, config),
        where=_spread(steps.where, config),
        data=_spread(steps.data, config),
    )
    first = jax.tree.map(lambda leaf: leaf[0], steps)
    shapes = jax.eval_shape(draw, first.key, first.place, first.data)
    size = sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
    ahead = len(steps.place) * size <= _MAX_DRAWN_AHEAD
    batches = jax.vmap(draw)(steps.key, steps.place, steps.data) if ahead else None
    with use_batch_mesh(config.mesh):
        state, sums = jax.lax.scan(turn, state, (batches, steps))
    return state, jax.tree.map(lambda x: jnp.sum(x) / jnp.sum(steps.n), sums)


_Gradient = Callable[[State, Any, StepContext], tuple[Any, Any, dict[str, Array]]]
_Update = Callable[[State, Any, StepContext], tuple[State, dict[str, Array]]]


def _take_turn(
    task: Task,
    optimizer: AnyOptimizer,
    config: TrainConfig,
    state: State,
    batch: Any,
    ctx: StepContext,
) -> tuple[State, dict[str, Array]]:
    """The updates on what was drawn together, and sums of their metrics over examples."""
    by_row = isinstance(optimizer, RowOptimizer)
    update = (
        _row_update(task, optimizer, config) if by_row else _dense_update(task, optimizer, config)
    )
    together = config.draw_batches > 1
    if together or by_row:
        params = state.params
        if by_row and config.mesh is not None:
            params = Sharding.from_task(config.mesh, task).open(params, lead=0)
        batch, model_state = task.complete_batch(params, state.model_state, batch, ctx)
        state = state._replace(model_state=model_state)
    if not together:
        n = ctx.n if config.accumulate > 1 else ctx.n[0]
        return update(state, batch, ctx._replace(n=n))

    def stepped(state: State, each: tuple[Any, Array, Array]) -> tuple[State, dict[str, Array]]:
        own, where, n = each
        return update(state, own, ctx._replace(where=where, n=n))

    # Past the last example the last draw holds batches without any: they are no steps.
    each = _split((batch, ctx.where), config.draw_batches)
    take_step = stepped if by_row else _skip_empty(stepped)
    state, sums = jax.lax.scan(take_step, state, (*each, ctx.n))
    return state, jax.tree.map(jnp.sum, sums)


def _split(tree: Any, parts: int) -> Any:
    return jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), tree)


def _skip_empty(step: Callable[..., Any]) -> Callable[..., Any]:
    def skipping(state: State, each: tuple[Any, Array, Array]) -> tuple[State, dict[str, Array]]:
        shapes = jax.eval_shape(step, state, each)[1]
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.cond(each[2] > 0, step, lambda state, _: (state, nothing), state, each)

    return skipping


def _dense_update(task: Task, optimizer: Updates, config: TrainConfig) -> _Update:
    """An update with the gradient of all parameters."""
    gradient = _accumulated(task, config) if config.accumulate > 1 else _gradient(task, config)

    def update(state: State, batch: Any, ctx: StepContext) -> tuple[State, dict[str, Array]]:
        grads, model_state, sums = gradient(state, batch, ctx)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params, state.step)
        params = optax.apply_updates(state.params, updates)
        model_state = task.after_update(params, model_state)
        return State(state.step + 1, state.key, params, opt_state, model_state), sums

    return update


def _gradient(task: Task, config: TrainConfig) -> _Gradient:
    """The gradient of a mean loss, ``model_state`` after it, and sums of the metrics."""

    def gradient(state: State, batch: Any, ctx: StepContext) -> tuple[Any, Any, dict[str, Array]]:
        def of_params(params: Any) -> tuple[Array, Any]:
            if config.compute_dtype is not None:
                params = cast_floats(params, config.compute_dtype)
            loss, (model_state, metrics) = task.loss(params, state.model_state, batch, ctx)
            return loss, (model_state, {"loss": loss, **metrics})

        grads, (model_state, metrics) = jax.grad(of_params, has_aux=True)(state.params)
        return grads, model_state, _sums(metrics, ctx.n)

    return gradient


def _accumulated(task: Task, config: TrainConfig) -> _Gradient:
    """The same over several batches in turn, each weighing as its real examples do."""
    one = _gradient(task, config)

    def gradient(state: State, batch: Any, ctx: StepContext) -> tuple[Any, Any, dict[str, Array]]:
        n = ctx.n
        share = n / jnp.maximum(jnp.sum(n), 1)

        def add(carry: tuple[Any, Any], each: Any) -> tuple[tuple[Any, Any], dict[str, Array]]:
            model_state, total = carry
            own, where, n, share, i = each
            key = jax.random.fold_in(ctx.key, i)
            now = ctx._replace(key=key, where=where, n=n)
            grads, model_state, sums = one(state._replace(model_state=model_state), own, now)
            # A batch without a real example adds nothing, whatever its gradient is.
            total = jax.tree.map(
                lambda t, g: t + jnp.where(n > 0, share.astype(g.dtype) * g, 0), total, grads
            )
            return (model_state, total), sums

        zeros = jax.tree.map(jnp.zeros_like, state.params)
        each = batch, _split(ctx.where, config.accumulate)
        order = jnp.arange(config.accumulate, dtype=jnp.int32)
        (model_state, total), sums = jax.lax.scan(
            add, (state.model_state, zeros), (*each, n, share, order)
        )
        return total, model_state, jax.tree.map(jnp.sum, sums)

    return gradient


def _row_update(task: Task, optimizer: RowOptimizer, config: TrainConfig) -> _Update:
    """An update with the gradient of the rows that the batch reads."""
    assert isinstance(task, RowTask)
    rule, read_rows, write_rows = optimizer.row_rule, rows.read, rows.write
    if config.mesh is not None:
        read_rows, write_rows = (
            partial(rows.read_on, config.mesh),
            partial(rows.write_on, config.mesh),
        )

    def update(state: State, batch: Any, ctx: StepContext) -> tuple[State, dict[str, Array]]:
        if config.batch_size == 1:
            # XLA makes slices of gathers and scatters of one row, and copies whole tables to keep
            # them apart. With a second example, that counts for nothing, they stay in place.
            batch = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), batch)
            where = jnp.repeat(ctx.where, 2) & jnp.array([True, False])
            ctx = ctx._replace(where=where)
        tables, tree = jax.tree.flatten(state.params)
        states, ids = map(tree.flatten_up_to, (state.opt_state, task.rows(batch)))
        read = [read_rows(rule, *each, state.step) for each in zip(tables, states, ids)]
        opened, states = zip(*read)
        here = task.relocate(batch, tree.unflatten([each.at for each in opened]))

        def of_rows(values: list[Array]) -> tuple[Array, Any]:
            params = tree.unflatten(values)
            loss, (model_state, metrics) = task.loss(params, state.model_state, here, ctx)
            return loss, (model_state, {"loss": loss, **metrics})

        values = [each.rows for each in opened]
        grads, (model_state, metrics) = jax.grad(of_rows, has_aux=True)(values)
        written = [
            write_rows(rule, *each, state.step) for each in zip(tables, states, opened, grads)
        ]
        params, opt_state = (tree.unflatten(column) for column in zip(*written))
        model_state = task.after_update(params, model_state)
        after = State(state.step + 1, state.key, params, opt_state, model_state)
        return after, _sums(metrics, ctx.n)

    return update


def _sums(metrics: dict[str, Array], n: Float[Array, ""]) -> dict[str, Array]:
    """Sums over examples of what are means over them; those of none are 0."""
    return {
        name: jnp.where(n > 0, value.astype(jnp.float32) * n, 0) for name, value in metrics.items()
    }


def _spread(examples: Any, config: TrainConfig) -> Any:
    """Arrays ``[draws, drawn, ...]`` with the examples of each draw on several devices."""
    if config.mesh is None:
        return examples
    over = NamedSharding(config.mesh, PartitionSpec(None, DATA))
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, over), examples)
