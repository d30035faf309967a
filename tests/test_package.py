"""Package-level checks: light imports, docstrings, no pickle."""

import contextlib
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax.numpy as jnp
import pytest
from _helpers.refusals import raises
from jaxtyping import TypeCheckError
from packaging.requirements import Requirement

import crl_jax

ROOT = Path(__file__).parents[1]
SUBPACKAGES = (
    "augment", "data", "kernels", "losses", "metrics", "models", "samplers", "serving", "stats",
    "tasks", "train", "weights",
)  # fmt: skip


def test_import_loads_only_core_dependencies():
    """Modules that these dependencies import themselves are allowed."""
    heavy = ["polars", "tyro", "matplotlib", "tensorflow", "tensorflow_datasets", "torch", "pandas",
             "sklearn", "ranx", "beartype", "hypothesis", "pytest"]  # fmt: skip
    code = f"""
import sys
import crl_jax
import numpy, scipy.sparse
for held in (numpy.array([[1, 2]]), scipy.sparse.eye_array(3)):  # distinguished without pandas
    crl_jax.data.as_interactions(held)
loaded = [name for name in {heavy} if name in sys.modules]
assert not loaded, loaded
from jax._src import xla_bridge
assert not xla_bridge._backends, "importing started a device backend"
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_no_module_reads_pickles():
    for path in [*ROOT.glob("crl_jax/**/*.py"), *ROOT.glob("experiments/**/*.py")]:
        code = re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(), flags=re.DOTALL)
        assert not re.search(r"\bimport pickle\b|allow_pickle=True|read_pickle|joblib", code), path


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_public_functions_are_documented(name):
    module = importlib.import_module(f"crl_jax.{name}")
    assert module.__doc__
    public = [n for n in vars(module) if not n.startswith("_")]
    assert public
    for public_name in public:
        thing = getattr(module, public_name)
        if callable(thing) and getattr(thing, "__module__", "").startswith("crl_jax"):
            assert thing.__doc__, f"{name}.{public_name}"
            for member, own in vars(thing).items():
                method = inspect.isfunction(own) and own.__qualname__.startswith(thing.__name__)
                if method and member[0] != "_":
                    assert inspect.getdoc(getattr(thing, member)), f"{public_name}.{member}"


def test_runtime_type_checking_is_enabled():
    with contextlib.suppress(TypeCheckError):
        crl_jax.metrics.top_k(jnp.arange(3), 1)  # integers where the signature says floats
        pytest.fail("expected the checker of signatures to be at work")
    with raises(ValueError, match="`k` must lie in"):
        crl_jax.metrics.top_k(jnp.arange(3), 4)  # the function itself raises range errors


def test_requirements_accept_colab_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        requirement.name: requirement.specifier
        for requirement in map(Requirement, project["dependencies"])
        if requirement.marker is None or requirement.marker.evaluate()
    }
    # Colab on Python 3.13: a JAX version other than that of its TPU plugin finds no TPU.
    colab_versions = {"jax": "0.7.2", "flax": "0.11.2", "optax": "0.2.8", "numpy": "2.1.0"}
    for name, version in colab_versions.items():
        assert version in declared[name], (name, declared[name])
