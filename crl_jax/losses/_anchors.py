"""What all losses of an anchor with a positive and negatives have in common."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._checks import at_least_float32, check_range, check_shape
from .._reduce import ReduceFn


class Anchors(NamedTuple):
    """Checked scores, of one floating type, with nothing to fear under the mask.

    Attributes:
      pos: The own positive, ``[*batch]``; 0 for an anchor that keeps no negative.
      extra: Further positives ``[*batch, M]``, or None.
      neg: The negatives, ``[*batch, N]``; 0 where masked.
      where: Which negatives to keep, ``[*batch, N]``, or None for all.
      kept: Which anchors keep any, ``[*batch]``, or None for all.
      temperature: A scalar of the type of the scores.
      weights: Of anchors, ``[*batch]``, or None.
    """

    pos: Array
    extra: Array | None
    neg: Array
    where: Array | None
    kept: Array | None
    temperature: Array
    weights: Array | None


def prepare(
    pos: Array,
    neg: Array,
    *,
    temperature: Any,
    where: Array | None,
    weights: Array | None,
    extra_positives: bool = False,
) -> Anchors:
    """Checks shapes, settles on one floating type, and silences what is masked."""
    batch = neg.shape[:-1]
    with_extra = extra_positives and pos.ndim == neg.ndim
    if with_extra:
        check_shape("pos", pos, (*batch, max(pos.shape[-1], 1)))
    else:
        check_shape("pos", pos, batch)
    check_shape("where", where, neg.shape)
    check_shape("weights", weights, batch)
    check_shape("temperature", temperature, ())
    check_range("temperature", temperature, 0.0, jnp.inf, low_open=True)

    pos, neg = at_least_float32(pos, neg)
    dtype = np.promote_types(pos.dtype, neg.dtype)
    pos, neg, temperature = (jnp.asarray(x, dtype) for x in (pos, neg, temperature))
    kept = None
    if weights is not None:
        weights = weights.astype(dtype)
    if where is not None:  # before any arithmetic: 0 * nan would reach d/dtemperature
        kept = jnp.any(where, axis=-1)
        neg = jnp.where(where, neg, 0)
        pos = jnp.where(kept[..., None] if with_extra else kept, pos, 0)
        weights = None if weights is None else jnp.where(kept, weights, 0)
    extra = None
    if with_extra:
        extra = pos[..., 1:] if pos.shape[-1] > 1 else None
        pos = pos[..., 0]
    return Anchors(pos, extra, neg, where, kept, temperature, weights)


def finish(loss: Array, anchors: Anchors, reduce_fn: ReduceFn | None) -> Array:
    """Weights the anchors and reduces; those without a negative count nothing."""
    if anchors.weights is not None:
        loss = anchors.weights * loss
    if anchors.kept is not None:
        loss = jnp.where(anchors.kept, loss, 0)
    return loss if reduce_fn is None else reduce_fn(loss, where=anchors.kept)
