"""Compiled programs are kept between commands, where that is wanted and possible."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments._compiled import stamp_entries

ROOT = Path(__file__).parents[2]
COMMAND = """
import jax
from experiments._command import run
def command():
    jax.jit(lambda x: x * 3)(1.0)
    print(jax.config.jax_compilation_cache_dir)
raise SystemExit(run(command, {}))
"""


def start(cache: Path, **variables: str) -> tuple[str, list[str]]:
    """The folder that a command keeps its programs in, and what is kept in ``cache``."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**inherited, "CRL_JAX_CACHE": str(cache), "JAX_PLATFORMS": "cpu", **variables},
    )  # fmt: skip
    assert not ended.stderr
    kept = [str(p) for p in cache.rglob("*-cache")] if cache.is_dir() else []
    return ended.stdout.strip(), kept


def test_programs_are_kept_in_the_cache_of_the_user(tmp_path):
    folder, kept = start(tmp_path)
    assert Path(folder).is_relative_to(tmp_path / "compiled")
    assert kept
    assert all(name.startswith(folder) for name in kept)


def test_the_settings_of_jax_go_first(tmp_path):
    other = tmp_path / "other"
    assert start(tmp_path / "own", JAX_COMPILATION_CACHE_DIR=str(other)) == (str(other), [])
    assert start(tmp_path / "own", JAX_ENABLE_COMPILATION_CACHE="false") == ("None", [])


@pytest.mark.parametrize("name", ["file", "/proc/nowhere"])
def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path, name):
    (tmp_path / "file").write_text("in the way")
    assert start(tmp_path / name) == ("None", [])


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
