"""Adam by rows, which catches up with the steps that a row has slept."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..._checks import check_range
from ..._floats import at_least_float32
from ._transformation import Rate, RowTransformation, rate_of

# The sums over the steps to come leave out terms of less than this share.
_LEAST = 1e-9


class AdamRows(NamedTuple):
    """What Adam knows of rows.

    Attributes:
      mean: Running mean of the gradients, ``[rows, dim]``.
      square: Running mean of their squares, ``[rows, dim]``.
      steps: Steps that both have seen, int32 ``[rows]``.
      way: The :math:`C` of those steps, see :func:`adam`, ``[rows]``.
      brake: Their :math:`E`, ``[rows]``.
    """

    mean: Float[Array, "rows dim"]
    square: Float[Array, "rows dim"]
    steps: Int[Array, "rows"]
    way: Float[Array, "rows"]
    brake: Float[Array, "rows"]


def adam(
    learning_rate: Rate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> RowTransformation:
    r"""Adam, as ``optax.adam``, of rows that sleep most of the time.

    A row without a gradient still moves: its running means decay, and it follows the first of
    them. In :math:`k` such steps after the step :math:`t` it goes

    .. math::

        - m_t \sum_{j=1}^{k} \frac{w_{t,j}}{\sqrt{v_t} + \epsilon_{t,j}}, \qquad
        w_{t,j} = \eta_{t+j} \Big(\frac{\beta_1}{\sqrt{\beta_2}}\Big)^j
        \frac{\sqrt{1-\beta_2^{t+j}}}{1-\beta_1^{t+j}}, \qquad
        \epsilon_{t,j} = \epsilon \sqrt{\frac{1-\beta_2^{t+j}}{\beta_2^j}} .

    Taken is :math:`-m_t W/(\sqrt{v_t} + \bar\epsilon)`, where :math:`W` is the sum of the
    :math:`w_{t,j}` and :math:`\bar\epsilon` their mean of the :math:`\epsilon_{t,j}`. Both come
    from sums over all steps to come, :math:`C_t = \sum_{j\ge 1} w_{t,j}` and
    :math:`E_t = \sum_{j\ge 1} w_{t,j}\epsilon_{t,j}`, for

    .. math::

        W = C_t - (\beta_1/\sqrt{\beta_2})^k\, C_{t+k}, \qquad
        \bar\epsilon\, W = E_t - (\beta_1/\beta_2)^k\, E_{t+k} .

    :math:`C_t` and :math:`E_t` are numbers of a step, and the row keeps those of the last one that
    it was awake in. So waking up costs the same after one step and after a million. All else is as
    in the dense optimiser.

    What is taken falls short by a share of at most the variance of the :math:`\epsilon_{t,j}`
    under the weights :math:`w_{t,j}`, divided by :math:`(\sqrt{v_t} + \epsilon_{t,1})
    (\sqrt{v_t} + \bar\epsilon)`. With the default numbers that is less than 0.0001 from the
    1,000th step on, whatever the gradients, and less than 0.000001 wherever :math:`\sqrt{v_t}` is
    a hundred times :math:`\epsilon`.

    Args:
      learning_rate: See :data:`Rate`. A schedule is asked for steps to come as well.
      b1: :math:`\beta_1`, in [0, 1).
      b2: :math:`\beta_2`, in (b1, 1).
      eps: :math:`\epsilon`, positive.

    Raises:
      ValueError: If a number is out of its range.

    References:
      Kingma and Ba, Adam: A Method for Stochastic Optimization, 2015.
    """
    check_range("b1", b1, 0, 1, high_open=True)
    check_range("b2", b2, b1, 1, low_open=True, high_open=True)
    check_range("eps", eps, 0, jnp.inf, low_open=True, high_open=True)
    rate, ratio, slower = rate_of(learning_rate), b1 / math.sqrt(b2), b1 / b2
    n_terms = 1 if b1 == 0 else math.ceil(math.log(_LEAST) / math.log(slower))
    ahead = np.arange(1, n_terms + 1, dtype=np.int32)
    of_way, of_brake = (np.float32(base**ahead) for base in (ratio, slower))

    def corrections(count: Array) -> tuple[Array, Array]:
        """What the running means have of the gradients after ``count`` steps."""
        count = count.astype(jnp.float32)
        return 1 - b1**count, 1 - b2**count

    def to_come(count: Array) -> tuple[Array, Array]:
        """C and E after ``count`` steps."""
        counts = count + ahead
        of_mean, of_square = corrections(counts)
        size = rate(counts - 1) / of_mean
        way = jnp.sum(of_way * size * jnp.sqrt(of_square))
        return way, eps * jnp.sum(of_brake * size * of_square)

    def seen(state: AdamRows, mean: Array, square: Array, count: Array) -> AdamRows:
        # Always true. But it makes new numbers of old ones: otherwise XLA may write before it
        # reads, and keeps the two apart by copies of all rows.
        later = count >= state.steps
        way, brake = (jnp.where(later, new, old) for new, old in zip(to_come(count), state[3:]))
        mean, square = (x.astype(state.mean.dtype) for x in (mean, square))
        return AdamRows(mean, square, jnp.where(later, count, state.steps), way, brake)

    def init(rows: Array) -> AdamRows:
        n = rows.shape[0]
        # Two arrays: a buffer may be donated once.
        means = jnp.zeros_like(rows), jnp.zeros_like(rows)
        numbers = (jnp.full(n, x, jnp.float32) for x in to_come(jnp.int32(0)))
        return AdamRows(*means, jnp.zeros(n, jnp.int32), *numbers)

    def wake(rows: Array, state: AdamRows, step: Array) -> tuple[Array, AdamRows]:
        mean, square = at_least_float32(state.mean, state.square)
        slept = (step - state.steps).astype(jnp.float32)
        way, brake = to_come(step)
        way = state.way - ratio**slept * way
        brake = state.brake - slower**slept * brake
        awake = (slept <= 0) | (way <= 0)
        small = jnp.where(awake, eps, brake / jnp.where(awake, 1, way))
        way = jnp.where(awake, 0, way)
        small, way, of_mean, of_square = (
            x[:, None].astype(mean.dtype) for x in (small, way, b1**slept, b2**slept)
        )
        moved = way * mean / (jnp.sqrt(square) + small)
        return rows - moved.astype(rows.dtype), seen(
            state, of_mean * mean, of_square * square, step
        )

    def update(grads: Array, state: AdamRows, rows: Array, step: Array) -> tuple[Array, AdamRows]:
        mean, square, grads = at_least_float32(state.mean, state.square, grads)
        mean = b1 * mean + (1 - b1) * grads
        square = b2 * square + (1 - b2) * grads**2
        of_mean, of_square = corrections(step + 1)
        size, root = rate(step) / of_mean, jax.lax.rsqrt(of_square)
        size, root = size.astype(mean.dtype), root.astype(mean.dtype)
        updates = -size * mean / (root * jnp.sqrt(square) + eps)
        return updates.astype(rows.dtype), seen(state, mean, square, step + 1)

    return RowTransformation(init, wake, update)
