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
def tuned():
    _compiler.tune_compiler()
    yield
    train.set_compiler_options(None)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there are options for CPUs alone")
def test_all_options_are_known_to_the_compiler():
    """The memory-saving scheduler can be selected since jaxlib 0.9.1."""
    asked = dict(_compiler.CPU_OPTIONS)
    if jaxlib.version.__version_info__ < (0, 9, 1):
        del asked["xla_cpu_scheduler_type"]
    assert _compiler._options("cpu") == asked
    assert _compiler._options("no such backend") is None


@pytest.mark.usefixtures("all_optimisations")
def test_options_that_the_compiler_does_not_know_are_left_out(monkeypatch):
    level = {"xla_backend_optimization_level": 1}
    options = {"xla_no_such_option": 1, **level, "xla_cpu_scheduler_type": "no such order"}
    monkeypatch.setattr(_compiler, "CPU_OPTIONS", options)
    assert _compiler._options("cpu") == level
    assert float(train.jit(lambda x: x + 1)(1.0)) == 2
    monkeypatch.setattr(_compiler, "CPU_OPTIONS", {"xla_no_such_option": 1})
    assert _compiler._options("cpu") is None


def test_memory_is_given_back_between_compiling_and_running(monkeypatch):
    """Memory is released after slow compilations, but not for programs compiled before."""
    happened = []
    monkeypatch.setattr(_compiler, "trim_memory", lambda: happened.append("given back"))

    def program(x):
        jax.debug.callback(lambda: happened.append("ran"))
        return jnp.sin(x)

    for least, expected in ((0.0, ["given back", "ran", "ran"]), (1e6, ["ran", "ran"])):
        monkeypatch.setattr(_compiler, "_MIN_SECONDS", least)
        happened.clear()
        compiled = train.jit(partial(program))
        for _ in range(2):
            compiled(np.ones(3, np.float32))
            jax.effects_barrier()
        assert happened == expected


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is told on Linux")
def test_what_is_free_between_what_is_not_is_given_back():
    def held():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    if _compiler._malloc_trim() is None:
        pytest.skip("the C library keeps what it has")
    blocks = [bytes(4000) for _ in range(50_000)]
    keep = blocks[::100]
    del blocks
    before = held()
    _compiler.trim_memory()
    assert before - held() > 100e6
    assert len(keep) == 500


def test_another_c_library_keeps_its_memory(monkeypatch):
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
