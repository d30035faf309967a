"""Optimisers of rows to which nothing happens in the steps that they sleep."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._transformation import Rate, RowTransformation, rate_of


def sgd(learning_rate: Rate) -> RowTransformation:
    """Stochastic gradient descent, as ``optax.sgd``.

    Args:
      learning_rate: See :data:`Rate`.
    """
    rate = rate_of(learning_rate)

    def update(grads: Array, state: Any, rows: Array, step: Array) -> tuple[Array, Any]:
        del rows
        return -rate(step).astype(grads.dtype) * grads, state

    return RowTransformation(lambda rows: (), None, update, additive=True)


def adagrad(learning_rate: Rate, *, initial: float = 0.1, eps: float = 1e-7) -> RowTransformation:
    r"""Adagrad, as ``optax.adagrad``: :math:`w \leftarrow w - \eta\, g / \sqrt{G + \epsilon}`.

    :math:`G` is the sum of squares of all gradients of the number so far.

    Args:
      learning_rate: See :data:`Rate`.
      initial: What :math:`G` starts from, >= 0.
      eps: The :math:`\epsilon`.
    """
    rate = rate_of(learning_rate)

    def init(rows: Array) -> Array:
        return jnp.full_like(rows, initial)

    def update(grads: Array, state: Array, rows: Array, step: Array) -> tuple[Array, Array]:
        del rows
        return _scaled(grads, state + grads**2, rate(step), eps)

    return RowTransformation(init, None, update)


def rowwise_adagrad(
    learning_rate: Rate, *, initial: float = 0.1, eps: float = 1e-7
) -> RowTransformation:
    r"""Adagrad with one number for each row, the mean of the squares: a state of 1/dim the size.

    What large tables of recommenders are usually trained with.

    Args:
      learning_rate: See :data:`Rate`.
      initial: What the sum starts from, >= 0.
      eps: Is added to it before the root.

    References:
      Mudigere et al., Software-Hardware Co-design for Fast and Scalable Training of Deep Learning
      Recommendation Models, 2022, section 4.1.4.
    """
    rate = rate_of(learning_rate)

    def init(rows: Array) -> Array:
        return jnp.full(rows.shape[:1], initial, rows.dtype)

    def update(grads: Array, state: Array, rows: Array, step: Array) -> tuple[Array, Array]:
        del rows
        state = state + jnp.mean(grads**2, axis=-1)
        updates, _ = _scaled(grads, state[:, None], rate(step), eps)
        return updates, state

    return RowTransformation(init, None, update)


def _scaled(grads: Array, squares: Array, rate: Array, eps: float) -> tuple[Array, Array]:
    scale = jnp.where(squares > 0, jax.lax.rsqrt(squares + eps), 0)
    return -rate.astype(grads.dtype) * scale * grads, squares
