"""Compiler settings of the commands and benchmarks."""

import ctypes
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from crl_jax import train

CPU_OPTIONS: dict[str, Any] = {
    # Half of a short training is compilation. Below the highest level of LLVM it takes a tenth
    # less, and so do epochs of matrix factorisation.
    "xla_backend_optimization_level": 1,
    # On cores with 512-bit vectors half of each is unused by default. Long sums are added in
    # another order and may round differently.
    "xla_cpu_prefer_vector_width": 512,
    # By default operations are ordered for concurrency, which keeps more arrays alive and does not
    # speed up a training step.
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
}

_COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's event with the duration of a compilation, recorded before the program runs."""

_MIN_SECONDS = 1.0
"""Compilations that take this long leave much freed memory. Trimming takes a fiftieth of it."""


def tune_compiler() -> None:
    """Sets the compiler options of trainings in this process; on CPUs also trims its memory."""
    train.set_compiler_options(_options)


def _options(backend: str) -> dict[str, Any] | None:
    if backend != "cpu":
        return None
    _trim_after_compilation()
    return known_options(tuple(CPU_OPTIONS.items()))


@functools.cache
def known_options(options: tuple[tuple[str, Any], ...]) -> dict[str, Any] | None:
    """Returns the options that this version of the compiler accepts; None if there are none."""

    def is_known(option: Mapping[str, Any]) -> bool:
        try:
            jax.jit(lambda: 0, compiler_options=dict(option)).lower().compile()
        except jax.errors.JaxRuntimeError:
            return False
        return True

    return {name: value for name, value in options if is_known({name: value})} or None


@functools.cache
def _trim_after_compilation() -> None:
    """Returns free memory to the system after each long compilation.

    XLA frees hundreds of megabytes in fragments, which the C library keeps. The arrays of a large
    program do not fit these gaps and would be allocated on top.
    """
    jax.monitoring.register_event_duration_secs_listener(_on_event)


def _on_event(event: str, duration_secs: float, **kwargs: Any) -> None:
    del kwargs
    if event == _COMPILED and duration_secs >= _MIN_SECONDS:
        trim_memory()


def trim_memory() -> None:
    """Returns free memory to the system; does nothing without the GNU C library."""
    if (trim := _malloc_trim()) is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library; Windows takes no None
        return None
