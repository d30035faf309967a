"""Shared command-line interface of the studies, such as ``python -m experiments.images``."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import _rundir as rundir
from ._command import run
from ._loggers import Entry, check_installed, open_logger
from ._mesh import check_devices, mesh_of
from ._program import program
from ._progress import Display, TrainingStatus, display
from ._recipe import take_base
from ._schema import to_json
from ._screen import cell, grid_table, machine, of_seeds, output, plain
from ._signals import advise
from ._study import Outcome, Run, Study, learn, search, summary
from ._study_options import OutputOptions


def main(
    study: Study[Any, Any],
    arguments: list[str] | None,
    others: Mapping[str, Callable[[list[str]], None]],
) -> int:
    """Runs a study's command and returns its exit status, see :func:`experiments._command.run`.

    Args:
      study: The study.
      arguments: Command-line arguments; by default those of the program.
      others: Subcommands by name, which is the first argument.
    """
    given = sys.argv[1:] if arguments is None else arguments

    def command() -> None:
        if given and given[0] in others:
            others[given[0]](given[1:])
        else:
            _train(study, *configure(study, given))

    return run(command, study.schema.flags)


def configure(study: Study[Any, Any], arguments: list[str]) -> tuple[Any, Path, bool]:
    """Returns the configuration, the run directory, and whether its run is resumed."""
    schema = study.schema
    default, arguments = take_base(arguments, study.recipes, schema)
    recipes = "\n      ".join(study.recipes)
    described = study.description.format(program=program(schema.command), recipes=recipes)
    config = schema.parse(arguments, default, described)
    now: OutputOptions = config.output
    if now.resume is None:
        name = f"{schema.command}-{study.run_name(config)}-{time.strftime('%Y%m%d-%H%M%S')}"
        return config, now.out or Path("runs") / name, False
    allowed = OutputOptions(resume=now.resume, device=now.device, mesh=now.mesh)
    if config != replace(schema.kind(), output=allowed):
        raise ValueError(
            "--resume goes on with the run's own configuration; leave out other flags."
        )
    config = rundir.open_run(now.resume, schema)
    output = replace(config.output, mesh=now.mesh or config.output.mesh)
    return replace(config, output=output), now.resume, True


def _train(study: Study[Any, Any], config: Any, folder: Path, resumed: bool) -> None:
    console = output()
    check_devices(config.output.device, config.output.mesh, config.training.batch_size)
    advice = f": go on with it by --resume {folder}, or name another directory."
    if not resumed and folder.exists():
        with rundir.claim(folder, advice):  # released at once: checks it before the data are read
            pass
    study.check(config)
    check_installed(config.output.log)
    with display(console) as shown:
        problem = study.load(config, shown.stage)
    config = study.prepare(config, problem)
    with rundir.occupy(folder) if resumed else rundir.claim(folder, advice):
        advise(partial(rundir.going_on, folder, study.schema.command))
        if resumed and (folder / rundir.METRICS).exists():
            console.print(f"The run in {folder} is finished; its results are in {rundir.METRICS}.")
            return
        if not resumed:
            rundir.create(folder, config, study.schema.command)
        title = study.describe_training(config)
        console.print(f"[bold]{plain(title)}[/] on {machine(mesh_of(config.output.mesh))}")
        for line in study.describe_data(config, problem):
            console.print(line, highlight=False)
        log = open_logger(config.output.log, folder, to_json(config))
        with display(console) as shown, log as on_entry:
            outcome = _Work(study, config, problem, folder, title, on_entry).carry_out(shown)
    _conclude(study, console, config, outcome)
    console.print(f"results in {plain(folder)}")


def _conclude(study: Study[Any, Any], console: Console, config: Any, outcome: Outcome) -> None:
    """Prints the grid of a sweep, if there is one, and the test metrics."""
    if config.protocol.sweep:
        n_seeds = config.protocol.search_seeds
        console.print(grid_table(outcome.points, outcome.choice, n_seeds, study.score))
    per_seed = outcome.per_seed
    table = Table(title=f"Test set{of_seeds(len(per_seed))}")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name in per_seed[0]:
        table.add_row(study.names[name], cell([metrics[name] for metrics in per_seed]))
    console.print(table)


class _Work:
    """Executes a run: trains and evaluates in order, and writes the run directory."""

    def __init__(
        self,
        study: Study[Any, Any],
        config: Any,
        problem: Any,
        folder: Path,
        title: str,
        on_entry: Callable[[Entry], None],
    ):
        self._study, self._config, self._problem, self._folder = study, config, problem, folder
        self._title, self._on_entry = title, on_entry
        self._history: list[dict[str, Any]] = []
        n = {
            f"{phase} {stage}".strip(): study.count(config, problem, phase, stage)
            for phase in ("search", "final")
            for stage in study.stages
        }
        self._status = TrainingStatus(study.scores, n, study.unit)

    def carry_out(self, shown: Display) -> Outcome:
        """Trains and evaluates, and writes all files of the run directory but its configuration."""
        study, config, problem, folder = self._study, self._config, self._problem, self._folder
        from ._study_plots import draw_curves  # imported late: Matplotlib is slow to import

        seed, checkpoints = config.protocol.seed, folder / rundir.CHECKPOINT
        checkpoints.mkdir(exist_ok=True)
        rundir.write_history(folder / rundir.HISTORY, self._history)
        shown.stage("drawing")
        axes = study.schema.axes(config)
        study.draw_first(config, problem, {name: v[0] for name, v in axes.items()}, folder)
        on_entry = partial(self._on_entry_of, shown)
        if axes:
            shown.stage("compiling and first epoch")
        points, choice = search(study, config, problem, checkpoints, on_entry)
        if config.protocol.sweep:
            rundir.write_sweep(folder / rundir.SWEEP, points, choice, study.decided_by(config))
        per_seed, first = [], None
        for index in range(config.protocol.seeds):
            shown.stage("compiling and first epoch")
            point = points[choice.point]
            learned = learn(study, config, problem, point, index, checkpoints, on_entry)
            shown.stage(f"evaluating seed {seed + index}")
            evaluation = study.evaluate(config, problem, learned, seed + index, shown.stage)
            per_seed.append(evaluation.metrics)
            rundir.write_json(folder / rundir.SEEDS, per_seed)
            if first is None:
                first = learned, evaluation
                study.save(learned, folder)
        assert first is not None
        shown.stage("drawing")
        draw_curves(folder / rundir.CURVES, self._history, self._title, study.curves)
        study.draw(config, problem, *first, self._title, folder)
        outcome = Outcome(points, choice, per_seed)
        # Written last: its presence marks the run as complete.
        rundir.write_json(folder / rundir.METRICS, summary(study, config, outcome, self._history))
        return outcome

    def _on_entry_of(self, shown: Display, of: Run, entry: dict[str, Any]) -> None:
        numbers = " ".join(f"{name}={value:g}" for name, value in of.numbers.items())
        label = f"{of.phase} {numbers} seed {of.seed}".replace("  ", " ")
        # Studies train one run at a time, so the lists have a single element.
        flat = {name: v[0] if isinstance(v, list) else v for name, v in entry.items()}
        line = {"phase": of.phase, "run": of.index, "label": label, **flat}
        self._history.append(line)
        rundir.append_history(self._folder / rundir.HISTORY, line)
        stage = entry.get("stage", "")
        name, phase = f"{of.name} {stage}".strip(), f"{of.phase} {stage}".strip()
        self._on_entry({"phase": name, **{n: v for n, v in entry.items() if n != "stage"}})
        epochs = self._study.epochs(self._config, stage)
        status = self._status.of(phase, entry, of.index)
        shown.advance(name, entry["epoch"], epochs, status)
