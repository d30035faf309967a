"""Command-line interface of the studies, such as ``python -m experiments.images``."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from . import _rundir as rundir
from ._command import run
from ._files import remove_partial
from ._loggers import Entry, check_installed, open_logger
from ._mesh import check_devices, make_mesh
from ._processes import check_same, is_first, join
from ._program import program
from ._progress import Display, TrainingStatus, display
from ._recipe import take_base
from ._schema import to_json
from ._screen import describe_devices, grid_table, output, plain
from ._signals import advise
from ._study import Run, Runs, Study
from ._study_options import OutputOptions


def main(
    study: Study[Any, Any],
    arguments: list[str] | None,
    subcommands: Mapping[str, Callable[[list[str]], None]],
) -> int:
    """Runs a study's command and returns its exit status, see :func:`experiments._command.run`.

    Args:
      study: The study.
      arguments: Command-line arguments; by default those of the program.
      subcommands: Subcommands by name, which is the first argument.
    """
    argv = sys.argv[1:] if arguments is None else arguments

    def command() -> None:
        if argv and argv[0] in subcommands:
            subcommands[argv[0]](argv[1:])
        else:
            _run(study, *configure(study, argv))

    return run(command, study.schema.flags)


_RESUME_FLAGS = {"--resume", "--device", "--mesh", "--processes"}
"""Flags that a resumed run takes."""


def configure(study: Study[Any, Any], arguments: list[str]) -> tuple[Any, Path, bool]:
    """Returns the configuration, the run directory, and whether its run is resumed."""
    schema = study.schema
    flags = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    default, arguments = take_base(arguments, study.recipes, schema, study.start)
    recipes = "\n      ".join(study.recipes)
    description = study.description.format(program=program(schema.command), recipes=recipes)
    config = schema.parse(arguments, default, description)
    options: OutputOptions = config.output
    if options.resume is None:
        if options.processes and options.out is None:
            raise ValueError("--processes needs --out, a folder that all processes see.")
        name = f"{study.for_config(config).folder_name(config)}-{time.strftime('%Y%m%d-%H%M%S')}"
        return config, options.out or Path("runs") / name, False
    if flags - _RESUME_FLAGS:
        raise ValueError("--resume goes on with the run's own configuration; omit other flags.")
    config = rundir.open_run(options.resume, schema)
    device = options.device if "--device" in flags else config.output.device
    mesh = options.mesh or config.output.mesh
    output = replace(config.output, device=device, mesh=mesh, processes=options.processes)
    original, config = config, replace(config, output=output)
    try:
        study.for_config(config).check(config)
    except ValueError as error:
        raise ValueError(f"{options.resume / rundir.CONFIG}: {error}") from None
    study.for_config(config).check_resumed(original, config)
    return config, options.resume, True


def _run(study: Study[Any, Any], config: Any, folder: Path, resumed: bool) -> None:
    study = study.for_config(config)
    join(config.output.processes)
    first = is_first()
    console = output() if first else Console(quiet=True)
    if resumed and (folder / rundir.METRICS).exists():
        console.print(f"The run in {folder} is finished; its results are in {rundir.METRICS}.")
        return
    size, processes = config.training.batch_size, config.output.processes
    check_devices(config.output.device, config.output.mesh, 0 if size == "auto" else size)
    advice = f": go on with it by --resume {folder}, or name another directory."
    rundir.check_out(folder)
    if first and not resumed and folder.exists():
        with rundir.claim(folder, advice):  # released at once: checks it before the data are read
            pass
    study.check(config)
    check_installed(config.output.log)
    with display(console) as progress:
        problem = study.load_shown(config, progress)
    config = study.prepare(config, problem)
    config = replace(config, output=replace(config.output, processes=None))
    data_description = [*study.describe_data(config, problem)]
    settings = to_json(config)
    shared_settings = {
        "output": {"mesh": settings["output"]["mesh"]},
        "data": {"the data": data_description},
    }
    check_same(settings | shared_settings)
    with _output_folder(folder, resumed, advice) as output_folder:
        advise(partial(rundir.resume_advice, folder, study.schema.command, processes))
        if not resumed:
            rundir.create(output_folder, config, study.schema.command)
        title = study.describe_training(config)
        console.print(
            f"[bold]{plain(title)}[/] on {describe_devices(make_mesh(config.output.mesh))}"
        )
        for line in data_description:
            console.print(plain(line), highlight=False)
        log = open_logger(config.output.log if first else "none", output_folder, settings)
        with display(console) as progress, log as on_entry:
            training = _Training(study, config, problem, output_folder, title, progress, on_entry)
            results = training.run(folder / rundir.CHECKPOINT)
    for each in results:
        console.print(each)
    console.print(f"results in {plain(folder)}")


@contextmanager
def _output_folder(folder: Path, resumed: bool, advice: str) -> Iterator[Path]:
    """Yields the output folder of a run: the run directory, but only in the first process."""
    if not is_first():
        with tempfile.TemporaryDirectory() as scratch:
            yield Path(scratch)
        return
    with rundir.occupy(folder) if resumed else rundir.claim(folder, advice):
        yield folder


class _Training:
    """Executes a run: trains and evaluates in order, and writes the run directory."""

    def __init__(
        self, study: Study[Any, Any], config: Any, problem: Any, folder: Path, title: str,
        progress: Display, on_entry: Callable[[Entry], None],
    ):  # fmt: skip
        self._study, self._config, self._problem, self._folder = study, config, problem, folder
        self._title, self._progress, self._log = title, progress, on_entry
        self._history: list[dict[str, Any]] = []
        n = {
            f"{phase} {stage}".strip(): study.count(config, problem, phase, stage)
            for phase in study.phases(config)
            for stage in study.stages
        }
        self._status = TrainingStatus(study.scores, n, study.unit)

    def run(self, checkpoints: Path) -> list[Any]:
        """Trains, evaluates, and writes all files of the run directory but its configuration.

        Returns:
          What is printed about the results.
        """
        study, config, folder, progress = self._study, self._config, self._folder, self._progress
        inputs, outputs = (config, self._problem), (checkpoints, self._on_entry, progress.stage)
        checkpoints.mkdir(parents=True, exist_ok=True)
        if is_first():
            remove_partial(folder)
            remove_partial(checkpoints)
        rundir.write_history(folder / rundir.HISTORY, self._history)
        axes = study.schema.axes(config)
        study.draw_first(*inputs, {name: values[0] for name, values in axes.items()}, folder)
        searched = study.search(*inputs, *outputs)
        if len(searched.points) > 1 or axes:
            metric = study.selection_score(config)
            rundir.write_sweep(folder / rundir.SWEEP, searched.points, searched.choice, metric)
        if searched.config is not None:
            config = searched.config
            self._study = study = study.for_config(config)
            inputs = (config, self._problem)
        per_seed, cases, first = [], [], None
        for phase in study.phases(config)[1:]:
            trained = study.train_models(*inputs, phase, searched, *outputs)
            for index, models in enumerate(trained):
                if index == 0:
                    study.save_models(*inputs, phase, models, folder)
                for learned in models if phase == "final" else ():
                    seed = config.protocol.seed + len(per_seed)
                    progress.stage(f"evaluating seed {seed}")
                    evaluation = study.evaluate(*inputs, learned, seed, progress.stage)
                    per_seed.append(evaluation.metrics)
                    cases.append(evaluation.cases)
                    rundir.write_json(folder / rundir.SEEDS, per_seed)
                    first = first or (learned, evaluation)
        assert first is not None
        comparison = [*study.compare(*inputs, cases, folder, progress.stage)]
        progress.stage("drawing")
        study.draw_curves(*inputs, searched, self._history, self._title, folder / rundir.CURVES)
        study.draw(*inputs, *first, self._title, folder)
        # Written last: its presence marks the run as complete.
        summary = study.summary(*inputs, searched, per_seed, self._history)
        rundir.write_json(folder / rundir.METRICS, summary)
        results = [*study.report(*inputs, searched, per_seed), *comparison]
        if len(searched.points) == 1 and not axes:
            return results
        return [grid_table(searched, config.protocol.search_seeds, study.score), *results]

    def _on_entry(self, run: Run | Runs, entry: dict[str, Any]) -> None:
        self._history.append(run.line(entry))
        rundir.append_history(self._folder / rundir.HISTORY, self._history[-1])
        stage = entry.get("stage", "")
        name, phase = f"{run.name} {stage}".strip(), f"{run.phase} {stage}".strip()
        self._log({"phase": name, **{n: v for n, v in entry.items() if n != "stage"}})
        title = f"{run.title} {stage}" if stage else run.title
        epochs = run.epochs if isinstance(run, Runs) else self._study.epochs(self._config, stage)
        self._progress.advance(
            title, entry["epoch"], epochs, self._status.format(phase, entry, run.index)
        )
