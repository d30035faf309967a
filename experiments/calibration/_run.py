"""Implementation of ``python -m experiments.calibration``."""

import dataclasses
import time
from collections.abc import Iterable, Mapping
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
from .._files import remove_partial
from .._panels import STYLE, make_panels, save, write
from .._progress import display
from .._ranges import flag_names
from ._measure import ESTIMATES, MEASURES, PRIORS, Measurement, measure, on_host
from ._options import Config, parse
from ._posteriors import METHODS
from ._truths import available, read_files

_COLUMNS = 3
_COLOURS = (
    "0.6", "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#CC79A7", "#D55E00", "#882255", "#AA4499",
    "#117733",
)  # fmt: skip
"""Colours of all methods but the oracle, which is black."""
_SMALLEST = 1e-4
"""Smallest probability that the figure shows."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""

    def command() -> None:
        config = parse(arguments)
        truths = available(config)
        if unknown := [name for name in config.truths if name not in truths]:
            raise ValueError(f"--truths takes some of {', '.join(truths)}, got {unknown[0]!r}.")
        folder = config.out or Path("runs") / f"calibration-{time.strftime('%Y%m%d-%H%M%S')}"
        rundir.check_out(folder)
        read_files(config)
        with rundir.claim(folder, "; name another directory."):
            remove_partial(folder)
            _run(config, folder, screen.output())
            # Written last: its presence marks a complete run; without it the command can restart.
            versions = {"crl_jax": crl_jax.__version__, "jax": jax.__version__}
            flags = {**dataclasses.asdict(config), "out": folder}
            flags = {k: str(v) if isinstance(v, Path) else v for k, v in flags.items()}
            rundir.write_json(folder / rundir.CONFIG, {**flags, "environment": versions})

    return run(command, flag_names(Config))


def _run(config: Config, folder: Path, console: Console) -> None:
    results: dict[str, list[Measurement]] = {}
    posteriors: list[dict[str, Any]] = []
    estimates: list[dict[str, Any]] = []
    with display(console) as progress:
        for name, truth in available(config).items():
            if config.truths and name not in config.truths:
                continue
            for seed in range(config.seed, config.seed + config.seeds):
                progress.stage(f"{name}, seed {seed}")
                results.setdefault(name, []).append(on_host(measure(truth(config, seed))))
            # After each problem, so that an interruption loses no results.
            posteriors, estimates = [*_posterior_rows(results)], [*_estimate_rows(results)]
            for file, rows in (("posteriors.csv", posteriors), ("tau_plus.csv", estimates)):
                write(folder / file, [*rows[0]], [row.values() for row in rows])
    with matplotlib.rc_context(STYLE):
        draw(folder, [*_reliability(results)])
    for table in _tables(posteriors, estimates):
        console.print(table)
    console.print(f"figure and numbers in {folder}")


def _posterior_rows(results: Mapping[str, list[Measurement]]) -> Iterable[dict[str, Any]]:
    """Yields mean and standard deviation over seeds, by truth, τ⁺ and method.

    ``skill`` is the relative decrease of the Brier score from that of the constant true τ⁺.
    """
    for truth, seeds in results.items():
        for prior in PRIORS:
            for method in (name for name in METHODS if name in seeds[0].methods[prior]):
                row: dict[str, Any] = {
                    "truth": truth, "tau_plus": prior, "method": method,
                    "label": METHODS[method].label,
                }  # fmt: skip
                for name in MEASURES:
                    values = np.array([each.methods[prior][method][name] for each in seeds])
                    row |= {name: values.mean(), f"{name}_std": _std(values)}
                constant = np.mean([each.methods["known"]["constant"]["brier"] for each in seeds])
                yield row | {"skill": 1 - row["brier"] / constant, "seeds": len(seeds)}


def _estimate_rows(results: Mapping[str, list[Measurement]]) -> Iterable[dict[str, Any]]:
    """Yields the estimates of τ⁺ by truth; their error is the mean absolute one over seeds."""
    for truth, seeds in results.items():
        known = np.array([each.tau_plus["truth"] for each in seeds])
        score_auc = float(np.mean([each.auc for each in seeds]))
        for name in ESTIMATES:
            values = np.array([each.tau_plus[name] for each in seeds])
            if np.isnan(values).any():  # no density without a fixed set of items
                continue
            yield {
                "truth": truth, "score_auc": score_auc, "tau_plus": known.mean(),
                "estimate": name, "value": values.mean(), "value_std": _std(values),
                "ratio": np.mean(values / known), "error": np.mean(np.abs(values - known)),
                "seeds": len(seeds),
            }  # fmt: skip


def _std(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def _reliability(results: Mapping[str, list[Measurement]]) -> Iterable[list[Any]]:
    """Yields the non-empty bins of each truth and method, added up over seeds."""
    for truth, seeds in results.items():
        for method in seeds[0].tables:
            tables = [each.tables[method] for each in seeds]
            count = np.sum([table.samples for table in tables], axis=0)
            predicted = np.sum([table.samples * table.predicted for table in tables], axis=0)
            actual = np.sum([table.samples * table.actual for table in tables], axis=0)
            is_filled = count > 0
            for n, x, y in zip(count[is_filled], predicted[is_filled], actual[is_filled]):
                yield [truth, method, n, x / n, y / n]


def draw(folder: Path, lines: list[list[Any]]) -> None:
    """Draws reliability diagrams, a panel for each truth.

    Args:
      folder: Output directory.
      lines: Bins: truth, method, number of samples, predicted and actual share.
    """
    truths = [*dict.fromkeys(line[0] for line in lines)]
    rows = -(-len(truths) // _COLUMNS)
    figure, panels = make_panels(
        rows, _COLUMNS, (4.2 * _COLUMNS, 3.7 * rows), "share of false negatives"
    )
    handles = {}
    for axes, truth in zip(panels, truths):
        axes.plot([_SMALLEST, 1], [_SMALLEST, 1], color="0.3", linewidth=0.8)
        for (name, method), colour in zip(METHODS.items(), (*_COLOURS, "black")):
            points = [line[3:] for line in lines if line[:2] == [truth, name]]
            if points:
                clipped = np.maximum(np.transpose(points), _SMALLEST)
                (handles[method.label],) = axes.plot(
                    *clipped, "o-", markersize=3, linewidth=1, color=colour
                )
        axes.set(xscale="log", yscale="log", title=truth, xlabel="predicted probability")
    for axes in panels[len(truths) :]:
        axes.set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5)
    header = ["truth", "method", "samples", "predicted", "actual"]
    save(figure, folder / "calibration", "Posteriors of a false negative, τ⁺ known", header, lines)


def _tables(posteriors: list[dict[str, Any]], estimates: list[dict[str, Any]]) -> Iterable[Table]:
    """Yields tables for the terminal: calibration errors by method and truth, and τ⁺."""
    for prior, title in PRIORS.items():
        rows = [row for row in posteriors if row["tau_plus"] == prior]
        table = Table("method", title=f"calibration error (AUC), {title}")
        truths = [*dict.fromkeys(row["truth"] for row in rows)]
        for truth in truths:
            table.add_column(truth, justify="right")
        for name, method in METHODS.items():
            by_truth = {row["truth"]: row for row in rows if row["method"] == name}
            cells = (
                f"{by_truth[t]['ece']:.3f} ({by_truth[t]['auc']:.2f})" if t in by_truth else ""
                for t in truths
            )
            table.add_row(method.label, *cells)
        yield table
    table = Table("truth", "AUC", "τ⁺", *ESTIMATES.values(), title="estimates of τ⁺")
    for truth in dict.fromkeys(row["truth"] for row in estimates):
        by_estimate = {row["estimate"]: row for row in estimates if row["truth"] == truth}
        first = next(iter(by_estimate.values()))
        cells = (
            f"{by_estimate[name]['value']:.4f}" if name in by_estimate else "" for name in ESTIMATES
        )
        table.add_row(truth, f"{first['score_auc']:.2f}", f"{first['tau_plus']:.4f}", *cells)
    yield table
