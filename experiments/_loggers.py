"""Loggers that write the history of each run of a training to TensorBoard or Weights & Biases.

Both loggers are called with each entry of the history during training, such as ``{"epoch": 3,
"loss": [0.6, 0.5], "valid_ndcg@20": [0.3, 0.4], "seconds": 1.2}``, where a list has one number per
run. Their packages are imported when a logger is created.
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


class TensorBoard(AbstractContextManager[Callable[[Entry], None]]):
    """Logger to TensorBoard event files: one folder per run, so that their curves share a chart.

    Numbers that are common to all runs, such as the seconds, are logged with the first run. An "@"
    in a name is replaced by "_", because TensorBoard does not allow it. A training that resumes
    from a checkpoint logs its earlier entries again, to a new file.

    Args:
      folder: Folder for ``run-0``, ``run-1``, …; the argument of ``tensorboard --logdir``.

    Raises:
      ValueError: If the package tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self._package = _package("tensorboard")
        self._folder = Path(folder)
        self._writers: dict[int, Any] = {}

    def __call__(self, entry: Entry) -> None:
        """Logs the numbers of one entry."""
        for name, run, number in _numbers(entry):
            if run not in self._writers:
                self._writers[run] = self._package.SummaryWriter(str(self._folder / f"run-{run}"))
            self._writers[run].add_scalar(name, number, global_step=int(entry["epoch"]))
        for writer in self._writers.values():
            writer.flush()

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


class WandB(AbstractContextManager[Callable[[Entry], None]]):
    """Logger to a Weights & Biases run, with series ``loss/run-0``, ``loss/run-1``, … by epoch.

    A training with a single run also logs ``loss/run-0``, so that trainings can be compared.

    Args:
      options: Arguments of ``wandb.init``, for instance ``project="crl_jax"``, ``name="bpr"``,
        ``config={...}``, ``mode="offline"``.

    Raises:
      ValueError: If the package wandb is not installed, or refuses to start a run.
    """

    def __init__(self, **options: Any):
        wandb = _package("wandb")
        try:
            self._run = wandb.init(**options)
        except wandb.errors.Error as error:
            raise ValueError(f"wandb cannot start a run: {error}") from None
        # The step of wandb cannot decrease, but epochs do: a search and the final training each
        # begin at 1.
        self._run.define_metric("epoch")
        self._run.define_metric("*", step_metric="epoch")

    def __call__(self, entry: Entry) -> None:
        """Logs the numbers of one entry."""
        numbers = {
            name if name in _SHARED_BY_RUNS else f"{name}/run-{run}": number
            for name, run, number in _numbers(entry)
        }
        self._run.log({"epoch": int(entry["epoch"]), **numbers})

    def __exit__(self, *_: object) -> None:
        self._run.finish()


_SHARED_BY_RUNS = ("seconds",)


def _numbers(entry: Entry) -> Iterator[tuple[str, int, float]]:
    """Yields name, run and value of all numbers of an entry; names are prefixed by ``phase``."""
    phase = f"{entry['phase']}/" if "phase" in entry else ""
    for name, value in entry.items():
        if name in ("epoch", "phase"):
            continue
        if name in _SHARED_BY_RUNS:
            yield name, 0, float(value)
            continue
        array = np.asarray(value, np.float64)
        if array.ndim == 1:  # outputs of probes may have more than one number per run
            for run, number in enumerate(array.tolist()):
                yield phase + name, run, number


_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}
"""Package of each logger, which an extra with the name of the logger installs."""


def check_installed(name: str) -> None:
    """Raises ``ValueError`` if the package of the logger that ``--log`` names is not installed."""
    if name in _PACKAGES:
        _package(name)


def _package(name: str) -> ModuleType:
    package = _PACKAGES[name]
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ValueError(
            f"Logging to it needs the package {package}: pip install 'crl_jax[{name}]'."
        ) from None


def open_logger(
    name: str, folder: Path, config: Mapping[str, Any]
) -> AbstractContextManager[Callable[[Entry], None]]:
    """Returns the logger that ``--log`` names, for a run in ``folder``; a no-op for ``none``.

    Raises:
      ValueError: If its package is not installed.
    """
    match name:
        case "tensorboard":
            return TensorBoard(folder / "tensorboard")
        case "wandb":
            return WandB(project="crl_jax", name=folder.name, dir=folder, config=dict(config))
    return nullcontext(lambda entry: None)
