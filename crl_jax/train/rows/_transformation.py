"""What an optimiser of rows is: Optax's two functions, of rows alone, and one more."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

Rate = float | Array | Callable[[Int[Array, ""]], Float[Array, ""]]
"""A learning rate, or a function that gives that of a step, counted from 0."""


class RowTransformation(NamedTuple):
    """An optimiser whose state belongs to rows: of a row, and of nothing else, it is a function.

    Rows and states of any number of rows go in and come out, all with a leading axis ``rows``: the
    few that a batch reads, those of one device, or the whole table.

    Attributes:
      init: ``init(rows) -> state``, before the first step.
      wake: ``wake(rows, state, step) -> (rows, state)``: what they are before the step ``step``,
        after the steps in which their gradient was zero. ``None`` where nothing happens in those.
      update: ``update(grads, state, rows, step) -> (updates, state)``, of rows that are awake:
        what to add to them. ``grads`` is the sum over the batch.
      additive: Whether there is no state and updates are linear in the gradients, so that of a row
        that a batch reads twice each update may be added by itself.
    """

    init: Callable[[Array], Any]
    wake: Callable[[Array, Any, Array], tuple[Array, Any]] | None
    update: Callable[[Array, Any, Array, Array], tuple[Array, Any]]
    additive: bool = False


def rate_of(learning_rate: Rate) -> Callable[[Int[Array, "*n"]], Float[Array, "*n"]]:
    """The learning rates of any number of steps."""

    def at(step: Array) -> Array:
        rate = learning_rate(step) if callable(learning_rate) else learning_rate
        return jnp.asarray(rate, jnp.float32)

    def of_all(steps: Array) -> Array:
        steps = jnp.asarray(steps)
        return jax.vmap(at)(steps.ravel()).reshape(steps.shape) if steps.ndim else at(steps)

    return of_all


def dense(rule: RowTransformation) -> optax.GradientTransformation:
    """The same optimiser on whole tables, as an Optax transformation.

    Every leaf of the parameters is a table ``[rows, dim]``.
    """

    def init(params: Any) -> Any:
        return jnp.int32(0), jax.tree.map(rule.init, params)

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        step, states = state
        leaves, tree = jax.tree.flatten(grads)
        each = [
            rule.update(*of_table, step)
            for of_table in zip(leaves, tree.flatten_up_to(states), tree.flatten_up_to(params))
        ]
        updates, states = (tree.unflatten(column) for column in zip(*each))
        return updates, (step + 1, states)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]
