"""Linear probes: what a linear function of frozen features knows of labels."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from .._checks import check_count, check_range, check_shape
from .._floats import at_least_float32
from .._hyperparams import Scalar
from . import _logistic
from ._features import HIGHEST, LinearClassifier, accuracy, best_class, has_class, standardize

L2s = Sequence[float] | Float[Array | np.ndarray, "strengths"] | float


class ProbeResult(NamedTuple):
    """A linear classifier of frozen features, and how well it does."""

    accuracy: Float[Array, ""]
    """Share of the test examples whose class it finds."""
    predictions: Int[Array, "test"]
    """Its classes of the test examples; -1 where features hold a NaN."""
    l2: Float[Array, ""]
    """The strength that was chosen."""
    held_out: Float[Array, "strengths"]
    """Accuracy at each strength, in the order given, on what the fit had not seen; 0 if there is
    one strength alone, which nothing has to choose."""
    kernel: Float[Array, "dim n_classes"]
    """``features @ kernel + bias`` are the scores of the classes."""
    bias: Float[Array, "n_classes"]


def linear_probe(
    features: Float[Array, "n dim"],
    labels: Int[Array, "n"],
    test_features: Float[Array, "test dim"],
    test_labels: Int[Array, "test"],
    *,
    n_classes: int,
    key: Key[Array, ""],
    l2: L2s = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
    valid_share: Scalar = 0.1,
    max_steps: int = 100,
    tolerance: Scalar = 1e-5,
) -> ProbeResult:
    r"""Logistic regression on frozen features: the linear evaluation, without augmentation.

    .. math::
        \min_{W, b}\; \frac1n \sum_i -\log \mathrm{softmax}(W^\top x_i + b)_{y_i}
        + \frac\lambda2 \lVert W \rVert^2

    of features with mean 0 and variance 1 on the training part. The strength is the one with the
    best accuracy on a part cut out of the training part; of equal ones the strongest. With it the
    whole training part is fitted. The test part has no say in anything.

    By L-BFGS, preconditioned with the covariance of the features and warm-started from each
    strength to the next weaker one.

    Args:
      features: Of the training part, shape ``[n, dim]``.
      labels: Their classes, shape ``[n]``. A row whose label does not lie in ``[0, n_classes)`` is
        left out and not read.
      test_features: Of the test part, shape ``[test, dim]``.
      test_labels: Their classes, shape ``[test]``; the others do not count.
      n_classes: How many classes there are; static.
      key: Draws the part that is cut out.
      l2: The :math:`\lambda > 0` to choose from. In the terms of scikit-learn, ``1 / (n C)``.
      valid_share: Share of the training part that is cut out, in (0, 1).
      max_steps: Steps of L-BFGS for each strength, at least 1.
      tolerance: Where the largest entry of the gradient ends a fit, > 0.

    Returns:
      See :class:`ProbeResult`; ``kernel`` and ``bias`` are for features as they were given.

    Raises:
      ValueError: If a shape does not fit or a number leaves its range.

    References:
      Kornblith et al., `Do Better ImageNet Models Transfer Better?
      <https://arxiv.org/abs/1805.08974>`_, 2019, section 4.1, for L-BFGS and the choice of L2;
      Böhning, *Multinomial Logistic Regression Algorithm*, 1992, for the curvature.

    >>> x = jax.random.normal(jax.random.key(0), (200, 3))
    >>> y = (x[:, 0] > 0).astype(jnp.int32)
    >>> probe = linear_probe(x[:150], y[:150], x[150:], y[150:], n_classes=2, key=jax.random.key(1))
    >>> print(f"{probe.accuracy:.2f}")
    0.92
    """
    given = _checked(features, labels, test_features, test_labels, n_classes, l2)
    dtype = given[0].dtype
    check_range("valid_share", valid_share, 0, 1, low_open=True, high_open=True, dtype=dtype)
    check_range("tolerance", tolerance, 0, jnp.inf, low_open=True, dtype=dtype)
    check_count("max_steps", max_steps)
    numbers = (jnp.asarray(x, dtype) for x in (valid_share, tolerance))
    return _linear_probe(*given, n_classes, key, jnp.int32(max_steps), *numbers)


def ridge_probe(
    features: Float[Array, "n dim"],
    labels: Int[Array, "n"],
    test_features: Float[Array, "test dim"],
    test_labels: Int[Array, "test"],
    *,
    n_classes: int,
    l2: L2s = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
) -> ProbeResult:
    r"""Least squares on frozen features with classes as unit vectors: a probe in closed form.

    .. math::
        \min_{W, b}\; \frac1n \sum_i \lVert W^\top x_i + b - e_{y_i} \rVert^2
        + \lambda \lVert W \rVert^2

    of features with mean 0 and variance 1 on the training part. The strength is the one with the
    best accuracy where each example is left out in turn, of equal ones the strongest. That takes
    one eigendecomposition, of the covariance, for all strengths: with the leverage :math:`h_i` of
    an example its residual grows to :math:`r_i / (1 - h_i)` if it is left out.

    Args:
      features: As for :func:`linear_probe`.
      labels: As for :func:`linear_probe`.
      test_features: As for :func:`linear_probe`.
      test_labels: As for :func:`linear_probe`.
      n_classes: As for :func:`linear_probe`.
      l2: The :math:`\lambda > 0` to choose from. In the terms of scikit-learn, ``alpha / n``.
        Below 1e-5 float32 has no digits for them if the features are many.

    Returns:
      See :class:`ProbeResult`.

    Raises:
      ValueError: If a shape does not fit or a number leaves its range.

    References:
      Golub, Heath and Wahba, *Generalized Cross-Validation as a Method for Choosing a Good Ridge
      Parameter*, 1979, Eq. 1.3 and 1.4, for the residual left out.

    >>> x = jax.random.normal(jax.random.key(0), (200, 3))
    >>> y = (x[:, 0] > 0).astype(jnp.int32)
    >>> print(f"{ridge_probe(x[:150], y[:150], x[150:], y[150:], n_classes=2).accuracy:.2f}")
    0.92
    """
    return _ridge_probe(
        *_checked(features, labels, test_features, test_labels, n_classes, l2), n_classes
    )


def _checked(
    features: Array,
    labels: Array,
    test_features: Array,
    test_labels: Array,
    n_classes: int,
    l2: Any,
) -> tuple[Array, ...]:
    """The four arrays and the strengths, in one floating type."""
    check_shape("labels", labels, features.shape[:1])
    check_shape("test_features", test_features, (len(test_features), *features.shape[1:]))
    check_shape("test_labels", test_labels, test_features.shape[:1])
    check_count("n_classes", n_classes, 2)
    features, test_features = at_least_float32(features, test_features)
    check_range("l2", l2, 0, jnp.inf, low_open=True, high_open=True, dtype=features.dtype)
    strengths = jnp.atleast_1d(jnp.asarray(l2, features.dtype))
    if strengths.ndim > 1 or not strengths.size:
        raise ValueError(f"`l2` must be a number or a row of numbers, got {l2!r}.")
    return features, labels, test_features, test_labels, strengths


@partial(jax.jit, static_argnums=5)
def _linear_probe(
    features: Array,
    labels: Array,
    test_features: Array,
    test_labels: Array,
    l2: Array,
    n_classes: int,
    key: Array,
    max_steps: Array,
    valid_share: Array,
    tolerance: Array,
) -> ProbeResult:
    keep = has_class(labels, n_classes)
    standard, x = standardize(features, keep)
    of = _logistic.problem(x, labels, jnp.sum(keep))
    zero = LinearClassifier(
        jnp.zeros((x.shape[1], n_classes), x.dtype), jnp.zeros(n_classes, x.dtype)
    )
    if l2.size == 1:
        held_out, chosen, start = jnp.zeros(1), jnp.int32(0), zero
    else:
        # The share of a random order: those left out of the training part are spread evenly.
        order = jax.random.permutation(key, len(x)).astype(x.dtype)
        valid = keep & (order < jnp.round(valid_share * len(x)))

        def search(
            start: LinearClassifier, strength: Array
        ) -> tuple[LinearClassifier, tuple[LinearClassifier, Array]]:
            found = _logistic.fit(of, keep & ~valid, strength, start, max_steps, tolerance)
            return found, (found, accuracy(found(x), labels, valid))

        order = jnp.argsort(-l2)
        _, (path, scores) = jax.lax.scan(search, zero, l2[order])
        best = jnp.argmax(scores)
        held_out, chosen = jnp.zeros_like(scores).at[order].set(scores), order[best]
        start = jax.tree.map(lambda leaf: leaf[best], path)
    found = _logistic.fit(of, keep, l2[chosen], start, max_steps, tolerance)
    scores = found(standard(test_features))
    return _judged(scores, test_labels, l2[chosen], held_out, found.raw(standard))


@partial(jax.jit, static_argnums=5)
def _ridge_probe(
    features: Array,
    labels: Array,
    test_features: Array,
    test_labels: Array,
    l2: Array,
    n_classes: int,
) -> ProbeResult:
    keep = has_class(labels, n_classes)
    standard, x = standardize(features, keep)
    n = jnp.maximum(jnp.sum(keep), 1).astype(x.dtype)
    targets = jnp.where(keep[:, None], jax.nn.one_hot(labels, n_classes, dtype=x.dtype), 0)
    bias = jnp.sum(targets, axis=0) / n
    product = partial(jnp.matmul, precision=HIGHEST)
    variances, axes = jnp.linalg.eigh(product(x.T, x) / n)
    variances = jnp.maximum(variances, 0)
    along = product(axes.T, product(x.T, targets)) / n  # x has mean 0, hence so has the product

    def left_out(strength: Array) -> Array:
        inverse = 1 / (variances + strength)
        fitted = product(turned, along * inverse[:, None]) + bias[None]
        leverage = (1 + product(turned**2, inverse)) / n
        room = jnp.maximum(1 - leverage, jnp.finfo(x.dtype).eps)
        return accuracy(targets - (targets - fitted) / room[:, None], labels, keep)

    if l2.size == 1:
        held_out, chosen = jnp.zeros(1), jnp.int32(0)
    else:
        turned = product(x, axes)
        order = jnp.argsort(-l2)
        scores = jax.lax.map(left_out, l2[order])
        held_out, chosen = jnp.zeros_like(scores).at[order].set(scores), order[jnp.argmax(scores)]

    inverse = 1 / (variances + l2[chosen])

    def refine(_: Array, kernel: Array) -> Array:
        """Takes off what the rounding of the covariance and its axes has left."""
        residual = targets - bias[None] - product(x, kernel)  # where left out, x is 0
        slope = product(residual.T, x).T / n - l2[chosen] * kernel
        return kernel + product(axes, product(axes.T, slope) * inverse[:, None])

    kernel = product(axes, along * inverse[:, None])
    found = LinearClassifier(jax.lax.fori_loop(0, 2, refine, kernel), bias)
    scores = found(standard(test_features))
    return _judged(scores, test_labels, l2[chosen], held_out, found.raw(standard))


def _judged(
    scores: Array, labels: Array, l2: Array, held_out: Array, found: LinearClassifier
) -> ProbeResult:
    share = accuracy(scores, labels, has_class(labels, scores.shape[1]))
    return ProbeResult(share, best_class(scores), l2, held_out, found.kernel, found.bias)
