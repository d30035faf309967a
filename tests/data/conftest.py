"""Fixtures for tests of data loading."""

import sys
import types

import pytest
from _helpers.web import server


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Path of the folder of downloads and decoded images, which is not created."""
    monkeypatch.setenv("CRL_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def serve():
    """Serves given bytes at a path and counts the requests."""
    with server() as start:
        yield start


@pytest.fixture
def fake_tfds(monkeypatch):
    """Stub of tensorflow_datasets, whose ``load`` is set by the test."""
    module = types.ModuleType("tensorflow_datasets")
    vars(module).update(as_numpy=iter)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", module)
    return vars(module)
