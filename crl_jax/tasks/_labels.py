"""Class labels of examples, and the statistics of a batch of scores that need them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._pytree import pytree_dataclass
from ..weights import estimate_alpha

# Number of anchors per step whose AUC is computed. Sorting every row of scores costs more than
# the loss, and the running mean over steps soon covers the other anchors.
AUC_ANCHORS = 16


@pytree_dataclass(eq=False)
class LabelledExamples:
    """Examples with class labels: the data of batches that have labels.

    Attributes:
      examples: Every leaf ``[n, ...]``.
      labels: Class of each example, integers ``[n]``; negative where unknown.

    Raises:
      ValueError: If ``labels`` is not a vector of one integer per example.

    >>> LabelledExamples(np.ones((3, 2)), [0.5, 1.0, 2.0])
    Traceback (most recent call last):
    ValueError: `labels` must be integers, got float64.
    """

    examples: Any
    labels: Any

    def __post_init__(self) -> None:
        if not isinstance(self.labels, jax.Array | np.ndarray):
            object.__setattr__(self, "labels", np.asarray(self.labels))
        dtype, shape = self.labels.dtype, self.labels.shape
        if not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_)):
            raise ValueError(f"`labels` must be integers, got {dtype}.")
        n = n_examples(self.examples)
        if len(shape) != 1 or shape[0] != n:
            raise ValueError(f"`labels` must have shape ({n},), one per example, got {shape}.")


class ClassMasks(NamedTuple):
    """Masks of the pairs of anchors and keys by class.

    Attributes:
      same: Pairs known to share a class, ``[anchors, keys]``.
      known: Pairs in which both classes are known, ``[anchors, keys]``.
    """

    same: Bool[Array, "anchors keys"]
    known: Bool[Array, "anchors keys"]


class LossInputs(NamedTuple):
    """Scores of a batch and their masks.

    Attributes:
      pos: Score of each anchor with its positive, ``[anchors]``.
      neg: Scores with all keys, ``[anchors, keys]``.
      where: Mask of the keys that are negatives, ``[anchors, keys]``; None for all.
      classes: Masks by class; None without labels.
    """

    pos: Float[Array, "anchors"]
    neg: Float[Array, "anchors keys"]
    where: Bool[Array, "anchors keys"] | None = None
    classes: ClassMasks | None = None


def n_examples(examples: Any) -> int:
    """Returns the length of the leading axis, or 0 without arrays."""
    return next((leaf.shape[0] for leaf in jax.tree.leaves(examples) if np.ndim(leaf)), 0)


def known_labels(data: LabelledExamples) -> np.ndarray:
    """Returns the labels that are not negative."""
    labels = np.asarray(data.labels)
    return labels[labels >= 0]


def split_labels(data: Any) -> tuple[Any, Int[Array, "batch"] | None]:
    """Returns the examples, and their labels or None."""
    if not isinstance(data, LabelledExamples):
        return data, None
    return data.examples, jnp.asarray(data.labels).astype(jnp.int32)


def class_masks(
    anchor_labels: Int[Array, "anchors"] | None, key_labels: Int[Array, "keys"] | None
) -> ClassMasks | None:
    """Compares the labels of anchors and keys; None without labels."""
    if anchor_labels is None or key_labels is None:
        return None
    known = (anchor_labels >= 0)[:, None] & (key_labels >= 0)[None, :]
    return ClassMasks(known & (anchor_labels[:, None] == key_labels[None, :]), known)


def label_auc(inputs: LossInputs) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """AUC of keys of the anchor's class against the others, and whether it is defined.

    The mean over the first anchors of the batch, which is in random order.
    """
    assert inputs.where is not None
    assert inputs.classes is not None
    neg, where, same, known = (x[:AUC_ANCHORS] for x in (inputs.neg, inputs.where, *inputs.classes))
    pos, other = where & same, where & known & ~same
    auc = estimate_alpha(neg, neg, where_pos=pos, where_neg=other)
    return auc, jnp.any(jnp.any(pos, axis=1) & jnp.any(other, axis=1))


def label_metrics(inputs: LossInputs) -> dict[str, Float[Array, ""]]:
    """Returns ``false_negatives``, their share of the negatives, and ``auc``, if labelled."""
    if inputs.classes is None:
        return {}
    assert inputs.where is not None
    known = inputs.where & inputs.classes.known
    share = jnp.sum(known & inputs.classes.same) / jnp.maximum(jnp.sum(known), 1)
    return {"false_negatives": share.astype(jnp.float32), "auc": label_auc(inputs)[0]}
