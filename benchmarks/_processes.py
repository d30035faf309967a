"""Separate processes for contestants, and the memory of a process."""

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Worker:
    """Process that builds a contestant and calls it on request.

    Args:
      make: Function that returns a first result, and the function to call.
      *args: Arguments of ``make``.
      env: Additional environment variables of the process.
      cores: Number of processor cores of the process, by default all.

    Attributes:
      first: The first result, available when the process is ready.
    """

    def __init__(
        self, make: Callable[..., tuple[Any, Any]], *args: Any,
        env: Mapping[str, str] | None = None, cores: int | None = None,
    ):  # fmt: skip
        context = multiprocessing.get_context("spawn")
        self._pipe, pipe = context.Pipe()
        self._process = context.Process(target=_serve, args=(pipe, make, args), daemon=True)
        with _process_settings(env or {}, cores):
            self._process.start()
        pipe.close()
        self.first = self._receive()

    def __call__(self, *args: Any) -> Any:
        """Calls the contestant and returns its result."""
        self._pipe.send(args)
        return self._receive()

    def end(self) -> None:
        """Ends the process."""
        self._pipe.close()
        self._process.join()

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            raise SystemExit(f"a process ended with status {self._process.exitcode}.") from None


def _serve(pipe: Any, make: Callable[..., tuple[Any, Any]], args: tuple[Any, ...]) -> None:
    warnings.simplefilter("ignore")
    first, call = make(*args)
    pipe.send(first)
    try:
        while True:
            pipe.send(call(*pipe.recv()))
    except EOFError:
        return


@contextmanager
def _process_settings(env: Mapping[str, str], cores: int | None) -> Iterator[None]:
    """Sets the environment and the usable cores that a new process inherits."""
    saved_environment = dict(os.environ)
    usable_cores = os.sched_getaffinity(0) if cores else set()
    os.environ |= env
    if cores:
        os.sched_setaffinity(0, sorted(usable_cores)[:cores])
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= saved_environment
        if cores:
            os.sched_setaffinity(0, usable_cores)


def in_process(
    function: Callable[..., Any], *args: Any, env: Mapping[str, str] | None = None
) -> Any:
    """Returns the result of a function that runs in a separate process."""
    worker = Worker(_call_once, function, args, env=env)
    worker.end()
    return worker.first


def _call_once(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, None]:
    return function(*args), None


def memory_mb(field: str = "VmHWM") -> float:
    """Returns the peak memory (``VmHWM``) or resident memory (``VmRSS``) of this process.

    ``getrusage`` would include the parent's memory at the time of the fork.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1.024e-3
    raise RuntimeError(f"/proc/self/status has no {field}")


def growth_mb(call: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the growth of peak memory during a call over the memory before it, and the value."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = memory_mb("VmRSS")
    value = call()
    return memory_mb() - before, value
