"""Types and ranges of hyper-parameters, declared in function signatures."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from ._checks import Range, as_mask, check_choice, check_count
from ._floats import float_dtype

Scalar: TypeAlias = int | Float[ArrayLike, ""]
PerAnchor: TypeAlias = int | Float[ArrayLike, "..."]

F = TypeVar("F", bound=Callable[..., Any])
_BOOL: Any = Bool[Array, ""]


FINITE = Range(low_open=True, high_open=True)
POSITIVE = Range(0, math.inf, low_open=True, high_open=True)

# Hyper-parameters that several losses and weights take. Ends are floats, as in their messages.
Temperature: TypeAlias = Annotated[Scalar, Range(0.0, math.inf, low_open=True)]
Positive: TypeAlias = Annotated[PerAnchor, Range(0.0, math.inf, low_open=True)]
NonNegative: TypeAlias = Annotated[PerAnchor, Range(0.0, math.inf, high_open=True)]
Finite: TypeAlias = Annotated[PerAnchor, FINITE]
Share: TypeAlias = Annotated[PerAnchor, Range(0.0, 1.0)]
TauPlus: TypeAlias = Annotated[PerAnchor, Range(0.0, 1.0, high_open=True)]
Decay: TypeAlias = Annotated[Scalar, Range(0.0, 1.0, high_open=True)]
Alpha: TypeAlias = Annotated[PerAnchor, Range(0.5, 1.0)]
Beta: TypeAlias = Annotated[PerAnchor, Range(0.5, 1.0)]
MinScore: TypeAlias = Annotated[PerAnchor, Range(high_open=True)]
DropRate: TypeAlias = Annotated[Scalar, Range(0.0, 1.0)]


def get_range(annotation: Any) -> Range | None:
    """Returns the :class:`Range` of an annotation or of a member of a union, or None."""
    if get_origin(annotation) is not Annotated:
        members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
        return next((x for x in map(get_range, members) if x is not None), None)
    return next((x for x in get_args(annotation)[1:] if isinstance(x, Range)), None)


def get_choices(annotation: Any) -> tuple[str, ...]:
    """Returns the strings of a ``Literal`` annotation, or of a member of a union."""
    if get_origin(annotation) is Literal:
        return tuple(x for x in get_args(annotation) if isinstance(x, str))
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    return next((choices for x in members if (choices := get_choices(x))), ())


def is_integer(annotation: Any) -> bool:
    """Whether an annotation is ``int`` or ``int | None``, possibly with metadata."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return set(get_args(annotation) or (annotation,)) - {NoneType} == {int}


def unwrap_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function of a ``functools.partial``, of which there may be several in another."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def is_static_argument(function: Callable[..., Any], name: str) -> bool:
    """Whether an argument is declared as an integer, string or boolean, and thus static."""
    parameter = inspect.signature(unwrap_partial(function)).parameters.get(name)
    if parameter is None:
        return False
    kind = parameter.annotation
    return kind is bool or is_integer(kind) or bool(get_choices(kind))


