"""Classification scores per class, and rank correlation."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.stats import rankdata
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_count, check_int32, check_shape
from .._floats import at_least_float32
from .._hyperparams import check_arguments
from ._features import class_labels, has_class


class ClassScores(NamedTuple):
    """Precision, recall and F1 of predicted classes, ``[n_classes]`` each, and their means.

    Macro means weight all classes equally, including classes without examples; micro means weight
    all examples equally.
    """

    precision: Float[Array, "n_classes"]
    """Share of the examples predicted as the class that belong to it."""
    recall: Float[Array, "n_classes"]
    """Share of the examples of the class that are predicted as such."""
    f1: Float[Array, "n_classes"]
    """Harmonic mean of precision and recall."""
    macro_precision: Float[Array, ""]
    macro_recall: Float[Array, ""]
    macro_f1: Float[Array, ""]
    micro_precision: Float[Array, ""]
    micro_recall: Float[Array, ""]
    micro_f1: Float[Array, ""]


@check_arguments
def precision_recall_f1(
    labels: Int[Array, "n"],
    predicted: Int[Array, "n"],
    n_classes: int,
    *,
    where: Bool[Array, "n"] | None = None,
) -> ClassScores:
    r"""Computes precision, recall and F1 of each class, with macro and micro means.

    .. math::
        P_c = \frac{TP_c}{TP_c + FP_c}, \qquad R_c = \frac{TP_c}{TP_c + FN_c}, \qquad
        F_c = \frac{2\,TP_c}{2\,TP_c + FP_c + FN_c}

    The quotient 0 / 0 is 0.

    Args:
      labels: True classes, integers below ``n_classes``, shape ``[n]``; examples with negative
        labels are excluded.
      predicted: Predicted classes, shape ``[n]``; predictions outside ``[0, n_classes)`` count as
        wrong.
      n_classes: Number of classes, >= 1; static.
      where: Mask of the examples to include, shape ``[n]``.

    Returns:
      :class:`ClassScores` of float32 values.

    Raises:
      ValueError: If a shape does not fit, ``n_classes`` is below 1, a concrete label is not below
        ``n_classes``, or a class does not fit into 32 bits.

    >>> scores = precision_recall_f1(jnp.array([0, 0, 1, 2]), jnp.array([0, 1, 1, 1]), 3)
    >>> scores.precision, f"{scores.macro_f1:.3f} {scores.micro_f1:.3f}"
    (Array([1.        , 0.33333334, 0.        ], dtype=float32), '0.389 0.500')
    """
    check_count("n_classes", n_classes)
    labels = class_labels("labels", labels, n_classes)
    check_shape("predicted", predicted, labels.shape)
    check_int32("predicted", predicted)
    check_shape("where", where, labels.shape)
    predicted = jnp.asarray(predicted).astype(jnp.int32)
    classes = jnp.arange(n_classes, dtype=jnp.int32)
    keep = has_class(labels, n_classes)
    keep = keep if where is None else keep & where
    # Integer counts: float32 sums stop growing at 2²⁴.
    true = keep[:, None] & (labels[:, None] == classes[None])
    positive = keep[:, None] & (predicted[:, None] == classes[None])
    n_hits, n_true, n_predicted = (
        jnp.sum(x, axis=0, dtype=jnp.int32) for x in (true & positive, true, positive)
    )
    per_class = _precision_recall_f1(n_hits, n_predicted, n_true)
    n_all = jnp.sum(keep, dtype=jnp.int32)  # predictions outside the range are wrong, too
    micro = _precision_recall_f1(jnp.sum(n_hits), n_all, jnp.sum(n_true))
    macro = jnp.mean(per_class[0]), jnp.mean(per_class[1]), jnp.mean(per_class[2])
    return ClassScores(*per_class, *macro, *micro)


def spearman(scores: Float[Array, "n"], gold: Float[Array, "n"]) -> Float[Array, ""]:
    r"""Spearman's rank correlation, with mean ranks for ties.

    .. math::
        \rho = \frac{\sum_i (r_i - \bar r)(g_i - \bar g)}
                    {\sqrt{\sum_i (r_i - \bar r)^2 \sum_i (g_i - \bar g)^2}}

    Args:
      scores: Predicted scores, such as cosines of sentence pairs, shape ``[n]``.
      gold: Reference values, such as human ratings, shape ``[n]``.

    Returns:
      A scalar in [-1, 1], at least float32. NaN if a value is NaN or one of the arrays is constant.

    Raises:
      ValueError: If the shapes differ.

    References:
      Spearman, *The Proof and Measurement of Association between Two Things*, 1904; Agirre et al.,
      *SemEval-2012 Task 6*, 2012, for sentence similarity.

    >>> print(f"{spearman(jnp.array([0.1, 0.4, 0.2, 0.2]), jnp.array([1.0, 5.0, 2.0, 3.0])):.4f}")
    0.9487
    """
    check_shape("gold", gold, scores.shape)
    scores, gold = at_least_float32(scores, gold)
    middle = (scores.size + 1) / 2
    first, second = (rankdata(x) - middle for x in (scores, gold))
    # The product of the sums grows with n⁶: in float32 it is infinite from 6.1 million values.
    norms = jnp.sqrt(jnp.sum(first**2)) * jnp.sqrt(jnp.sum(second**2))
    rho = jnp.sum(first * second) / norms
    has_nan = jnp.any(jnp.isnan(scores)) | jnp.any(jnp.isnan(gold))
    return jnp.where(has_nan, jnp.nan, jnp.clip(rho, -1, 1))


def _precision_recall_f1(
    n_hits: Array, n_predicted: Array, n_true: Array
) -> tuple[Array, Array, Array]:
    def ratio(part: Array, whole: Array) -> Array:
        return part.astype(jnp.float32) / jnp.maximum(whole, 1).astype(jnp.float32)

    f1 = ratio(2 * n_hits, n_predicted + n_true)
    return ratio(n_hits, n_predicted), ratio(n_hits, n_true), f1
