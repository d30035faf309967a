"""Contestants that take turns, each a process of its own: a busy moment hits all of them."""

import subprocess
import sys
from collections.abc import Mapping


class Worker:
    """A benchmark that runs as a process and answers lines.

    Args:
      module: The benchmark in this package.
      *arguments: Its command line.
      env: Environment, by default that of this process.
    """

    def __init__(self, module: str, *arguments: object, env: Mapping[str, str] | None = None):
        self._command = [f"benchmarks.{module}", *map(str, arguments)]
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", *self._command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip

    def answer(self) -> str:
        """The next line that it prints.

        Raises:
          SystemExit: If it ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise SystemExit(f"{' '.join(self._command)} ended with status {status}.")
        return line

    def ask(self, line: str = "") -> str:
        """Its answer to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.answer()

    def times(self, line: str = "") -> list[float]:
        """Its answer to a line, as numbers."""
        return [float(word) for word in self.ask(line).split()]

    def end(self) -> None:
        """Lets the process go."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
