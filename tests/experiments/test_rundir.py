"""Run directory: validation of stored files, atomic writes, and locks between processes."""

import contextlib
import errno
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _helpers.commands import damaged_copies
from _helpers.refusals import raises

from crl_jax.train import load_checkpoint, save_checkpoint
from experiments import _rundir as rundir
from experiments._files import remove_partial
from experiments._rundir import lock_file
from experiments.recommend import _saved as saved
from experiments.recommend._config import SCHEMA, Config, anchor
from experiments.recommend._options import DataOptions

ROOT = Path(__file__).parents[2]

MODEL = {
    "tables": {"users": np.ones((2, 3, 4), np.float32), "items": np.ones((2, 5, 4), np.float32)},
    "user_ids": np.arange(3),
    "item_ids": np.array(["a", "b", "c", "d", "e"]),
    "indptr": np.array([0, 1, 1, 2]),
    "items": np.array([4, 0], np.int32),
    "test_indptr": np.array([0, 0, 1, 1]),
    "test_items": np.array([2], np.int32),
}
META = {"encoder": "mf", "trained_on": ["train", "valid"]}


def store(folder: Path, tree: Any, meta: Any) -> Path:
    path = folder / "checkpoint" / "model.npz"
    save_checkpoint(path, tree, meta)
    return path


def test_load_model_returns_saved_model(tmp_path):
    store(tmp_path, MODEL, META)
    model = saved.load_model(tmp_path)
    np.testing.assert_array_equal(model.tables.users, MODEL["tables"]["users"])
    np.testing.assert_array_equal(model.tables.items, MODEL["tables"]["items"])
    assert model.known.item_ids[model.known.items].tolist() == ["e", "a"]
    assert model.test.item_ids[model.test.items].tolist() == ["c"]
    assert model.trained_on == ("train", "valid")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("changed", "meta"),
    [
        ({"tables": {"users": MODEL["tables"]["users"]}}, META),
        ({"tables": {**MODEL["tables"], "bias": np.ones(3)}}, META),
        ({"tables": {**MODEL["tables"], "users": np.ones((2, 3, 5), np.float32)}}, META),
        ({"tables": {**MODEL["tables"], "items": np.ones((1, 5, 4), np.float32)}}, META),
        ({"tables": {**MODEL["tables"], "items": np.ones((2, 4), np.float32)}}, META),
        ({"tables": {**MODEL["tables"], "users": np.ones((2, 3, 4), np.int32)}}, META),
        ({"tables": {**MODEL["tables"], "users": np.array("abc")}}, META),
        ({"indptr": np.array([0, 1, 2])}, META),
        ({"items": np.array([5, 0], np.int32)}, META),
        ({"user_ids": np.arange(4)}, META),
        ({"test_items": np.array([5], np.int32)}, META),
        ({}, META | {"encoder": "graph"}),
        ({}, META | {"trained_on": ["all"]}),
        ({}, META | {"trained_on": None}),
        ({}, []),
        ({}, None),
    ],
)
def test_load_model_rejects_invalid_contents(changed, meta, tmp_path):
    path = store(tmp_path, MODEL | changed, meta)
    with raises(ValueError, match="expected") as raised:
        saved.load_model(tmp_path)
    assert str(raised.value).startswith(f"{path}: expected")


def test_load_model_detects_damaged_bytes(tmp_path):
    path = store(tmp_path, MODEL, META)
    good = path.read_bytes()
    want, _ = load_checkpoint(path)
    refused = 0
    for content in damaged_copies(good, 20, 200):
        path.write_bytes(content)
        with contextlib.suppress(ValueError):
            tables = saved.load_model(tmp_path).tables
            np.testing.assert_array_equal(tables.users, want["tables/users"])
            continue
        with raises(ValueError, match=re.escape(str(path))):
            saved.load_model(tmp_path)
        refused += 1
    assert refused > 100


HOLDER = """
import sys, time
from pathlib import Path
from experiments._rundir import lock_file
from experiments.recommend._options import DataOptions
with lock_file(Path(sys.argv[1]), busy="held"):
    print("holding", flush=True)
    time.sleep(60)
"""


def test_lock_excludes_other_processes_and_ends_with_owner(tmp_path):
    path = tmp_path / ".lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holding\n"
        with (
            raises(ValueError, match="somebody is there"),
            lock_file(path, busy="somebody is there"),
        ):
            pass
        process.kill()
        process.wait(timeout=60)
    with lock_file(path, busy="still held"):
        assert path.exists()
    assert not path.exists()


def test_lock_waits_for_release(tmp_path):
    path, events = tmp_path / ".lock", []

    def wait():
        with lock_file(path):
            events.append("second")

    with lock_file(path):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.1)
        events.append("first")
    thread.join(60)
    assert events == ["first", "second"]
    assert not path.exists()


