"""What all losses of an anchor with a positive and negatives have in common."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from .._checks import as_mask, check_shape
from .._floats import at_least_float32
from .._hyperparams import per_anchor
from .._reduce import ReduceFn


class Anchors(NamedTuple):
    """Checked scores, of one floating type, with nothing to fear under the mask.

    Attributes:
      pos: The own positive, ``[*batch]``; 0 for an anchor that keeps nothing. From
        :func:`prepare_many` all positives, ``[*batch, M]``, 0 where masked.
      extra: Further positives ``[*batch, M]``, or None.
      neg: The negatives, ``[*batch, N]``; 0 where masked.
      where: Which negatives to keep, ``[*batch, N]``, or None for all.
      where_pos: Which positives to keep, ``[*batch, M]``, or None for all.
      kept: Which anchors keep any of both, ``[*batch]``, or None for all.
      temperature: A scalar of the type of the scores.
      weights: Of anchors, ``[*batch]``, or None.
    """

    pos: Array
    extra: Array | None
    neg: Array
    where: Array | None
    where_pos: Array | None
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
    pos, neg = jnp.asarray(pos), jnp.asarray(neg)
    batch = neg.shape[:-1]
    with_extra = extra_positives and pos.ndim == neg.ndim
    if not with_extra and neg.ndim != pos.ndim + 1:
        raise ValueError(
            "`neg` must have one axis more than `pos`, that of the negatives of an anchor, got "
            f"the shapes {neg.shape} and {pos.shape}."
        )
    check_shape("pos", pos, (*batch, max(pos.shape[-1], 1)) if with_extra else batch)
    anchors = _prepare(pos, neg, temperature, where, None, weights)
    if not with_extra:
        return anchors
    own, extra = anchors.pos[..., 0], anchors.pos[..., 1:]
    return anchors._replace(pos=own, extra=extra if extra.shape[-1] else None)


def prepare_many(
    pos: Array,
    neg: Array,
    *,
    temperature: Any,
    where: Array | None,
    where_pos: Array | None,
    weights: Array | None,
) -> Anchors:
    """:func:`prepare` for several positives an anchor, each of which may be masked."""
    pos, neg = jnp.asarray(pos), jnp.asarray(neg)
    check_shape("pos", pos, (*neg.shape[:-1], max((1, *pos.shape[-1:]))))
    check_shape("where_pos", where_pos, pos.shape)
    return _prepare(pos, neg, temperature, where, where_pos, weights)


def _prepare(
    pos: Array,
    neg: Array,
    temperature: Any,
    where: Array | None,
    where_pos: Array | None,
    weights: Array | None,
) -> Anchors:
    check_shape("where", where, neg.shape)
    check_shape("weights", weights, neg.shape[:-1])
    check_shape("temperature", temperature, ())
    where, where_pos = as_mask("where", where), as_mask("where_pos", where_pos)

    pos, neg = at_least_float32(pos, neg)
    dtype = pos.dtype
    temperature = jnp.asarray(temperature, dtype)
    if weights is not None:
        weights = jnp.asarray(weights).astype(dtype)
    if where_pos is not None:  # an anchor without a positive keeps no negative either
        where = jnp.ones(neg.shape, bool) if where is None else where
        where = where & jnp.any(where_pos, axis=-1, keepdims=True)
    kept = None
    if where is not None:  # before any arithmetic: 0 * nan would reach d/dtemperature
        kept = jnp.any(where, axis=-1)
        neg = jnp.where(where, neg, 0)
        keep_pos = kept if pos.ndim == kept.ndim else kept[..., None]
        if where_pos is not None:
            keep_pos = where_pos = keep_pos & where_pos
        pos = jnp.where(keep_pos, pos, 0)
        weights = None if weights is None else jnp.where(kept, weights, 0)
    return Anchors(pos, None, neg, where, where_pos, kept, temperature, weights)


def beside(name: str, value: Any, like: Array, where: Array | None, *, fill: float = 0.0) -> Array:
    """What goes with the scores ``like``, broadcast to their shape; ``fill`` where masked."""
    value = jnp.broadcast_to(per_anchor(name, value, like.shape, like.dtype), like.shape)
    return value if where is None else jnp.where(where, value, fill)


def finish(loss: Array, anchors: Anchors, reduce_fn: ReduceFn | None) -> Array:
    """Weights the anchors and reduces; those without a negative count nothing."""
    return reduce_kept(loss, anchors.kept, anchors.weights, reduce_fn)


def reduce_kept(
    loss: Array, kept: Array | None, weights: Array | None, reduce_fn: ReduceFn | None
) -> Array:
    """Weights the losses, which have to be finite where not ``kept``, and reduces them."""
    if weights is not None:
        loss = weights * loss
    if kept is not None:
        loss = jnp.where(kept, loss, 0)
    return loss if reduce_fn is None else reduce_fn(loss, where=kept)


def lead(anchors: Anchors, others: Array) -> Array:
    """By how much the own positive leads each of ``others``, ``[*batch, n]``."""
    return (anchors.pos[..., None] - others) / anchors.temperature


def row_mean(values: Array, where: Array | None) -> Array:
    """Mean of the kept entries of each row; of a row without any, 0."""
    # The sum of the largest numbers is none, their mean is. A power of 2 changes no other digit.
    n = values.shape[-1]
    small = 2.0 ** -n.bit_length()
    total = jnp.sum(small * values, axis=-1, where=where)
    if where is None:
        return total / (small * n)
    return total / (small * jnp.maximum(jnp.sum(where, axis=-1), 1).astype(values.dtype))
