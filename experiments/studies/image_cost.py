"""Time estimates of trainings on images, from measurements of some steps."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from .._progress import display
from .._study import Run
from ..images._config import Config
from ..images._problem import Problem
from ..images._study import Images
from .cost import show
from .kept_images import path_of

# The minimum over epochs: estimates of days should not include the time of other processes.
_STEPS, _EPOCHS = 2, 4


@dataclass(frozen=True)
class Training:
    """Trainings of one configuration, with all its seeds.

    Attributes:
      of: Name of the group of rows.
      label: The row.
      config: The configuration, with all defaults.
      problem: Its images.
    """

    of: str
    label: str
    config: Config
    problem: Problem


def announce(trainings: Sequence[Training], title: str, folder: Path, console: Console) -> None:
    """Prints a lower bound on the time of each training and of all; stored outcomes take none.

    Only steps and compilation are included, not reports and evaluation.

    Args:
      trainings: The trainings.
      title: Title of the table.
      folder: Folder of the stored outcomes.
      console: Output console.
    """
    found = {}
    with display(console) as screen:
        for each in trainings:
            screen.stage(f"timing {each.of}, {each.label}")
            is_kept = path_of(each.config, each.problem, folder).exists()
            found[each.of, each.label] = 0.0 if is_kept else _seconds(each.config, each.problem)
    show(console, f"{title}: time at least", ("dataset", "method"), found)


def _seconds(config: Config, problem: Problem) -> float:
    options = config.training
    start, step = measure(config, problem)
    steps = options.epochs * -(-len(problem.train) // options.batch_size)
    return start + config.protocol.seeds * steps * step


def measure(config: Config, problem: Problem) -> tuple[float, float]:
    """Returns the seconds until the first epoch, which is mostly compilation, and per step."""
    part = problem.train.take(slice(_STEPS * config.training.batch_size))
    short = replace(config.training, epochs=_EPOCHS, eval_every=1)
    entries: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        Images().fit(
            replace(config, training=short), replace(problem, train=part),
            Run("final", 0, 1, config.protocol.seed, {}), Path(folder), entries.append,
        )  # fmt: skip
    first, *others = np.diff([entry["seconds"] for entry in entries], prepend=0)
    epoch = float(min(others))
    return max(0.0, float(first) - epoch), epoch / -(-len(part) // config.training.batch_size)
