"""Losses and measures of embeddings by their distances, where no score is at hand."""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32
from .._hyperparams import Range, Scalar, check_arguments
from .._reduce import ReduceFn, masked_mean
from ._common import reduce_kept
from ._logspace import log_mean_exp


def half_square(distance: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """``D² / 2``: a spring that pulls."""
    return distance**2 / 2


def half_squared_hinge(
    distance: Float[Array, "*batch"], margin: Scalar = 1.0
) -> Float[Array, "*batch"]:
    """``max(margin - D, 0)² / 2``: a spring that pushes apart, up to the margin."""
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
    r"""The original contrastive loss: of single pairs that are labelled same or different.

    .. math::
        \ell = y L_p(D) + (1 - y) L_n(D)

    Args:
      distance: The :math:`D \ge 0` of pairs, shape ``[*batch]``.
      same: The labels :math:`y`, True for pairs that belong together, shape ``[*batch]``.
      attract: The increasing :math:`L_p`, of an array of distances; applied to pairs that
        are the same alone.
      repel: The decreasing :math:`L_n`, applied to the others alone. For another margin:
        ``functools.partial(half_squared_hinge, margin=2.0)``.
      where: True keeps a pair, shape ``[*batch]``; others are never read.
      weights: Multiply the losses of the pairs, shape ``[*batch]``. ``None`` means 1.
      reduce_fn: Called as ``reduce_fn(losses, where=where)``. ``None`` returns one loss per
        pair.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit.

    References:
      Hadsell et al., `Dimensionality Reduction by Learning an Invariant Mapping
      <https://doi.org/10.1109/CVPR.2006.100>`_, 2006, Eq. 3 and 4, for the defaults.

    >>> print(pair_contrastive(jnp.array([1.0, 0.5]), jnp.array([True, False])))
    0.3125
    """
    check_shape("same", same, distance.shape)
    check_shape("where", where, distance.shape)
    check_shape("weights", weights, distance.shape)
    distance, weights = (_silenced(v, where) for v in at_least_float32(distance, weights))
    # Each function sees its own pairs alone: with a 1 in the place of others, a logarithm
    # or a root has no infinite slope there that would become 0 · inf.
    kept = True if where is None else where
    pull = attract(jnp.where(same & kept, distance, 1))
    push = repel(jnp.where(~same & kept, distance, 1))
    return reduce_kept(jnp.where(same, pull, push), where, weights, reduce_fn)


@check_arguments
def alignment(
    x: Float[Array, "*batch dim"],
    y: Float[Array, "*batch dim"],
    *,
    where: Bool[Array, "*batch"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Alignment: the squared distance of the two sides of a positive pair.

    .. math:: \ell = \lVert x - y \rVert^2

    Args:
      x: Embeddings of one side, usually of length 1, shape ``[*batch, dim]``.
      y: Embeddings of the other side, shape ``[*batch, dim]``.
      where: True keeps a pair, shape ``[*batch]``; others are never read.
      weights: Multiply the losses of the pairs, shape ``[*batch]``. ``None`` means 1.
      reduce_fn: Called as ``reduce_fn(losses, where=where)``. ``None`` returns one loss per
        pair.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit.

    References:
      Wang and Isola, `Understanding Contrastive Representation Learning through Alignment
      and Uniformity on the Hypersphere <https://arxiv.org/abs/2005.10242>`_, 2020, section
      4.1 (with exponent 2).

    >>> print(alignment(jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])))
    2.0
    """
    check_shape("y", y, x.shape)
    check_shape("where", where, x.shape[:-1])
    check_shape("weights", weights, x.shape[:-1])
    x, y, weights = (_silenced(v, where) for v in at_least_float32(x, y, weights))
    return reduce_kept(jnp.sum((x - y) ** 2, axis=-1), where, weights, reduce_fn)


@check_arguments
def uniformity(
    x: Float[Array, "*batch n dim"],
    *,
    scale: Annotated[Scalar, Range(0.0, jnp.inf, low_open=True, high_open=True)] = 2.0,
    where: Bool[Array, "*batch n"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Uniformity: how far a set of embeddings is from being spread over the sphere.

    .. math::
        \ell = \log \frac{1}{n (n-1)} \sum_{i \ne j} e^{-c \lVert x_i - x_j \rVert^2}

    Args:
      x: Embeddings of each set, of length 1, shape ``[*batch, n, dim]``. (The distances are
        taken from inner products, which lose digits far from the origin.)
      scale: The :math:`c > 0` of the Gaussian kernel.
      where: True keeps an embedding, shape ``[*batch, n]``; others are never read. A set
        that keeps fewer than two has loss 0 and leaves the reduction.
      weights: Multiply the losses of the sets, shape ``[*batch]``. ``None`` means 1.
      reduce_fn: Called as ``reduce_fn(losses, where=sets_with_pairs)``. ``None`` returns one
        loss per set.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or ``scale`` is not positive.

    References:
      Wang and Isola, `Understanding Contrastive Representation Learning through Alignment
      and Uniformity on the Hypersphere <https://arxiv.org/abs/2005.10242>`_, 2020, section
      4.1.

    >>> print(uniformity(jnp.array([[1.0, 0.0], [-1.0, 0.0]])))
    -8.0
    """
    check_shape("where", where, x.shape[:-1])
    check_shape("weights", weights, x.shape[:-2])
    check_shape("scale", scale, ())
    n = x.shape[-2]
    pairs = jnp.broadcast_to(~jnp.eye(n, dtype=bool), (*x.shape[:-1], n))
    if where is not None:
        pairs = pairs & where[..., None, :] & where[..., :, None]
    pairs = pairs.reshape(*x.shape[:-2], n * n)
    kept = jnp.any(pairs, axis=-1)
    x, weights = at_least_float32(x, weights)
    x, weights = _silenced(x, where), _silenced(weights, kept)

    # All digits also where matrix products have less by default; and no square below 0.
    products = jnp.einsum("...id,...jd->...ij", x, x, precision=jax.lax.Precision.HIGHEST)
    squares = jnp.diagonal(products, axis1=-2, axis2=-1)
    apart = jnp.maximum(squares[..., :, None] + squares[..., None, :] - 2 * products, 0)
    logits = -jnp.asarray(scale, x.dtype) * apart.reshape(pairs.shape)
    loss = jnp.where(kept, log_mean_exp(logits, where=pairs), 0)
    return reduce_kept(loss, kept, weights, reduce_fn)


def _silenced(x: Any, keep: Array | None) -> Any:
    """0 where not kept, along the leading axes; None passes."""
    if x is None or keep is None:
        return x
    return jnp.where(keep.reshape(keep.shape + (1,) * (x.ndim - keep.ndim)), x, 0)
