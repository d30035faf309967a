"""Frozen dataclasses of command-line options, with the docstrings of their fields as help."""

import ast
import inspect
import itertools
import textwrap
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, dataclass_transform

import tyro

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def option_group(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass whose field docstrings are the help texts of its flags.

    tyro reads field docstrings, too, but keeps the line breaks of those that take several lines.
    """
    helps = _field_docstrings(cls)
    annotations: dict[str, Any] = dict(cls.__annotations__)
    for name, help_text in helps.items():
        annotations[name] = Annotated[annotations[name], tyro.conf.arg(help=help_text)]
    cls.__annotations__ = annotations
    return dataclass(frozen=True)(cls)


def _field_docstrings(cls: type) -> dict[str, str]:
    """Returns the docstring of each field that has one, on one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body: list[ast.stmt] = tree.body[0].body  # type: ignore[attr-defined]
    found = {}
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ):
                found[name] = " ".join(text.split())
    return found
