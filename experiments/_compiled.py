"""Compiled programs are kept between commands: a second run starts in a fraction of the time."""

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
    """Turns JAX's persistent compilation cache on, in a folder of the user's.

    The folder is in ``$CRL_JAX_CACHE``, else in ``~/.cache/crl_jax``. ``JAX_COMPILATION_CACHE_DIR``
    names another one, and ``JAX_ENABLE_COMPILATION_CACHE=false`` switches the cache off. Settings
    that JAX has already are left as they are. The least recently used programs go where all
    take more than 1 GiB, if the package ``filelock`` is there, which JAX needs for that.

    Returns:
      The folder, or None where nothing is changed: the cache is set up already or switched off, or
      the folder cannot be written.
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
    except (OSError, RuntimeError):  # no home, a file in the way, no right or no room to write
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
    """Says of programs without a time of last use that it is now.

    JAX keeps that time in a file beside each program, and keeps nothing more where one is missing:
    after a kill between the two, or a run without ``filelock``.
    """
    now = time.time_ns().to_bytes(8, "little")
    for entry in folder.glob("*-cache"):
        stamp = entry.with_name(entry.name.removesuffix("-cache") + "-atime")
        with contextlib.suppress(OSError):
            if not stamp.exists():
                stamp.write_bytes(now)


def _processor() -> str:
    """Tells kinds of processors apart, for whose instructions programs are compiled.

    Computers of different kinds may share a home.
    """
    about = platform.machine() + platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        about += next((line for line in file if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(about.encode()).hexdigest()[:12]
