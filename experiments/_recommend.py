"""What ``python -m experiments.recommend`` does, see :mod:`experiments.recommend`."""

import shlex
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from crl_jax import samplers

from . import _pipeline as pipeline
from . import _rundir as rundir
from . import _screen as screen
from ._command import run
from ._config import Config, OutputOptions, anchor, parse
from ._objectives import Objective, resolve, settle
from ._plots import draw_curves
from ._program import program
from ._samplers import resolve_sampler
from ._samplers import settle as settle_sampler
from ._signals import advise
from .recipes import RECIPES

_DESCRIPTION = """Train a recommender on implicit feedback with a pairwise or contrastive loss,
choose on validation data, and score it once on test data.

  {program}                              simulated data, BPR
  {program} --data u.data --loss dpl     your own file
  {program} --recipe NAME [flags]        a tuned configuration:
      {recipes}
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

    return run(command)


def _configure(arguments: list[str]) -> tuple[Config, Path, bool]:
    """The configuration, the run directory, and whether a run there goes on."""
    default, arguments = _take_recipe(arguments)
    recipes = "\n      ".join(RECIPES)
    config = parse(
        arguments, default, _DESCRIPTION.format(program=program("recommend"), recipes=recipes)
    )
    resume = config.output.resume
    if resume is None:
        name = f"{config.objective.loss}-{time.strftime('%Y%m%d-%H%M%S')}"
        return config, config.output.out or Path("runs") / name, False
    wanted = Config(output=OutputOptions(resume=resume, device=config.output.device))
    if config != wanted:
        raise ValueError(
            "--resume goes on with the run's own configuration; leave out other flags."
        )
    config = rundir.open_run(resume)
    try:
        _objective(config)
    except ValueError as error:
        raise ValueError(f"{resume / rundir.CONFIG}: {error}") from None
    return config, resume, True


def _objective(config: Config) -> tuple[Objective, tuple[str, ...]]:
    """The objective, and the names of the numbers that a sweep sets."""
    swept = tuple(pipeline.parse_sweep(config))
    return resolve(config.objective, swept), swept


def _take_recipe(arguments: list[str]) -> tuple[Config, list[str]]:
    """Takes ``--recipe NAME`` out of the arguments: it sets what the other flags start from."""
    for i, argument in enumerate(arguments):
        flag, separator, name = argument.partition("=")
        if flag != "--recipe":
            continue
        rest = arguments[i + 1 :]
        if not separator:
            name, rest = (rest[0], rest[1:]) if rest else ("", [])
        if name not in RECIPES:
            raise ValueError(f"--recipe takes one of {', '.join(RECIPES)}, got {name!r}.")
        return RECIPES[name], arguments[:i] + rest
    return Config(), arguments


def _train(config: Config, folder: Path, resumed: bool) -> None:
    console = Console()
    _check_device(config.output.device)
    config, problem, objective, swept = _judge(config)
    advice = f": go on with it by --resume {folder}, or name another directory."
    with rundir.occupy(folder) if resumed else rundir.claim(folder, advice):
        advise(partial(_go_on, folder))
        if resumed and (folder / rundir.METRICS).exists():
            where = f"its results are in {rundir.METRICS}."
            console.print(f"The run in {folder} is finished; {where}")
            return
        if not resumed:
            rundir.create(folder, config)
        knobs = objective.knobs.items()
        fixed = ", ".join(f"{name}={value:g}" for name, value in knobs if name not in swept)
        sampling = "its own negatives" if objective.sampler else config.sampling.sampler
        described = f"{config.objective.loss} ({fixed}), {sampling}"
        screen.describe(console, problem, described)
        outcome = _carry_out(config, problem, folder, described, console)
    screen.report(console, outcome, bool(swept))
    console.print(f"results in {folder}")


def _go_on(folder: Path) -> str:
    """How a run goes on from where it stands."""
    if (folder / rundir.METRICS).exists():
        return f"The run in {folder} is finished."
    if (folder / rundir.CONFIG).exists():
        return f"Go on with: {program('recommend')} --resume {shlex.quote(str(folder))}"
    return "Start again with the same command."


def _judge(config: Config) -> tuple[Config, pipeline.Problem, Objective, tuple[str, ...]]:
    """Everything that can be told to be wrong before the training, is.

    Returns:
      The configuration with all defaults, the data, the objective and the names of what a sweep
      sets.
    """
    objective, swept = _objective(config)
    problem = pipeline.load_problem(config.source)
    sampler = resolve_sampler(
        config.sampling, problem.train, config.source.data, swept, own=objective.sampler
    )
    if isinstance(sampler, samplers.SRNS) and sampler.memory < objective.n_neg:
        raise ValueError(
            f"--candidates must be at least the {objective.n_neg} negatives of --n-neg, "
            f"got {sampler.memory}."
        )
    if objective.credence is not None:
        objective.credence(problem.train, config.training)
    settled = replace(
        anchor(config),
        objective=settle(config.objective, swept),
        sampling=settle_sampler(config.sampling, sampler, swept),
    )
    return settled, problem, objective, swept


def _carry_out(
    config: Config, problem: pipeline.Problem, folder: Path, described: str, console: Console
) -> pipeline.Outcome:
    """Trains and scores, and writes what a run directory holds besides its configuration."""
    history: list[dict[str, Any]] = []
    rundir.write_history(folder / rundir.HISTORY, history)
    interactions = {
        "search": len(problem.train),
        "final": len(problem.known if config.protocol.refit else problem.train),
    }
    with screen.ProgressScreen(console, interactions) as progress:

        def on_epoch(phase: str, last_epoch: int, entry: dict[str, Any]) -> None:
            history.append({"phase": phase, **entry})
            rundir.append_history(folder / rundir.HISTORY, history[-1])
            progress.update(phase, last_epoch, entry)

        trained = pipeline.run(config, problem, folder / rundir.CHECKPOINT, on_epoch)
    if config.protocol.sweep:
        rundir.write_sweep(folder / rundir.SWEEP, trained.points, trained.choice)
    rundir.save_model(folder, trained.params, problem.known, config)
    draw_curves(folder / rundir.CURVES, history, described)
    per_seed = pipeline.score_seeds(trained, problem, config.protocol.k)
    rundir.write_json(folder / rundir.SEEDS, per_seed)
    outcome = pipeline.Outcome(trained.points, trained.choice, per_seed)
    # Last: where it stands, the run is complete.
    rundir.write_json(folder / rundir.METRICS, pipeline.summary(outcome, history))
    return outcome


def _check_device(wanted: str) -> None:
    found = jax.default_backend()
    if wanted not in ("any", found):
        raise ValueError(f"--device {wanted}: JAX found only {found} here.")
