"""Frozen dataclasses that are pytrees."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar, dataclass_transform, overload

import jax
from jax import export

from ._hyperparams import check_fields

STATIC = {"static": True}
"""Metadata of a static field: part of the tree structure, so that a new value recompiles."""

T = TypeVar("T")


@overload
def pytree_dataclass(cls: type[T], /) -> type[T]: ...
@overload
def pytree_dataclass(*, eq: bool = True) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def pytree_dataclass(cls: Any = None, /, *, eq: bool = True) -> Any:
    """Makes a class a frozen dataclass and registers it as a pytree.

    Fields declared with ``field(metadata=STATIC)`` belong to the tree structure; all other fields
    are subtrees. Fields annotated with a :class:`Range` are checked when an object is constructed,
    before the ``__post_init__`` of the class.

    JAX rebuilds an object from its leaves without calling ``__init__`` or ``__post_init__``, unlike
    with :func:`jax.tree_util.register_dataclass`. Leaves may therefore be replaced by anything:
    ``None``, axes for ``vmap``, shapes, strings.

    Args:
      cls: The class.
      eq: Whether instances compare equal if their fields do; False for fields that are arrays.

    Returns:
      The same class; a decorator if called without one.

    >>> from typing import Annotated, Any
    >>> import jax
    >>> from crl_jax import Range, pytree_dataclass
    >>> @pytree_dataclass
    ... class Schedule:
    ...     decay: Annotated[Any, Range(0, 1)] = 0.1
    >>> jax.tree.map(lambda leaf: None, Schedule(0.5))
    Schedule(decay=None)
    >>> Schedule(1.5)
    Traceback (most recent call last):
    ValueError: `decay` must lie in [0, 1], got 1.5.
    """
    if cls is None:
        return partial(pytree_dataclass, eq=eq)
    own_post_init = getattr(cls, "__post_init__", None)

    def __post_init__(self: Any) -> None:
        check_fields(self)
        if own_post_init is not None:
            own_post_init(self)

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]
    decorated: Any = dataclass(frozen=True, eq=eq)(cls)
    leaves = tuple(f.name for f in fields(decorated) if not f.metadata.get("static", False))
    static = tuple(f.name for f in fields(decorated) if f.metadata.get("static", False))
    keys = tuple(map(jax.tree_util.GetAttrKey, leaves))

    def flatten(tree: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(getattr(tree, name) for name in leaves), tuple(
            getattr(tree, name) for name in static
        )

    def flatten_with_keys(tree: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        children, structure = flatten(tree)
        return tuple(zip(keys, children)), structure

    def unflatten(structure: tuple[Any, ...], children: Any) -> Any:
        tree = object.__new__(decorated)
        for name, value in zip((*leaves, *static), (*children, *structure)):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(decorated, flatten_with_keys, unflatten, flatten)
    return decorated


def serializable(cls: type[T]) -> type[T]:
    """Registers a public named tuple, as an argument or result of exported functions; a decorator.

    Its name in a file of ``jax.export`` is the public one, such as ``crl_jax.models.Tables``.
    """
    package = ".".join(cls.__module__.split(".")[:2])
    with contextlib.suppress(ValueError):  # the module was reloaded
        export.register_namedtuple_serialization(cls, serialized_name=f"{package}.{cls.__name__}")
    return cls
