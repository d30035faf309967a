"""Compiled functions of training."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax import train

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def test_classes_with_equal_fields_compile_separately():
    """JAX 0.10 confuses the classes of some of a hundred pairs."""

    def number_of(container):
        return jnp.float32(type(container).number)

    compiled_number = train.jit(number_of)
    for number in range(60):
        container_type = dataclasses.make_dataclass(
            "Made", [("x", Any, 0.0)], namespace={"number": number}
        )
        assert compiled_number(jax.tree_util.register_dataclass(container_type)()) == number


@pytest.mark.usefixtures("all_optimisations")
def test_jit_composes_with_other_transformations():
    """JAX accepts compiler options only for the outermost function."""
    square = train.jit(lambda x, *, more=0.0: x * x + more)
    x = jnp.float32(3)
    assert float(square(x)) == 9
    assert float(jax.jit(lambda x: square(x, more=x) + 1)(x)) == 13
    assert float(train.jit(square)(x)) == 9
    assert float(jax.grad(square)(x)) == 6
    np.testing.assert_array_equal(jax.vmap(square)(jnp.arange(3.0)), [0, 1, 4])


@pytest.mark.usefixtures("all_optimisations")
def test_compiler_options_are_set_per_function_and_per_process():
    """An unknown option raises an XLA error, which shows where the options arrive."""
    unknown = {"xla_no_such_option": 1}
    backends = []

    def options(backend):
        backends.append(backend)
        return unknown

    with raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        train.jit(lambda x: x + 1, compiler_options=unknown)(1.0)
    train.set_compiler_options(options)
    try:
        assert not backends
        add = train.jit(lambda x: x + 1)
        with raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
            add(1.0)
        assert backends == [jax.default_backend()]
        assert float(jax.jit(lambda x: add(x))(1.0)) == 2  # within another program
        level = {"xla_backend_optimization_level": 1}
        assert float(train.jit(lambda x: x + 1, compiler_options=level)(1.0)) == 2
        train.set_compiler_options(level)
        assert float(add(1.0)) == 2
    finally:
        train.set_compiler_options(None)
    assert float(add(1.0)) == 2
