"""Augmentations as trees, whose numbers can be changed and swept."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Key

Augment = Callable[[Key[Array, ""], Any], Any]
"""``augment(key, example)``: a random view of one example. A function, or a registered dataclass
with ``__call__``, whose numbers are then leaves of the task. It may have a method
``plain(example)``: the example as an encoder is to see it outside training. Examples that are not
all of one size, such as graphs, are drawn together where it has ``batch(keys, examples)`` and
``plain_batch(examples)``: what these give is what the network sees, and the views of two calls are
put together leaf by leaf."""


def as_tree(augment: Any) -> Any:
    """An augmentation as a pytree: a function becomes one without leaves, a tree stays as it is.

    What is no function passes: it may stand in for an augmentation while a tree that holds it is
    taken apart and put together.
    """
    if callable(augment) and jax.tree_util.all_leaves([augment]):
        return jax.tree_util.Partial(augment)
    return augment


def draw_views(augment: Any, keys: Key[Array, "batch"], examples: Any) -> Any:
    """A random view of each example.

    Raises:
      ValueError: If ``augment`` cannot be called.
    """
    if not callable(augment):
        raise ValueError(f"`augment` must be a function of a key and an example, got {augment!r}.")
    together = _method(augment, "batch")
    return jax.vmap(augment)(keys, examples) if together is None else together(keys, examples)


def as_they_are(augment: Any, examples: Any) -> Any:
    """Examples as an encoder is to see them outside training: ``plain`` ones, if there are such."""
    if (together := _method(augment, "plain_batch")) is not None:
        return together(examples)
    plain = _method(augment, "plain")
    return examples if plain is None else jax.vmap(plain)(examples)


def _method(augment: Any, name: str) -> Callable[..., Any] | None:
    """A method of an augmentation, or None. A function is wrapped, and has what it has inside."""
    return getattr(augment, name, getattr(getattr(augment, "func", None), name, None))
