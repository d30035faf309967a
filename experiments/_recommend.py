"""Implementation of ``python -m experiments.recommend``, see :mod:`experiments.recommend`."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from crl_jax import losses, models, serving

from . import _pipeline as pipeline
from . import _report as report
from . import _rundir as rundir
from . import _screen as screen
from ._command import run
from ._config import SCHEMA, Config, anchor
from ._loggers import Entry, check_installed, open_logger
from ._mesh import check_devices, mesh_of
from ._options import OutputOptions
from ._problem import Problem, load_problem, named, source_name
from ._processes import is_first, join
from ._program import program
from ._progress import Display, TrainingStatus, display, reading
from ._recipe import take_base
from ._registry import filled, settle
from ._saved import RECOMMENDER, Model, save_model
from ._schema import to_json
from ._signals import advise
from ._sweep import count_search_seeds, parse_sweep
from ._update import settle_update
from .contrasts import settle_contrast
from .encoders import ENCODERS
from .objectives import Settled, resolve
from .recipes import RECIPES
from .sampling import Context, resolve_sampler, settle_sampler

_DESCRIPTION = """Train a recommender on implicit feedback with a pairwise or contrastive loss,
choose on validation data, and score it once on test data.

  {program}                              simulated data, BPR
  {program} --data u.data --loss dpl     your own file
  {program} --recipe NAME [flags]        a tuned configuration:
      {recipes}
  {program} --config FILE [flags]        a configuration in JSON, TOML or YAML
  {program} topk --run DIR --user ID     recommendations of a run
      (topk --help for more)
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""
    given = sys.argv[1:] if arguments is None else arguments

    def command() -> None:
        if given[:1] == ["topk"]:
            from ._topk import main as topk

            topk(given[1:])
        else:
            _train(*_configure(given))

    return run(command, SCHEMA.flags)


def _configure(arguments: list[str]) -> tuple[Config, Path, bool]:
    """Returns the configuration, the run directory, and whether its run is resumed."""
    default, arguments = take_base(arguments, RECIPES, SCHEMA)
    recipes = "\n      ".join(RECIPES)
    config = SCHEMA.parse(
        arguments, default, _DESCRIPTION.format(program=program("recommend"), recipes=recipes)
    )
    resume = config.output.resume
    if resume is None:
        if config.output.processes and config.output.out is None:
            raise ValueError("--processes needs --out, a folder that all of them see.")
        name = f"{config.objective.loss}-{time.strftime('%Y%m%d-%H%M%S')}"
        return config, config.output.out or Path("runs") / name, False
    now = config.output
    devices = {"device": now.device, "mesh": now.mesh, "processes": now.processes}
    if config != Config(output=OutputOptions(resume=resume, **devices)):
        raise ValueError(
            "--resume goes on with the run's own configuration; leave out other flags."
        )
    config = rundir.open_run(resume, SCHEMA)
    output = replace(config.output, processes=now.processes, mesh=now.mesh or config.output.mesh)
    config = replace(config, output=output)
    try:
        _objective(config)
    except ValueError as error:
        raise ValueError(f"{resume / rundir.CONFIG}: {error}") from None
    return config, resume, True


def _objective(config: Config) -> tuple[Settled, tuple[str, ...]]:
    """Returns the objective, and the names of the swept numbers."""
    swept = tuple(parse_sweep(config))
    return resolve(config.objective, swept), swept


