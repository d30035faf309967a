"""Argument handling, reduction and properties that losses share."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import check_negatives, check_shape, is_static
from .._floats import at_least_float32
from .._hyperparams import per_anchor, unwrap_partial
from .._reduce import ReduceFn, any_unmasked

_Loss = TypeVar("_Loss", bound=Callable[..., Any])
_MARK = "__per_anchor_loss__"


class Anchors(NamedTuple):
    """Validated scores of a common dtype, with masked entries set to 0; None for an absent mask."""

    pos: Array  # [*batch], or [*batch, M] with `many_positives`
    extra: Array | None  # further positives, [*batch, M]
    neg: Array  # [*batch, N]
    where: Array | None  # valid negatives, [*batch, N]
    where_pos: Array | None  # valid positives, [*batch, M]
    valid: Array | None  # anchors with a valid negative (and positive), [*batch]
    temperature: Array  # scalar in the dtype of the scores
    weights: Array | None  # weights of anchors, [*batch]


def prepare(
    pos: Array,
    neg: Array,
    temperature: Any,
    where: Array | None,
    weights: Array | None,
    *,
    extra_positives: bool = False,
    many_positives: bool = False,
    where_pos: Array | None = None,
) -> Anchors:
    """Validates arguments, casts them to a common dtype and sets masked entries to 0.

    ``pos`` has the shape ``[*batch]``; with ``extra_positives`` also ``[*batch, 1 + M]``, which is
    split into ``pos`` and ``extra``; with ``many_positives`` only ``[*batch, M]``.
    """
    pos, neg = jnp.asarray(pos), jnp.asarray(neg)
    batch = neg.shape[:-1]
    with_extra = extra_positives and pos.ndim == neg.ndim
    if not (with_extra or many_positives) and neg.ndim != pos.ndim + 1:
        raise ValueError(
            "`neg` must have one axis more than `pos`, that of the negatives of an anchor, got "
            f"the shapes {neg.shape} and {pos.shape}."
        )
    check_negatives(neg)
    columns = (pos.shape[-1] or 1,) if with_extra or many_positives else ()
    if many_positives and pos.ndim != neg.ndim:
        raise ValueError(
            f"`pos` must have an axis of positives, as `neg` of negatives, got shape {pos.shape}."
        )
    check_shape("pos", pos, (*batch, *columns))
    check_shape("where_pos", where_pos, pos.shape)
    check_shape("where", where, neg.shape)
    check_shape("weights", weights, batch)
    check_shape("temperature", temperature, ())

    pos, neg = at_least_float32(pos, neg)
    dtype = pos.dtype
    temperature = jnp.asarray(temperature, dtype)
    if weights is not None:
        weights = jnp.asarray(weights).astype(dtype)
    if where_pos is not None:  # mask the negatives of anchors without a positive
        where = jnp.ones(neg.shape, bool) if where is None else where
        where = where & jnp.any(where_pos, axis=-1, keepdims=True)
    valid = extra = None
    if where is not None:  # before any arithmetic, so that 0 * nan stays out of d/dtemperature
        valid = any_unmasked(where)
        neg = jnp.where(where, neg, 0)
        keep_pos = valid[..., None] if columns else valid
        if where_pos is not None:
            keep_pos = where_pos = keep_pos & where_pos
        pos = jnp.where(keep_pos, pos, 0)
        weights = None if weights is None else jnp.where(valid, weights, 0)
    if with_extra:
        pos, extra = pos[..., 0], pos[..., 1:] if pos.shape[-1] > 1 else None
    return Anchors(pos, extra, neg, where, where_pos, valid, temperature, weights)


def zero_masked(where: Array | None, *arrays: Array | None) -> Any:
    """Sets entries that are masked along the leading axes to 0; None passes.

    Before any arithmetic: 0 * nan would reach the gradients.
    """
    if where is None:
        return arrays
    return jax.tree.map(
        lambda x: jnp.where(where.reshape(where.shape + (1,) * (x.ndim - where.ndim)), x, 0), arrays
    )


def broadcast_like(
    name: str, value: Any, like: Array, where: Array | None, *, fill: float = 0.0
) -> Array:
    """Broadcasts ``value`` to the shape and dtype of ``like``; ``fill`` where masked."""
    value = jnp.broadcast_to(per_anchor(name, value, like.shape, like.dtype), like.shape)
    return value if where is None else jnp.where(where, value, fill)


def finish(loss: Array, anchors: Anchors, reduce_fn: ReduceFn | None) -> Array:
    """Weights and reduces per-anchor losses, excluding anchors without a valid negative."""
    return reduce_valid(loss, anchors.valid, anchors.weights, reduce_fn)


def reduce_valid(
    loss: Array, valid: Array | None, weights: Array | None, reduce_fn: ReduceFn | None
) -> Array:
    """Weights and reduces losses, which must be finite even where not ``valid``."""
    if weights is not None:
        loss = weights * loss
    if valid is not None:
        loss = jnp.where(valid, loss, 0)
    return loss if reduce_fn is None else reduce_fn(loss, where=valid)


def different_pairs(shape: tuple[int, ...], where: Array | None) -> Array:
    """Mask ``[*batch, n, n]`` of pairs of different valid elements of ``[*batch, n]``."""
    pairs = jnp.broadcast_to(~jnp.eye(shape[-1], dtype=bool), (*shape, shape[-1]))
    return pairs if where is None else pairs & where[..., None, :] & where[..., :, None]


def margins(anchors: Anchors, scores: Array) -> Array:
    """Margins ``(pos - scores) / temperature``, shape ``[*batch, n]``."""
    return (anchors.pos[..., None] - scores) / anchors.temperature


def row_mean(values: Array, where: Array | None) -> Array:
    """Mean of the unmasked entries per row; 0 for fully masked rows."""
    # Scaling prevents overflow of the sum; a power of 2 keeps all digits.
    n: Any = values.shape[-1]
    if is_static(n):
        small = 2.0 ** -n.bit_length()
    else:
        n = jnp.asarray(n, values.dtype)
        small = jnp.ldexp(jnp.ones_like(n), -jnp.frexp(n)[1])
    total = jnp.sum(small * values, axis=-1, where=where)
    if where is None:
        return total / (small * n)
    return total / (small * jnp.maximum(jnp.sum(where, axis=-1), 1).astype(values.dtype))


def all_positives(a: Anchors) -> Array:
    """Scores ``[*batch, 1 + M]`` of the positive and of the extra positives."""
    own = a.pos[..., None]
    return own if a.extra is None else jnp.concatenate([own, a.extra], axis=-1)


def sampled_positives(a: Anchors) -> Array:
    """Scores ``[*batch, K]`` of the extra positives, or of the positive if there are none."""
    return a.pos[..., None] if a.extra is None else a.extra


def per_anchor_loss(loss: _Loss) -> _Loss:
    """Marks a loss whose value for an anchor is independent of the scores of other anchors.

    Training pads the last batch of an epoch. For marked losses the padding is excluded from the
    mean only. Other losses that accept ``where`` receive a mask of the valid anchors in every
    step. The decorator returns the function, also a user-defined one, without checking it.
    """
    setattr(loss, _MARK, True)
    return loss


def is_per_anchor_loss(loss: Callable[..., Any]) -> bool:
    """Whether a loss, possibly a ``functools.partial``, is marked by :func:`per_anchor_loss`.

    >>> from crl_jax import losses
    >>> is_per_anchor_loss(losses.bpr), is_per_anchor_loss(losses.truncated_bpr)
    (True, False)
    """
    return getattr(unwrap_partial(loss), _MARK, False)


def accepts_where(loss: Callable[..., Any]) -> bool:
    """Whether a loss accepts a ``where`` mask of negatives.

    >>> from crl_jax import losses
    >>> accepts_where(losses.bpr), accepts_where(lambda pos, neg: pos)
    (True, False)
    """
    taken = inspect.signature(loss).parameters.values()
    return any(p.name == "where" or p.kind is p.VAR_KEYWORD for p in taken)
