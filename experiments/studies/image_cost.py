"""How long trainings on images will take here, measured on some of their steps."""

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

# The quickest of some epochs is taken: what else the machine does is not to be counted for days.
_STEPS, _EPOCHS = 2, 4


@dataclass(frozen=True)
class Training:
    """Trainings of one configuration, with all its seeds.

    Attributes:
      of: What sets its group of rows apart.
      label: The row.
      config: The configuration, with all defaults.
      problem: Its images.
    """

    of: str
    label: str
    config: Config
    problem: Problem


def announce(trainings: Sequence[Training], title: str, folder: Path, console: Console) -> None:
    """Prints how long each will take at least, and all; what is kept takes no time.

    Steps are counted, and compilation; reports and judging take more.

    Args:
      trainings: The trainings.
      title: Of the table.
      folder: Where outcomes are kept.
      console: Where it prints.
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
    """Seconds until the first epoch begins, which is mostly compilation, and those of a step."""
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