def _train(config: Config, folder: Path, resumed: bool) -> None:
    join(config.output.processes)
    first = is_first()
    console = screen.output() if first else Console(quiet=True)
    check_devices(config.output.device, config.output.mesh, config.training.batch_size)
    advice = f": go on with it by --resume {folder}, or name another directory."
    if first and not resumed and folder.exists():
        with rundir.claim(folder, advice):  # released at once: checks it before the data are read
            pass
    config, problem, objective, swept, update = _judge(config, console)
    with _workplace(folder, resumed, advice) as place:
        advise(partial(rundir.going_on, folder, "recommend"))
        if resumed and (folder / rundir.METRICS).exists():
            where = f"its results are in {rundir.METRICS}."
            console.print(f"The run in {folder} is finished; {where}")
            return
        if not resumed:
            rundir.create(place, config, SCHEMA.command)
        given = objective.hyperparams.items()
        fixed = ", ".join(f"{name}={value:g}" for name, value in given if name not in swept)
        loss = f"{config.objective.loss} ({fixed})" if fixed else config.objective.loss
        described = f"{loss}, {_negatives(config, objective)}, {config.encoding.encoder}"
        if config.contrasting.contrast != "none":
            described += f", {config.contrasting.contrast} ({config.contrasting.contrast_loss})"
        report.describe(console, problem, described, update, mesh_of(config.output.mesh))
        log = open_logger(config.output.log if first else "none", place, to_json(config))
        with display(console) as shown, log as on_entry:
            checkpoints = folder / rundir.CHECKPOINT
            work = _Work(config, problem, objective, place, checkpoints, described, on_entry)
            outcome = work.carry_out(shown)
    n_search = count_search_seeds(config.protocol)
    report.conclude(console, outcome, n_search if swept else 0)
    console.print(f"results in {screen.plain(folder)}")


@contextmanager
def _workplace(folder: Path, resumed: bool, advice: str) -> Iterator[Path]:
    """Yields the output folder of a run: the run directory, but only in the first process."""
    if not is_first():
        with tempfile.TemporaryDirectory() as unread:
            yield Path(unread)
        return
    with rundir.occupy(folder) if resumed else rundir.claim(folder, advice):
        yield folder


def _negatives(config: Config, objective: Settled) -> str:
    """Returns a description of the negatives of a loss."""
    if objective.entry.term is not None:  # an auxiliary loss replaces the negatives
        return "no negatives"
    return "its own negatives" if objective.sampler else config.sampling.sampler


def _judge(
    config: Config, console: Console
) -> tuple[Config, Problem, Settled, tuple[str, ...], str]:
    """Loads the data and validates the configuration as far as possible before training.

    Returns:
      The configuration with all defaults, the data, the objective, the names of the swept numbers,
      and a description of the parameters that a step updates.
    """
    objective, swept = _objective(config)
    settle_sampler(config.sampling, swept, objective.sampler)
    encoding = objective.similar(config.encoding)
    encoding = filled(encoding, settle("encoder", encoding, ENCODERS, swept), swept)
    of_contrast = settle_contrast(config.contrasting, encoding.encoder, swept)
    if objective.entry.term is not None and config.contrasting.contrast != "none":
        raise ValueError(
            f"--contrast {config.contrasting.contrast}: --loss {config.objective.loss} brings a "
            "term of its own."
        )
    if config.training.batches == "host" and objective.entry.confidence is not None:
        raise ValueError(
            f"--batches host: --loss {config.objective.loss} weighs each interaction, so they must "
            "be on the device."
        )
    count_search_seeds(config.protocol)
    if config.protocol.sweep and not config.source.valid:
        raise ValueError("--valid 0 leaves no data to decide a --sweep on.")
    check_installed(config.output.log)
    with display(console) as shown:
        problem = load_problem(config.source, shown.stage, reading(shown))
    context = Context(problem.train, config.source.data, objective.count("n_neg"))
    sampler, of_sampler = resolve_sampler(config.sampling, context, swept, own=objective.sampler)
    if sampler.is_shared and not losses.accepts_where(objective.entry.loss):
        raise ValueError(
            f"--sampler {config.sampling.sampler} needs a loss that takes `where`; --loss "
            f"{config.objective.loss} does not."
        )
    objective.confidence(problem.train, config.training)
    n_rows = problem.train.n_users + problem.train.n_items
    update, said = settle_update(replace(config, encoding=encoding), objective, sampler, n_rows)
    settled = replace(
        replace(anchor(config), output=replace(config.output, processes=None)),
        training=replace(config.training, update=update),
        objective=filled(config.objective, objective.values, swept),
        sampling=filled(config.sampling, of_sampler, swept),
        encoding=encoding,
        contrasting=filled(config.contrasting, of_contrast, swept),
    )
    if config.contrasting.contrast != "none":  # its numbers may be invalid for the data
        pipeline.model_on(problem.train, encoding, settled.contrasting, config.training.dim, swept)
    return settled, problem, objective, swept, said


