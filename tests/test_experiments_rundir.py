"""The run directory: what is read from it is checked, and no two processes work in it."""

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl_jax.train import load_checkpoint, save_checkpoint
from experiments import _rundir as rundir

MODEL = {
    "params": {"users": np.ones((2, 3, 4), np.float32), "items": np.ones((2, 5, 4), np.float32)},
    "user_ids": np.arange(3),
    "item_ids": np.array(["a", "b", "c", "d", "e"]),
    "indptr": np.array([0, 1, 1, 2]),
    "items": np.array([4, 0], np.int32),
}
META = {"dim": 4, "encoder": "mf"}


def store(folder: Path, tree: Any, meta: Any) -> Path:
    path = folder / "checkpoint" / "model.npz"
    save_checkpoint(path, tree, meta)
    return path


def test_a_model_is_read_as_it_was_written(tmp_path):
    store(tmp_path, MODEL, META)
    params, known = rundir.load_model(tmp_path)
    assert params.keys() == {"users", "items"}
    assert known.item_ids[known.items].tolist() == ["e", "a"]


@pytest.mark.parametrize(
    ("changed", "meta"),
    [
        ({"params": {"users": MODEL["params"]["users"]}}, META),
        ({"params": {**MODEL["params"], "bias": np.ones(3)}}, META),
        ({"params": {**MODEL["params"], "users": np.ones((2, 3, 5), np.float32)}}, META),
        ({"params": {**MODEL["params"], "items": np.ones((1, 5, 4), np.float32)}}, META),
        ({"params": {**MODEL["params"], "items": np.ones((2, 4), np.float32)}}, META),
        ({"params": {**MODEL["params"], "users": np.ones((2, 3, 4), np.int32)}}, META),
        ({"params": {**MODEL["params"], "users": np.array("abc")}}, META),
        ({"indptr": np.array([0, 1, 2])}, META),
        ({"items": np.array([5, 0], np.int32)}, META),
        ({"user_ids": np.arange(4)}, META),
        ({}, {"dim": 8, "encoder": "mf"}),
        ({}, {"dim": 4, "encoder": "graph"}),
        ({}, []),
        ({}, None),
    ],
)
def test_another_model_is_refused_with_the_file(changed, meta, tmp_path):
    path = store(tmp_path, MODEL | changed, meta)
    with pytest.raises(ValueError, match="expected") as raised:
        rundir.load_model(tmp_path)
    assert str(raised.value).startswith(f"{path}: expected")


def test_damaged_bytes_of_a_model_are_an_error_that_names_it_or_harmless(tmp_path):
    path = store(tmp_path, MODEL, META)
    good = path.read_bytes()
    want, _ = load_checkpoint(path)
    rng = np.random.default_rng(0)
    damaged = [good[: rng.integers(len(good))] for _ in range(20)]
    for _ in range(200):
        flipped = bytearray(good)
        flipped[rng.integers(len(good))] ^= 1 << rng.integers(8)
        damaged.append(bytes(flipped))
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        with contextlib.suppress(ValueError):
            params, _ = rundir.load_model(tmp_path)
            np.testing.assert_array_equal(params["users"], want["params/users"])
            continue
        with pytest.raises(ValueError, match=re.escape(str(path))):
            rundir.load_model(tmp_path)
        refused += 1
    assert refused > 100
