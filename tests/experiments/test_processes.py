"""Tests of ``--processes``: multi-process training, and a job with a killed process."""

import json
import os
import shlex
import signal
import subprocess

import jax
import numpy as np
import pytest
from _helpers.commands import one_line
from _helpers.jobs import free_port, start
from _helpers.studies import files_of, history, read

from experiments import _command, _processes, graphs, recommend
from experiments._processes import join

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

# Kills itself before the second checkpoint.
KILLED = """
import os, signal, sys
from crl_jax import train
from experiments.recommend import main

report = train.SharedCheckpoint.on_report

def report_once(self, loop):
    if loop.epoch == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    report(self, loop)

train.SharedCheckpoint.on_report = report_once
sys.exit(main(sys.argv[1:]))
"""


def run_job(command, *flags, second=None) -> tuple[list[subprocess.Popen], list[tuple[str, str]]]:
    """Runs both processes of a job; returns them and their outputs."""
    run, joint = ["-m", command.__name__], f"2@localhost:{free_port()}"
    jobs = start(
        [*python, *flags, "--processes", f"{i}/{joint}"]
        for i, python in enumerate([run, second or run])
    )
    return jobs, [job.communicate(timeout=600) for job in jobs]


def values(folder, *names):
    found = json.loads((folder / "metrics.json").read_text())
    return {name: found[name] for name in names}


def check_job(result, mesh):
    jobs, output = result
    assert [job.returncode for job in jobs] == [0, 0], output
    assert f"on 8 × cpu (cpu), {mesh}, 2 processes" in one_line(output[0][0])
    assert "loss" not in output[1][0]  # the second prints nothing but library output


@pytest.mark.slow
def test_job_ends_when_process_is_killed_and_resumes(ratings, tmp_path):
    """The result equals that of one process, and is restored on another mesh."""
    flags = ["--data", str(ratings), *shlex.split(
        "--valid-fraction 0 --batch-size 64 --dim 8 --encoder lightgcn --loss bayesian --epochs 3 "
        "--eval-every 1 --checkpoint-seconds 0 --mesh data=2,table=4"
    )]  # fmt: skip
    one, two = tmp_path / "one", tmp_path / "two"
    jobs, output = run_job(recommend, *flags, "--out", str(two), second=["-c", KILLED])
    assert jobs[0].returncode not in (0, None)
    output = output[0][1]
    assert "not all processes work any more" in one_line(output) or "another task died" in output
    assert not (two / "metrics.json").exists()
    check_job(run_job(recommend, "--resume", str(two), *flags[-2:]), "data=2, table=4")
    assert recommend.main([*flags, "--out", str(one)]) == 0
    names = "ndcg@20", "auc"
    assert values(two, *names) == pytest.approx(values(one, *names), abs=1e-4)
    assert [entry["epoch"] for entry in history(two)] == [1, 2, 3]
    assert files_of(two) == files_of(one)
    (two / "metrics.json").unlink()
    assert recommend.main(["--resume", str(two), "--mesh", "data=4"]) == 0
    assert values(two, *names) == pytest.approx(values(one, *names), abs=1e-4)
    assert recommend.main(["--resume", str(two), "--mesh", "data=64"]) == 0  # it is finished


@pytest.mark.parametrize("kind", [jax.errors.JaxRuntimeError, ValueError])
def test_reports_that_another_process_ended(kind, monkeypatch, capsys):
    """JAX raises either: with one CPU device per process, errors of Gloo are a ``ValueError``."""
    output = "UNKNOWN: Gloo all-reduce failed: [pair.cc:547] Connection closed by peer [::1]:27550"

    def command():
        raise kind(output)

    exit_codes = []
    monkeypatch.setattr(_command, "is_distributed", lambda: True)
    monkeypatch.setattr(_command, "advice", lambda: "Go on with: it")
    monkeypatch.setattr(os, "_exit", exit_codes.append)
    _command.run(command, {})
    assert exit_codes == [2]
    want = f"error: not all processes work any more: {output}. Go on with: it"
    assert one_line(capsys.readouterr().err) == want


@pytest.mark.slow
def test_sigterm_ends_job_before_training_finishes(ratings, tmp_path):
    flags = ["--data", str(ratings), *shlex.split(
        "--valid-fraction 0 --batch-size 64 --dim 8 --epochs 4 --eval-every 1 "
        "--checkpoint-seconds 0 --mesh data=8"
    )]  # fmt: skip
    terminated = KILLED.replace("SIGKILL", "SIGTERM")
    jobs, output = run_job(
        recommend, *flags, "--out", str(tmp_path / "two"), second=["-c", terminated]
    )
    assert jobs[1].returncode == -signal.SIGTERM, output  # without the program's handler
    assert jobs[0].returncode not in (0, None)
    assert not (tmp_path / "two" / "metrics.json").exists()


