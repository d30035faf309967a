"""Row transformations, and those without lazy updates: SGD and Adagrad."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from ..._checks import check_range

Rate = float | Array | Callable[[Int[Array, ""]], Float[Array, ""]]
"""Learning rate, or a function from the step, counted from 0, to its learning rate."""


class RowTransformation(NamedTuple):
    """Optimizer whose state and updates of a row depend on that row only.

    All functions accept rows and states with any leading axis ``rows``: those of a batch, of a
    device, or the whole table.

    Attributes:
      init: ``init(rows) -> state`` before the first step.
      flush: ``flush(rows, state, step) -> (rows, state)``: applies the updates of steps before
        ``step`` in which the gradient of a row was zero. None if these change nothing.
      update: ``update(grads, state, rows, step) -> (updates, state)`` for flushed rows. ``grads``
        is summed over the batch; the updates are added to the rows.
      additive: Whether there is no state and updates are linear in the gradients, so that the
        updates of duplicate rows of a batch may be added separately.
    """

    init: Callable[[Array], Any]
    flush: Callable[[Array, Any, Array], tuple[Array, Any]] | None
    update: Callable[[Array, Any, Array, Array], tuple[Array, Any]]
    additive: bool = False


def as_schedule(learning_rate: Rate) -> Callable[[Int[Array, "*n"]], Float[Array, "*n"]]:
    """Converts a learning rate to a function of any array of steps."""

    def at(step: Array) -> Array:
        rate = learning_rate(step) if callable(learning_rate) else learning_rate
        return jnp.asarray(rate, jnp.float32)

    def schedule(steps: Array) -> Array:
        steps = jnp.asarray(steps)
        return jax.vmap(at)(steps.ravel()).reshape(steps.shape) if steps.ndim else at(steps)

    return schedule


def dense(rule: RowTransformation) -> optax.GradientTransformation:
    """Converts a row transformation to an Optax transformation of whole tables.

    Every leaf of the parameters must be a table ``[rows, dim]``.
    """

    def init(params: Any) -> Any:
        return jnp.int32(0), jax.tree.map(rule.init, params)

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        step, states = state
        leaves, tree = jax.tree.flatten(grads)
        results = [
            rule.update(*table, step)
            for table in zip(leaves, tree.flatten_up_to(states), tree.flatten_up_to(params))
        ]
        updates, states = (tree.unflatten(column) for column in zip(*results))
        return updates, (step + 1, states)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def sgd(learning_rate: Rate) -> RowTransformation:
    """Stochastic gradient descent, as ``optax.sgd``.

    Args:
      learning_rate: See :data:`Rate`.
    """
    schedule = as_schedule(learning_rate)

    def update(grads: Array, state: Any, rows: Array, step: Array) -> tuple[Array, Any]:
        del rows
        return -schedule(step).astype(grads.dtype) * grads, state

    return RowTransformation(lambda rows: (), None, update, additive=True)


def adagrad(learning_rate: Rate, *, initial: float = 0.1, eps: float = 1e-7) -> RowTransformation:
    r"""Adagrad, as ``optax.adagrad``: :math:`w \leftarrow w - \eta\, g / \sqrt{G + \epsilon}`.

    :math:`G` is the element-wise sum of squared gradients.

    Args:
      learning_rate: See :data:`Rate`.
      initial: Initial value of :math:`G`, >= 0.
      eps: :math:`\epsilon`, >= 0.
    """
    _check_accumulator(initial, eps)
    schedule = as_schedule(learning_rate)

    def init(rows: Array) -> Array:
        return jnp.full_like(rows, initial)

    def update(grads: Array, state: Array, rows: Array, step: Array) -> tuple[Array, Array]:
        del rows
        state = state + grads**2
        return _scale_by_rms(grads, state, schedule(step), eps), state

    return RowTransformation(init, None, update)


def _check_accumulator(initial: float, eps: float) -> None:
    for name, value in (("initial", initial), ("eps", eps)):
        check_range(name, value, 0, math.inf, high_open=True)


def rowwise_adagrad(
    learning_rate: Rate, *, initial: float = 0.1, eps: float = 1e-7
) -> RowTransformation:
    r"""Row-wise Adagrad, with a single accumulator per row: the mean of squared gradients.

    The state is 1/dim the size of Adagrad's. Commonly used for the large embedding tables of
    recommenders.

    Args:
      learning_rate: See :data:`Rate`.
      initial: Initial value of the accumulator, >= 0.
      eps: Added to the accumulator before the square root, >= 0.

    References:
      Mudigere et al., Software-Hardware Co-design for Fast and Scalable Training of Deep Learning
      Recommendation Models, 2022, section 4.1.4.
    """
    _check_accumulator(initial, eps)
    schedule = as_schedule(learning_rate)

    def init(rows: Array) -> Array:
        return jnp.full(rows.shape[:1], initial, rows.dtype)

    def update(grads: Array, state: Array, rows: Array, step: Array) -> tuple[Array, Array]:
        del rows
        state = state + jnp.mean(grads**2, axis=-1)
        return _scale_by_rms(grads, state[:, None], schedule(step), eps), state

    return RowTransformation(init, None, update)


def _scale_by_rms(grads: Array, squares: Array, rate: Array, eps: float) -> Array:
    scale = jnp.where(squares > 0, jax.lax.rsqrt(squares + eps), 0)
    return -rate.astype(grads.dtype) * scale * grads
