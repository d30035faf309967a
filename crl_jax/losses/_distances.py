"""Losses on embedding distances."""

from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32
from .._hyperparams import Range, Scalar, check_arguments
from .._reduce import ReduceFn, masked_mean
from ._common import different_pairs, reduce_valid, zero_masked
from ._logspace import log_mean_exp


def half_square(distance: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Half-squared distance ``D² / 2``, an attractive potential."""
    return distance**2 / 2


def half_squared_hinge(
    distance: Float[Array, "*batch"], margin: Scalar = 1.0
) -> Float[Array, "*batch"]:
    """Half-squared hinge ``max(margin - D, 0)² / 2``, a repulsive potential up to the margin."""
    return jnp.maximum(margin - distance, 0) ** 2 / 2


@check_arguments
def pair_contrastive(
    distance: Float[Array, "*batch"],
    same: Bool[Array, "*batch"],
    *,
    attract: Callable[[Array], Array] = half_square,
    repel: Callable[[Array], Array] = half_squared_hinge,
    where: Bool[Array, "*batch"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Contrastive loss of pairs labelled as similar or dissimilar.

    .. math:: \ell = y L_p(D) + (1 - y) L_n(D)

    Args:
      distance: Distances :math:`D \ge 0` of pairs, shape ``[*batch]``.
      same: Labels :math:`y`, True for similar pairs, shape ``[*batch]``.
      attract: Increasing function :math:`L_p` of an array of distances, evaluated on similar
        pairs only.
      repel: Decreasing function :math:`L_n`, evaluated on dissimilar pairs only. To change
        the margin, pass ``functools.partial(half_squared_hinge, margin=2.0)``.
      where: Mask of valid pairs, shape ``[*batch]``; masked pairs are ignored.
      weights: Weights of the pairs, shape ``[*batch]``. ``None`` means 1.
      reduce_fn: Reduction, called as ``reduce_fn(losses, where=where)``. ``None`` returns
        per-pair losses.

    Returns:
      The loss, reduced by ``reduce_fn``; at least float32.

    Raises:
      ValueError: If shapes are incompatible or a hyper-parameter is out of range.

    References:
      Hadsell et al., `Dimensionality Reduction by Learning an Invariant Mapping
      <https://doi.org/10.1109/CVPR.2006.100>`_, 2006, Eq. 3 and 4, for the defaults.

    >>> print(pair_contrastive(jnp.array([1.0, 0.5]), jnp.array([True, False])))
    0.3125
    """
    for name, value in (("same", same), ("where", where), ("weights", weights)):
        check_shape(name, value, distance.shape)
    distance, weights = zero_masked(where, *at_least_float32(distance, weights))
    # Each function receives 1 in place of the other pairs, so that the infinite slope of a
    # logarithm or square root at 0 does not produce 0 · inf in the gradient.
    valid = True if where is None else where
    pull = attract(jnp.where(same & valid, distance, 1))
    push = repel(jnp.where(~same & valid, distance, 1))
    return reduce_valid(jnp.where(same, pull, push), where, weights, reduce_fn)


@check_arguments
def alignment(
    x: Float[Array, "*batch dim"],
    y: Float[Array, "*batch dim"],
    *,
    where: Bool[Array, "*batch"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Alignment loss: squared distance between the embeddings of a positive pair.

    .. math:: \ell = \lVert x - y \rVert^2

    Args:
      x: Embeddings of the first elements, usually unit-norm, shape ``[*batch, dim]``.
      y: Embeddings of the second elements, shape ``[*batch, dim]``.

    Other arguments, the result and errors are those of :func:`pair_contrastive`.

    References:
      Wang and Isola, `Understanding Contrastive Representation Learning through Alignment
      and Uniformity on the Hypersphere <https://arxiv.org/abs/2005.10242>`_, 2020, section
      4.1, with exponent 2.

    >>> print(alignment(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])))
    2.0
    """
    check_shape("y", y, x.shape)
    check_shape("where", where, x.shape[:-1])
    check_shape("weights", weights, x.shape[:-1])
    x, y, weights = zero_masked(where, *at_least_float32(x, y, weights))
    return reduce_valid(jnp.sum((x - y) ** 2, axis=-1), where, weights, reduce_fn)


@check_arguments
def uniformity(
    x: Float[Array, "*batch n dim"],
    *,
    scale: Annotated[Scalar, Range(0.0, low_open=True, high_open=True)] = 2.0,
    where: Bool[Array, "*batch n"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Uniformity loss: log of the mean Gaussian potential between embeddings.

    .. math:: \ell = \log \frac{1}{n (n-1)} \sum_{i \ne j} e^{-c \lVert x_i - x_j \rVert^2}

    Precision: products are in full float32 on every platform.

    Args:
      x: Unit-norm embeddings of each set, shape ``[*batch, n, dim]``. Distances are computed
        from inner products, which lose precision for embeddings of large norm.
      scale: Scale :math:`c > 0` of the Gaussian kernel.
      where: Mask of valid embeddings, shape ``[*batch, n]``; masked embeddings are ignored.
        Sets with fewer than two have loss 0 and are excluded from the reduction.
      weights: Weights of the sets, shape ``[*batch]``. ``None`` means 1.
      reduce_fn: Reduction, called as ``reduce_fn(losses, where=sets_with_pairs)``. ``None``
        returns per-set losses.

    The result and errors are those of :func:`pair_contrastive`, the source that of
    :func:`alignment`.

    >>> print(uniformity(jnp.array([[1.0, 0.0], [-1.0, 0.0]])))
    -8.0
    """
    check_shape("where", where, x.shape[:-1])
    check_shape("weights", weights, x.shape[:-2])
    check_shape("scale", scale, ())
    *batch, n, _ = x.shape
    pairs = different_pairs(x.shape[:-1], where).reshape(*batch, n * n)
    has_pairs = jnp.any(pairs, axis=-1)
    x, weights = at_least_float32(x, weights)
    (x,), (weights,) = zero_masked(where, x), zero_masked(has_pairs, weights)

    # Full precision also on devices with reduced-precision matmuls; squares clipped at 0.
    products = jnp.einsum("...id,...jd->...ij", x, x, precision=jax.lax.Precision.HIGHEST)
    squares = jnp.diagonal(products, axis1=-2, axis2=-1)
    distances = jnp.maximum(squares[..., :, None] + squares[..., None, :] - 2 * products, 0)
    logits = -jnp.asarray(scale, x.dtype) * distances.reshape(pairs.shape)
    loss = jnp.where(has_pairs, log_mean_exp(logits, where=pairs), 0)
    return reduce_valid(loss, has_pairs, weights, reduce_fn)
