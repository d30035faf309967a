"""Memory that the compiler has freed, given back to the system."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import jax

_COMPILED = "/jax/core/compile/backend_compile_duration"
"""The event of JAX that tells how long a program took to compile, before it runs."""

_LEAST_SECONDS = 1.0
"""How long a program compiles that leaves much memory behind. To give it back takes a fiftieth."""


@functools.cache
def watch_compiler() -> None:
    """From now on, gives back what is free after each long compilation in this process.

    A compiler frees hundreds of megabytes, which lie between what is still in use. The C library
    keeps them for later. Arrays of a large program are too large for these gaps, and would come on
    top of them.
    """
    jax.monitoring.register_event_duration_secs_listener(_listen)


def give_back() -> None:
    """Gives back what is free. Does nothing where the C library is not that of GNU."""
    if (trim := _trim()) is not None:
        trim(0)


def _listen(event: str, duration_secs: float, **more: Any) -> None:
    del more
    if event == _COMPILED and duration_secs >= _LEAST_SECONDS:
        give_back()


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another library; on Windows None is no name
        return None
