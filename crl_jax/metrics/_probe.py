"""Linear probes of frozen features."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from .._checks import check_count, check_range, check_shape
from .._floats import at_least_float32
from .._hyperparams import Scalar
from .._permutation import permute
from . import _logistic
from ._features import (
    HIGHEST,
    LinearClassifier,
    accuracy,
    best_class,
    class_labels,
    has_class,
    standardize,
)

L2s = Sequence[float] | Float[Array | np.ndarray, "strengths"] | float


class ProbeResult(NamedTuple):
    """Linear classifier of frozen features with its test accuracy."""

    accuracy: Float[Array, ""]
    """Accuracy on the test set."""
    predictions: Int[Array, "test"]
    """Predicted classes of the test set; -1 where features contain a NaN."""
    l2: Float[Array, ""]
    """Selected L2 strength."""
    valid_accuracy: Float[Array, "strengths"]
    """Validation accuracy of each strength, in the order of ``l2``; 0 for a single strength."""
    kernel: Float[Array, "dim n_classes"]
    """Class scores are ``features @ kernel + bias``."""
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
    valid_fraction: Scalar = 0.1,
    max_steps: int = 100,
    tolerance: Scalar = 1e-5,
) -> ProbeResult:
    r"""Linear evaluation by multinomial logistic regression, without augmentation.

    .. math::
        \min_{W, b}\; \frac1n \sum_i -\log \mathrm{softmax}(W^\top x_i + b)_{y_i}
        + \frac\lambda2 \lVert W \rVert^2

    on features standardised by the training set. :math:`\lambda` is selected by the accuracy on a
    validation split of the training set, ties to the larger value, and the classifier is then
    refitted on the whole training set. The test set selects nothing.

    The optimiser is L-BFGS, preconditioned by a Cholesky factor of the covariance of the features
    and warm-started from larger to smaller :math:`\lambda`.

    Precision: products are in full float32 on every platform.

    Args:
      features: Training features, shape ``[n, dim]``.
      labels: Training classes, integers below ``n_classes``, shape ``[n]``; rows with negative
        labels are excluded.
      test_features: Test features, shape ``[test, dim]``.
      test_labels: Test classes, shape ``[test]``; rows with negative labels are not counted.
      n_classes: Number of classes, >= 2; static.
      key: Random key of the validation split.
      l2: Candidates for :math:`\lambda > 0`; ``1 / (n C)`` in scikit-learn's parametrisation.
      valid_fraction: Validation fraction of the training set, in (0, 1).
      max_steps: Maximum number of L-BFGS steps per strength, >= 1.
      tolerance: Maximum absolute gradient entry at convergence, > 0.

    Returns:
      :class:`ProbeResult`; ``kernel`` and ``bias`` apply to raw features.

    Raises:
      ValueError: If a shape does not fit, a number leaves its range, or a concrete label is not
        below ``n_classes``.

    References:
      Kornblith et al., `Do Better ImageNet Models Transfer Better?
      <https://arxiv.org/abs/1805.08974>`_, 2019, section 4.1, for L-BFGS and the selection of L2;
      Böhning, *Multinomial Logistic Regression Algorithm*, 1992, for the curvature.

    >>> x = jax.random.normal(jax.random.key(0), (200, 3))
    >>> y = (x[:, 0] > 0).astype(jnp.int32)
    >>> probe = linear_probe(x[:150], y[:150], x[150:], y[150:], n_classes=2, key=jax.random.key(1))
    >>> print(f"{probe.accuracy:.2f}")
    0.92
    """
    arrays = _validate(features, labels, test_features, test_labels, n_classes, l2)
    dtype = arrays[0].dtype
    check_range("valid_fraction", valid_fraction, 0, 1, low_open=True, high_open=True, dtype=dtype)
    check_range("tolerance", tolerance, 0, jnp.inf, low_open=True, dtype=dtype)
    check_count("max_steps", max_steps)
    scalars = (jnp.asarray(x, dtype) for x in (valid_fraction, tolerance))
    return _linear_probe(arrays, n_classes, key, jnp.int32(max_steps), *scalars)


def ridge_probe(
    features: Float[Array, "n dim"],
    labels: Int[Array, "n"],
    test_features: Float[Array, "test dim"],
    test_labels: Int[Array, "test"],
    *,
    n_classes: int,
    l2: L2s = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0),
) -> ProbeResult:
    r"""Linear evaluation by ridge regression on one-hot classes, in closed form.

    .. math::
        \min_{W, b}\; \frac1n \sum_i \lVert W^\top x_i + b - e_{y_i} \rVert^2
        + \lambda \lVert W \rVert^2

    on features standardised by the training set. :math:`\lambda` is selected by leave-one-out
    accuracy, ties to the larger value; the leave-one-out residual of an example with leverage
    :math:`h_i` is :math:`r_i / (1 - h_i)`. On CPUs all strengths share one eigendecomposition of
    the covariance; on accelerators each has a Cholesky factorisation, which compiles faster. The
    results are equal up to floating-point error.

    Precision: products are in full float32 on every platform.

    Args:
      features, labels, test_features, test_labels, n_classes: As for :func:`linear_probe`, whose
        result and errors are also the same.
      l2: Candidates for :math:`\lambda > 0`; ``alpha / n`` in scikit-learn's parametrisation.
        Values below 1e-5 exceed the precision of float32 for high-dimensional features.

    References:
      Golub, Heath and Wahba, *Generalized Cross-Validation as a Method for Choosing a Good Ridge
      Parameter*, 1979, Eq. 1.3 and 1.4, for leave-one-out residuals.

    >>> x = jax.random.normal(jax.random.key(0), (200, 3))
    >>> y = (x[:, 0] > 0).astype(jnp.int32)
    >>> print(f"{ridge_probe(x[:150], y[:150], x[150:], y[150:], n_classes=2).accuracy:.2f}")
    0.92
    """
    arrays = _validate(features, labels, test_features, test_labels, n_classes, l2)
    return _ridge_probe(arrays, n_classes)


def _validate(
    features: Array,
    labels: Array,
    test_features: Array,
    test_labels: Array,
    n_classes: int,
    l2: Any,
) -> tuple[Array, ...]:
    """Returns the validated arrays and strengths, with a common floating dtype."""
    check_count("n_classes", n_classes, 2)
    labels = class_labels("labels", labels, n_classes)
    test_labels = class_labels("test_labels", test_labels, n_classes)
    check_shape("labels", labels, features.shape[:1])
    check_shape("test_features", test_features, (len(test_features), *features.shape[1:]))
    check_shape("test_labels", test_labels, test_features.shape[:1])
    features, test_features = at_least_float32(features, test_features)
    check_range("l2", l2, 0, jnp.inf, low_open=True, high_open=True, dtype=features.dtype)
    strengths = jnp.atleast_1d(jnp.asarray(l2, features.dtype))
    if strengths.ndim > 1 or not strengths.size:
        raise ValueError(f"`l2` must be a number or a one-dimensional array, got {l2!r}.")
    return features, labels, test_features, test_labels, strengths


class _Search(NamedTuple):
    """Carry of the search of a linear probe."""

    last: LinearClassifier
    best: LinearClassifier
    chosen: Array  # index of the best strength so far
    score: Array


@partial(jax.jit, static_argnums=1)
def _linear_probe(
    arrays: tuple[Array, ...],
    n_classes: int,
    key: Array,
    max_steps: Array,
    valid_fraction: Array,
    tolerance: Array,
) -> ProbeResult:
    features, labels, test_features, test_labels, l2 = arrays
    keep = has_class(labels, n_classes)
    standardizer, x = standardize(features, keep)
    problem = _logistic.problem(x, labels, jnp.sum(keep))
    # A fraction of all rows in random order, excluded rows included.
    n = len(x)
    valid = keep & (permute(key, jnp.arange(n), n).astype(x.dtype) < jnp.round(valid_fraction * n))
    order = jnp.argsort(-l2)
    # Each strength without the validation rows, unless there is but one, then the best on all rows.
    n_trials = l2.size if l2.size > 1 else 0

    def step(state: _Search, trial: Array) -> tuple[_Search, Array]:
        is_refit = trial == n_trials
        chosen = jnp.where(is_refit, state.chosen, order[jnp.minimum(trial, l2.size - 1)])
        start = jax.tree.map(partial(jnp.where, is_refit), state.best, state.last)
        where = keep & (is_refit | ~valid)
        fitted = _logistic.fit(problem, where, l2[chosen], start, max_steps, tolerance)
        score = accuracy(fitted(x), labels, valid)
        better = ~is_refit & (score > state.score)
        best = jax.tree.map(partial(jnp.where, better), fitted, state.best)
        index = jnp.where(better, chosen, state.chosen)
        return _Search(fitted, best, index, jnp.where(better, score, state.score)), score

    zero = LinearClassifier(
        jnp.zeros((x.shape[1], n_classes), x.dtype), jnp.zeros(n_classes, x.dtype)
    )
    first = _Search(zero, zero, order[0], jnp.full((), -1, jnp.float32))
    # The refit is a step of the search, so that the optimiser is compiled once.
    search, scores = jax.lax.scan(step, first, jnp.arange(n_trials + 1))
    valid_accuracy = jnp.zeros(l2.size).at[order[:n_trials]].set(scores[:n_trials])
    raw = search.last.unstandardized(standardizer)
    scores = search.last(standardizer(test_features))
    return _probe_result(scores, test_labels, l2[search.chosen], valid_accuracy, raw)


@partial(jax.jit, static_argnums=1)
def _ridge_probe(arrays: tuple[Array, ...], n_classes: int) -> ProbeResult:
    features, labels, test_features, test_labels, l2 = arrays
    keep = has_class(labels, n_classes)
    standardizer, x = standardize(features, keep)
    kernel, bias, chosen, valid_accuracy = jax.lax.platform_dependent(
        x, labels, keep, l2,
        cpu=partial(_solve_ridge, _by_eigenvectors, n_classes),
        default=partial(_solve_ridge, _by_cholesky, n_classes),
    )  # fmt: skip
    classifier = LinearClassifier(kernel, bias)
    raw = classifier.unstandardized(standardizer)
    scores = classifier(standardizer(test_features))
    return _probe_result(scores, test_labels, l2[chosen], valid_accuracy, raw)


_product = partial(jnp.matmul, precision=HIGHEST)
Root = Callable[[Array], Array]
Leverage = Callable[[Array], Array]


def _by_eigenvectors(x: Array, covariance: Array) -> tuple[Root, Leverage]:
    """Returns functions of the strength: a root of the inverse, and the leverages times n.

    One eigendecomposition and one product of all rows serve all strengths.
    """
    variances, axes = jnp.linalg.eigh(covariance)
    variances, squares = jnp.maximum(variances, 0), _product(x, axes) ** 2
    return (
        lambda strength: axes * jax.lax.rsqrt(variances + strength)[None],
        lambda strength: _product(squares, 1 / (variances + strength)),
    )


def _by_cholesky(x: Array, covariance: Array) -> tuple[Root, Leverage]:
    """Returns the same functions with a factorisation and a product of all rows per strength.

    An eigendecomposition of wide features takes long to compile for a TPU.
    """
    root = partial(_logistic.inverse_root, covariance)
    return root, lambda strength: jnp.sum(_product(x, root(strength)) ** 2, axis=1)


def _solve_ridge(
    factorise: Callable[[Array, Array], tuple[Root, Leverage]],
    n_classes: int, x: Array, labels: Array, keep: Array, l2: Array,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """Returns kernel, bias, the index of the selected strength and leave-one-out accuracies."""
    n = jnp.maximum(jnp.sum(keep), 1).astype(x.dtype)
    targets = jnp.where(keep[:, None], jax.nn.one_hot(labels, n_classes, dtype=x.dtype), 0)
    bias = jnp.sum(targets, axis=0) / n
    # x is centred, so the targets need not be.
    moments = _product(targets.T, x).T / n
    root, leverage = factorise(x, _product(x.T, x) / n)

    def solve(factor: Array, right: Array) -> Array:
        return _product(factor, _product(factor.T, right))

    def loo_accuracy(strength: Array) -> Array:
        fitted = _product(x, solve(root(strength), moments)) + bias[None]
        remaining = jnp.maximum(1 - (1 + leverage(strength)) / n, jnp.finfo(x.dtype).eps)
        return accuracy(targets - (targets - fitted) / remaining[:, None], labels, keep)

    if l2.size == 1:
        valid_accuracy, chosen = jnp.zeros(1), jnp.int32(0)
    else:
        order = jnp.argsort(-l2)
        scores = jax.lax.map(loo_accuracy, l2[order])
        valid_accuracy = jnp.zeros_like(scores).at[order].set(scores)
        chosen = order[jnp.argmax(scores)]
    factor = root(l2[chosen])

    def refine(_: Array, kernel: Array) -> Array:
        """Takes one step of iterative refinement against rounding errors of the covariance."""
        residual = targets - bias[None] - _product(x, kernel)  # x is 0 in excluded rows
        slope = _product(residual.T, x).T / n - l2[chosen] * kernel
        return kernel + solve(factor, slope)

    kernel = jax.lax.fori_loop(0, 2, refine, solve(factor, moments))
    return kernel, bias, chosen, valid_accuracy


def _probe_result(
    scores: Array, labels: Array, l2: Array, valid_accuracy: Array, classifier: LinearClassifier
) -> ProbeResult:
    test_accuracy = accuracy(scores, labels, has_class(labels, scores.shape[1]))
    predictions = best_class(scores)
    return ProbeResult(
        test_accuracy, predictions, l2, valid_accuracy, classifier.kernel, classifier.bias
    )
