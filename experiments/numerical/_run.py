"""Implementation of ``python -m experiments.numerical``."""

import dataclasses
import time
from pathlib import Path

import jax
import matplotlib
from rich.console import Console

import crl_jax

from .. import _rundir as rundir
from .. import _screen as screen
from .._command import run
from .._files import remove_partial
from .._panels import STYLE
from .._progress import display
from .._ranges import flag_names
from . import _information as information
from . import _nce as nce
from . import _pairwise as pairwise
from . import _punce as punce
from . import _risk as risk
from . import _shapes as shapes
from . import _sweeps as sweeps
from ._options import Config, parse


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""

    def command() -> None:
        config = parse(arguments)
        folder = config.out or Path("runs") / f"numerical-{time.strftime('%Y%m%d-%H%M%S')}"
        with rundir.claim(folder, "; name another directory."):
            remove_partial(folder)
            with matplotlib.rc_context(STYLE):
                _run(config, folder, screen.output())
            # Written last: its presence marks a complete run; without it the command can restart.
            versions = {"crl_jax": crl_jax.__version__, "jax": jax.__version__}
            stored = {**dataclasses.asdict(config), "out": str(folder), "environment": versions}
            rundir.write_json(folder / rundir.CONFIG, stored)

    return run(command, flag_names(Config))


def _run(config: Config, folder: Path, console: Console) -> None:
    summary = []
    with display(console) as progress:
        progress.stage("densities, scores and weights")
        shapes.order_statistic(folder)
        shapes.class_densities(folder)
        shapes.densities(folder)
        shapes.score_histograms(folder, config)
        shapes.weight_curves(folder, config)
        shapes.smoothed_weights(folder, config)
        information.draw_ratio(folder)
        results = sweeps.run(config, progress.stage)
        progress.stage("NCE")
        nce.draw(folder, nce.measure(config.seed))
        progress.stage("debiased pairwise loss")
        pairwise.draw(folder, config.seed, 2 * config.anchors)
        progress.stage("sampling risk")
        risk.draw(folder, risk.grow(config.seed, 2 * config.anchors))
        progress.stage("mutual information")
        information.draw_bounds(folder, information.grow(config.seed, 3 * config.anchors))
        progress.stage("figures")
        sweeps.draw(folder, config, results)
        if config.punce_seeds:
            rows = punce.compare(config.punce_seeds, config.punce_epochs, progress.stage)
            summary = punce.summarize(rows)
            punce.draw(folder, rows, summary)
    sweeps.report(console, config, results)
    if summary:
        punce.report(console, summary, config.punce_seeds)
    console.print(f"figures and numbers in {folder}")
