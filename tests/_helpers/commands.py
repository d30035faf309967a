"""Shared helpers for tests of the command line."""

import numpy as np

from experiments import reproduce

SHORT = ["--epochs", "3", "--batch-size", "256", "--dim", "8", "--tune", "0", "--eval-every", "1"]
QUICK = [*SHORT, "--lr", "0.003"]


def one_line(printed: str) -> str:
    """Removes the line breaks that depend on the terminal width."""
    return " ".join(printed.split())


def reproduction(folder, tmp_path, capsys):
    """Returns a function that runs a `reproduce` target: exit status and output on one line."""

    def command(*arguments):
        code = reproduce.main([*arguments, "--data", str(folder), "--out", str(tmp_path)])
        printed = capsys.readouterr()
        return code, " ".join((printed.out + printed.err).split())

    return command


def damaged_copies(content, n_cut, n_flipped):
    """Returns truncated copies of bytes, and copies with a flipped bit."""
    rng = np.random.default_rng(0)
    copies = [content[: rng.integers(len(content))] for _ in range(n_cut)]
    for _ in range(n_flipped):
        flipped = bytearray(content)
        flipped[rng.integers(len(content))] ^= 1 << rng.integers(8)
        copies.append(bytes(flipped))
    return copies


def call(module, monkeypatch, *arguments) -> None:
    """Runs the main function of a benchmark with these arguments."""
    monkeypatch.setattr("sys.argv", ["benchmark", *map(str, arguments)])
    module.main()


def forget_own(*registries):
    """Removes entries that were added by import path."""
    for entries in registries:
        for name in [name for name in entries if ":" in name]:
            del entries[name]
