"""Properties of losses that training depends on: per-anchor independence and masking."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

_Loss = TypeVar("_Loss", bound=Callable[..., Any])
_MARK = "__anchorwise__"


def per_anchor_loss(loss: _Loss) -> _Loss:
    """Marks a loss whose value for an anchor is independent of the scores of other anchors.

    Training pads the last batch of an epoch. For marked losses the padding is excluded from the
    mean only. Other losses that accept ``where`` receive a mask of the valid anchors in every
    step. The decorator also applies to user-defined losses.

    Args:
      loss: Loss function with this property, which is not checked.

    Returns:
      The same function.
    """
    setattr(loss, _MARK, True)
    return loss


def is_per_anchor_loss(loss: Callable[..., Any]) -> bool:
    """Whether a loss, possibly a ``functools.partial``, is marked by :func:`per_anchor_loss`.

    >>> from crl_jax import losses
    >>> is_per_anchor_loss(losses.bpr), is_per_anchor_loss(losses.truncated_bpr)
    (True, False)
    """
    while isinstance(loss, partial):
        loss = loss.func
    return getattr(loss, _MARK, False)


def accepts_where(loss: Callable[..., Any]) -> bool:
    """Whether a loss accepts a ``where`` mask of negatives.

    >>> from crl_jax import losses
    >>> accepts_where(losses.bpr), accepts_where(lambda pos, neg: pos)
    (True, False)
    """
    taken = inspect.signature(loss).parameters.values()
    return any(p.name == "where" or p.kind is p.VAR_KEYWORD for p in taken)
