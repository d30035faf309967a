"""Docstrings describe parameters and attributes that exist."""

import importlib
import inspect
import pkgutil
import re
import textwrap

import pytest

import benchmarks
import crl_jax
import experiments

ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?:")


def described_names(docstring: str, section: str) -> set[str]:
    """Returns the names that the entries of a section begin with."""
    match = re.search(rf"^{section}:\n((?:  .*\n|\n)+)", docstring + "\n", re.MULTILINE)
    lines = textwrap.dedent(match[1]).splitlines() if match else []
    entries = [entry[1] for line in lines if (entry := ENTRY.match(line))]
    return {name.lstrip("*") for entry in entries for name in entry.split(", ")}


def parameters(thing) -> set[str]:
    """Returns the parameters of a function, or of the constructor of a class."""
    try:
        return set(inspect.signature(thing).parameters)
    except ValueError:  # a built-in class without a signature
        return set()


def attributes(cls) -> set[str]:
    """Returns the names that a class or its constructor defines."""
    annotated = {name for base in cls.__mro__ for name in vars(base).get("__annotations__", {})}
    assigned = getattr(getattr(cls.__init__, "__code__", None), "co_names", ())
    return annotated | {*dir(cls), *assigned} | parameters(cls)


def modules():
    for package in (crl_jax, experiments, benchmarks):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not info.name.endswith("__main__") and "._torch_" not in info.name:
                yield importlib.import_module(info.name)


def defined_in(module):
    """Returns the functions, classes and methods of a module."""
    for thing in list(vars(module).values()):
        if getattr(thing, "__module__", None) == module.__name__:
            if inspect.isclass(thing):
                yield thing
                members = (getattr(member, "__func__", member) for member in vars(thing).values())
                yield from filter(inspect.isfunction, members)
            elif callable(thing) and inspect.getdoc(thing):
                yield thing


def unknown_names(thing) -> set[str]:
    """Returns the names that a docstring describes and that do not exist."""
    docstring = inspect.cleandoc(thing.__doc__ or "")
    unknown = described_names(docstring, "Args") - parameters(thing)
    if inspect.isclass(thing):
        unknown |= described_names(docstring, "Attributes") - attributes(thing)
    return unknown


def test_docstrings_describe_existing_names():
    things = [thing for module in modules() for thing in defined_in(module)]
    assert len(things) > 3_000
    wrong = {
        f"{thing.__module__}.{thing.__qualname__}": unknown
        for thing in things
        if (unknown := unknown_names(thing))
    }
    assert not wrong


def scaled(x, *rest, factor: float):
    """Multiplies arrays.

    Args:
      x, *rest: Arrays, of shapes:

        any: all.
      scale: The factor.
    """


class Scale:
    """Multiplication by a factor.

    Attributes:
      factor: The factor.
      offset: No field.
    """

    factor: float


@pytest.mark.parametrize(("thing", "name"), [(scaled, "scale"), (Scale, "offset")])
def test_renamed_parameters_are_detected(thing, name):
    assert unknown_names(thing) == {name}
