"""Compiler settings of the commands and benchmarks, and the cache of compiled programs.

With the cache, a second run starts in a fraction of the time.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
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


_MAX_CACHE_BYTES = 2**30


def keep_compiled() -> Path | None:
    """Enables JAX's persistent compilation cache in a folder of the user.

    The folder is in ``$CRL_JAX_CACHE``, else in ``~/.cache/crl_jax``. ``JAX_COMPILATION_CACHE_DIR``
    sets another one, and ``JAX_ENABLE_COMPILATION_CACHE=false`` disables the cache. Settings of JAX
    that are set already are not changed. If the package ``filelock`` is installed, which JAX
    requires for eviction, the least recently used programs are evicted above 1 GiB.

    Returns:
      The folder, or None if nothing is changed: the cache is configured already or disabled, or the
      folder is not writable.
    """
    jax_config = jax.config.values
    if jax_config["jax_compilation_cache_dir"] or not jax_config["jax_enable_compilation_cache"]:
        return None
    try:
        base = Path(os.environ.get("CRL_JAX_CACHE") or Path.home() / ".cache" / "crl_jax")
        folder = base.absolute() / "compiled" / _processor()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError):  # no home, a file of that name, no permission or disk full
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    settings = {"jax_persistent_cache_min_compile_time_secs": 0.0}
    if importlib.util.find_spec("filelock") is not None:
        settings["jax_compilation_cache_max_size"] = _MAX_CACHE_BYTES
        stamp_entries(folder)
    for name, value in settings.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)
    return folder


def stamp_entries(folder: Path) -> None:
    """Sets the time of last use of cached programs without one to the current time.

    JAX stores that time in a separate file for each program, and stops caching if one is missing:
    after a kill between the two writes, or a run without ``filelock``.
    """
    now = time.time_ns().to_bytes(8, "little")
    for entry in folder.glob("*-cache"):
        stamp = entry.with_name(entry.name.removesuffix("-cache") + "-atime")
        with contextlib.suppress(OSError):
            if not stamp.exists():
                stamp.write_bytes(now)


def _processor() -> str:
    """Returns a hash of the processor's instruction set, for which programs are compiled.

    Machines with different processors may share a home directory.
    """
    description = platform.machine() + platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        description += next((line for line in file if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(description.encode()).hexdigest()[:12]
