"""How well classes are told, and how well scores are ordered."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_count, check_shape
from .._floats import at_least_float32


class ClassScores(NamedTuple):
    """Precision, recall and F1 of predicted classes, ``[n_classes]`` each, and their means.

    The macro means count each class alike, also one that nobody has. The micro mean counts each
    example alike.
    """

    precision: Float[Array, "n_classes"]
    """Of the examples that were said to be of the class, the share that are."""
    recall: Float[Array, "n_classes"]
    """Of the examples of the class, the share that were found."""
    f1: Float[Array, "n_classes"]
    """The harmonic mean of the two."""
    macro_precision: Float[Array, ""]
    macro_recall: Float[Array, ""]
    macro_f1: Float[Array, ""]
    micro_precision: Float[Array, ""]
    micro_recall: Float[Array, ""]
    micro_f1: Float[Array, ""]


def precision_recall_f1(
    labels: Int[Array, "n"],
    predicted: Int[Array, "n"],
    n_classes: int,
    *,
    where: Bool[Array, "n"] | None = None,
) -> ClassScores:
    r"""Precision, recall and F1 of each class, and their means.

    .. math::
        P_c = \frac{TP_c}{TP_c + FP_c}, \qquad R_c = \frac{TP_c}{TP_c + FN_c}, \qquad
        F_c = \frac{2\,TP_c}{2\,TP_c + FP_c + FN_c}

    A quotient of 0 by 0 is 0.

    Args:
      labels: True classes, shape ``[n]``. An example whose label does not lie in
        ``[0, n_classes)`` is left out.
      predicted: Predicted classes, shape ``[n]``; one outside of the range is a class that no
        example has.
      n_classes: How many classes there are, >= 1; static.
      where: True keeps an example, shape ``[n]``.

    Returns:
      See :class:`ClassScores`; float32.

    Raises:
      ValueError: If a shape does not fit or ``n_classes`` is below 1.

    >>> scores = precision_recall_f1(jnp.array([0, 0, 1, 2]), jnp.array([0, 1, 1, 1]), 3)
    >>> scores.precision, f"{scores.macro_f1:.3f} {scores.micro_f1:.3f}"
    (Array([1.        , 0.33333334, 0.        ], dtype=float32), '0.389 0.500')
    """
    check_count("n_classes", n_classes)
    check_shape("predicted", predicted, labels.shape)
    check_shape("where", where, labels.shape)
    classes = jnp.arange(n_classes, dtype=labels.dtype)
    keep = (labels >= 0) & (labels < n_classes)
    keep = keep if where is None else keep & where
    # Counts are whole numbers: sums of float32 stop growing at 2²⁴.
    true = keep[:, None] & (labels[:, None] == classes[None])
    said = keep[:, None] & (predicted[:, None] == classes.astype(predicted.dtype)[None])
    n_right, n_true, n_said = (
        jnp.sum(x, axis=0, dtype=jnp.int32) for x in (true & said, true, said)
    )
    each = _shares(n_right, n_said, n_true)
    n_all_said = jnp.sum(keep, dtype=jnp.int32)  # one outside of the range is wrong, too
    micro = _shares(jnp.sum(n_right), n_all_said, jnp.sum(n_true))
    macro = jnp.mean(each[0]), jnp.mean(each[1]), jnp.mean(each[2])
    return ClassScores(*each, *macro, *micro)


def spearman(scores: Float[Array, "n"], gold: Float[Array, "n"]) -> Float[Array, ""]:
    r"""Spearman's rank correlation: Pearson's of the ranks, where equal values share their mean.

    .. math::
        \rho = \frac{\sum_i (r_i - \bar r)(g_i - \bar g)}
                    {\sqrt{\sum_i (r_i - \bar r)^2 \sum_i (g_i - \bar g)^2}}

    Args:
      scores: One score of each, such as the cosine of a pair of sentences, shape ``[n]``.
      gold: The other, such as what people say, shape ``[n]``.

    Returns:
      A scalar in [-1, 1], at least float32. NaN if a value is NaN, or all scores or all gold values
      are equal, where there is no order.

    Raises:
      ValueError: If the shapes differ.

    References:
      Spearman, *The Proof and Measurement of Association between Two Things*, 1904; Agirre et al.,
      *SemEval-2012 Task 6*, 2012, for sentences.

    >>> print(f"{spearman(jnp.array([0.1, 0.4, 0.2, 0.2]), jnp.array([1.0, 5.0, 2.0, 3.0])):.4f}")
    0.9487
    """
    check_shape("gold", gold, scores.shape)
    scores, gold = at_least_float32(scores, gold)
    first, second = _centred_ranks(scores), _centred_ranks(gold)
    rho = jnp.sum(first * second) / jnp.sqrt(jnp.sum(first**2) * jnp.sum(second**2))
    broken = jnp.any(jnp.isnan(scores)) | jnp.any(jnp.isnan(gold))
    return jnp.where(broken, jnp.nan, jnp.clip(rho, -1, 1))


def _shares(n_right: Array, n_said: Array, n_true: Array) -> tuple[Array, Array, Array]:
    def share(part: Array, whole: Array) -> Array:
        return part.astype(jnp.float32) / jnp.maximum(whole, 1).astype(jnp.float32)

    return share(n_right, n_said), share(n_right, n_true), share(2 * n_right, n_said + n_true)


def _centred_ranks(x: Float[Array, "n"]) -> Float[Array, "n"]:
    """Ranks from -1 to 1, where equal values share their mean rank."""
    ordered = jnp.sort(x)
    below = jnp.searchsorted(ordered, x, side="left")
    up_to = jnp.searchsorted(ordered, x, side="right")
    twice = below + up_to - x.shape[0]  # whole numbers: no digit is lost before the division
    return twice.astype(x.dtype) / max(x.shape[0], 1)
