"""Train, evaluate and use a recommender: ``python -m experiments.recommend``.

Without arguments it trains BPR on simulated data, in under a minute. ``--data`` takes your own,
``--loss`` another objective, ``--recipe`` a tuned configuration. ``topk`` recommends.
"""

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax

from crl_jax import train

from . import _pipeline as pipeline
from . import _rundir as rundir
from . import _screen as screen
from ._config import Config, OutputOptions, parse
from ._objectives import resolve
from ._plots import draw_curves
from ._progress import TrainingStatus, display
from ._samplers import resolve_sampler
from .recipes import RECIPES, start

_DESCRIPTION = """Train a recommender on implicit feedback with a pairwise or contrastive loss,
choose on validation data, and score it once on test data.

  python -m experiments.recommend                              simulated data, BPR
  python -m experiments.recommend --data u.data --loss dpl     your own file
  python -m experiments.recommend --recipe NAME [flags]        a tuned configuration:
      {recipes}
  python -m experiments.recommend topk --run DIR --user ID     recommendations of a run
      (topk --help for more)
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    That is 0, 2 for an error, 1 if nobody reads the output on; an interrupt exits with 130.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    warnings.showwarning = screen.show_warning
    try:
        if arguments[:1] == ["topk"]:
            from ._topk import main as topk

            topk(arguments[1:])
        else:
            _train(*_configure(arguments))
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stdout = None  # nothing left to flush at exit
        return 1
    except (ValueError, ImportError, OSError, train.TrainingDiverged) as error:
        screen.show_error(error)
        return 2
    return 0


def _configure(arguments: list[str]) -> tuple[Config, Path, bool]:
    """The configuration, the run directory, and whether a run there goes on."""
    default, arguments = _take_recipe(arguments)
    recipes = "\n      ".join(RECIPES)
    config = parse(arguments, default, _DESCRIPTION.format(recipes=recipes))
    resume = config.output.resume
    if resume is None:
        name = f"{config.objective.loss}-{time.strftime('%Y%m%d-%H%M%S')}"
        return config, config.output.out or Path("runs") / name, False
    wanted = Config(output=OutputOptions(resume=resume, device=config.output.device))
    if config != wanted:
        raise ValueError(
            "--resume goes on with the run's own configuration; leave out other flags."
        )
    return rundir.open_run(resume), resume, True


def _take_recipe(arguments: list[str]) -> tuple[Config, list[str]]:
    """Takes ``--recipe NAME`` out of the arguments: it sets what the other flags start from."""
    for i, argument in enumerate(arguments):
        flag, separator, name = argument.partition("=")
        if flag != "--recipe":
            continue
        rest = arguments[i + 1 :]
        if not separator:
            name, rest = (rest[0], rest[1:]) if rest else ("", [])
        rest = arguments[:i] + rest
        return start(name, rest), rest
    return start(None, arguments), arguments


def _train(config: Config, folder: Path, resumed: bool) -> None:
    console = screen.output()
    _check_device(config.output.device)
    swept = tuple(pipeline.parse_sweep(config.protocol.sweep))
    n_search = pipeline.count_search_seeds(config.protocol)
    objective = resolve(config.objective, swept)
    with display(console) as shown:
        problem = pipeline.load_problem(config.source, shown.stage)
    source = config.source.data
    resolve_sampler(config.sampling, problem.train, source, swept, own=objective.sampler)
    if objective.credence is not None:
        objective.credence(problem.train, config.training.dim)
    if resumed and (folder / rundir.METRICS).exists():
        console.print(f"The run in {folder} is finished; its results are in {rundir.METRICS}.")
        return
    if not resumed:
        rundir.create(folder, config)
    fixed = ", ".join(f"{k}={value:g}" for k, value in objective.knobs.items() if k not in swept)
    sampling = "its own negatives" if objective.sampler else config.sampling.sampler
    described = f"{config.objective.loss} ({fixed}), {sampling}"
    screen.describe(console, problem, described)

    history: list[dict[str, Any]] = []
    rundir.write_history(folder / rundir.HISTORY, history)
    refit = config.protocol.refit
    triplets = {
        phase: objective.n_neg
        * sum(len(getattr(problem, part)) for part in problem.learned(phase, refit))
        for phase in pipeline.PHASES
    }
    try:
        with display(console) as shown:
            status = TrainingStatus(f"ndcg@{pipeline.VALIDATION_K}", triplets)

            def on_epoch(phase: str, last_epoch: int, entry: dict[str, Any]) -> None:
                history.append({"phase": phase, **entry})
                rundir.append_history(folder / rundir.HISTORY, history[-1])
                runs = len(entry["loss"])
                name = f"{phase:6} ×{runs}" if runs > 1 else f"{phase:6}"
                shown.advance(name, entry["epoch"], last_epoch, status.of(phase, entry))

            checkpoints = folder / rundir.CHECKPOINT
            outcome = pipeline.run(config, problem, checkpoints, on_epoch, shown.stage)
    except KeyboardInterrupt:
        console.print(f"Interrupted. Go on with: python -m experiments.recommend --resume {folder}")
        raise SystemExit(130) from None
    if swept:
        rundir.write_sweep(folder / rundir.SWEEP, outcome.points, outcome.choice)
    model = rundir.Model(outcome.params, problem.known, problem.test, outcome.saved_on)
    rundir.save_model(folder, model, config)
    draw_curves(
        folder / rundir.CURVES,
        history,
        f"{described}, {pipeline.source_name(config.source)}",
        points=outcome.points,
        choice=outcome.choice,
        learned={p: pipeline.named(problem.learned(p, refit)) for p in pipeline.PHASES},
    )
    rundir.write_json(folder / rundir.SEEDS, outcome.per_seed)
    # Last: where it stands, the run is complete.
    learned = {"scored_model": outcome.scored_on, "saved_model": outcome.saved_on}
    summary = {**pipeline.summary(outcome.per_seed), "trained_on": learned}
    rundir.write_json(folder / rundir.METRICS, summary)
    screen.report(console, outcome, n_search if swept else 0)
    console.print(f"results in {screen.plain(folder)}")


def _check_device(wanted: str) -> None:
    found = jax.default_backend()
    if wanted not in ("any", found):
        raise ValueError(f"--device {wanted}: JAX found only {found} here.")


if __name__ == "__main__":
    sys.exit(main())
