"""Signals: a command ends at once wherever it is, and says how to go on."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What a command may be at when the signal comes: a wait, a native call, Python that catches all.
AT_WORK = {
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


def end(work, *numbers, advice="pass", before=""):
    """The status and the last words of a command that gets the signals at its work."""
    code = COMMAND.format(advice=advice, before=before)
    with subprocess.Popen(
        [sys.executable, "-c", code, work], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        for number in numbers:
            process.send_signal(number)
        _, said = process.communicate(timeout=60)
    return process.returncode, said.decode()


@pytest.mark.parametrize("name", AT_WORK)
def test_an_interrupt_ends_a_command_whatever_it_is_at(name):
    want = 130, "Interrupted. Start again with the same command.\n"
    assert end(AT_WORK[name], signal.SIGINT) == want


@pytest.mark.parametrize(("number", "word"), [("SIGTERM", "Terminated"), ("SIGHUP", "Hung up")])
def test_other_signals_do_as_well(number, word):
    number = getattr(signal, number)
    advice = "advise(lambda: 'Go on with: it')"
    want = 128 + number, f"{word}. Go on with: it\n"
    assert end(AT_WORK["native"], number, advice=advice) == want


def test_an_ignored_signal_stays_ignored():
    before = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    status, said = end(AT_WORK["wait"], signal.SIGHUP, signal.SIGTERM, before=before)
    assert (status, said.split(".")[0]) == (143, "Terminated")


def test_a_command_that_ends_by_itself_keeps_its_status():
    code = (
        "import sys; from experiments import _signals as s; sys.exit(s.run_with_signals(lambda: 7))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 7


def test_signals_are_minded_before_anything_heavy_is_imported():
    code = """
import sys
from experiments import calibration, numerical, recommend, reproduce
assert not {"jax", "numpy", "tyro", "rich"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
