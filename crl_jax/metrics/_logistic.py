"""Multinomial logistic regression with L-BFGS."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from ._features import HIGHEST, LinearClassifier

_CURVATURE = 0.3
"""Curvature condition of the line search: final slope relative to the initial slope."""
_TRIALS = 20
"""Maximum number of trial step lengths per line search."""


class Problem(NamedTuple):
    """Logistic regression on standardised ``x``, without the L2 penalty."""

    x: Float[Array, "n dim+1"]  # with a last column of ones
    labels: Int[Array, "n"]
    covariance: Float[Array, "dim dim"]


class _State(NamedTuple):
    step: Array
    position: Array  # [dim + 1, n_classes], in preconditioned coordinates relative to the start
    weights: Array  # [dim + 1, n_classes], the bias last
    logits: Array
    gradient: Array  # with respect to the weights
    history: Any
    stuck: Array


def problem(x: Float[Array, "n dim"], labels: Int[Array, "n"], n: Array) -> Problem:
    """Builds the problem from standardised features with ``n`` unmasked (non-zero) rows."""
    covariance = jnp.matmul(x.T, x, precision=HIGHEST) / n.astype(x.dtype)
    ones = jnp.ones((len(x), 1), x.dtype)
    return Problem(jnp.concatenate([x, ones], axis=1), labels, covariance)


def inverse_root(
    covariance: Float[Array, "dim dim"], shift: Float[Array, ""]
) -> Float[Array, "dim dim"]:
    r"""Computes B with :math:`B B^\top = (\Sigma + s I)^{-1}` by a Cholesky factorisation.

    For TPUs it compiles much faster than an eigendecomposition. Where :math:`\Sigma + s I` is not
    positive definite in floating point, s is raised in factors of 4. NaN if :math:`\Sigma` has a
    NaN.
    """
    identity = jnp.eye(len(covariance), dtype=covariance.dtype)
    largest = jnp.trace(covariance) + shift

    def failed(state: tuple[Array, Array]) -> Array:
        shift, root = state
        return jnp.isnan(root[-1, -1]) & (shift <= largest)

    def factorise(state: tuple[Array, Array]) -> tuple[Array, Array]:
        shift, _ = state
        factor = jnp.linalg.cholesky(covariance + shift * identity, symmetrize_input=False)
        root = jax.scipy.linalg.solve_triangular(factor, identity, lower=True).T
        return 4 * shift, root

    # The first factorisation is part of the loop, so that it is compiled once.
    return jax.lax.while_loop(failed, factorise, (shift, jnp.full_like(covariance, jnp.nan)))[1]


def fit(
    problem: Problem,
    where: Bool[Array, "n"],
    l2: Float[Array, ""],
    start: LinearClassifier,
    max_steps: int | Int[Array, ""],
    tolerance: Float[Array, ""],
) -> LinearClassifier:
    r"""Minimises the mean cross-entropy of valid rows plus ``l2 / 2`` times the squared kernel.

    The Hessian at zero weights is approximately :math:`\Sigma / C + \lambda` with the feature
    covariance :math:`\Sigma`: L-BFGS runs in coordinates in which it is the identity. Logits are
    linear in the step length, so that the line search needs no further matrix products.
    (``optax.lbfgs`` with its zoom search takes 1.4 times as long for 2,000 examples of width 64 in
    10 classes, and 2.8 times at a tolerance of 1e-6.)
    """
    n_classes, x, dtype = start.bias.shape[0], problem.x, problem.x.dtype
    rows = jnp.where(where, 1 / jnp.maximum(jnp.sum(where), 1).astype(dtype), 0)
    targets = jax.nn.one_hot(problem.labels, n_classes, dtype=dtype)
    # The bias has no penalty and unit variance.
    root, bias_scale = inverse_root(problem.covariance / n_classes, l2), n_classes**0.5
    penalty = jnp.full((x.shape[1], 1), l2).at[-1].set(0)
    product = partial(jnp.matmul, precision=HIGHEST)
    lbfgs = optax.scale_by_lbfgs(memory_size=10)

    def precondition(direction: Array) -> Array:
        return jnp.concatenate([product(root, direction[:-1]), bias_scale * direction[-1:]])

    def precondition_gradient(gradient: Array) -> Array:
        kernel = product(gradient[:-1].T, root).T
        return jnp.concatenate([kernel, bias_scale * gradient[-1:]])

    def residuals(logits: Array) -> Array:
        return rows[:, None] * (jax.nn.softmax(logits) - targets)

    def compute_gradient(weights: Array, logits: Array) -> Array:
        # On CPUs, three times faster than `x.T @ residuals`.
        return product(residuals(logits).T, x).T + penalty * weights

    def step(state: _State) -> _State:
        gradient = precondition_gradient(state.gradient)
        ascent, history = lbfgs.update(gradient, state.history, state.position)
        step = -jnp.asarray(ascent)
        downhill = jnp.sum(gradient * step)
        direction = precondition(step)
        change = product(x, direction)
        curvature = jnp.sum(penalty * direction**2)
        tilt = jnp.sum(penalty * state.weights * direction)

        def slope(t: Array) -> Array:
            return jnp.sum(residuals(state.logits + t * change) * change) + tilt + t * curvature

        stuck = ~(downhill < 0)
        t = jnp.where(stuck, 0, _step_length(slope, downhill))
        weights, logits = state.weights + t * direction, state.logits + t * change
        position = state.position + t * step
        gradient = compute_gradient(weights, logits)
        return _State(state.step + 1, position, weights, logits, gradient, history, stuck)

    def should_continue(state: _State) -> Array:
        largest = jnp.max(jnp.abs(state.gradient))
        return (largest > tolerance) & (state.step < max_steps) & ~state.stuck

    weights = jnp.concatenate([start.kernel, start.bias[None]])
    logits = product(x, weights)
    gradient = compute_gradient(weights, logits)
    position = jnp.zeros_like(weights)
    history = lbfgs.init(position)
    first = _State(jnp.int32(0), position, weights, logits, gradient, history, jnp.bool_(False))
    weights = jax.lax.while_loop(should_continue, step, first).weights
    return LinearClassifier(weights[:-1], weights[-1])


def _step_length(slope: Callable[[Array], Array], downhill: Array) -> Array:
    """Line search on the slope of a convex function, whose slope at 0 is ``downhill``.

    It ignores function values, which are equal up to rounding near the optimum.
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
