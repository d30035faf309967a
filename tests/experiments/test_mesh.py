"""Tests of ``--mesh``: training on several devices from the command line."""

import json

import jax
import pytest
from _helpers.commands import SHORT, one_line
from _helpers.refusals import raises

from experiments import _rundir as rundir
from experiments._mesh import make_mesh
from experiments._study_command import configure
from experiments.recommend import main
from experiments.recommend._study import Recommend

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def scores(folder):
    return json.loads((folder / "metrics.json").read_text())["ndcg@20"]


@pytest.mark.slow
def test_mesh_matches_single_device_and_can_change_on_resume(ratings, tmp_path, capsys):
    """A finished run that lacks its metrics resumes from its last checkpoint to evaluate again."""
    flags = ["--data", str(ratings), *SHORT, "--loss", "info_nce", "--final-training", "train"]
    out = tmp_path / "eight"
    assert main([*flags, "--out", str(tmp_path / "one")]) == 0
    capsys.readouterr()
    assert main([*flags, "--mesh", "data=2,table=4", "--out", str(out)]) == 0
    assert "on 8 × cpu (cpu), data=2, table=4" in one_line(capsys.readouterr().out)
    before = scores(out)
    assert before == pytest.approx(scores(tmp_path / "one"), abs=1e-3)
    (out / "metrics.json").unlink()
    assert main(["--resume", str(out), "--mesh", "data=2"]) == 0
    assert scores(out) == pytest.approx(before, abs=1e-6)


def test_omitted_mesh_axis_has_one_device():
    assert make_mesh(None) is None
    mesh = make_mesh("table=2")
    assert mesh is not None
    assert dict(mesh.shape) == {"data": 1, "table": 2}
    assert mesh.devices.ravel().tolist() == jax.devices()[:2]


def test_multi_process_mesh_uses_all_devices(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    mesh = make_mesh(None)
    assert mesh is not None
    assert dict(mesh.shape) == {"data": 8, "table": 1}
    with raises(ValueError, match="--mesh data=4 must use all 8 devices of 2 processes"):
        make_mesh("data=4")


@pytest.mark.parametrize("flags", [["--tune", "1"], ["--loss", "auto", "--blend", "3"]])
def test_rejects_resuming_host_search_on_mesh(flags, tmp_path):
    """The search would compare other models than before."""
    config, _, _ = configure(Recommend(), [*flags, "--model", "trained"])
    rundir.create(tmp_path, config, "recommend")
    configure(Recommend(), ["--resume", str(tmp_path)])
    with raises(ValueError, match="--mesh data=1: the run also searches models .* on the host"):
        configure(Recommend(), ["--resume", str(tmp_path), "--mesh", "data=1"])


def test_resume_accepts_other_device(tmp_path):
    config, _, _ = configure(Recommend(), ["--loss", "bpr", "--device", "gpu"])
    rundir.create(tmp_path, config, "recommend")
    for flags, device in (([], "gpu"), (["--device", "cpu"], "cpu"), (["--device", "any"], "any")):
        resumed, *_ = configure(Recommend(), ["--resume", str(tmp_path), *flags])
        assert resumed.output.device == device


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["rows=2"], "--mesh must be the number of devices along data and table, such as data=4"),
        (["data=2,data=4"], "got data=2,data=4"),
        (["data=4,table=0"], "got data=4,table=0"),
        (["data=-1"], "got data=-1"),
        (["data=8,table=2"], "--mesh data=8,table=2 asks for 16 devices: JAX found 8 here"),
        (
            ["data=3", "--batch-size", "100"],
            "--batch-size must be a multiple of the 3 devices along data of --mesh, got 100",
        ),
    ],
)
def test_rejects_invalid_mesh(flags, message, tmp_path, capsys):
    assert main(["--mesh", *flags, "--out", str(tmp_path / "run")]) == 2
    assert message in one_line(capsys.readouterr().err)
    assert not (tmp_path / "run").exists()
