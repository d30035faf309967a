"""Outcomes of trainings on images on disk, so that tables share them and commands can resume."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from crl_jax import __version__

from .._locks import hold
from .._rundir import write_json
from .._schema import to_json
from .._study import Evaluation, OnEntry, Run, learn
from ..images._config import Config
from ..images._problem import Problem
from ..images._study import Images
from .outcomes import Outcome

# Format version of a stored outcome; other versions are not read.
_FORM = 1
_SECTIONS = ("views", "method", "objective", "encoding", "training", "protocol")


def run_once(
    label: str, config: Config, problem: Problem, folder: Path, on_entry: OnEntry
) -> Outcome:
    """Trains and evaluates all seeds of a configuration, or reads its stored outcome.

    Args:
      label: Name of the outcome.
      config: The configuration, with all defaults.
      problem: Its images.
      folder: Folder of the stored outcomes, keyed by all that they depend on. A training that was
        killed resumes from its checkpoint; if another process is running the same training, the
        function waits for it.
      on_entry: Called with each entry of the history of a run.
    """
    path = path_of(config, problem, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with hold(path.with_suffix(".lock")):
        if path.exists():
            # The same training may appear in several tables under several names.
            return Outcome(**{**json.loads(path.read_text()), "label": label})
        history: list[dict[str, Any]] = []

        def see(run: Run, entry: dict[str, Any]) -> None:
            history.append({"run": run.index, **entry})
            on_entry(run, entry)

        checkpoints = path.with_suffix("")
        checkpoints.mkdir(exist_ok=True)
        study, first, evaluations = Images(), config.protocol.seed, []
        for index in range(config.protocol.seeds):
            learned = learn(study, config, problem, {}, index, checkpoints, see)
            found = study.evaluate(config, problem, learned, first + index, lambda _: None)
            evaluations.append(found)
        right = np.mean([of.cases for of in evaluations], axis=0)
        outcome = Outcome(label, _with_seconds(evaluations, history), right.tolist(), history, {})
        write_json(path, dataclasses.asdict(outcome))
        for left in checkpoints.iterdir():
            left.unlink()
        checkpoints.rmdir()
        return outcome


def _with_seconds(
    evaluations: list[Evaluation], history: list[dict[str, Any]]
) -> list[dict[str, float]]:
    """Returns the metrics of each seed, with the seconds per epoch after the first report."""
    found = []
    for index, of in enumerate(evaluations):
        own = [entry for entry in history if entry["run"] == index]
        first, last = own[0], own[-1]
        epochs = last["epoch"] - first["epoch"]
        each = (last["seconds"] - first["seconds"]) / epochs if epochs else float("nan")
        found.append({**of.metrics, "seconds_per_epoch": each})
    return found


def path_of(config: Config, problem: Problem, folder: Path) -> Path:
    """Returns the file of an outcome, keyed by all that it depends on."""
    task = Images().task(config, problem, "final", {})
    stored, images = to_json(config), (problem.train, problem.test)
    knows = [
        __version__, _FORM, {name: stored[name] for name in _SECTIONS},
        str(jax.eval_shape(task.init, jax.random.key(0))),
        *(hashlib.sha256(of.images.tobytes() + of.labels.tobytes()).hexdigest() for of in images),
    ]  # fmt: skip
    name = hashlib.sha256(json.dumps(knows, sort_keys=True).encode()).hexdigest()[:16]
    return folder / f"images-{name}.json"
