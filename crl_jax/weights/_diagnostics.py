"""Diagnostics of weights and posteriors."""

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
    r"""Kish's effective sample size of a set of weights.

    .. math:: \mathrm{ESS} = \frac{(\sum_j w_j)^2}{\sum_j w_j^2}

    It equals the number of samples for uniform weights and 1 if a single sample has all the
    weight. It is invariant to the scale of the weights.

    Args:
      weights: Weights :math:`w_j \ge 0`, shape ``[*batch, n]``.
      where: Boolean mask of valid weights, shape ``[*batch, n]``. Masked values are ignored.

    Returns:
      Effective sample sizes, shape ``[*batch]``, at least float32, between 1 and the number of
      valid weights; 0 where no weight is positive.

    Raises:
      ValueError: If the shapes of ``where`` and ``weights`` differ.

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
    """Mean true-negative posterior of the true and of the false negatives."""

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
    r"""Mean true-negative posterior of the true and of the false negatives, over all anchors.

    An uninformative posterior, equal to the prior, has a mean of :math:`\tau^-` for both; a
    calibrated posterior satisfies
    :math:`\tau^- m_{\text{true}} + \tau^+ m_{\text{false}} = \tau^-`.

    Args:
      posterior: Probability of a true negative, for instance :func:`true_negative_posterior`,
        shape ``[*batch, n_neg]``.
      is_true: True for true negatives, shape ``[*batch, n_neg]``.
      where: Boolean mask of valid samples, shape ``[*batch, n_neg]``. Masked values are ignored.

    Returns:
      Two scalars, at least float32; 0 for a class without samples.

    Raises:
      ValueError: If a shape does not match.

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
