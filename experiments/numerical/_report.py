"""Console report of the numerical experiment."""

import math
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from . import _figures as figures
from . import _measures as measures
from . import _punce as punce
from ._figures import Sweep
from ._model import ESTIMATORS
from ._options import Config


def report(
    config: Config,
    console: Console,
    published: dict[str, Sweep],
    growing: Sweep,
    limits: dict[str, float],
    rates: dict[str, float],
) -> None:
    """Prints the errors of the estimators, and the ranges in which BCL's is smaller or larger."""
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


def report_punce(config: Config, console: Console, summary: list[dict[str, Any]]) -> None:
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
