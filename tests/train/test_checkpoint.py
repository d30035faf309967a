"""Checkpoints: round trips, failed writes, and errors for invalid files."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax.train import load_checkpoint, save_checkpoint


@pytest.fixture
def tree():
    return {
        "a": {"b": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3), "c": jnp.float32(0.1)},
        "d": [jnp.zeros((0, 4), jnp.int32), np.array([True, False])],
        "e": np.array(["x", "größer"]),
    }


def test_round_trip(tmp_path, tree):
    path = tmp_path / "deep" / "state.npz"
    save_checkpoint(path, tree, {"epoch": 3, "name": "ü", "none": None})
    got, meta = load_checkpoint(path, tree)
    assert meta == {"epoch": 3, "name": "ü", "none": None}
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    for have, want in zip(jax.tree.leaves(got), jax.tree.leaves(tree), strict=True):
        assert have.dtype == want.dtype
        np.testing.assert_array_equal(have, np.asarray(want))
    flat, _ = load_checkpoint(path)
    assert sorted(flat) == ["a/b", "a/c", "d/0", "d/1", "e"]


def test_failed_write_keeps_previous_file(tmp_path, tree, monkeypatch):
    path = tmp_path / "state.npz"
    save_checkpoint(path, tree, {"epoch": 1})

    def fail(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with raises(OSError, match="disk full"):
        save_checkpoint(path, tree, {"epoch": 2})
    assert load_checkpoint(path)[1] == {"epoch": 1}


@pytest.mark.parametrize("keep", [0, 1, 30, 200, -1, -30])
def test_rejects_truncated_file(tmp_path, tree, keep):
    path = tmp_path / "state.npz"
    save_checkpoint(path, tree, {})
    path.write_bytes(path.read_bytes()[:keep])
    with raises(ValueError, match=r"state\.npz: expected a complete checkpoint"):
        load_checkpoint(path, tree)


def test_rejects_pickled_objects(tmp_path):
    path = tmp_path / "state.npz"
    np.savez(path, header=np.array([{"meta": 1}], dtype=object))
    with raises(ValueError, match="expected a complete checkpoint"):
        load_checkpoint(path)
    with raises(ValueError, match="got objects in a"):
        save_checkpoint(path, {"a": np.array([None])}, {})


def test_load_rejects_mismatched_arrays(tmp_path):
    path = tmp_path / "state.npz"
    save_checkpoint(path, {"a": np.zeros((2, 3), np.float32)}, {})
    with raises(ValueError, match=r"expected the arrays \['b'\], got \['a'\]"):
        load_checkpoint(path, {"b": np.zeros((2, 3), np.float32)})
    with raises(ValueError, match=r"expected a as float32\[2, 4\], got float32\[2, 3\]"):
        load_checkpoint(path, {"a": np.zeros((2, 4), np.float32)})
    with raises(ValueError, match=r"expected a as int32"):
        load_checkpoint(path, {"a": np.zeros((2, 3), np.int32)})
    with raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none.npz")


def test_accepts_any_leaf_names_but_rejects_duplicates(tmp_path):
    tree = {"file": np.ones(2), "allow_pickle": np.zeros(1), "a": {"b": np.arange(3)}}
    save_checkpoint(tmp_path / "x.npz", tree, {})
    got, _ = load_checkpoint(tmp_path / "x.npz", tree)
    jax.tree.map(np.testing.assert_array_equal, got, tree)
    with raises(ValueError, match="`tree` must have one leaf of each name.*got a/b"):
        save_checkpoint(tmp_path / "x.npz", tree | {"a/b": np.ones(1)}, {})
    with raises(ValueError, match="`tree` must have one leaf of each name.*got header"):
        save_checkpoint(tmp_path / "x.npz", {"header": np.ones(1)}, {})
