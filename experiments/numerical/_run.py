"""Implementation of ``python -m experiments.numerical``."""

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import jax
import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

import crl_jax

from .. import _rundir as rundir
from .. import _screen as screen
from .._command import run
from .._config import SCHEMA
from . import _figures as figures
from . import _measures as measures
from . import _nce as nce
from . import _punce as punce
from . import _shapes as shapes
from ._figures import Sweep
from ._model import ESTIMATORS
from ._options import Config, parse


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""

    def command() -> None:
        config = parse(arguments)
        folder = config.out or Path("runs") / f"numerical-{time.strftime('%Y%m%d-%H%M%S')}"
        with rundir.claim(folder, "; name another directory."):
            with matplotlib.rc_context(figures.STYLE):
                _run(config, folder, screen.output())
            # Written last: its presence marks a complete run; without it the command can restart.
            versions = {"crl_jax": crl_jax.__version__, "jax": jax.__version__}
            stored = {**dataclasses.asdict(config), "out": str(folder), "environment": versions}
            rundir.write_json(folder / rundir.CONFIG, stored)

    return run(command, SCHEMA.flags)


def _run(config: Config, folder: Path, console: Console) -> None:
    summary = []
    with console.status("densities, scores and weights") as status:
        shapes.densities(folder)
        shapes.score_histograms(folder, config)
        shapes.weight_curves(folder, config)

        sweeps = {}
        for parameter, values in measures.grids(config).items():
            status.update(f"sweep of {parameter}")
            sweeps[parameter] = measures.sweep(config, parameter, values)
        growing = measures.grow(config, lambda n: status.update(f"N = {n}"))
        status.update("NCE")
        figures.nce(folder, nce.measure(config.seed))
        status.update("figures")
        shown = growing["x"] <= 1024
        sweeps["n_neg"] = {name: values[shown] for name, values in growing.items()}

        def chosen(*names: str) -> dict[str, Sweep]:
            return {name: sweeps[name] for name in names}

        published = chosen("alpha", "gamma", "tau_plus", "temperature", "n_neg")
        figures.errors(folder, published)
        figures.means(folder, chosen("gamma", "alpha"))
        truth = {"told_tau_plus": config.tau_plus, "told_alpha": config.alpha}
        figures.misspecified(folder, chosen(*truth), truth)
        limits, rates = measures.limits(config), measures.rates(growing)
        figures.convergence(folder, growing, limits, rates)
        if config.punce_seeds:
            rows = punce.compare(config.punce_seeds, config.punce_epochs, status.update)
            summary = punce.summarize(rows)
            figures.punce(folder, rows, summary)
    _report_errors(config, console, limits, rates)
    _report_sweeps(console, published)
    if summary:
        _report_punce(config, console, summary)
    console.print(f"figures and numbers in {folder}")


def _report_errors(
    config: Config, console: Console, limits: dict[str, float], rates: dict[str, float]
) -> None:
    """Prints the errors of the estimators for the configured values."""
    centre = measures.measure(config, measures.setting_of(config, measures.POINTS), config.n_neg)
    table = Table(
        title=f"α {config.alpha:g}, γ {config.gamma:g}, τ⁺ {config.tau_plus:g}, "
        f"t {config.temperature:g}, N {config.n_neg}, K {config.n_pos}, M {config.anchors}"
    )
    table.add_column("estimator")
    for column in ("mean", "bias ± 95 %", "MSE ± 95 %", "√MSE, N→∞"):
        table.add_column(column, justify="right")
    table.add_row("true negatives", f"{centre['supervised'][0]:.4g}", "", "", "")
    for i, (name, label) in enumerate(ESTIMATORS.items()):
        bias = _with_error(centre["bias"][0, i], centre["bias_se"][0, i], 2)
        mse = _with_error(centre["mse"][0, i], centre["mse_se"][0, i], 1)
        end = f"∝ N^{rates[name]:.2f}" if name in rates else f"→ {limits[name]:.3g}"
        table.add_row(label, f"{centre['mean'][0, i]:.4g}", bias, mse, end)
    console.print(table)
    console.print(f"DCL's floor clamps {centre['clamped'][0]:.1%} of the anchors.")


def _report_sweeps(console: Console, published: dict[str, Sweep]) -> None:
    """Prints where the error of BCL is smaller or larger than those of the other estimators."""
    table = Table(title="Points of figure 6.9 where BCL's MSE is clearly (95 %) smaller, larger")
    table.add_column("varied")
    for name in ("biased", "dcl"):
        table.add_column(f"than {ESTIMATORS[name]}", justify="right")
    for parameter, sweep in published.items():
        cells = []
        for name in ("biased", "dcl"):
            i = list(ESTIMATORS).index(name)
            excess, noise = sweep["mse_over_bcl"][:, i], 1.96 * sweep["mse_over_bcl_se"][:, i]
            smaller, larger = np.sum(excess > noise), np.sum(excess < -noise)
            where = sweep["x"][excess < -noise]
            span = f" ({where[0]:.3g} to {where[-1]:.3g})" if len(where) else ""
            cells.append(f"{smaller}, {larger} of {len(excess)}{span}")
        table.add_row(figures.SYMBOLS[parameter].partition(",")[0], *cells)
    console.print(table)


def _report_punce(config: Config, console: Console, summary: list[dict[str, Any]]) -> None:
    """Prints the results of puNCE and the other methods on digits."""
    table = Table(
        title=f"Digits, even against odd: mean ± deviation of {config.punce_seeds} seeds, and p of "
        "the difference to puNCE with prior π"
    )
    table.add_column("method")
    for measure in punce.MEASURES:
        for share in punce.SHARES:
            table.add_column(f"{measure}, {share:.0%}", justify="right")
    for name, label in punce.METHODS.items():
        cells = []
        for row in summary:
            if row["method"] == name:
                p = "" if math.isnan(row["p"]) else f"\np = {row['p']:.2g}"
                cells.append(f"{row['mean']:.3f} ± {row['deviation']:.3f}{p}")
        table.add_row(label, *cells)
    console.print(table)


def _with_error(value: float, standard_error: float, digits: int) -> str:
    """Formats the value ± 95 %, with this number of significant digits of the error."""
    error = 1.96 * standard_error
    decimals = max(0, digits - 1 - math.floor(math.log10(error))) if error > 0 else 4
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
