"""Option groups, and validation of their values, from the command line or from a file."""

import ast
import functools
import inspect
import itertools
import json
import math
import operator
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import tyro

from crl_jax import Range as Range

from ._program import flag, named_values

T = TypeVar("T")

MAX_COUNT = 2**31 - 1
"""Largest count: counts are int32 in compiled programs."""
_FLOAT32 = float(np.finfo(np.float32).max)


def is_within(limits: Range, value: float) -> bool:
    """Whether an interval contains a finite number, rounded to float32 unless it is an integer."""
    if abs(value) > _FLOAT32:
        return False
    try:
        limits.check("value", value, None if isinstance(value, int) else np.float32)
    except ValueError:
        return False
    return True


def interval(limits: Range) -> str:
    """Formats an interval for messages: ``above 0``, ``in [0, 1)``."""
    if limits.high == math.inf:
        if limits.low == -math.inf:
            return "that is finite"
        return f"above {limits.low:g}" if limits.low_open else f"of at least {limits.low:g}"
    left, right = "(" if limits.low_open else "[", ")" if limits.high_open else "]"
    return f"in {left}{_format_bound(limits.low)}, {_format_bound(limits.high)}{right}"


def help_interval(limits: Range) -> str:
    """Formats an interval for help texts: ``at least 1``; :data:`MAX_COUNT` is no limit there."""
    is_unbounded = limits.high >= MAX_COUNT
    text = interval(Range(limits.low, low_open=limits.low_open) if is_unbounded else limits)
    return text.removeprefix("of ").removeprefix("that is ")


def _format_bound(end: float) -> str:
    return str(end) if isinstance(end, int) else f"{end:g}"


FINITE = Range(low_open=True, high_open=True)
POSITIVE = Range(0, low_open=True)
NOT_NEGATIVE = Range(0)
SHARE = Range(0, 1)
COUNT = Range(1, MAX_COUNT)
COUNT_OR_NONE = Range(0, MAX_COUNT)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def option_group(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass whose field docstrings are the help texts of its flags.

    Each is followed by the range of the field. tyro reads field docstrings, too, but keeps the line
    breaks of those that take several lines.
    """
    helps, ranges = _field_docstrings(cls), declared_ranges(cls)
    annotations: dict[str, Any] = dict(cls.__annotations__)
    for name, help_text in helps.items():
        if name in ranges and ranges[name].low > -math.inf:
            help_text += f" {help_interval(ranges[name]).capitalize()}."
        annotations[name] = Annotated[annotations[name], tyro.conf.arg(help=help_text)]
    cls.__annotations__ = annotations
    return dataclass(frozen=True)(cls)


def _field_docstrings(cls: type) -> dict[str, str]:
    """Returns the docstring of each field that has one, on one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body: list[ast.stmt] = tree.body[0].body  # type: ignore[attr-defined]
    docstrings = {}
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ):
                docstrings[name] = " ".join(text.split())
    return docstrings


def declared_ranges(kind: type) -> dict[str, Range]:
    """Returns the ranges of the fields of a dataclass, from their ``Annotated`` types."""
    hints = get_type_hints(kind, include_extras=True)
    metadata = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {n: item for n, items in metadata.items() for item in items if isinstance(item, Range)}


def check_flags(options: Any, ranges: Mapping[str, Range] | None = None) -> None:
    """Checks the numbers of a dataclass parsed from the command line.

    Args:
      options: Instance of the dataclass.
      ranges: Ranges by field name; by default those that the fields declare.

    Raises:
      ValueError: If a number is out of range. The message names the flag.
    """
    table = declared_ranges(type(options)) if ranges is None else ranges
    for name, kind in get_type_hints(type(options)).items():
        value = getattr(options, name)
        if name not in table or value is None:
            continue
        try:
            read(strip_optional(kind), table[name], value)
        except ValueError as expected:
            got = " ".join(map(str, value)) or "none" if isinstance(value, tuple) else value
            raise ValueError(f"{flag(name)} must be {expected}, got {got}.") from None


def parse_flags(
    kind: type[T], prog: str, description: str | None, arguments: list[str] | None,
    config: tuple[Any, ...] = (),
) -> T:  # fmt: skip
    """Parses the flags of a dataclass and checks their numbers and paths.

    Args:
      kind: The dataclass.
      prog: Name of the command in the help text.
      description: Its description; by default the docstring of the dataclass.
      arguments: The command line; by default that of the process.
      config: Configuration of tyro.

    Raises:
      ValueError: If a number is out of range or a path is empty. The message names the flag.
    """
    options = tyro.cli(kind, prog=prog, description=description, args=arguments, config=config)
    check_flags(options)
    refuse_empty_paths(sys.argv[1:] if arguments is None else arguments, kind)
    return options


