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
from .._mesh import DATA, over_mesh
from . import rows
from ._optimizers import AnyOptimizer, RowOptimizer, Updates
from ._sharding import Sharding
from ._task import Examples, Moment, RowTask, State, Task, take

# Numbers drawn ahead of an epoch's steps; past this (64 MiB) each step draws its own. Drawing for
# all steps at once gives the same batches in a third of the time, the work per operation being
# larger.
_MAX_DRAWN_AHEAD = 2**24


@dataclass(frozen=True)
class StepPlan:
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


def updates_per_epoch(n: int, plan: StepPlan) -> int:
    """Updates on ``n`` examples."""
    return -(-n // (plan.batch_size * plan.accumulate))


def plan_steps(n: int, plan: StepPlan) -> tuple[Array, Array, Array]:
    """Places of ``n`` examples in the draws of an epoch: ``position``, ``where`` and ``n``.

    How many of each batch are real is known before anything runs: counting them in every step
    costs as much as a small product.
    """
    draws, gradients = -(-n // plan.drawn), plan.draw_batches * plan.accumulate
    position = jnp.arange(draws * plan.drawn, dtype=jnp.int32).reshape(draws, plan.drawn)
    first = plan.batch_size * np.arange(draws * gradients).reshape(draws, gradients)
    n_real = np.clip(n - first, 0, plan.batch_size).astype(np.float32)
    return position, position < n, jnp.asarray(n_real)


def run_steps(
    task: Task,
    optimizer: AnyOptimizer,
    state: State,
    steps: Steps,
    *,
    plan: StepPlan,
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
        examples = Examples(place, take(data, place) if given is None else given)
        if plan.accumulate == 1:
            return task.batch(key, examples)
        keys = jax.random.split(key, plan.accumulate)
        return jax.vmap(task.batch)(keys, _split(examples, plan.accumulate))

    def turn(state: State, drawn: tuple[Any, Steps]) -> tuple[State, dict[str, Array]]:
        batch, now = drawn
        if not ahead:
            batch = draw(now.key, now.place, now.data)
        # Streams 0 to 2 of a draw are those of its batch.
        moment = Moment(jax.random.fold_in(now.key, 3), epoch, progress, now.where, now.n)
        return _take_turn(task, optimizer, plan, state, batch, moment)

    steps = steps._replace(
        place=_spread(steps.place, plan),
        where=_spread(steps.where, plan),
        data=_spread(steps.data, plan),
    )
    first = jax.tree.map(lambda leaf: leaf[0], steps)
    shapes = jax.eval_shape(draw, first.key, first.place, first.data)
    size = sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
    ahead = len(steps.place) * size <= _MAX_DRAWN_AHEAD
    batches = jax.vmap(draw)(steps.key, steps.place, steps.data) if ahead else None
    with over_mesh(plan.mesh):
        state, sums = jax.lax.scan(turn, state, (batches, steps))
    return state, jax.tree.map(lambda x: jnp.sum(x) / jnp.sum(steps.n), sums)


_Gradient = Callable[[State, Any, Moment], tuple[Any, Any, dict[str, Array]]]
_Update = Callable[[State, Any, Moment], tuple[State, dict[str, Array]]]


def _take_turn(
    task: Task, optimizer: AnyOptimizer, plan: StepPlan, state: State, batch: Any, moment: Moment
) -> tuple[State, dict[str, Array]]:
    """The updates on what was drawn together, and sums of their metrics over examples."""
    by_row = isinstance(optimizer, RowOptimizer)
    update = _row_update(task, optimizer, plan) if by_row else _dense_update(task, optimizer, plan)
    together = plan.draw_batches > 1
    if together or by_row:
        params = state.params
        if by_row and plan.mesh is not None:
            params = Sharding.of(plan.mesh, task).open(params, lead=0)
        batch, extra = task.choose(params, state.extra, batch, moment)
        state = state._replace(extra=extra)
    if not together:
        n = moment.n if plan.accumulate > 1 else moment.n[0]
        return update(state, batch, moment._replace(n=n))

    def stepped(state: State, each: tuple[Any, Array, Array]) -> tuple[State, dict[str, Array]]:
        own, where, n = each
        return update(state, own, moment._replace(where=where, n=n))

    # Past the last example the last draw holds batches without any: they are no steps.
    each = _split((batch, moment.where), plan.draw_batches)
    take_step = stepped if by_row else _skip_empty(stepped)
    state, sums = jax.lax.scan(take_step, state, (*each, moment.n))
    return state, jax.tree.map(jnp.sum, sums)


def _split(tree: Any, parts: int) -> Any:
    return jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), tree)


def _skip_empty(step: Callable[..., Any]) -> Callable[..., Any]:
    def skipping(state: State, each: tuple[Any, Array, Array]) -> tuple[State, dict[str, Array]]:
        shapes = jax.eval_shape(step, state, each)[1]
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.cond(each[2] > 0, step, lambda state, _: (state, nothing), state, each)

    return skipping


def _dense_update(task: Task, optimizer: Updates, plan: StepPlan) -> _Update:
    """An update with the gradient of all parameters."""
    gradient = _accumulated(task, plan) if plan.accumulate > 1 else _gradient(task, plan)

    def update(state: State, batch: Any, moment: Moment) -> tuple[State, dict[str, Array]]:
        grads, extra, sums = gradient(state, batch, moment)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params, state.step)
        params = optax.apply_updates(state.params, updates)
        extra = task.after_update(params, extra)
        return State(state.step + 1, state.key, params, opt_state, extra), sums

    return update


