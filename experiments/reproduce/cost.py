"""Time estimates of trainings in the minibatch setting, from measurements of some steps."""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from crl_jax import metrics, models, train

from .._rundir import write_json
from .methods import Method, Problem
from .store import ranking_path
from .training import fit_minibatch

# Measurement sizes: number of examples (at least two batches), number of epochs and number of users
# per validation. An epoch shorter than ``_SECONDS`` is measured again on more examples, because
# history has a resolution of milliseconds and the overhead of an epoch would dominate.
_EXAMPLES, _EPOCHS, _USERS = 8192, 6, 1024
_SECONDS, _MORE = 0.2, 8


@dataclass(frozen=True)
class Speed:
    """Measured times.

    Attributes:
      start: Seconds until the first epoch begins, which is mostly compilation.
      step: Seconds per step of one run, with as many runs in parallel as in the search.
      validation: Seconds to score one run for all users.
      cpu_step: Processor seconds per step of one run, which other processes hardly prolong.
    """

    start: float
    step: float
    validation: float
    cpu_step: float = math.nan


def training_seconds(
    method: Method, problem: Problem, epochs: int, seeds: int, folder: Path
) -> float:
    """Returns an upper bound on the time of a search and its final trainings.

    Args:
      method: The method.
      problem: The data.
      epochs: Number of epochs of each training.
      seeds: Number of final trainings.
      folder: Folder of stored measurements.
    """
    n, config, speed = len(problem.train), method.minibatch, measure_speed(method, problem, folder)
    steps = [-(-size // config.batch_size) for size in (round((1 - config.valid) * n), n)]
    search = method.points * epochs * (steps[0] * speed.step + speed.validation / config.eval_every)
    final = seeds * (epochs * steps[1] * speed.step + speed.validation)
    return 2 * speed.start + search + final


def measure_speed(method: Method, problem: Problem, folder: Path) -> Speed:
    """Measures the speed of a method, or reads the measurement of an earlier command."""
    path = ranking_path(method, problem, "minibatch", (), 0, folder)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, dataclasses.asdict(_measure(method, problem, folder)))
    return Speed(**json.loads(path.read_text()))


def _measure(method: Method, problem: Problem, folder: Path) -> Speed:
    """Measures the speed on as many examples as needed for a reliable epoch time, or on all."""
    examples = max(_EXAMPLES, 2 * method.minibatch.batch_size)
    start, epoch, step, cpu_step = _train(method, problem, examples)
    while epoch < _SECONDS and examples < len(problem.train):
        examples *= _MORE
        start, epoch, step, cpu_step = _train(method, problem, examples)
    return Speed(start, step, _validation(method, problem, folder), cpu_step)


def _train(method: Method, problem: Problem, examples: int) -> tuple[float, float, float, float]:
    """Returns the seconds of the start, of an epoch and of a step of one run, on part of the log.

    The last value is the processor time of a step.

    The encoder uses the whole graph. Every epoch includes an EM round of the confidence, if any.
    """
    config = method.minibatch
    chosen = np.random.default_rng(0).permutation(len(problem.train)) < examples
    part = dataclasses.replace(problem, train=problem.train.select(chosen))
    if (estimated := method.confidence) is not None:  # so that the time is an upper bound
        method = dataclasses.replace(
            method, confidence=lambda problem: dataclasses.replace(estimated(problem), every=1)
        )
    runs = train.grid(method.axes)
    if not config.at_once:
        runs = {name: array[:1] for name, array in runs.items()}
    seeds = runs.pop("seeds")
    cpu: list[float] = []
    fitted = fit_minibatch(
        method, part, graph=problem.train, epochs=_EPOCHS, seeds=seeds, sweep=runs,
        hooks=[train.Progress(lambda _: cpu.append(time.process_time()))],
    )  # fmt: skip
    (start, epoch), cpu_epoch = start_and_epoch(fitted.history), float(np.diff(cpu).min())
    steps = -(-len(part.train) // config.batch_size) * len(seeds)
    return start, epoch, epoch / steps, cpu_epoch / steps


def start_and_epoch(history: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Returns the seconds until the first epoch, which is mostly compilation, and of an epoch.

    The latter is the least: estimates of days should not include the time of other processes.
    """
    first, *others = np.diff([entry["seconds"] for entry in history], prepend=0)
    epoch = float(min(others))
    return max(0.0, float(first) - epoch), epoch


def _validation(method: Method, problem: Problem, folder: Path) -> float:
    """Returns the scoring time, which is shared by all methods of the same width."""
    shape = [problem.train.n_users, problem.train.n_items, method.recipe.dim]
    name = hashlib.sha256(json.dumps([problem.test.fingerprint(), shape]).encode()).hexdigest()[:16]
    path = folder / f"scoring-{name}.json"
    if not path.exists():
        write_json(path, {"seconds": _score(problem, method.recipe.dim)})
    return json.loads(path.read_text())["seconds"]


def _score(problem: Problem, dim: int) -> float:
    users = np.unique(problem.test.users)
    sample = users[:: -(-len(users) // _USERS)]
    layout = metrics.eval_layout(
        problem.train, problem.test.select(np.isin(problem.test.users, sample))
    )
    keys = jax.random.split(jax.random.key(0))
    sizes = problem.train.n_users, problem.train.n_items
    tables = models.Tables(*(jax.random.normal(k, (n, dim)) for k, n in zip(keys, sizes)))

    def score() -> float:
        began = time.monotonic()
        metrics.evaluate(models.inner_scores, tables, layout, ks=(20,), auc=False)
        return time.monotonic() - began

    score()  # compiles
    return score() * len(users) / len(sample)
