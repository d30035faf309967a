"""Packages import only from lower layers of the library; shared modules import no package."""

import ast
from importlib.util import resolve_name
from pathlib import Path

import pytest

import crl_jax
import experiments

ROOT = Path(crl_jax.__file__).parent
LAYERS = [
    {"kernels"},
    {"data", "stats"},
    {"weights", "models"},
    {"losses", "samplers", "metrics", "augment"},
    {"train", "baselines"},
    {"tasks"},
    {"serving"},
]
# Exceptions to "all lower layers": losses see scores, weights see numbers, and the training loop
# knows neither users nor images.
ALLOWED = {
    "weights": {"stats"}, "losses": {"kernels", "stats", "weights"}, "train": set(),
    "baselines": {"data", "metrics"},
}  # fmt: skip
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


def imported_names(path: Path, root: Path = ROOT) -> set[str]:
    """Names below a package, by default ``crl_jax``, that a module of it imports."""
    package = ".".join([root.name, *path.relative_to(root).parent.parts])
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            modules = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {m.split(".")[1] for m in modules if m.startswith(f"{root.name}.")}
    return found


def allowed(package: str) -> set[str]:
    layer = next(i for i, names in enumerate(LAYERS) if package in names)
    lower = set().union(*LAYERS[:layer]) if layer else set()
    return {package} | ALLOWED.get(package, lower)


def test_every_package_has_one_layer():
    assert sorted(name for layer in LAYERS for name in layer) == PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_only_from_lower_layers(package):
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


COMMANDS = Path(experiments.__file__).parent
OTHERS = {
    "pairs": {"images"}, "sequences": {"recommend"}, "calibration": {"recommend", "numerical"},
    "numerical": {"recommend", "reproduce"}, "reproduce": {"recommend", "images", "text"},
    "configs": {"recommend", "images", "text", "pairs"},
}  # fmt: skip
"""Commands whose modules a command uses; named configurations serve all commands."""


def test_commands_import_only_allowed_commands():
    names = {path.parent.name for path in COMMANDS.glob("*/__init__.py")}
    for path in COMMANDS.rglob("*.py"):
        own = set(path.relative_to(COMMANDS).parts[:-1])
        others = set().union(*(OTHERS.get(name, ()) for name in own))
        used = imported_names(path, COMMANDS) & names - own
        assert used <= others | ({"configs"} if own else set()), f"{path} imports {sorted(used)}"
