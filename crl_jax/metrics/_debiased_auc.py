"""AUC of true negatives from positive and unlabelled scores."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_shape
from .._floats import at_least_float32
from .._hyperparams import TauPlus, check_arguments, per_anchor
from .._reduce import count_unmasked
from .._search import count_below


@check_arguments
def debiased_auc(
    pos: Float[Array, "*batch n_pos"],
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: TauPlus,
    surrogate: Literal["zero_one", "sigmoid"] = "zero_one",
    where_pos: Bool[Array, "*batch n_pos"] | None = None,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Estimates the AUC against true negatives from positive and unlabelled scores.

    .. math::
        \hat P_{PN} = \frac{1}{\tau^-} \Bigl[
            \frac{1}{MN} \sum_{m, j} h(s^+_m, s_j) - \frac{\tau^+}{2} \Bigr]

    :math:`h` is the zero-one comparison :math:`[s^+_m > s_j]`, where ties count ½, or its surrogate
    :math:`\sigma(s^+_m - s_j)`. For both :math:`h(a, b) + h(b, a) = 1`, so that the mean over all
    ordered pairs of different positives, the second term of the estimate, is exactly ½. The
    estimate is unbiased if unlabelled samples are positives with probability :math:`\tau^+`, with
    scores distributed as those of ``pos``.

    Args:
      pos: Scores of the positives of an anchor, shape ``[*batch, n_pos]``.
      neg: Scores of its unlabelled samples, shape ``[*batch, n_neg]``.
      tau_plus: Share :math:`\tau^+` of positives among the unlabelled samples, in [0, 1); a scalar
        or an array that broadcasts to ``[*batch]``. With 0 the result is the AUC of positives
        against unlabelled samples.
      surrogate: Comparison of two scores; static. ``"sigmoid"`` gives the expectation that
        :func:`crl_jax.losses.debiased_pairwise` estimates at temperature 1, and takes
        ``n_pos * n_neg`` operations.
      where_pos: Mask of the positives to include, shape ``[*batch, n_pos]``.
      where: Mask of the unlabelled samples to include, shape ``[*batch, n_neg]``.

    Returns:
      Shape ``[*batch]``, at least float32. An unbiased estimate may lie outside [0, 1]: it is not
      clipped. ½ for an anchor without a positive or an unlabelled sample; NaN if an included score
      is NaN.

    Raises:
      ValueError: If a shape does not fit, or ``tau_plus`` or ``surrogate`` is out of range.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 5.17 and lemma 5.1; Sakai et al.,
      `Semi-Supervised AUC Optimization Based on Positive-Unlabeled Learning
      <https://arxiv.org/abs/1705.01708>`_, 2018.

    >>> pos, unlabelled = jnp.array([0.9, 0.4]), jnp.array([0.8, 0.1, 0.3, -0.2])
    >>> for tau_plus in (0.0, 0.25):
    ...     print(f"{debiased_auc(pos, unlabelled, tau_plus=tau_plus):.3f}")
    0.875
    1.000
    """
    batch = pos.shape[:-1]
    check_shape("neg", neg, (*batch, *neg.shape[-1:]))
    check_shape("where_pos", where_pos, pos.shape)
    check_shape("where", where, neg.shape)
    pos, neg = at_least_float32(pos, neg)
    tau_plus = per_anchor("tau_plus", tau_plus, batch, pos.dtype)
    n_rows = math.prod(batch)  # -1 is undefined for rows of length 0
    rows = pos.reshape(n_rows, pos.shape[-1]), neg.reshape(n_rows, neg.shape[-1])
    keep_pos, keep = _mask(where_pos, rows[0]), _mask(where, rows[1])
    compare = _zero_one if surrogate == "zero_one" else _sigmoid
    n_pos, n = (
        count_unmasked(*x).astype(pos.dtype) for x in ((rows[0], keep_pos), (rows[1], keep))
    )
    biased = jnp.sum(compare(*rows, keep) / n[:, None], axis=-1, where=keep_pos) / n_pos
    missing = jnp.any(jnp.isnan(rows[0]) & keep_pos, -1) | jnp.any(jnp.isnan(rows[1]) & keep, -1)
    compared = jnp.any(keep_pos, axis=-1) & jnp.any(keep, axis=-1)
    biased = jnp.where(missing, jnp.nan, jnp.where(compared, biased, 0.5)).reshape(batch)
    return (biased - tau_plus / 2) / (1 - tau_plus)


def _mask(where: Array | None, scores: Array) -> Array:
    """Returns the mask in the shape of the scores; all True for None."""
    return jnp.ones(scores.shape, bool) if where is None else where.reshape(scores.shape)


def _zero_one(pos: Array, neg: Array, keep: Array) -> Array:
    """Returns the number of unlabelled samples below each positive; ties count half."""
    included = jnp.where(keep, neg, jnp.nan)  # NaN is never counted
    below, not_above = (count_below(included, pos, side) for side in ("left", "right"))
    return (below + not_above).astype(pos.dtype) / 2


def _sigmoid(pos: Array, neg: Array, keep: Array) -> Array:
    """Returns the sum of the surrogate over the unlabelled samples, for each positive."""

    def column(scores: Array) -> Array:
        return jnp.sum(jax.nn.sigmoid(scores[:, None] - neg), axis=-1, where=keep)

    return jax.lax.map(column, pos.T).T