def test_lock_is_noop_without_fcntl(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments._rundir.fcntl", None)
    with lock_file(tmp_path / ".lock", busy="held"), lock_file(tmp_path / ".lock", busy="held"):
        assert not list(tmp_path.iterdir())


def test_claim_rejects_run_directory_below_file(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        refused = raises(ValueError, match=f"--out {folder}: {tmp_path / 'file'} is a file")
        with refused, rundir.claim(folder, ""):
            pass
    with raises(ValueError, match="cannot be created"), rundir.claim(Path("/proc/run"), ""):
        pass


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="/proc, where no one may write")
def test_rejects_unwritable_output_folder():
    folder = Path("/proc/self")
    with raises(ValueError, match=f"--out {folder} is not writable"), rundir.claim(folder, ""):
        pass
    with raises(ValueError, match=f"--out {folder} is not writable"):
        rundir.make_out_for(folder / "features.npz")


@pytest.mark.parametrize(
    "write",
    [
        lambda path: rundir.write_text(path, "new"),
        lambda path: rundir.write_csv(path, ["a"], [[1]]),
        lambda path: rundir.write_arrays(path, a=np.ones(3)),
    ],
    ids=["text", "csv", "arrays"],
)
def test_failed_write_names_file_and_keeps_old_contents(write, tmp_path, monkeypatch):
    path = tmp_path / "made"
    path.write_text("old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with raises(OSError, match="No space left on device: .*made'$"):
        write(path)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("made", "old")]
    monkeypatch.undo()
    write(path)
    assert [each.name for each in tmp_path.iterdir()] == ["made"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device without space")
def test_failed_history_append_names_file():
    with raises(OSError, match="No space left on device: '/dev/full'$"):
        rundir.append_history(Path("/dev/full"), {"epoch": 1})


def test_resume_advice_includes_processes_flag(tmp_path):
    (tmp_path / rundir.CONFIG).write_text("{}")
    advice = rundir.resume_advice(tmp_path, "recommend", "1/2@localhost:1234")
    assert advice.endswith(f"--resume {tmp_path} --processes 1/2@localhost:1234")
    assert rundir.resume_advice(tmp_path, "recommend").endswith(f"--resume {tmp_path}")


def test_claim_is_exclusive_and_rejects_existing_run(tmp_path):
    folder = tmp_path / "run"
    with rundir.claim(folder, ""):
        refused = raises(ValueError, match="another process is at work in")
        with refused, rundir.claim(folder, ""):
            pass
        rundir.create(folder, Config(), "recommend")
    refused = raises(ValueError, match="holds a run already, friend")
    with refused, rundir.claim(folder, ", friend"):
        pass
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_open_run_rejects_file(tmp_path):
    path = tmp_path / "encoder.npz"
    path.write_text("")
    with raises(ValueError, match=f"^{re.escape(str(path))} holds no run: there is no "):
        rundir.open_run(path, SCHEMA)


def test_stored_paths_do_not_depend_on_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = DataOptions(data="data/train.csv", test_data=Path("data/test.csv"))
    rundir.create(tmp_path, anchor(Config(source=source)), "recommend")
    monkeypatch.chdir("/")
    read = rundir.open_run(tmp_path, SCHEMA).source
    assert read.data == str(tmp_path / "data" / "train.csv")
    assert read.test_data == tmp_path / "data" / "test.csv"
    for name in ("simulated", "movielens:100k", "tfds:movielens/100k-ratings"):
        rundir.create(tmp_path, anchor(Config(source=DataOptions(data=name))), "recommend")
        assert rundir.open_run(tmp_path, SCHEMA).source.data == name


def test_concurrent_writers_do_not_mix_contents(tmp_path):
    path = tmp_path / "features.csv"

    def rows():
        yield [1, 2]
        rundir.write_csv(path, ["other"], [[3], [4]])  # another process finishes first
        assert path.read_text().split() == ["other", "3", "4"]
        yield [5, 6]

    rundir.write_csv(path, ["a", "b"], rows())
    assert path.read_text().split() == ["a,b", "1,2", "5,6"]
    assert [*tmp_path.iterdir()] == [path]


def test_remove_partial_removes_only_files_of_killed_writers(tmp_path, monkeypatch):
    others = [tmp_path / "download.partial", tmp_path / "metrics.json", tmp_path / "a.1-x.partial"]
    for path in others:
        path.write_text("kept")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: None)  # as if the writers had been killed
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        rundir.write_text(tmp_path / "metrics.json", "half")
        save_checkpoint(tmp_path / "final-0.npz", {"x": np.ones(1)}, {})
    assert len([*tmp_path.iterdir()]) == 5
    remove_partial(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)
