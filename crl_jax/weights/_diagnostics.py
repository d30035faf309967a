"""What weights do to a sample."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32
from .._hyperparams import check_arguments
from .._reduce import masked_mean
from .._scaling import row_scale


@check_arguments
def effective_sample_size(
    weights: Float[Array, "*batch n"],
    *,
    where: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Number of equally weighted samples that are worth as much as these.

    .. math::
        \mathrm{ESS} = \frac{(\sum_j w_j)^2}{\sum_j w_j^2}

    Near the number of samples the weights hardly matter; near 1 a single one decides. The
    scale of the weights does not matter.

    Args:
      weights: The :math:`w_j \ge 0`, shape ``[*batch, n]``.
      where: True keeps a weight, shape ``[*batch, n]``. Others are never read.

    Returns:
      Shape ``[*batch]``, at least float32: from 1 to the number kept; 0 where no weight is
      positive.

    Raises:
      ValueError: If ``where`` has not the shape of ``weights``.

    References:
      Kish, *Survey Sampling*, 1965, section 11.2.

    >>> print(effective_sample_size(jnp.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])))
    [3. 1.]
    """
    check_shape("where", where, weights.shape)
    (weights,) = at_least_float32(weights)
    if where is not None:
        weights = jnp.where(where, weights, 0)
    weights = weights / row_scale(weights)
    squares = jnp.sum(weights**2, axis=-1)
    return jnp.sum(weights, axis=-1) ** 2 / jnp.where(squares > 0, squares, 1)


class PosteriorByLabel(NamedTuple):
    """Mean posterior of a true negative, apart for those that are and those that are not."""

    true: Float[Array, ""]
    """Mean over the true negatives; the higher, the better."""
    false: Float[Array, ""]
    """Mean over the false negatives; the lower, the better."""


@check_arguments
def posterior_by_label(
    posterior: Float[Array, "*batch n_neg"],
    is_true: Bool[Array, "*batch n_neg"],
    *,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> PosteriorByLabel:
    r"""How well a posterior tells true from false negatives whose labels are known.

    Means over all anchors. A posterior that knows no more than the prior has
    :math:`\tau^-` for both; a calibrated one satisfies
    :math:`\tau^- m_{\text{true}} + \tau^+ m_{\text{false}} = \tau^-`.

    Args:
      posterior: What :func:`true_negative_posterior` gives, shape ``[*batch, n_neg]``.
      is_true: True marks a true negative, shape ``[*batch, n_neg]``.
      where: True keeps a sample, shape ``[*batch, n_neg]``. Others are never read.

    Returns:
      Two scalars, at least float32; 0 for a label that no sample has.

    Raises:
      ValueError: If a shape does not fit.

    >>> p, true = jnp.array([0.95, 0.5, 0.85]), jnp.array([True, False, True])
    >>> means = posterior_by_label(p, true)
    >>> print(f"{means.true:.2f} {means.false:.2f}")
    0.90 0.50
    """
    check_shape("is_true", is_true, posterior.shape)
    check_shape("where", where, posterior.shape)
    (posterior,) = at_least_float32(posterior)
    keep = jnp.ones(posterior.shape, bool) if where is None else where
    return PosteriorByLabel(
        masked_mean(posterior, where=keep & is_true),
        masked_mean(posterior, where=keep & ~is_true),
    )