class _Work:
    """Executes a run: trains and evaluates in order, and writes the run directory."""

    def __init__(
        self,
        config: Config,
        problem: Problem,
        objective: Settled,
        folder: Path,
        checkpoints: Path,
        described: str,
        on_entry: Callable[[Entry], None],
    ):
        self._config, self._problem = config, problem
        self._folder, self._checkpoints = folder, checkpoints
        self._described, self._on_entry = described, on_entry
        self._history: list[dict[str, Any]] = []
        refit = config.protocol.refit
        learned = {phase: problem.learned(phase, refit) for phase in pipeline.PHASES}
        self._learned = {phase: named(parts) for phase, parts in learned.items()}
        sizes = {
            phase: sum(len(getattr(problem, part)) for part in parts)
            for phase, parts in learned.items()
        }
        self._status = TrainingStatus(
            (f"valid_ndcg@{pipeline.VALIDATION_K}",),
            {phase: objective.count("n_neg") * size for phase, size in sizes.items()},
            "triplets",
        )

    def carry_out(self, shown: Display) -> pipeline.Outcome:
        """Trains and evaluates, and writes all files of the run directory but its configuration."""
        config, problem, folder = self._config, self._problem, self._folder
        rundir.write_history(folder / rundir.HISTORY, self._history)
        checkpoints, on_epoch = self._checkpoints, partial(self._on_epoch, shown)
        trained = pipeline.run(config, problem, checkpoints, on_epoch, shown.stage)
        if config.protocol.sweep:
            metric = f"valid_ndcg@{pipeline.VALIDATION_K}"
            rundir.write_sweep(folder / rundir.SWEEP, trained.points, trained.choice, metric)
        tables = trained.tables
        self._save(tables, trained.learned)
        self._draw(trained)
        # Each of several processes has all serving tables by now and evaluates independently.
        mesh = mesh_of(config.output.mesh) if jax.process_count() == 1 else None
        per_seed = pipeline.score_seeds(tables, problem, config.protocol.k, shown.stage, mesh)
        rundir.write_json(folder / rundir.SEEDS, per_seed)
        saved = trained.learned
        if config.protocol.refit == "all":  # not evaluated: this model trains on the test set
            saved = problem.learned("use", "all")
            for_use = pipeline.train_again(
                "use", config, problem, trained.points, trained.choice, checkpoints, on_epoch,
                shown.stage,
            )  # fmt: skip
            self._save(for_use, saved)
            self._draw(trained)
        outcome = pipeline.Outcome(trained.points, trained.choice, per_seed, trained.learned, saved)
        # Written last: its presence marks the run as complete.
        rundir.write_json(folder / rundir.METRICS, pipeline.summary(outcome, self._history))
        return outcome

    def _on_epoch(self, shown: Display, phase: str, last_epoch: int, entry: dict[str, Any]) -> None:
        self._history.append({"phase": phase, **entry})
        rundir.append_history(self._folder / rundir.HISTORY, self._history[-1])
        self._on_entry(self._history[-1])
        runs = len(entry["loss"])
        name = f"{phase:6} ×{runs}" if runs > 1 else f"{phase:6}"
        shown.advance(name, entry["epoch"], last_epoch, self._status.of(phase, entry))

    def _save(self, tables: list[models.Tables], learned: tuple[str, ...]) -> None:
        stacked = jax.tree.map(lambda *of_seeds: np.stack(of_seeds), *tables)
        model = Model(stacked, self._problem.known, self._problem.test, learned)
        save_model(self._folder, model, self._config)
        finite = (t for t in tables if all(np.isfinite(table).all() for table in t))
        if (first := next(finite, None)) is not None:  # else it diverged, which `topk` reports
            encoding = self._config.encoding
            serving.Recommender.from_tables(
                first,
                self._problem.joined(self._problem.learned("use", "all")),
                similarity=encoding.serve_similarity or encoding.similarity or "inner",
            ).save(self._folder / RECOMMENDER)

    def _draw(self, trained: pipeline.Trained) -> None:
        from ._plots import draw_curves  # imported late: Matplotlib is slow to import

        draw_curves(
            self._folder / rundir.CURVES,
            self._history,
            f"{self._described}, {source_name(self._config.source)}",
            points=trained.points,
            choice=trained.choice,
            learned=self._learned,
        )
