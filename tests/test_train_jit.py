"""Programs of training: which one runs, and the memory that compiling them took."""

import dataclasses
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import pytest

from crl_jax import train
from crl_jax.train import _jit, _malloc

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def test_classes_with_equal_fields_have_programs_of_their_own():
    """Which JAX 0.10 mixes up in some of a hundred pairs."""

    def number_of(container):
        return jnp.float32(type(container).number)

    told = train.jit(number_of)
    for number in range(60):
        made = dataclasses.make_dataclass("Made", [("x", Any, 0.0)], namespace={"number": number})
        assert told(jax.tree_util.register_dataclass(made)()) == number


@pytest.mark.usefixtures("all_optimisations")
def test_a_compiled_function_is_a_part_of_another_or_of_a_gradient():
    """JAX takes options of the compiler at the outermost function alone."""
    square = train.jit(lambda x, *, more=0.0: x * x + more)
    x = jnp.float32(3)
    assert float(square(x)) == 9
    assert float(jax.jit(lambda x: square(x, more=x) + 1)(x)) == 13
    assert float(train.jit(square)(x)) == 9
    assert float(jax.grad(square)(x)) == 6
    np.testing.assert_array_equal(jax.vmap(square)(jnp.arange(3.0)), [0, 1, 4])


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there are options for CPUs alone")
def test_all_options_are_known_to_the_compiler():
    """Orders of operations that hold few arrays can be asked for since 0.9.1 of its library."""
    asked = dict(_jit._OPTIONS["cpu"])
    if jaxlib.version.__version_info__ < (0, 9, 1):
        del asked["xla_cpu_scheduler_type"]
    assert _jit.known_options("cpu") == asked
    assert _jit.known_options("no such backend") is None


@pytest.mark.usefixtures("all_optimisations")
def test_options_that_the_compiler_does_not_know_are_left_out(monkeypatch):
    level = {"xla_backend_optimization_level": 1}
    options = {"xla_no_such_option": 1, **level, "xla_cpu_scheduler_type": "no such order"}
    monkeypatch.setitem(_jit._OPTIONS, jax.default_backend(), options)
    _jit.known_options.cache_clear()
    try:
        assert _jit.known_options(jax.default_backend()) == level
        assert float(train.jit(lambda x: x + 1)(1.0)) == 2
    finally:
        _jit.known_options.cache_clear()


def test_memory_is_given_back_between_compiling_and_running(monkeypatch):
    """After programs that compile for long, and after none that was compiled before."""
    happened = []
    monkeypatch.setattr(_malloc, "give_back", lambda: happened.append("given back"))

    def program(x):
        jax.debug.callback(lambda: happened.append("ran"))
        return jnp.sin(x)

    for least, expected in ((0.0, ["given back", "ran", "ran"]), (1e6, ["ran", "ran"])):
        monkeypatch.setattr(_malloc, "_LEAST_SECONDS", least)
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

    if _malloc._trim() is None:
        pytest.skip("the C library keeps what it has")
    blocks = [bytes(4000) for _ in range(50_000)]
    keep = blocks[::100]
    del blocks
    before = held()
    _malloc.give_back()
    assert before - held() > 100e6
    assert len(keep) == 500


def test_another_c_library_keeps_its_memory(monkeypatch):
    class Library:
        def __init__(self, name):
            del name

    monkeypatch.setattr(_malloc.ctypes, "CDLL", Library)
    _malloc._trim.cache_clear()
    try:
        assert _malloc._trim() is None
        _malloc.give_back()
    finally:
        _malloc._trim.cache_clear()
