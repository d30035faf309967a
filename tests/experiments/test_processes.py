"""Tests of ``--processes``: multi-process training, and a job with a killed process."""

import json
import signal
import subprocess
import time

import pytest
from _helpers.commands import one_line
from _helpers.jobs import free_port, start
from _helpers.studies import files_of, history, read

from experiments import graphs, recommend

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

FLAGS = ["--data", "{ratings}", "--valid-fraction", "0", "--batch-size", "64", "--dim", "8",
         "--mesh", "data=2,table=4"]  # fmt: skip
LIGHTGCN = [*FLAGS, "--encoder", "lightgcn", "--loss", "bayesian", "--epochs", "3"]
GRAPHS = ["--width", "4", "--n-layers", "2", "--head", "8", "--epochs", "2", "--folds", "2",
          "--mesh", "data=8"]  # fmt: skip


def two_processes(command, *flags) -> list[subprocess.Popen]:
    """Starts both processes of a job."""
    module = ["-m", command.__name__, *flags, "--processes"]
    joint = f"2@localhost:{free_port()}"
    return start([[*module, f"{i}/{joint}"] for i in range(2)])


def values(folder, *names):
    found = json.loads((folder / "metrics.json").read_text())
    return {name: found[name] for name in names}


@pytest.mark.parametrize(
    ("command", "flags", "mesh", "names"),
    [
        (recommend, LIGHTGCN, "data=2, table=4", ("ndcg@20", "auc")),
        (graphs, GRAPHS, "data=8, table=1", ("alignment", "uniformity")),
    ],
    ids=["recommend", "graphs"],
)
def test_two_processes_come_to_what_one_comes_to(command, flags, mesh, names, ratings, tmp_path):
    flags = [flag.format(ratings=ratings) for flag in flags]
    one, two = tmp_path / "one", tmp_path / "two"
    jobs = two_processes(command, *flags, "--out", str(two))
    said = [job.communicate(timeout=600) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], said
    assert f"on 8 × cpu (cpu), {mesh}, 2 processes" in one_line(said[0][0])
    assert "loss" not in said[1][0]  # the second prints nothing but library output
    assert command.main([*flags, "--out", str(one)]) == 0
    assert values(two, *names) == pytest.approx(values(one, *names), abs=1e-4)
    assert files_of(two) == files_of(one)
    assert read(two, "config.json")["output"]["processes"] is None


def test_a_job_of_which_a_process_was_killed_ends_and_goes_on(ratings, tmp_path):
    """Resumes with one process and another mesh; the result equals that of an uninterrupted run."""
    out = tmp_path / "run"
    flags = [*(flag.format(ratings=ratings) for flag in FLAGS), "--epochs", "100"]
    jobs = two_processes(recommend, *flags, "--out", str(out), "--checkpoint-seconds", "2")
    began = time.monotonic()
    while not any(path.name.isdigit() for path in out.glob("checkpoint/final/*")):
        assert time.monotonic() - began < 200
        assert jobs[0].poll() is None
        time.sleep(0.05)
    # Avoids a kill during checkpointing, where each process waits for the others until heartbeats
    # have been missing for 100 seconds.
    time.sleep(0.5)
    jobs[1].send_signal(signal.SIGKILL)
    said = jobs[0].communicate(timeout=200)[1]
    jobs[1].communicate()
    assert jobs[0].returncode not in (0, None)
    assert "not all processes work any more" in one_line(said) or "another task died" in said
    assert not (out / "metrics.json").exists()
    assert recommend.main(["--resume", str(out), "--mesh", "data=4"]) == 0
    assert recommend.main([*flags, "--out", str(tmp_path / "whole")]) == 0
    names = "ndcg@20", "auc"
    assert values(out, *names) == pytest.approx(values(tmp_path / "whole", *names), abs=1e-3)
    assert [entry["epoch"] for entry in history(out)] == list(range(1, 101))


def slurm(process: int, port: int) -> dict[str, str]:
    job = {"SLURM_JOB_ID": str(port - FIRST_PORT), "SLURM_STEP_NODELIST": "localhost"}
    own = {"SLURM_PROCID": str(process), "SLURM_LOCALID": str(process)}
    return job | own | {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "1"}


def open_mpi(process: int, port: int) -> dict[str, str]:
    uri = f"{(port - FIRST_PORT) * 2**12}.0;tcp://127.0.0.1,10.0.0.1:34911"
    own = {"OMPI_COMM_WORLD_RANK": str(process), "OMPI_COMM_WORLD_LOCAL_RANK": str(process)}
    return {"OMPI_MCA_orte_hnp_uri": uri, "OMPI_COMM_WORLD_SIZE": "2"} | own


def kubeflow(process: int, port: int) -> dict[str, str]:
    joint = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": "2"}
    return joint | {"JAX_PROCESS_ID": str(process)}


FIRST_PORT = 2**16 - 2**12
"""First of the ports from which JAX chooses by job ID."""


@pytest.mark.parametrize("cluster", [slurm, open_mpi, kubeflow])
def test_a_cluster_says_who_there_is(cluster):
    script = "import jax; from experiments._processes import *; join('auto'); "
    script += "print(jax.process_index(), jax.process_count(), jax.device_count(), is_first())"
    port = free_port(range(FIRST_PORT + 1, 2**16))
    both = start([["-c", script]] * 2, [cluster(process, port) for process in (0, 1)])
    said = [process.communicate(timeout=120) for process in both]
    assert [out for out, _ in said] == ["0 2 8 True\n", "1 2 8 False\n"], said


@pytest.mark.parametrize("spec", ["2", "2/2@localhost:1234", "0/2@localhost", "all"])
def test_no_such_processes(spec, tmp_path, capsys):
    assert recommend.main(["--processes", spec, "--out", str(tmp_path / "run")]) == 2
    said = one_line(capsys.readouterr().err)
    assert (
        "--processes must be auto, or INDEX/COUNT@HOST:PORT with the address of the first process"
        in said
    )
    assert f"got {spec}" in said


def test_processes_need_a_folder_that_all_see(capsys):
    assert recommend.main(["--processes", "0/2@localhost:1234"]) == 2
    assert "--processes needs --out, a folder that all processes see" in capsys.readouterr().err