def _gradient(task: Task, plan: StepPlan) -> _Gradient:
    """The gradient of a mean loss, ``extra`` after it, and sums of the metrics."""

    def gradient(state: State, batch: Any, moment: Moment) -> tuple[Any, Any, dict[str, Array]]:
        def of_params(params: Any) -> tuple[Array, Any]:
            if plan.compute_dtype is not None:
                params = cast_floats(params, plan.compute_dtype)
            loss, (extra, metrics) = task.loss(params, state.extra, batch, moment)
            return loss, (extra, {"loss": loss, **metrics})

        grads, (extra, metrics) = jax.grad(of_params, has_aux=True)(state.params)
        return grads, extra, _sums(metrics, moment.n)

    return gradient


def _accumulated(task: Task, plan: StepPlan) -> _Gradient:
    """The same over several batches in turn, each weighing as its real examples do."""
    one = _gradient(task, plan)

    def gradient(state: State, batch: Any, moment: Moment) -> tuple[Any, Any, dict[str, Array]]:
        n = moment.n
        share = n / jnp.maximum(jnp.sum(n), 1)

        def add(carry: tuple[Any, Any], each: Any) -> tuple[tuple[Any, Any], dict[str, Array]]:
            extra, total = carry
            own, where, n, share, i = each
            key = jax.random.fold_in(moment.key, i)
            now = moment._replace(key=key, where=where, n=n)
            grads, extra, sums = one(state._replace(extra=extra), own, now)
            # A batch without a real example adds nothing, whatever its gradient is.
            total = jax.tree.map(
                lambda t, g: t + jnp.where(n > 0, share.astype(g.dtype) * g, 0), total, grads
            )
            return (extra, total), sums

        zeros = jax.tree.map(jnp.zeros_like, state.params)
        each = batch, _split(moment.where, plan.accumulate)
        order = jnp.arange(plan.accumulate, dtype=jnp.int32)
        (extra, total), sums = jax.lax.scan(add, (state.extra, zeros), (*each, n, share, order))
        return total, extra, jax.tree.map(jnp.sum, sums)

    return gradient


def _row_update(task: Task, optimizer: RowOptimizer, plan: StepPlan) -> _Update:
    """An update with the gradient of the rows that the batch reads."""
    assert isinstance(task, RowTask)
    rule, read_rows, write_rows = optimizer.row_rule, rows.read, rows.write
    if plan.mesh is not None:
        read_rows, write_rows = partial(rows.read_on, plan.mesh), partial(rows.write_on, plan.mesh)

    def update(state: State, batch: Any, moment: Moment) -> tuple[State, dict[str, Array]]:
        if plan.batch_size == 1:
            # XLA makes slices of gathers and scatters of one row, and copies whole tables to keep
            # them apart. With a second example, that counts for nothing, they stay in place.
            batch = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), batch)
            where = jnp.repeat(moment.where, 2) & jnp.array([True, False])
            moment = moment._replace(where=where)
        tables, tree = jax.tree.flatten(state.params)
        states, ids = map(tree.flatten_up_to, (state.opt_state, task.rows(batch)))
        read = [read_rows(rule, *each, state.step) for each in zip(tables, states, ids)]
        opened, states = zip(*read)
        here = task.relocate(batch, tree.unflatten([each.at for each in opened]))

        def of_rows(values: list[Array]) -> tuple[Array, Any]:
            params = tree.unflatten(values)
            loss, (extra, metrics) = task.loss(params, state.extra, here, moment)
            return loss, (extra, {"loss": loss, **metrics})

        values = [each.rows for each in opened]
        grads, (extra, metrics) = jax.grad(of_rows, has_aux=True)(values)
        written = [
            write_rows(rule, *each, state.step) for each in zip(tables, states, opened, grads)
        ]
        params, opt_state = (tree.unflatten(column) for column in zip(*written))
        extra = task.after_update(params, extra)
        after = State(state.step + 1, state.key, params, opt_state, extra)
        return after, _sums(metrics, moment.n)

    return update


def _sums(metrics: dict[str, Array], n: Float[Array, ""]) -> dict[str, Array]:
    """Sums over examples of what are means over them; those of none are 0."""
    return {
        name: jnp.where(n > 0, value.astype(jnp.float32) * n, 0) for name, value in metrics.items()
    }


def _spread(examples: Any, plan: StepPlan) -> Any:
    """Arrays ``[draws, drawn, ...]`` with the examples of each draw on several devices."""
    if plan.mesh is None:
        return examples
    over = NamedSharding(plan.mesh, PartitionSpec(None, DATA))
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, over), examples)
