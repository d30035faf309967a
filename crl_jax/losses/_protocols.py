"""What training asks of a loss: whether it treats each anchor by itself, and takes a mask."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

_Loss = TypeVar("_Loss", bound=Callable[..., Any])
_MARK = "__anchorwise__"


def per_anchor_loss(loss: _Loss) -> _Loss:
    """Marks a loss in which no anchor's value depends on the scores of another.

    Training fills its last batch up. It leaves the fillers of a marked loss out of the mean
    alone; to every other loss that takes ``where`` it says by that mask which anchors are real,
    at the cost of a mask in each step. A decorator, for losses of your own too.

    Args:
      loss: The loss; it must have the property.

    Returns:
      The same function.
    """
    setattr(loss, _MARK, True)
    return loss


def is_per_anchor_loss(loss: Callable[..., Any]) -> bool:
    """Whether a loss is marked by :func:`per_anchor_loss`, also behind ``functools.partial``.

    >>> from crl_jax import losses
    >>> is_per_anchor_loss(losses.bpr), is_per_anchor_loss(losses.truncated_bpr)
    (True, False)
    """
    while isinstance(loss, partial):
        loss = loss.func
    return getattr(loss, _MARK, False)


def accepts_where(loss: Callable[..., Any]) -> bool:
    """Whether a loss can be told which negatives to leave out.

    >>> from crl_jax import losses
    >>> accepts_where(losses.bpr), accepts_where(lambda pos, neg: pos)
    (True, False)
    """
    taken = inspect.signature(loss).parameters.values()
    return any(p.name == "where" or p.kind is p.VAR_KEYWORD for p in taken)
