"""Examples with labels, and what labels say about the scores of a batch."""

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..weights import estimate_alpha

# Anchors that an AUC is taken of in each step. A sort of each row of scores costs more than the
# loss does, and a running mean over steps sees the others soon.
ANCHORS = 16


class LabelledExamples(NamedTuple):
    """Examples and their classes: data of batches that have labels. Any other data have none.

    Attributes:
      examples: The examples, every leaf ``[n, ...]``.
      labels: Their classes, ``[n]``; a negative number for one that is not known.
    """

    examples: Any
    labels: Int[Array, "n"]


class LossInputs(NamedTuple):
    """What a loss takes.

    Attributes:
      pos: Score of each anchor with its positive, ``[anchors]``.
      neg: Scores with keys, ``[anchors, keys]``.
      where: Which of the keys are negatives, ``[anchors, keys]``; None for all.
    """

    pos: Float[Array, "anchors"]
    neg: Float[Array, "anchors keys"]
    where: Bool[Array, "anchors keys"] | None = None


class ClassMasks(NamedTuple):
    """Which pairs of anchors and keys are of one class.

    Attributes:
      same: Whether both are known to be of one class, ``[anchors, keys]``.
      known: Whether both classes are known, ``[anchors, keys]``.
    """

    same: Bool[Array, "anchors keys"]
    known: Bool[Array, "anchors keys"]


def split_labels(data: Any) -> tuple[Any, Int[Array, "batch"] | None]:
    """Examples, and their labels if there are any."""
    if not isinstance(data, LabelledExamples):
        return data, None
    return data.examples, jnp.asarray(data.labels).astype(jnp.int32)


def same_class(
    labels: Int[Array, "anchors"] | None, of_keys: Int[Array, "keys"] | None
) -> ClassMasks | None:
    """What labels say about pairs; None without any."""
    if labels is None or of_keys is None:
        return None
    known = (labels >= 0)[:, None] & (of_keys >= 0)[None, :]
    return ClassMasks(known & (labels[:, None] == of_keys[None, :]), known)


def auc_of(
    scores: LossInputs, classes: ClassMasks, where: Bool[Array, "anchors keys"]
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """How often a key of the same class scores above one of another, and whether that is known.

    The mean over a few anchors, those that lead the batch, which is in random order.
    """
    neg, same, known, where = (
        x[:ANCHORS] for x in (scores.neg, classes.same, classes.known, where)
    )
    pos, other = where & same, where & known & ~same
    auc = estimate_alpha(neg, neg, where_pos=pos, where_neg=other)
    return auc, jnp.any(jnp.any(pos, axis=1) & jnp.any(other, axis=1))


def auc_of_views(
    scores: LossInputs, where: Bool[Array, "anchors keys"]
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """How often the other view of an anchor scores above a key, and whether that is known."""
    pos, neg, where = (x[:ANCHORS] for x in (scores.pos, scores.neg, where))
    return estimate_alpha(pos[:, None], neg, where_neg=where), jnp.any(where)


def as_alpha(auc: Float[Array, ""], rule: Literal["auc", "model"]) -> Float[Array, ""]:
    """What an AUC says of α, see :func:`crl_jax.weights.estimate_alpha`."""
    return auc if rule == "auc" else jnp.minimum(0.5 + 1.5 * (auc - 0.5), 1)


def label_metrics(
    scores: LossInputs, classes: ClassMasks | None, where: Bool[Array, "anchors keys"]
) -> dict[str, Float[Array, ""]]:
    """``false_negatives``, the share among negatives, and ``auc``; nothing without labels."""
    if classes is None:
        return {}
    known = where & classes.known
    share = jnp.sum(known & classes.same) / jnp.maximum(jnp.sum(known), 1)
    auc, _ = auc_of(scores, classes, where)
    return {"false_negatives": share.astype(jnp.float32), "auc": auc}
