"""Persistent compilation cache: a second run starts in a fraction of the time."""

import contextlib
import hashlib
import importlib.util
import os
import platform
import tempfile
import time
from pathlib import Path

import jax

_MOST_BYTES = 2**30


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
    now = jax.config.values
    if now["jax_compilation_cache_dir"] or not now["jax_enable_compilation_cache"]:
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
        settings["jax_compilation_cache_max_size"] = _MOST_BYTES
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
    about = platform.machine() + platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        about += next((line for line in file if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(about.encode()).hexdigest()[:12]
