"""Signals: a command ends at once whatever it executes, and reports how to resume."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Workloads of a command when the signal arrives: a wait, a native call, a catch-all handler.
WORKLOADS = {
    "wait": "import time; time.sleep(300)",
    "native": "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)",
    "deaf": """
while True:
    try:
        while True: pass
    except BaseException: pass
""",
}
COMMAND = """
import sys
from experiments._signals import advise, run_with_signals
def command():
    {advice}
    print("begun", flush=True)
    exec(sys.argv[1])
{before}
run_with_signals(command)
"""


def send_signals(work, *numbers, advice="pass", before=""):
    """Returns the exit status and stderr of a command that receives the signals while running."""
    code = COMMAND.format(advice=advice, before=before)
    with subprocess.Popen(
        [sys.executable, "-c", code, work], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        for number in numbers:
            process.send_signal(number)
        _, error = process.communicate(timeout=60)
    return process.returncode, error.decode()


@pytest.mark.parametrize("name", WORKLOADS)
def test_interrupt_ends_command_in_any_state(name):
    want = 130, "Interrupted. Start again with the same command.\n"
    assert send_signals(WORKLOADS[name], signal.SIGINT) == want


@pytest.mark.parametrize(("number", "word"), [("SIGTERM", "Terminated"), ("SIGHUP", "Hung up")])
def test_sigterm_and_sighup_end_command_with_advice(number, word):
    number = getattr(signal, number)
    advice = "advise(lambda: 'Go on with: it')"
    want = 128 + number, f"{word}. Go on with: it\n"
    assert send_signals(WORKLOADS["native"], number, advice=advice) == want


def test_an_ignored_signal_stays_ignored():
    before = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    status, error = send_signals(WORKLOADS["wait"], signal.SIGHUP, signal.SIGTERM, before=before)
    assert (status, error.split(".")[0]) == (143, "Terminated")


def test_exit_status_of_command_is_kept():
    code = (
        "import sys; from experiments import _signals as s; sys.exit(s.run_with_signals(lambda: 7))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 7


def test_command_packages_import_no_heavy_modules():
    code = """
import sys
from experiments import calibration, numerical, recommend, reproduce
assert not {"jax", "numpy", "tyro", "rich"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
