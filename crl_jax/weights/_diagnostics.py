"""Diagnostics of weights and posteriors, most of them given labels of the negatives."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_count, check_shape
from .._floats import at_least_float32
from .._hyperparams import check_arguments
from .._labelled import flatten_labelled, reliability
from .._reduce import masked_mean
from .._scaling import row_scale
from .._search import count_below


class Calibration(NamedTuple):
    """Reliability table of a binned posterior, or of other predicted probabilities."""

    predicted: Float[Array, "bins"]
    """Mean posterior of each bin; 0 for an empty bin."""
    actual: Float[Array, "bins"]
    """Fraction of true negatives (of true labels) in each bin; 0 for an empty bin."""
    samples: Float[Array, "bins"]
    """Number of samples in each bin."""
    error: Float[Array, ""]
    """Expected calibration error: count-weighted mean of ``abs(predicted - actual)``."""


@check_arguments
def posterior_calibration(
    posterior: Float[Array, "*batch n_neg"],
    is_true: Bool[Array, "*batch n_neg"],
    *,
    bins: int = 10,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Calibration:
    r"""Reliability table and expected calibration error (ECE) of a posterior.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n} \lvert \bar p_b - \bar y_b \rvert

    over equal-width bins of [0, 1], with the mean posterior :math:`\bar p_b` and the fraction of
    true negatives :math:`\bar y_b` in bin :math:`b`. Calibration does not imply discrimination: a
    posterior equal to the class prior is calibrated. :func:`weights_auc` measures discrimination.

    Args:
      posterior: Probability of a true negative, for instance :func:`true_negative_posterior`, in
        [0, 1], shape ``[*batch, n_neg]``.
      is_true: True for true negatives, shape ``[*batch, n_neg]``; in a batch with class labels,
        ``labels[:, None] != labels[None, :]``.
      bins: Number of bins; static.
      where: Mask of valid samples, shape ``[*batch, n_neg]``; others are ignored.

    Returns:
      Table over all anchors, at least float32; all 0 if every sample is masked. A NaN posterior
      is counted in the first bin and makes the error NaN.

    Raises:
      ValueError: If a shape does not match or ``bins`` is less than 1.

    References:
      Naeini et al., *Obtaining Well Calibrated Probabilities Using Bayesian Binning*, 2015, for
      the error.

    >>> p, true = jnp.array([0.9, 0.8, 0.3, 0.1]), jnp.array([True, True, True, False])
    >>> table = posterior_calibration(p, true, bins=2)
    >>> print(table.predicted, table.actual, table.samples, table.error)
    [0.2  0.85] [0.5 1. ] [2. 2.] 0.225
    """
    check_count("bins", bins)
    p, y, keep = flatten_labelled(posterior, "is_true", is_true, where)
    bin_index = jnp.clip(jnp.floor(jnp.where(jnp.isnan(p), 0, p) * bins), 0, bins - 1)
    return Calibration(*reliability(bin_index, p, y, keep, bins))


@check_arguments
def weights_auc(
    weights: Float[Array, "*batch n_neg"],
    is_true: Bool[Array, "*batch n_neg"],
    *,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, ""]:
    r"""AUC of weights as a classifier of true versus false negatives.

    .. math::
        \mathrm{AUC} = \frac{1}{n_T n_F} \sum_{j \in T} \sum_{k \in F}
            \mathbb{1}[w_j > w_k] + \tfrac12\,\mathbb{1}[w_j = w_k]

    over all pairs of a true and a false negative, within and across anchors. Chance level is 0.5.

    Args:
      weights: Weights or posterior, shape ``[*batch, n_neg]``. Only their order matters.
      is_true, where: As in :func:`posterior_calibration`.

    Returns:
      Scalar in [0, 1], at least float32; 0.5 if either class is empty; NaN if an unmasked weight
      is NaN. The cost is that of one sort.

    Raises:
      ValueError: If a shape does not match.

    >>> w, true = jnp.array([0.9, 0.5, 0.8, 0.3]), jnp.array([True, False, True, True])
    >>> print(f"{weights_auc(w, true):.3f}")
    0.667
    """
    w, y, keep = flatten_labelled(weights, "is_true", is_true, where)
    true, false = keep & (y > 0), keep & (y == 0)
    # Counts among true negatives only: ranks among all samples lose precision if these are few.
    true_w = jnp.where(true, w, jnp.nan)
    below = count_below(true_w, w, "left") + count_below(true_w, w, "right")  # ties count one half
    n_true, n_false = (jnp.sum(side).astype(w.dtype) for side in (true, false))
    above = 1 - below.astype(w.dtype) / (2 * jnp.maximum(n_true, 1))
    auc = jnp.where((n_true > 0) & (n_false > 0), masked_mean(above, where=false), 0.5)
    return jnp.where(jnp.any(jnp.isnan(w)), jnp.nan, auc)


@check_arguments
def false_negative_share(
    weights: Float[Array, "*batch n_neg"],
    is_true: Bool[Array, "*batch n_neg"],
    *,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, ""]:
    r"""Fraction of the total weight on false negatives.

    .. math:: \frac{\sum_{j \in F} w_j}{\sum_j w_j}

    Uniform weights give :math:`\tau^+`; smaller values indicate less false-negative bias.

    Args:
      weights: Weights :math:`w_j \ge 0`, shape ``[*batch, n_neg]``.
      is_true, where: As in :func:`posterior_calibration`.

    Returns:
      Scalar in [0, 1], at least float32; 0 if no weight is positive.

    Raises:
      ValueError: If a shape does not match.

    >>> print(false_negative_share(jnp.array([1.5, 0.5]), jnp.array([True, False])))
    0.25
    """
    w, y, keep = flatten_labelled(weights, "is_true", is_true, where)
    w = jnp.where(keep, w, 0)
    w = w / row_scale(w)
    total = jnp.sum(w)
    return jnp.sum(w * (1 - y)) / jnp.where(total > 0, total, 1)


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
      where: Mask of valid weights, shape ``[*batch, n]``; others are ignored.

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
      posterior, is_true, where: As in :func:`posterior_calibration`.

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
    true, false = (masked_mean(posterior, where=keep & side) for side in (is_true, ~is_true))
    return PosteriorByLabel(true, false)