def flag_names(options: type) -> dict[str, str]:
    """Returns the flag of each field of a dataclass."""
    return {name: flag(name) for name in get_type_hints(options)}


def refuse_empty_paths(arguments: list[str], *kinds: type) -> None:
    """Rejects empty paths, as of unset variables: they would be the working directory.

    Args:
      arguments: The command line.
      kinds: Dataclasses of its flags.

    Raises:
      ValueError: If a path is empty. The message names the flag.
    """
    hints = [hint for kind in kinds for hint in get_type_hints(kind).items()]
    paths = {"data", *(name for name, kind in hints if strip_optional(kind) is Path)}
    for name, value in named_values(arguments):
        if name in paths and not value:
            raise ValueError(f"{flag(name)} must not be an empty text.")


def read(kind: Any, limits: Range | None, stored: Any) -> Any:
    """Converts a JSON value to the type ``kind``.

    Args:
      kind: The annotation of a field: a number, bool, str, Path, Literal, a tuple of these of any
        length, or an optional one of them.
      limits: Range of numeric values; a tuple with a range must not be empty.
      stored: The JSON value.

    Raises:
      ValueError: If the value is invalid. The message is the expected value, such as ``a number
        above 0``.
    """
    expected, inner = describe(kind, limits), strip_optional(kind)
    if stored is None and inner is not kind:
        return None
    if get_origin(inner) is tuple:
        if not isinstance(stored, list | tuple) or (limits is not None and not stored):
            raise ValueError(expected)
        return tuple(_read_one(get_args(inner)[0], limits, item, expected) for item in stored)
    return _read_one(inner, limits, stored, expected)


def _read_one(kind: Any, limits: Range | None, stored: Any, expected: str) -> Any:
    kind, literals = _split_union(kind)
    if stored in literals:
        return stored
    if get_origin(kind) is Literal:
        is_valid = isinstance(stored, str) and stored in get_args(kind)
    elif kind in (str, Path):
        is_valid = isinstance(stored, str) and "\0" not in stored
    elif kind is bool:
        is_valid = isinstance(stored, bool)
    else:
        numbers = int if kind is int else int | float
        is_valid = isinstance(stored, numbers) and not isinstance(stored, bool)
        is_valid = is_valid and (limits is None or is_within(limits, stored))
    if not is_valid:
        raise ValueError(expected)
    convert: Any = str if get_origin(kind) is Literal else kind
    return convert(stored)


def describe(kind: Any, limits: Range | None) -> str:
    """Describes the values that :func:`read` accepts: ``a number above 0``, ``true or false``."""
    inner = strip_optional(kind)
    if inner is not kind:
        return f"{describe(inner, limits)}, or null"
    kind, literals = _split_union(kind)
    if literals:
        return f"{describe(kind, limits)}, or {' or '.join(literals)}"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is tuple:
        item = describe(get_args(kind)[0], limits)
        return f"a list of {item}" if limits is None else f"one or more, each {item}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    name = names.get(kind, "a path")
    return name if limits is None else f"{name} {interval(limits)}"


def _split_union(kind: Any) -> tuple[Any, tuple[str, ...]]:
    """Splits ``int | Literal["auto"]`` into the number's type and the words; others have none."""
    options = get_args(kind)
    if len(options) == 2 and get_origin(options[1]) is Literal:
        return options[0], get_args(options[1])
    return kind, ()


def strip_optional(kind: Any) -> Any:
    """Returns the annotation without None."""
    options = [option for option in get_args(kind) if option is not NoneType]
    return functools.reduce(operator.or_, options) if NoneType in get_args(kind) else kind


def shorten(stored: Any) -> str:
    """Returns a value as JSON, truncated to 60 characters."""
    text = json.dumps(stored, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"


def read_json(path: Path) -> Any:
    """Reads a JSON file and rejects duplicate names in an object.

    Raises:
      ValueError: If the file is not valid JSON. The message names the file and, for syntax errors,
        the line.
      OSError: If the file cannot be read.
    """

    def reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            duplicate = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{duplicate} is given twice")
        return result

    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=reject_duplicates)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: expected JSON, got {error.msg}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected JSON in UTF-8, got {error.reason}.") from None
    except RecursionError:
        raise ValueError(f"{path}: expected JSON, got brackets nested too deep.") from None
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON, got: {error}.") from None
