"""Progress display: bars in a terminal, plain lines elsewhere."""

import datetime
import sys
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

# Minimum seconds between two lines, and the seconds of waiting after which a spinner is shown.
_LINE_INTERVAL, _SPINNER_DELAY = 5.0, 2.0
# Number of history entries over which the speed is averaged.
_SPEED_WINDOW = 50


class Display(AbstractContextManager["Display"]):
    """Displays stages, which only have a duration, and trainings, which also have progress.

    A context manager; the last output remains visible after exit.
    """

    @abstractmethod
    def stage(self, description: str) -> None:
        """Displays the stage that begins."""

    @abstractmethod
    def advance(self, name: str, done: int, total: int, status: str) -> None:
        """Updates the progress of the training ``name``, timed from the preceding stage."""


def display(console: Console) -> Display:
    """Returns bars if the console can overwrite its output, else lines."""
    animated = console.is_terminal and not console.is_dumb_terminal
    return Bars(console) if animated else Lines(console)


class Bars(Display):
    """Display with a bar for each training, and a spinner for slow stages below the bars."""

    def __init__(self, console: Console):
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10),  # the whole line fits 80 columns
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[status]}", markup=False),
            TimeElapsedColumn(),
            console=console,
        )
        self._spinner = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=console,
        )
        self._live = Live(
            Group(self._bars, self._spinner),
            console=console,
            refresh_per_second=8,
            redirect_stderr=sys.stderr.isatty(),  # a redirected stderr keeps its output
        )
        self._tasks: dict[str, TaskID] = {}
        self._last = self._began = time.monotonic()

    def __enter__(self) -> "Bars":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_bars()
        self._live.stop()

    def stage(self, description: str) -> None:
        """See :meth:`Display.stage`."""
        self._stop_bars()
        self._spin(description)
        self._last = self._began = time.monotonic()

    def advance(self, name: str, done: int, total: int, status: str) -> None:
        """See :meth:`Display.advance`."""
        if name not in self._tasks:
            task = self._bars.add_task(name, total=total, status=status)
            self._bars.tasks[-1].start_time = self._began
            self._tasks[name] = task
        self._bars.update(self._tasks[name], completed=done, status=status)
        now = time.monotonic()
        is_slow = done < total and now - self._last > _SPINNER_DELAY
        self._last = now
        self._spin(f"{name.strip()}: epoch {done + 1}" if is_slow else None)

    def _spin(self, description: str | None) -> None:
        for task in self._spinner.task_ids:
            self._spinner.remove_task(task)
        if description is not None:
            self._spinner.add_task(description, total=None)

    def _stop_bars(self) -> None:
        self._spin(None)
        for task in self._bars.tasks:
            if task.stop_time is None:  # after early stopping, a bar is incomplete
                self._bars.stop_task(task.id)


def make_read_callback(progress: Display) -> Callable[[Any, float], None]:
    """Returns a callback that displays the progress of reading files, if reading is slow.

    Returns:
      A function of the path and the fraction of the file that has been read.
    """
    began = time.monotonic()

    def on_read(path: Any, fraction: float) -> None:
        if time.monotonic() - began > _SPINNER_DELAY:
            progress.advance(f"reading {Path(path).name}", round(100 * fraction), 100, "%")

    return on_read


class Lines(Display):
    """Display with a line for each stage, and one every few seconds of a training.

    Args:
      console: Output console.
      clock: Returns monotonic seconds with an arbitrary origin.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self._console, self._clock = console, clock
        self._pending: str | None = None
        self._name: str | None = None
        self._began = clock()
        self._printed = -np.inf

    def __exit__(self, *_: object) -> None:
        self._flush()

    def stage(self, description: str) -> None:
        """See :meth:`Display.stage`."""
        self._flush()
        self._began = self._clock()
        self._print(description)

    def advance(self, name: str, done: int, total: int, status: str) -> None:
        """See :meth:`Display.advance`."""
        if name != self._name:
            self._flush()
            self._name, self._printed = name, -np.inf
        now = self._clock()
        elapsed = datetime.timedelta(seconds=round(now - self._began))
        self._pending = f"{name.strip()} {done}/{total}  {status}  {elapsed}"
        if now - self._printed >= _LINE_INTERVAL:
            self._flush()
            self._printed = now

    def _flush(self) -> None:
        if self._pending is not None:
            self._print(self._pending)
        self._pending = None

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class TrainingStatus:
    """Status line with the loss, the scores and the speed of a training.

    With several runs, it reports the mean loss and the best scores.

    Args:
      metrics: Names of the scores, shown if an entry has them.
      per_epoch: Number of training units per epoch of one run, such as triplets, by phase.
      unit: Plural noun for the training units.
    """

    def __init__(self, metrics: tuple[str, ...], per_epoch: dict[str, int], unit: str):
        self._metrics, self._per_epoch, self._unit = metrics, per_epoch, unit
        self._recent: dict[tuple[str, int], deque[tuple[int, float]]] = {}

    def format(self, phase: str, entry: dict[str, Any], training: int = 0) -> str:
        """Formats an entry of the history; entries of a training must be passed in order."""
        losses = next(value for name, value in entry.items() if name.endswith("loss"))
        parts = [f"loss {np.nanmean(losses):.4f}"]
        for metric in self._metrics:
            if scores := entry.get(metric):
                name = metric.removeprefix("valid_").removeprefix("train_").upper()
                parts.append(f"{name} {np.nanmax(scores):.4f}")
        now = entry["epoch"], entry["seconds"]
        recent = self._recent.setdefault((phase, training), deque(maxlen=_SPEED_WINDOW))
        # The time of the first entry includes compilation: its speed is a lower bound.
        (epoch, seconds), bound = (recent[0], "") if recent else ((0, 0.0), "≥ ")
        recent.append(now)
        if now[1] > seconds:
            done = self._per_epoch[phase] * len(losses) * (now[0] - epoch)
            parts.append(f"{bound}{_abbreviate(done / (now[1] - seconds))} {self._unit}/s")
        return "  ".join(parts)


def _abbreviate(number: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{suffix}"
    return f"{number:.0f}"
