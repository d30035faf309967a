"""A package imports only from the floors below it, and never another's private modules."""

import ast
from pathlib import Path

import pytest

import crl_jax

ROOT = Path(crl_jax.__file__).parent
# Each package, and those of its neighbours that it may import from.
BELOW = {"stats": (), "weights": ("data", "stats"), "losses": ("stats", "weights")}


def imported_modules(path):
    """Modules of the project that a module imports, as written in ``from ..x import y``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 2:
            yield from [node.module] if node.module else [name.name for name in node.names]
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
        assert not any(name.startswith("crl_jax") for name in names), f"{path}: relative, please"


@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_from_below(package):
    paths = sorted((ROOT / package).glob("*.py"))
    assert paths
    for path in paths:
        for module in imported_modules(path):
            shared = module.startswith("_") and "." not in module
            assert shared or module in BELOW[package], f"{path} imports ..{module}"


def test_shared_modules_import_no_package():
    for path in ROOT.glob("_*.py"):
        if path.name == "__init__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert (node.module or "").startswith("_"), f"{path} imports .{node.module}"
