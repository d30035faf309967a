"""Logistic regression with many classes, by L-BFGS."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._features import HIGHEST, LinearClassifier

_MEMORY = 10
"""Steps that the estimate of the curvature is made from."""
_CURVATURE = 0.3
"""Share of the slope at its start that a step may end with."""
_TRIALS = 20
"""Lengths that are tried for a step."""


class Problem(NamedTuple):
    """What is minimised, for any strength of L2.

    Attributes:
      x: Standard features, ``[n, dim]``.
      labels: Classes, ``[n]``.
      axes: Directions in which the features are uncorrelated, ``[dim, dim]``, by column.
      variances: Those of the features in these directions, ``[dim]``.
    """

    x: Float[Array, "n dim"]
    labels: Int[Array, "n"]
    axes: Float[Array, "dim dim"]
    variances: Float[Array, "dim"]


class _State(NamedTuple):
    step: Array
    weights: Array  # [dim + 1, n_classes], the bias last
    logits: Array
    gradient: Array
    moves: Array  # the last steps, the latest first, [memory, dim + 1, n_classes]
    turns: Array  # how the gradient changed in them
    stuck: Array


def problem(x: Float[Array, "n dim"], labels: Int[Array, "n"], n: Array) -> Problem:
    """The problem of standard features, of which ``n`` rows are not 0."""
    covariance = jnp.matmul(x.T, x, precision=HIGHEST) / n.astype(x.dtype)
    variances, axes = jnp.linalg.eigh(covariance)
    return Problem(x, labels, axes, jnp.maximum(variances, 0))


def fit(
    of: Problem,
    where: Bool[Array, "n"],
    l2: Float[Array, ""],
    start: LinearClassifier,
    max_steps: int | Int[Array, ""],
    tolerance: Float[Array, ""],
) -> LinearClassifier:
    r"""Minimises the mean cross-entropy of the kept rows and ``l2 / 2`` of the squared kernel.

    L-BFGS on what is linear in the features has two savings. A step of any length changes the
    logits by a multiple of one product, so that the search for its length costs none. And the
    curvature is known beforehand: at weights of 0 it is :math:`\Sigma / C + \lambda` for the
    covariance :math:`\Sigma` of the features, whose inverse stands where L-BFGS has the identity.
    """
    x, n_classes = of.x, start.bias.shape[0]
    rows = jnp.where(where, 1 / jnp.maximum(jnp.sum(where), 1).astype(x.dtype), 0)
    targets = jax.nn.one_hot(of.labels, n_classes, dtype=x.dtype)
    # The bias, last, has no penalty and the variance 1.
    penalty = jnp.concatenate([jnp.full(x.shape[1], l2, x.dtype), jnp.zeros(1, x.dtype)])[:, None]
    known = 1 / (of.variances / n_classes + l2)

    def forward(weights: Array) -> Array:
        return jnp.matmul(x, weights[:-1], precision=HIGHEST) + weights[-1:]

    def residuals(logits: Array) -> Array:
        return rows[:, None] * (jax.nn.softmax(logits) - targets)

    def gradient_of(weights: Array, logits: Array) -> Array:
        r = residuals(logits)
        # On CPUs a third of the time that the product of x.T and r takes.
        data = jnp.matmul(r.T, x, precision=HIGHEST).T
        return jnp.concatenate([data, jnp.sum(r, axis=0)[None]]) + penalty * weights

    def precondition(g: Array) -> Array:
        along = jnp.matmul(of.axes.T, g[:-1], precision=HIGHEST) * known[:, None]
        return jnp.concatenate([jnp.matmul(of.axes, along, precision=HIGHEST), g[-1:] * n_classes])

    def step(state: _State) -> _State:
        direction = -_two_loops(state, precondition)
        downhill = jnp.sum(state.gradient * direction)
        change = forward(direction)
        bend = jnp.sum(penalty * direction**2)
        tilt = jnp.sum(penalty * state.weights * direction)

        def slope(t: Array) -> Array:
            r = residuals(state.logits + t * change)
            return jnp.sum(r * change) + tilt + t * bend

        t = _step_length(slope, downhill)
        stuck = ~(downhill < 0)
        t = jnp.where(stuck, 0, t)
        weights, logits = state.weights + t * direction, state.logits + t * change
        gradient = gradient_of(weights, logits)
        move, turn = t * direction, gradient - state.gradient
        return _State(
            state.step + 1, weights, logits, gradient,
            jnp.concatenate([move[None], state.moves[:-1]]),
            jnp.concatenate([turn[None], state.turns[:-1]]),
            stuck,
        )  # fmt: skip

    def goes_on(state: _State) -> Array:
        steep = jnp.max(jnp.abs(state.gradient)) > tolerance
        return steep & (state.step < max_steps) & ~state.stuck

    weights = jnp.concatenate([start.kernel, start.bias[None]])
    logits = forward(weights)
    none = jnp.zeros((_MEMORY, *weights.shape), x.dtype)
    first = _State(
        jnp.int32(0), weights, logits, gradient_of(weights, logits), none, none, jnp.bool_(False)
    )
    last = jax.lax.while_loop(goes_on, step, first)
    return LinearClassifier(last.weights[:-1], last.weights[-1])


def _two_loops(state: _State, precondition: Callable[[Array], Array]) -> Array:
    """The inverse curvature times the gradient: Nocedal and Wright, 2006, algorithm 7.4."""
    products = jnp.sum(state.moves * state.turns, axis=(1, 2))
    known = products > 0
    inverse = jnp.where(known, 1 / jnp.where(known, products, 1), 0)

    def back(q: Array, each: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        move, turn, inverse = each
        share = inverse * jnp.sum(move * q)
        return q - share * turn, share

    def forth(r: Array, each: tuple[Array, Array, Array, Array]) -> tuple[Array, None]:
        move, turn, inverse, share = each
        return r + move * (share - inverse * jnp.sum(turn * r)), None

    pairs = state.moves, state.turns, inverse
    q, shares = jax.lax.scan(back, state.gradient, pairs)
    # How far the last step's curvature was from what was known before.
    turn = state.turns[0]
    square = jnp.sum(turn * precondition(turn))
    usable = known[0] & (square > 0)
    factor = jnp.where(usable, products[0] / jnp.where(usable, square, 1), 1)
    return jax.lax.scan(forth, factor * precondition(q), (*pairs, shares), reverse=True)[0]


def _step_length(slope: Callable[[Array], Array], downhill: Array) -> Array:
    """A length at which a convex function has lost most of its slope ``downhill`` at 0.

    By the slope alone: near the optimum its values no longer differ in their digits.
    """

    def wanted(state: tuple[Array, ...]) -> Array:
        trial, _, steep, *_ = state
        return (trial < _TRIALS) & (jnp.abs(steep) > -_CURVATURE * downhill)

    def narrow(state: tuple[Array, ...]) -> tuple[Array, ...]:
        trial, t, steep, low, at_low, high, at_high = state
        short = steep < 0
        low, at_low = jnp.where(short, t, low), jnp.where(short, steep, at_low)
        high, at_high = jnp.where(short, high, t), jnp.where(short, at_high, steep)
        bounded = jnp.isfinite(high)
        width = jnp.where(bounded, high, 0) - low
        share = -at_low / jnp.where(bounded, at_high - at_low, 1)
        inside = low + jnp.clip(share, 0.1, 0.9) * width
        t = jnp.where(bounded, inside, 4 * low)
        return trial + 1, t, slope(t), low, at_low, high, at_high

    one, inf = jnp.ones_like(downhill), jnp.full_like(downhill, jnp.inf)
    first = jnp.int32(1), one, slope(one), 0 * one, downhill, inf, 0 * one
    return jax.lax.while_loop(wanted, narrow, first)[1]
