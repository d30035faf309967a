"""What ``python -m experiments.images`` does, see :mod:`experiments.images`."""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .. import _rundir as rundir
from .._command import run
from .._loggers import Entry, check_installed, open_logger
from .._mesh import check_devices
from .._program import program
from .._progress import Display, TrainingStatus, display
from .._recipe import take_recipe
from .._registry import filled, settle
from .._schema import to_json
from .._screen import output, plain
from .._signals import advise
from . import _pipeline as pipeline
from . import _report as report
from ._config import FLAGS, SCHEMA, Config, anchor
from ._options import OutputOptions
from ._problem import Problem, load_problem
from ._saved import save_encoder
from ._views import settle_views
from .encoders import ENCODERS
from .losses import LOSSES
from .methods import METHODS
from .recipes import RECIPES

VIEWS, EMBEDDING, POSTERIOR = "views.png", "embedding.png", "posterior.png"
_PICTURED = 1000
"""Test images in the picture of the embedding."""
_DESCRIPTION = """Learn representations of images without labels, and judge them by labels: by a
linear classifier on them, and by the vote of the nearest images.

  {program}                                   scikit-learn's digits, SimCLR
  {program} --data FOLDER --loss bayesian     your own images
  {program} --recipe NAME [flags]             a published configuration:
      {recipes}
  {program} embed --run DIR --data FOLDER     features of images
      (embed --help for more)
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    given = sys.argv[1:] if arguments is None else arguments

    def command() -> None:
        if given[:1] == ["embed"]:
            from ._embed import main as embed

            embed(given[1:])
        else:
            _train(*_configure(given))

    return run(command, FLAGS)


def _configure(arguments: list[str]) -> tuple[Config, Path, bool]:
    """The configuration, the run directory, and whether a run there goes on."""
    default, arguments = take_recipe(arguments, RECIPES, Config())
    recipes = "\n      ".join(RECIPES)
    config = SCHEMA.parse(
        arguments, default, _DESCRIPTION.format(program=program("images"), recipes=recipes)
    )
    resume = config.output.resume
    if resume is None:
        objective = f"{config.method.method}-{config.objective.loss}"
        name = f"images-{objective}-{time.strftime('%Y%m%d-%H%M%S')}"
        return config, config.output.out or Path("runs") / name, False
    now = config.output
    if config != Config(output=OutputOptions(resume=resume, device=now.device, mesh=now.mesh)):
        raise ValueError(
            "--resume goes on with the run's own configuration; leave out other flags."
        )
    config = rundir.open_run(resume, SCHEMA)
    return (
        replace(config, output=replace(config.output, mesh=now.mesh or config.output.mesh)),
        resume,
        True,
    )


def _train(config: Config, folder: Path, resumed: bool) -> None:
    console = output()
    check_devices(config.output.device, config.output.mesh, config.training.batch_size)
    advice = f": go on with it by --resume {folder}, or name another directory."
    if not resumed and folder.exists():
        with rundir.claim(folder, advice):  # let go at once: whether it can be had, before a read
            pass
    _settle(config)  # what needs no images
    check_installed(config.output.log)
    with display(console) as shown:
        problem = load_problem(config.source, shown.stage)
    config = settle_all(config, problem)
    with rundir.occupy(folder) if resumed else rundir.claim(folder, advice):
        advise(partial(rundir.going_on, folder, "images"))
        if resumed and (folder / rundir.METRICS).exists():
            console.print(f"The run in {folder} is finished; its results are in {rundir.METRICS}.")
            return
        if not resumed:
            rundir.create(folder, config)
        described = _in_words(config)
        report.describe(console, config, problem, described)
        log = open_logger(config.output.log, folder, to_json(config))
        with display(console) as shown, log as on_entry:
            outcome = _Work(config, problem, folder, described, on_entry).carry_out(shown)
    n_search = config.protocol.search_seeds if config.protocol.sweep else 0
    report.conclude(console, outcome, n_search)
    console.print(f"results in {plain(folder)}")


def _settle(config: Config) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The values of the flags of method, loss and encoder.

    Raises:
      ValueError: If one was given, or swept, that is not taken.
    """
    swept = tuple(SCHEMA.sweep(config.protocol.sweep, config))
    method = METHODS[config.method.method]
    if not method.takes_temperature and (
        "temperature" in swept or config.training.temperature != Config().training.temperature
    ):
        raise ValueError(f"--method {config.method.method} has no --temperature.")
    of_loss = settle("loss", config.objective, LOSSES, swept)
    measured = of_loss.get("alpha_from", "given") != "given"
    if measured and ("alpha" in swept or vars(config.objective)["alpha"] is not None):
        raise ValueError(f"--alpha-from {of_loss['alpha_from']} measures what --alpha would say.")
    return (
        settle("method", config.method, METHODS, swept),
        of_loss,
        settle("encoder", config.encoding, ENCODERS, swept),
    )