def check_hyperparams(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Checks numbers by name, which are traced, as the function's signature declares them.

    Args:
      function: The function that will be called with the numbers, such as a loss.
      values: The numbers; traced ones pass.

    Raises:
      ValueError: If the function has no such argument, a number is missing or out of range, or an
        argument has to be static, as integers and words do.
    """
    signature = inspect.signature(unwrap_partial(function)).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.values())
    for name, value in values.items():
        parameter = signature.get(name)
        if parameter is None:
            if takes_any:
                continue
            raise ValueError(
                f"`hyperparams` must hold arguments of the loss, which are {sorted(signature)}, "
                f"got {name!r}."
            )
        if is_static_argument(function, name):
            raise ValueError(
                f"`hyperparams` must hold numbers that are traced, got {name}={value!r}, which is "
                f"static: bind it with functools.partial(loss, {name}={value!r})."
            )
        if value is None:
            raise ValueError(f"`{name}` must be a number or an array of numbers, got None.")
        if (allowed := get_range(parameter.annotation)) is not None:
            allowed.check(name, value, jnp.float32)


def _check_choice(name: str, value: Any, annotation: Any) -> None:
    """Raises ``ValueError`` unless ``value`` is a string of the ``Literal``, or an allowed None."""
    if value is not None or NoneType not in get_args(annotation):
        check_choice(name, value, get_choices(annotation))


def _is_mask(annotation: Any) -> bool:
    """Whether an annotation is ``Bool[Array, ...]``, or a union with it."""
    members = (annotation, *get_args(annotation))
    return any(getattr(x, "dtypes", None) == _BOOL.dtypes for x in members)


def check_arguments(function: F) -> F:
    """Checks keyword arguments as the function's signature declares them; a decorator.

    Arguments with a :class:`Range` must lie in it after rounding to the floating type of the array
    arguments, which is the number that the computation uses; arguments that are a ``Literal`` of
    strings must be one of them. Masks, annotated as
    ``Bool[Array, ...]``, may also be integers or floats that are 0 or 1.

    >>> import jax.numpy as jnp
    >>> @check_arguments
    ... def scale(x, *, rate: Annotated[float, Range(0, 1)] = 0.5):
    ...     return rate * x
    >>> scale(jnp.ones(2), rate=2.0)
    Traceback (most recent call last):
    ValueError: `rate` must lie in [0, 1], got 2.0.
    """
    parameters = inspect.signature(function).parameters
    positional = {name for name, p in parameters.items() if p.kind is not p.KEYWORD_ONLY}
    keyword = {name: p.annotation for name, p in parameters.items() if name not in positional}
    ranges = {name: bounds for name, kind in keyword.items() if (bounds := get_range(kind))}
    choices = {name: kind for name, kind in keyword.items() if get_choices(kind)}
    masks = [name for name, kind in keyword.items() if _is_mask(kind)]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        operands = (*args, *(x for name, x in kwargs.items() if name in positional))
        arrays = [x for x in operands if isinstance(x, jax.Array | np.ndarray)]
        floats = [x for x in arrays if jnp.issubdtype(x.dtype, jnp.floating)]
        dtype = float_dtype(*floats) if floats else (jnp.dtype(jnp.float32) if arrays else None)
        for name, allowed in ranges.items():
            if name in kwargs:
                if kwargs[name] is None and parameters[name].default is not None:
                    raise ValueError(f"`{name}` must be a number or an array of numbers, got None.")
                allowed.check(name, kwargs[name], dtype)
        for name, annotation in choices.items():
            if name in kwargs:
                _check_choice(name, kwargs[name], annotation)
        for name in masks:
            if name in kwargs:
                kwargs[name] = as_mask(name, kwargs[name])
        return function(*args, **kwargs)

    return checked  # type: ignore[return-value]


def check_fields(instance: Any) -> None:
    """Checks the fields of a dataclass against the ranges and choices in their annotations."""
    for field in fields(instance):
        if (allowed := get_range(field.type)) is not None:
            value = getattr(instance, field.name)
            if is_integer(field.type) and value is not None:
                check_count(field.name, value, allowed.low)
            allowed.check(field.name, value)
        elif get_choices(field.type):
            _check_choice(field.name, getattr(instance, field.name), field.type)


def per_anchor(name: str, value: Any, batch: tuple[int, ...], dtype: Any) -> Array:
    """Casts ``value`` to ``dtype`` and broadcasts it to ``batch`` unless it is a scalar."""
    value = jnp.asarray(value, dtype)
    if value.ndim == 0:
        return value
    # NumPy's broadcasting rule; the error of jnp.broadcast_to does not name the argument.
    fits = len(value.shape) <= len(batch) and all(
        n in (1, expected) for n, expected in zip(value.shape[::-1], batch[::-1])
    )
    if not fits:
        raise ValueError(
            f"`{name}` must be a scalar or broadcast to the anchors' shape {batch}, "
            f"got shape {value.shape}."
        )
    return jnp.broadcast_to(value, batch)


def expand_anchor_axis(value: Array) -> Array:
    """Appends an axis for the negatives of an anchor; scalars are returned unchanged."""
    return value[..., None] if value.ndim else value
