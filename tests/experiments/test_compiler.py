"""Tests of the commands' compiler options, and of memory release after compilation."""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import pytest

from crl_jax import train
from experiments import _compiler

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


@pytest.fixture(autouse=True)
def compiler_options():
    _compiler.tune_compiler()
    yield
    train.set_compiler_options(None)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there are options for CPUs alone")
def test_compiler_supports_all_options():
    """The memory-saving scheduler can be selected since jaxlib 0.9.1."""
    supported = dict(_compiler.CPU_OPTIONS)
    if jaxlib.version.__version_info__ < (0, 9, 1):
        del supported["xla_cpu_scheduler_type"]
    assert _compiler._options("cpu") == supported
    assert _compiler._options("no such backend") is None


@pytest.mark.usefixtures("all_optimisations")
def test_skips_options_unknown_to_compiler(monkeypatch):
    level = {"xla_backend_optimization_level": 1}
    options = {"xla_no_such_option": 1, **level, "xla_cpu_scheduler_type": "no such order"}
    monkeypatch.setattr(_compiler, "CPU_OPTIONS", options)
    assert _compiler._options("cpu") == level
    assert float(train.jit(lambda x: x + 1)(1.0)) == 2
    monkeypatch.setattr(_compiler, "CPU_OPTIONS", {"xla_no_such_option": 1})
    assert _compiler._options("cpu") is None


def test_releases_memory_between_compilation_and_run(monkeypatch):
    """Memory is released after slow compilations, but not for programs compiled before."""
    events = []
    monkeypatch.setattr(_compiler, "trim_memory", lambda: events.append("given back"))

    def program(x):
        jax.debug.callback(lambda: events.append("ran"))
        return jnp.sin(x)

    for least, expected in ((0.0, ["given back", "ran", "ran"]), (1e6, ["ran", "ran"])):
        monkeypatch.setattr(_compiler, "_MIN_SECONDS", least)
        events.clear()
        compiled = train.jit(partial(program))
        for _ in range(2):
            compiled(np.ones(3, np.float32))
            jax.effects_barrier()
        assert events == expected


@pytest.mark.skipif(
    sys.platform != "linux", reason="the memory of a process is known on Linux only"
)
def test_trim_memory_releases_fragmented_memory():
    def resident_bytes():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    if _compiler._malloc_trim() is None:
        pytest.skip("the C library keeps what it has")
    blocks = [bytes(4000) for _ in range(50_000)]
    keep = blocks[::100]
    del blocks
    before = resident_bytes()
    _compiler.trim_memory()
    assert before - resident_bytes() > 100e6
    assert len(keep) == 500


def test_trim_memory_does_nothing_without_malloc_trim(monkeypatch):
    class Library:
        def __init__(self, name):
            del name

    monkeypatch.setattr(_compiler.ctypes, "CDLL", Library)
    _compiler._malloc_trim.cache_clear()
    try:
        assert _compiler._malloc_trim() is None
        _compiler.trim_memory()
    finally:
        _compiler._malloc_trim.cache_clear()