@pytest.mark.slow
def test_two_processes_match_one_device_on_graphs(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "rings.txt"
    lines = ["32"]
    for label in np.arange(32) % 2:
        lines.append(f"5 {label}")
        for node in range(5):
            lines.append(f"{rng.integers(2 + label)} 2 {(node - 1) % 5} {(node + 1) % 5}")
    path.write_text("\n".join(lines) + "\n")
    # Adam would amplify the rounding of gradients that are zero.
    flags = ["--data", str(path), *shlex.split(
        "--kinds drop_nodes --width 4 --n-layers 1 --head 8 --folds 2 --epochs 2 --batch-size 16 "
        "--optimizer sgd --lr 0.01"
    )]  # fmt: skip
    one, two = tmp_path / "one", tmp_path / "two"
    check_job(run_job(graphs, *flags, "--mesh", "data=8", "--out", str(two)), "data=8, table=1")
    assert graphs.main([*flags, "--out", str(one)]) == 0
    names = "alignment", "uniformity"
    assert values(two, *names) == pytest.approx(values(one, *names), abs=1e-4)
    got, want = ([entry["loss"] for entry in history(folder)] for folder in (two, one))
    assert got == pytest.approx(want, rel=1e-4)
    assert files_of(two) == files_of(one)
    assert read(two, "config.json")["output"]["processes"] is None


def test_processes_auto_reads_jax_environment_variables(monkeypatch):
    """JAX detects clusters itself, except for three variables that a launcher sets."""
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **of: calls.append(of))
    join("auto")
    for name, value in {
        "COORDINATOR_ADDRESS": "a:1",
        "NUM_PROCESSES": "2",
        "PROCESS_ID": "1",
    }.items():
        monkeypatch.setenv(f"JAX_{name}", value)
    join("auto")
    launched = {"coordinator_address": "a:1", "num_processes": 2, "process_id": 1}
    limit = {"initialization_timeout": 2 * _processes._PATIENCE}
    assert calls == [limit, launched | limit]


def test_process_without_peers_times_out_with_error():
    script = "from experiments import _processes; _processes._PATIENCE = 1; _processes.join({!r})"
    spec = f"1/2@localhost:{free_port()}"
    (job,) = start([["-c", script.format(spec)]])
    _, output = job.communicate(timeout=120)
    others = f"the other processes of --processes {spec}, which meet at {spec.partition('@')[2]}"
    assert output.splitlines()[0] == f"waiting for {others}"
    assert output.splitlines()[-1] == f"error: {others}, did not all start within 1 seconds."
    assert job.returncode == 1


@pytest.mark.parametrize("longer", ["", "a much longer path"])
def test_rejects_processes_with_different_flags(monkeypatch, longer):
    def gather(own):
        """Returns the array of this process, and that of one with another seed."""
        other = json.dumps({"protocol": {"seed": 1}, "source": {"data": "log" + longer}}).encode()
        if own.dtype == np.int32:
            return np.array([own, len(other)])
        return np.stack([own, np.frombuffer(other.ljust(len(own)), np.uint8)])

    monkeypatch.setattr("jax.process_count", lambda: 2)
    monkeypatch.setattr("jax.experimental.multihost_utils.process_allgather", gather)
    same = {"protocol": {"seed": 1}, "source": {"data": "log" + longer}}
    _processes.check_same(same)
    message = "need the same flags and data, but seed is 0 in process 0 and 1 in process 1"
    with pytest.raises(ValueError, match=message):
        _processes.check_same(same | {"protocol": {"seed": 0}})


@pytest.mark.parametrize("spec", ["2", "2/2@localhost:1234", "0/2@localhost", "all"])
def test_rejects_invalid_processes_flag(spec, tmp_path, capsys):
    assert recommend.main(["--processes", spec, "--out", str(tmp_path / "run")]) == 2
    output = one_line(capsys.readouterr().err)
    assert (
        "--processes must be auto, or INDEX/COUNT@HOST:PORT with the address of the first process"
        in output
    )
    assert f"got {spec}" in output


def test_processes_require_out_folder(capsys):
    assert recommend.main(["--processes", "0/2@localhost:1234"]) == 2
    assert "--processes needs --out, a folder that all processes see" in capsys.readouterr().err
