"""Implementation of ``python -m experiments.numerical``."""

import dataclasses
import time
from pathlib import Path

import jax
from rich.console import Console

import crl_jax

from .. import _rundir as rundir
from .. import _screen as screen
from .._command import run
from .._config import SCHEMA
from . import _figures as figures
from . import _measures as measures
from . import _punce as punce
from ._options import Config, parse
from ._report import report, report_punce


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""

    def command() -> None:
        config = parse(arguments)
        folder = config.out or Path("runs") / f"numerical-{time.strftime('%Y%m%d-%H%M%S')}"
        with rundir.claim(folder, "; name another directory."):
            _run(config, folder, screen.output())
            # Written last: its presence marks a complete run; without it the command can restart.
            _write_config(folder, config)

    return run(command, SCHEMA.flags)


def _write_config(folder: Path, config: Config) -> None:
    versions = {"crl_jax": crl_jax.__version__, "jax": jax.__version__}
    stored = {**dataclasses.asdict(config), "out": str(folder), "environment": versions}
    rundir.write_json(folder / rundir.CONFIG, stored)


def _run(config: Config, folder: Path, console: Console) -> None:
    with console.status("densities, scores and weights") as status:
        figures.densities(folder, measures.densities())
        figures.score_histograms(folder, measures.score_histograms(config))
        figures.weight_curves(folder, measures.weight_curves(config))

        sweeps = {}
        for parameter, values in measures.grids(config).items():
            status.update(f"sweep of {parameter}")
            sweeps[parameter] = measures.sweep(config, parameter, values)
        growing = measures.grow(config, lambda n: status.update(f"N = {n}"))
        status.update("NCE")
        figures.nce(folder, measures.nce_of(config))
        status.update("figures")
        published = {name: sweeps[name] for name in ("alpha", "gamma", "tau_plus", "temperature")}
        published["n_neg"] = {
            name: values[: measures.up_to(growing, 1024)] for name, values in growing.items()
        }
        told = {name: sweeps[name] for name in ("told_tau_plus", "told_alpha")}
        figures.errors(folder, published)
        figures.means(folder, {name: published[name] for name in ("gamma", "alpha")})
        truth = {"told_tau_plus": config.tau_plus, "told_alpha": config.alpha}
        figures.misspecified(folder, told, truth)
        limits, rates = measures.limits(config), measures.rates(config, growing)
        figures.convergence(folder, growing, limits, rates)
        summary = []
        if config.punce_seeds:
            rows = punce.compare(config.punce_seeds, config.punce_epochs, status.update)
            summary = punce.summarize(rows)
            figures.punce(folder, rows, summary)
    report(config, console, published, growing, limits, rates)
    if summary:
        report_punce(config, console, summary)
    console.print(f"figures and numbers in {folder}")
