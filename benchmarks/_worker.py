"""Worker processes that run alternately, so that a busy moment affects all of them."""

import subprocess
import sys
from collections.abc import Mapping


class Worker:
    """Benchmark that runs as a process and answers lines.

    Args:
      module: Name of the benchmark module in this package.
      *arguments: Command-line arguments.
      env: Environment variables, by default those of this process.
    """

    def __init__(self, module: str, *arguments: object, env: Mapping[str, str] | None = None):
        self._command = [f"benchmarks.{module}", *map(str, arguments)]
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", *self._command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip

    def answer(self) -> str:
        """Returns the next line that the process prints.

        Raises:
          SystemExit: If the process ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise SystemExit(f"{' '.join(self._command)} ended with status {status}.")
        return line

    def ask(self, line: str = "") -> str:
        """Sends a line and returns the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.answer()

    def times(self, line: str = "") -> list[float]:
        """Sends a line and returns the answer as a list of numbers."""
        return [float(word) for word in self.ask(line).split()]

    def end(self) -> None:
        """Closes the input of the process and waits for its exit."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
