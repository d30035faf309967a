"""Tests of the TensorBoard and Weights & Biases loggers."""

import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from _helpers.refusals import raises

from experiments._loggers import TensorBoard, WandB

HISTORY = [
    {"epoch": 1, "loss": [0.7, 0.6], "valid_ndcg@20": [0.1, 0.2], "seconds": 0.5},
    {"epoch": 2, "loss": [0.5, 0.4], "valid_ndcg@20": [0.3, float("nan")], "seconds": 0.9},
]


class Writer:
    """Stub of `tensorboardX.SummaryWriter`."""

    def __init__(self, folder: str):
        self.folder, self.closed, self.numbers = Path(folder), False, []
        Writer.made.append(self)

    made: list["Writer"]

    def add_scalar(self, name, number, global_step):
        assert not self.closed
        self.numbers.append((global_step, name, number))

    def flush(self):
        pass

    def close(self):
        self.closed = True


@pytest.fixture
def writers(monkeypatch) -> list[Writer]:
    Writer.made = []
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Writer))
    return Writer.made


class Wandb:
    """Stub of the `wandb` module and its run."""

    def __init__(self):
        self.options, self.lines, self.metrics, self.finished = {}, [], [], False

    def init(self, **options):
        self.options = options
        return self

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def log(self, numbers):
        assert not self.finished
        self.lines.append(numbers)

    def finish(self):
        self.finished = True


def test_each_run_has_a_folder_of_its_own(writers, tmp_path):
    with TensorBoard(tmp_path) as logger:
        for entry in HISTORY:
            logger(entry)
    assert [writer.folder for writer in writers] == [tmp_path / "run-0", tmp_path / "run-1"]
    assert all(writer.closed for writer in writers)
    assert writers[0].numbers == [
        (1, "loss", 0.7), (1, "valid_ndcg@20", 0.1), (1, "seconds", 0.5),
        (2, "loss", 0.5), (2, "valid_ndcg@20", 0.3), (2, "seconds", 0.9),
    ]  # fmt: skip
    np.testing.assert_equal(
        writers[1].numbers,
        [(1, "loss", 0.6), (1, "valid_ndcg@20", 0.2),
         (2, "loss", 0.4), (2, "valid_ndcg@20", float("nan"))],
    )  # fmt: skip


def test_phases_keep_apart_and_arrays_of_a_probe_are_left_out(writers, tmp_path):
    entry = {"phase": "search", "epoch": 4, "loss": [0.5], "density": [[1.0, 2.0]], "seconds": 1}
    TensorBoard(tmp_path)(entry)
    assert writers[0].numbers == [(4, "search/loss", 0.5), (4, "seconds", 1.0)]


def test_weights_and_biases_gets_every_run_over_the_epochs(monkeypatch):
    package = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", package)
    with WandB(project="p", mode="offline") as logger:
        for entry in [*HISTORY, {"phase": "final", "epoch": 1, "loss": [0.3], "seconds": 2}]:
            logger(entry)
    assert package.options == {"project": "p", "mode": "offline"}
    assert package.metrics == [("epoch", None), ("*", "epoch")]
    assert package.finished
    assert package.lines[0] == {
        "epoch": 1, "loss/run-0": 0.7, "loss/run-1": 0.6,
        "valid_ndcg@20/run-0": 0.1, "valid_ndcg@20/run-1": 0.2, "seconds": 0.5,
    }  # fmt: skip
    assert package.lines[2] == {"epoch": 1, "final/loss/run-0": 0.3, "seconds": 2.0}


@pytest.mark.parametrize(
    ("logger", "package", "extra"),
    [(TensorBoard, "tensorboardX", "tensorboard"), (WandB, "wandb", "wandb")],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, logger, package, extra, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    arguments = {"folder": tmp_path} if logger is TensorBoard else {}
    with raises(ValueError, match=rf"package {package}: pip install 'crl_jax\[{extra}\]'"):
        logger(**arguments)


def test_event_files_read_back(tmp_path):
    """Uses the real package: an event file is a sequence of length-prefixed records."""
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    with TensorBoard(tmp_path) as logger:
        for entry in HISTORY:
            logger(entry)
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportMissingImports]

    for run in (0, 1):
        (file,) = (tmp_path / f"run-{run}").iterdir()
        content, numbers = file.read_bytes(), {}
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            for value in event.summary.value:
                numbers[event.step, value.tag] = value.simple_value
        for entry in HISTORY:
            for name, tag in (("loss", "loss"), ("valid_ndcg@20", "valid_ndcg_20")):
                want = np.float32(entry[name][run])
                np.testing.assert_equal(np.float32(numbers[entry["epoch"], tag]), want)


def test_wandb_takes_it_offline(tmp_path, monkeypatch):
    """Uses the real package in offline mode."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with WandB(mode="offline", project="p", dir=str(tmp_path)) as logger:
        for entry in HISTORY:
            logger(entry)
        last = dict(logger._run.summary)
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert last["epoch"] == 2
    assert [last["loss/run-0"], last["loss/run-1"]] == HISTORY[1]["loss"]
    assert last["valid_ndcg@20/run-0"] == 0.3
