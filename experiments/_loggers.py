"""The history of a training in TensorBoard or Weights & Biases, each of its runs by itself.

Both loggers are called with one entry of the history after another, as a training makes them,
such as ``{"epoch": 3, "loss": [0.6, 0.5], "valid_ndcg@20": [0.3, 0.4], "seconds": 1.2}``, where a
list has a number for each run. Their packages are imported when a logger is made.
"""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

Entry = Mapping[str, Any]


class TensorBoard:
    """Event files for TensorBoard: a folder for each run, so that their curves share a chart.

    Numbers of all runs, such as the seconds, stand beside the first run's. An "@" in a name becomes
    "_", which TensorBoard's names are made of. Training that goes on
    from a checkpoint gives its earlier entries again: they are written again, to a new file.

    Args:
      folder: Where ``run-0``, ``run-1``, … are made. ``tensorboard --logdir`` shows them.

    Raises:
      ValueError: If the package tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self._package = _package("tensorboardX", "tensorboard")
        self._folder = Path(folder)
        self._writers: dict[int, Any] = {}

    def __call__(self, entry: Entry) -> None:
        """Writes the numbers of one entry."""
        for name, run, number in _numbers(entry):
            if run not in self._writers:
                self._writers[run] = self._package.SummaryWriter(str(self._folder / f"run-{run}"))
            self._writers[run].add_scalar(name, number, global_step=int(entry["epoch"]))
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Completes the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WandB:
    """A run of Weights & Biases: ``loss/run-0``, ``loss/run-1``, …, over the epochs.

    Where a training consists of a single run, its numbers are called ``loss/run-0`` all the same,
    so that trainings can be compared.

    Args:
      options: What ``wandb.init`` takes, for instance ``project="crl_jax"``, ``name="bpr"``,
        ``config={...}``, ``mode="offline"``.

    Raises:
      ValueError: If the package wandb is not installed.
    """

    def __init__(self, **options: Any):
        self._run = _package("wandb", "wandb").init(**options)
        # Its own count of steps cannot go back, and epochs do: a search and the last training
        # each begin at 1.
        self._run.define_metric("epoch")
        self._run.define_metric("*", step_metric="epoch")

    def __call__(self, entry: Entry) -> None:
        """Logs the numbers of one entry."""
        numbers = {
            name if name in _OF_ALL_RUNS else f"{name}/run-{run}": number
            for name, run, number in _numbers(entry)
        }
        self._run.log({"epoch": int(entry["epoch"]), **numbers})

    def close(self) -> None:
        """Ends the run; what it logged is complete."""
        self._run.finish()

    def __enter__(self) -> "WandB":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_OF_ALL_RUNS = ("seconds",)


def _numbers(entry: Entry) -> Iterator[tuple[str, int, float]]:
    """Name, run and number of all that an entry has a number of; ``phase`` leads the names."""
    phase = f"{entry['phase']}/" if "phase" in entry else ""
    for name, value in entry.items():
        if name in ("epoch", "phase"):
            continue
        if name in _OF_ALL_RUNS:
            yield name, 0, float(value)
            continue
        array = np.asarray(value, np.float64)
        if array.ndim == 1:  # what a probe gave may be more than a number for each run
            for run, number in enumerate(array.tolist()):
                yield phase + name, run, number


def _package(name: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(
            f"Logging to it needs the package {name}: pip install 'crl_jax[{extra}]'."
        ) from None


def open_logger(
    name: str, folder: Path, config: Mapping[str, Any]
) -> AbstractContextManager[Callable[[Entry], None]]:
    """The logger that ``--log`` names, for a run in ``folder``; one that does nothing for none.

    Raises:
      ValueError: If its package is not installed.
    """
    match name:
        case "tensorboard":
            return TensorBoard(folder / "tensorboard")
        case "wandb":
            return WandB(project="crl_jax", name=folder.name, dir=folder, config=dict(config))
    return nullcontext(lambda entry: None)


def check_installed(name: str) -> None:
    """Raises ``ValueError`` unless there is what the logger that ``--log`` names needs."""
    match name:
        case "tensorboard":
            _package("tensorboardX", "tensorboard")
        case "wandb":
            _package("wandb", "wandb")
