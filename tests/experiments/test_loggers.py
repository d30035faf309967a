"""Tests of the TensorBoard and Weights & Biases loggers."""

import struct
import sys

import pytest
from _helpers.refusals import raises

from experiments._loggers import TensorBoard, WandB

HISTORY = [
    {"epoch": 1, "loss": [0.7, 0.6], "valid_ndcg@20": [0.1, 0.2], "seconds": 0.5},
    {"epoch": 2, "loss": [0.5, 0.4], "valid_ndcg@20": [0.3, float("nan")], "seconds": 0.9},
    {"phase": "final", "epoch": 1, "loss": [0.3], "density": [[1.0, 2.0]], "seconds": 2},
]


def scalars(file):
    """Returns the scalars of an event file, which is a sequence of length-prefixed records."""
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportMissingImports]

    content, values = file.read_bytes(), {}
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        event = Event.FromString(content[12 : 12 + length])
        content = content[16 + length :]
        values |= {(event.step, of.tag): of.simple_value for of in event.summary.value}
    return values


def test_each_run_writes_separate_event_files(tmp_path):
    """Phases are separate, and arrays of a probe are omitted."""
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    with TensorBoard(tmp_path) as logger:
        for entry in HISTORY:
            logger(entry)
    (first,), (second,) = ((tmp_path / f"run-{run}").iterdir() for run in (0, 1))
    assert len([*tmp_path.iterdir()]) == 2
    assert scalars(first) == pytest.approx({
        (1, "loss"): 0.7, (1, "valid_ndcg_20"): 0.1, (1, "final/loss"): 0.3, (1, "seconds"): 2,
        (2, "loss"): 0.5, (2, "valid_ndcg_20"): 0.3, (2, "seconds"): 0.9,
    })  # fmt: skip
    assert scalars(second) == pytest.approx({
        (1, "loss"): 0.6, (1, "valid_ndcg_20"): 0.2,
        (2, "loss"): 0.4, (2, "valid_ndcg_20"): float("nan"),
    }, nan_ok=True)  # fmt: skip


def test_wandb_logs_every_run_by_epoch(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    lines, log, axes, define = [], wandb.Run.log, [], wandb.Run.define_metric
    monkeypatch.setattr(wandb.Run, "log", lambda run, line: (lines.append(line), log(run, line)))
    monkeypatch.setattr(
        wandb.Run, "define_metric",
        lambda run, name, **options: (axes.append((name, options)), define(run, name, **options)),
    )  # fmt: skip
    with WandB(mode="offline", project="p", dir=str(tmp_path)) as logger:
        for entry in HISTORY:
            logger(entry)
        last = dict(logger._run.summary)
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert axes == [("epoch", {}), ("*", {"step_metric": "epoch"})]
    assert lines[0] == {
        "epoch": 1, "loss/run-0": 0.7, "loss/run-1": 0.6,
        "valid_ndcg@20/run-0": 0.1, "valid_ndcg@20/run-1": 0.2, "seconds": 0.5,
    }  # fmt: skip
    assert lines[2] == {"epoch": 1, "final/loss/run-0": 0.3, "seconds": 2.0}
    assert (last["epoch"], last["loss/run-1"], last["final/loss/run-0"]) == (1, 0.4, 0.3)


@pytest.mark.parametrize(
    ("logger", "package", "extra"),
    [(TensorBoard, "tensorboardX", "tensorboard"), (WandB, "wandb", "wandb")],
)
def test_missing_package_error_names_extra(monkeypatch, logger, package, extra, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    arguments = {"folder": tmp_path} if logger is TensorBoard else {}
    with raises(ValueError, match=rf"package {package}: pip install 'crl_jax\[{extra}\]'"):
        logger(**arguments)
