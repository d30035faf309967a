"""``--recipe NAME``: what the other flags start from."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ._flags import given
from ._program import flag

C = TypeVar("C")


def take_recipe(arguments: list[str], recipes: Mapping[str, C], default: C) -> tuple[C, list[str]]:
    """Takes ``--recipe NAME`` out of the arguments.

    Args:
      arguments: The arguments of a command.
      recipes: Configurations by name, each with a section ``protocol`` that has a ``sweep``.
      default: What the arguments start from without a recipe.

    Returns:
      What they start from: a recipe, less its sweeps of what they set themselves; and the others.

    Raises:
      ValueError: If there is no such recipe, or the arguments both fix and sweep a number.
    """
    for i, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        if name != "--recipe":
            continue
        rest = arguments[i + 1 :]
        if not separator:
            value, rest = (rest[0], rest[1:]) if rest else ("", [])
        rest = arguments[:i] + rest
        if value not in recipes:
            raise ValueError(f"--recipe takes one of {', '.join(recipes)}, got {value!r}.")
        return _without_given(recipes[value], rest), rest
    _check_given(arguments)
    return default, arguments


def _without_given(recipe: Any, arguments: list[str]) -> Any:
    set_by_flags = _check_given(arguments)
    sweep = recipe.protocol.sweep
    own = tuple(spec for spec in sweep if spec.partition("=")[0] not in set_by_flags)
    return replace(recipe, protocol=replace(recipe.protocol, sweep=own))


def _check_given(arguments: list[str]) -> set[str]:
    """The names of the numbers that arguments fix or sweep."""
    fixed, swept = given(arguments)
    if both := sorted(fixed & swept):
        raise ValueError(f"{flag(both[0])} fixes what --sweep {both[0]} tries: give one of them.")
    return fixed | swept
