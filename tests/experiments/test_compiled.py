"""Tests of the persistent compilation cache of the commands."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from experiments._compiler import keep_compiled, stamp_entries

ROOT = Path(__file__).parents[2]
COMMAND = """
import jax
from experiments._command import run
def command():
    jax.jit(lambda x: x * 3)(1.0)
    print(jax.config.jax_compilation_cache_dir)
raise SystemExit(run(command, {}))
"""
DIR, ENABLED = "jax_compilation_cache_dir", "jax_enable_compilation_cache"


def test_caches_programs_in_user_cache_folder(tmp_path):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    process = subprocess.run(
        [sys.executable, "-c", COMMAND], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**inherited, "CRL_JAX_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert not process.stderr
    folder, entries = process.stdout.strip(), [str(p) for p in tmp_path.rglob("*-cache")]
    assert Path(folder).is_relative_to(tmp_path / "compiled")
    assert entries
    assert all(name.startswith(folder) for name in entries)


@pytest.mark.parametrize(
    ("base", "settings", "folder"),
    [
        ("own", {}, "own/compiled"),
        ("own", {DIR: "other"}, None),
        ("own", {ENABLED: False}, None),
        ("file", {}, None),
        ("/proc/nowhere", {}, None),
    ],
)
def test_keeps_jax_cache_settings_and_skips_unwritable_folders(
    base, settings, folder, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CRL_JAX_CACHE", str(tmp_path / base))
    own = (DIR, ENABLED, "jax_persistent_cache_min_compile_time_secs",
           "jax_compilation_cache_max_size")  # fmt: skip
    before = {name: jax.config.values[name] for name in own}
    settings = {DIR: None, ENABLED: True, **settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        kept = keep_compiled()
        assert jax.config.values[DIR] == (settings[DIR] if folder is None else str(kept))
        assert (kept and kept.parent) == (folder and tmp_path / folder)
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_restores_missing_access_time_of_cache_entry(tmp_path):
    """A kill between the two writes of an entry leaves it without an access time.

    JAX reads the access times of all entries before it writes one; before 0.12, it needs each.
    """
    from jax._src.lru_cache import LRUCache

    cache = LRUCache(str(tmp_path), max_size=10_000)
    cache.put("first", b"program")
    (tmp_path / "first-atime").unlink()
    stamp_entries(tmp_path)
    assert (tmp_path / "first-atime").exists()
    cache.put("second", b"another")
    assert (cache.get("first"), cache.get("second")) == (b"program", b"another")
