"""Compiled programs are kept between commands, where that is wanted and possible."""

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


def test_programs_are_kept_in_the_cache_of_the_user(tmp_path):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**inherited, "CRL_JAX_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert not ended.stderr
    folder, kept = ended.stdout.strip(), [str(p) for p in tmp_path.rglob("*-cache")]
    assert Path(folder).is_relative_to(tmp_path / "compiled")
    assert kept
    assert all(name.startswith(folder) for name in kept)


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
def test_the_settings_of_jax_go_first_and_unwritable_folders_do_no_harm(
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


def test_a_kill_between_a_program_and_its_time_of_use_does_no_harm(tmp_path):
    """JAX reads the times of all programs before it writes one, and before 0.12 needs each."""
    from jax._src.lru_cache import LRUCache

    cache = LRUCache(str(tmp_path), max_size=10_000)
    cache.put("first", b"program")
    (tmp_path / "first-atime").unlink()
    stamp_entries(tmp_path)
    assert (tmp_path / "first-atime").exists()
    cache.put("second", b"another")
    assert (cache.get("first"), cache.get("second")) == (b"program", b"another")
