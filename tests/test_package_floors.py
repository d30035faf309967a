"""A package imports only from lower floors of the library; shared modules import no package."""

import ast
from importlib.util import resolve_name
from pathlib import Path

import pytest

import crl_jax

ROOT = Path(crl_jax.__file__).parent
FLOORS = [
    {"kernels"},
    {"data", "stats"},
    {"weights", "models"},
    {"losses", "samplers", "metrics", "augment"},
    {"train", "baselines"},
    {"tasks"},
    {"serving"},
]
# Exceptions to "everything on a lower floor": losses see scores, weights see numbers, and the
# engine knows neither users nor images.
ALLOWED = {
    "weights": {"stats"}, "losses": {"kernels", "stats", "weights"}, "train": set(),
    "baselines": {"data", "metrics"},
}  # fmt: skip
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


def imported_names(path: Path) -> set[str]:
    """Names below ``crl_jax`` that a module imports: packages and shared modules."""
    package = ".".join(["crl_jax", *path.relative_to(ROOT).parent.parts])
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            modules = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {m.split(".")[1] for m in modules if m.startswith("crl_jax.")}
    return found


def allowed(package: str) -> set[str]:
    floor = next(i for i, names in enumerate(FLOORS) if package in names)
    lower = set().union(*FLOORS[:floor]) if floor else set()
    return {package} | ALLOWED.get(package, lower)


def test_every_package_has_one_floor():
    assert sorted(name for floor in FLOORS for name in floor) == PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_from_lower_floors(package):
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths
    for path in paths:
        wrong = {n for n in imported_names(path) if n in PACKAGES} - allowed(package)
        assert not wrong, f"{path} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_private_modules_of_other_packages_are_not_imported(package):
    """``from ..models import X``, never ``from ..models._x import X``."""
    for path in sorted((ROOT / package).rglob("*.py")):
        here = ".".join(["crl_jax", *path.relative_to(ROOT).parent.parts])
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                parts = resolve_name("." * node.level + (node.module or ""), here).split(".")
                foreign = len(parts) > 2 and parts[1] in PACKAGES and parts[1] != package
                assert not (foreign and parts[2].startswith("_")), f"{path} imports {parts}"


def test_shared_modules_import_no_package():
    for path in ROOT.glob("_*.py"):
        if path.name != "__init__.py":
            assert not imported_names(path) & set(PACKAGES), path