def settle_all(config: Config, problem: Problem) -> Config:
    """The configuration with all defaults, those that depend on the images too.

    Raises:
      ValueError: If flags do not suit the images.
    """
    swept = tuple(SCHEMA.sweep(config.protocol.sweep, config))
    of_method, of_loss, of_encoder = _settle(config)
    if of_loss.get("alpha_from", "given") != "given":
        del of_loss["alpha"]
    of_loss = {
        name: 1 / len(problem.train.classes) if value is None and name == "tau_plus" else value
        for name, value in of_loss.items()
    }
    config = replace(
        anchor(config),
        views=settle_views(config.views, problem.train),
        method=filled(config.method, of_method, swept),
        objective=filled(config.objective, of_loss, swept),
        encoding=filled(config.encoding, of_encoder, swept),
    )
    if len(problem.learn) < config.training.batch_size:
        raise ValueError(
            f"--batch-size must be at most the {len(problem.learn)} images that the search learns "
            f"from, got {config.training.batch_size}."
        )
    axes = SCHEMA.sweep(config.protocol.sweep, config)
    pipeline.trace_step(config, problem.train, {name: v[0] for name, v in axes.items()})
    return config


def _in_words(config: Config) -> str:
    """What is trained."""
    method, swept = METHODS[config.method.method], SCHEMA.sweep(config.protocol.sweep, config)
    said = [config.method.method]
    if method.takes_loss:
        own = settle("loss", config.objective, LOSSES, tuple(swept))
        if own.get("alpha_from", "given") != "given":
            del own["alpha"]  # which is measured
        shown = (
            f"{name}={value if isinstance(value, str) else format(value, 'g')}"
            for name, value in own.items()
            if name not in swept and value is not None
        )
        said.append(" ".join([config.objective.loss, *shown]))
    if method.takes_temperature and "temperature" not in swept:
        said.append(f"temperature={config.training.temperature:g}")
    width = settle("encoder", config.encoding, ENCODERS).get("width")
    width = f" of width {width}" if width else ""
    said.append(f"{config.encoding.encoder}{width}")
    return ", ".join(said)


class _Work:
    """A run in its directory: what is trained, judged and written there, and in which order."""

    def __init__(
        self,
        config: Config,
        problem: Problem,
        folder: Path,
        described: str,
        on_entry: Callable[[Entry], None],
    ):
        self._config, self._problem, self._folder = config, problem, folder
        self._described, self._on_entry = described, on_entry
        self._history: list[dict[str, Any]] = []
        n = {"search": len(problem.learn), "final": len(problem.train)}
        self._status = TrainingStatus(("valid_knn", "train_knn"), n, "images")

    def carry_out(self, shown: Display) -> pipeline.Outcome:
        """Trains and judges, and writes what a run directory holds besides its configuration."""
        config, problem, folder = self._config, self._problem, self._folder
        from . import _plots as plots  # Matplotlib takes long to import

        seed, checkpoints = config.protocol.seed, folder / rundir.CHECKPOINT
        checkpoints.mkdir(exist_ok=True)
        rundir.write_history(folder / rundir.HISTORY, self._history)
        shown.stage("drawing views")
        task = pipeline.task_of(config, problem.train, self._first_point())
        plots.draw_views(folder / VIEWS, task.augment, problem.train, seed)
        on_entry = partial(self._on_entry_of, shown)
        shown.stage("compiling and first epoch")
        points, choice = pipeline.search(config, problem, checkpoints, on_entry)
        if config.protocol.sweep:
            rundir.write_sweep(folder / rundir.SWEEP, points, choice, "valid_knn")
        per_seed, first, calibration = [], None, None
        for index in range(config.protocol.seeds):
            shown.stage("compiling and first epoch")
            point = points[choice.point]
            learned = pipeline.learn(config, problem, point, index, checkpoints, on_entry)
            judged = pipeline.judged(config, problem, learned, seed + index, shown.stage)
            per_seed.append(judged.metrics)
            rundir.write_json(folder / rundir.SEEDS, per_seed)
            if first is None:
                first, calibration = learned, judged.calibration
                save_encoder(folder, learned)
        assert first is not None
        shown.stage("drawing")
        plots.draw_curves(folder / rundir.CURVES, self._history, self._described)
        if calibration is not None:
            plots.draw_posterior(folder / POSTERIOR, calibration, self._described)
        pictured = problem.test.take(slice(_PICTURED))
        of_test = np.asarray(first.features(pictured.images))
        if np.isfinite(of_test).all():
            title = f"{self._described}: test images by t-SNE"
            plots.draw_embedding(folder / EMBEDDING, of_test, pictured, title, seed)
        outcome = pipeline.Outcome(points, choice, per_seed, first)
        # Last: where it stands, the run is complete.
        rundir.write_json(folder / rundir.METRICS, pipeline.summary(outcome, self._history))
        return outcome

    def _first_point(self) -> dict[str, float]:
        axes = SCHEMA.sweep(self._config.protocol.sweep, self._config)
        return {name: values[0] for name, values in axes.items()}

    def _on_entry_of(self, shown: Display, of: pipeline.Run, entry: dict[str, Any]) -> None:
        numbers = " ".join(f"{name}={value:g}" for name, value in of.numbers.items())
        label = f"{of.phase} {numbers} seed {of.seed}".replace("  ", " ")
        # A run is one of its own here: its lists have one number.
        flat = {name: v[0] if isinstance(v, list) else v for name, v in entry.items()}
        line = {"phase": of.phase, "run": of.index, "label": label, **flat}
        self._history.append(line)
        rundir.append_history(self._folder / rundir.HISTORY, line)
        named = {"phase": of.name, **{n: v for n, v in entry.items() if n != "phase"}}
        self._on_entry(named)
        status = self._status.of(of.phase, entry, of.index)
        shown.advance(of.name, entry["epoch"], self._config.training.epochs, status)
