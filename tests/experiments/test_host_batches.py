"""Trainings whose batches come from host memory."""

import shlex

import numpy as np
import pytest
from _helpers.studies import history, kill, read, resume

from experiments import _learned, images, pairs

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles", "small_resnet")

IMAGES = shlex.split(
    "--train-images 120 --test-images 60 --width 4 --head 16 8 --batch-size 50 --epochs 3 "
    "--neighbours 5 --batches host --checkpoint-seconds 0"
)
PAIRS = shlex.split(
    "--width 4 --text-vocab-size 60 --text-width 8 --text-n-layers 1 --text-heads 2 --dim 8 "
    "--batch-size 400 --epochs 2 --batches host --checkpoint-seconds 0"
)


@pytest.mark.parametrize(("command", "flags"), [(images, IMAGES), (pairs, PAIRS)])
def test_a_killed_run_resumes_to_the_same_bits(command, flags, tmp_path, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert command.main([*flags, "--out", str(whole)]) == 0
    arguments = [*flags, "--out", str(killed)]
    kill(command.main, arguments, monkeypatch, lambda checkpoint, loop: loop.epoch == 1)
    assert resume(command.main, killed, monkeypatch)[0] == 2
    assert history(killed) == history(whole)
    assert read(killed, "metrics_by_seed.json") == read(whole, "metrics_by_seed.json")
    losses = [entry["loss"] for entry in history(whole)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def test_features_are_computed_in_parts(monkeypatch, tmp_path):
    """The evaluation never holds all images on the device; parts give the same features."""
    flags = [*IMAGES, "--probe", "both", "--probe-epochs", "1"]
    assert images.main([*flags, "--out", str(tmp_path / "whole")]) == 0
    monkeypatch.setattr(_learned, "_ON_DEVICE", 50)
    assert images.main([*flags, "--out", str(tmp_path / "parts")]) == 0
    whole, parts = (read(tmp_path / name, "metrics.json") for name in ("whole", "parts"))
    assert whole["linear"] == parts["linear"]
    assert whole["knn"] == parts["knn"]


def test_clusters_need_all_images_on_the_device(capsys):
    assert images.main([*IMAGES, "--method", "protonce", "--queue", "80"]) == 2
    assert "--method protonce clusters all images" in capsys.readouterr().err
