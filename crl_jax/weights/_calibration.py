"""A posterior, or weights, against the labels of the negatives."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32
from .._hyperparams import check_arguments
from .._reduce import masked_mean
from .._scaling import row_scale
from .._search import count_below


class Calibration(NamedTuple):
    """A reliability table: bins of a probability, with what it says and what is so."""

    predicted: Float[Array, "bins"]
    """Mean posterior of the samples in each bin; 0 in an empty one."""
    actual: Float[Array, "bins"]
    """Share of true negatives among them; 0 in an empty bin."""
    samples: Float[Array, "bins"]
    """How many they are."""
    error: Float[Array, ""]
    """Mean distance of the two, weighted by the counts: the expected calibration error."""


@check_arguments
def posterior_calibration(
    posterior: Float[Array, "*batch n_neg"],
    is_true: Bool[Array, "*batch n_neg"],
    *,
    bins: int = 10,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Calibration:
    r"""Whether of the samples with posterior p a share p are true negatives.

    .. math::
        \mathrm{ECE} = \sum_b \frac{n_b}{n} \lvert \bar p_b - \bar y_b \rvert

    over bins of equal width of [0, 1], with the mean posterior and the share of true negatives in
    each. It asks for truth alone: the prior, given to all samples, is calibrated. Whether they are
    told apart is what :func:`weights_auc` says.

    Args:
      posterior: Probability of a true negative, as :func:`true_negative_posterior` gives, in
        [0, 1], shape ``[*batch, n_neg]``.
      is_true: True marks a true negative, shape ``[*batch, n_neg]``: of a batch with classes,
        ``labels[:, None] != labels[None, :]``.
      bins: How many; static.
      where: True keeps a sample, shape ``[*batch, n_neg]``. Others are never read.

    Returns:
      The table over all anchors, at least float32, and its error; 0 if nothing is kept. A NaN
      among the kept shows in the first bin and in the error.

    Raises:
      ValueError: If a shape does not fit or there is no bin.

    References:
      Naeini et al., *Obtaining Well Calibrated Probabilities Using Bayesian Binning*, 2015, for
      the error.

    >>> p, true = jnp.array([0.9, 0.8, 0.3, 0.1]), jnp.array([True, True, True, False])
    >>> table = posterior_calibration(p, true, bins=2)
    >>> print(table.predicted, table.actual, table.samples, table.error)
    [0.2  0.85] [0.5 1. ] [2. 2.] 0.225
    """
    check_shape("is_true", is_true, posterior.shape)
    check_shape("where", where, posterior.shape)
    if bins < 1:
        raise ValueError(f"`bins` must be at least 1, got {bins}.")
    p, y, keep = _flat(posterior, is_true, where)
    place = jnp.clip(jnp.floor(jnp.where(jnp.isnan(p), 0, p) * bins), 0, bins - 1)
    inside = keep[None] & (place[None] == jnp.arange(bins, dtype=p.dtype)[:, None])
    count, predicted, actual = (
        jnp.sum(jnp.where(inside, values[None], 0), axis=1) for values in (jnp.ones_like(p), p, y)
    )
    some = jnp.maximum(count, 1)
    predicted, actual = predicted / some, actual / some
    error = jnp.sum(count * jnp.abs(predicted - actual)) / jnp.maximum(jnp.sum(count), 1)
    return Calibration(predicted, actual, count, error)


@check_arguments
def weights_auc(
    weights: Float[Array, "*batch n_neg"],
    is_true: Bool[Array, "*batch n_neg"],
    *,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, ""]:
    r"""How often a true negative has more weight than a false one.

    .. math::
        \mathrm{AUC} = \frac{1}{n_T n_F} \sum_{j \in T} \sum_{k \in F}
            \mathbb{1}[w_j > w_k] + \tfrac12\,\mathbb{1}[w_j = w_k]

    over all pairs of a true and a false negative, of the same anchor or not. Half is chance.

    Args:
      weights: Weights, or a posterior, shape ``[*batch, n_neg]``. Only their order matters.
      is_true: As for :func:`posterior_calibration`.
      where: As for :func:`posterior_calibration`.

    Returns:
      A scalar in [0, 1], at least float32; 0.5 without a true or without a false negative; NaN if
      a kept weight is NaN. Costs a sort.

    Raises:
      ValueError: If a shape does not fit.

    >>> w, true = jnp.array([0.9, 0.5, 0.8, 0.3]), jnp.array([True, False, True, True])
    >>> print(f"{weights_auc(w, true):.3f}")
    0.667
    """
    check_shape("is_true", is_true, weights.shape)
    check_shape("where", where, weights.shape)
    w, y, keep = _flat(weights, is_true, where)
    true, false = keep & (y > 0), keep & (y == 0)
    # Counted among the true ones alone: a rank among all would lose digits where these are few.
    others = jnp.where(true, w, jnp.nan)
    below = count_below(others, w, "left") + count_below(others, w, "right")  # ties half
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
    r"""Share of all weight that false negatives have.

    .. math::
        \frac{\sum_{j \in F} w_j}{\sum_j w_j}

    With equal weights it is :math:`\tau^+`. Weights are worth their trouble as far as they bring it
    below.

    Args:
      weights: The :math:`w_j \ge 0`, shape ``[*batch, n_neg]``.
      is_true: As for :func:`posterior_calibration`.
      where: As for :func:`posterior_calibration`.

    Returns:
      A scalar in [0, 1], at least float32; 0 where no weight is positive.

    Raises:
      ValueError: If a shape does not fit.

    >>> print(false_negative_share(jnp.array([1.5, 0.5]), jnp.array([True, False])))
    0.25
    """
    check_shape("is_true", is_true, weights.shape)
    check_shape("where", where, weights.shape)
    w, y, keep = _flat(weights, is_true, where)
    w = jnp.where(keep, w, 0)
    w = w / row_scale(w)
    total = jnp.sum(w)
    return jnp.sum(w * (1 - y)) / jnp.where(total > 0, total, 1)


def _flat(
    values: Array, is_true: Array, where: Array | None
) -> tuple[Float[Array, "n"], Float[Array, "n"], Bool[Array, "n"]]:
    """All anchors in one row: values, 1 for a true negative, and which are kept; 0 elsewhere."""
    (values,) = at_least_float32(values)
    keep = jnp.ones(values.shape, bool) if where is None else where
    values = jnp.where(keep, values, 0)
    return values.ravel(), is_true.ravel().astype(values.dtype), keep.ravel()
