"""Tests that tables in package READMEs list existing names, and that their examples run."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import crl_jax

PACKAGES = ("augment", "losses", "weights")
each_package = pytest.mark.parametrize("package", PACKAGES)


def readme(package):
    return (Path(crl_jax.__file__).parent / package / "README.md").read_text()


@each_package
def test_tables_name_public_functions_once(package):
    module = importlib.import_module(f"crl_jax.{package}")
    public = {name for name, thing in vars(module).items() if name[0] != "_" and callable(thing)}
    first_cells = re.findall(r"^\| ([^|]+) \|", readme(package), re.MULTILINE)
    named = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert len(named) == len(set(named)), "a name stands in two rows"
    assert set(named) <= public, f"the tables of {package}/README.md name what is not exported"
    assert len(named) > 0.8 * len(public), "the tables give an overview"


@each_package
def test_every_row_has_all_cells(package):
    cells = 0
    for line in readme(package).splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        cells = cells or line.count("|")
        assert line.count("|") == cells, line


@each_package
def test_examples_run_and_print_what_they_say(package):
    """Runs examples in order; relative imports resolve as in a module of the package."""
    names = {"__name__": "example", "__package__": f"crl_jax.{package}"}
    blocks = re.findall(r"^```(python|pycon)\n(.*?)^```$", readme(package), re.M | re.S)
    assert {kind for kind, _ in blocks} == {"python", "pycon"}
    for kind, code in blocks:
        if kind == "python":
            exec(compile(code, f"{package}/README.md", "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(code, names, package, None, 0)
        assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
        names = test.globs
