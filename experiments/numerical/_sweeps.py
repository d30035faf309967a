"""Sweeps of single parameters: estimates of the denominator, their figures and their report."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter
from rich.console import Console
from rich.table import Table

from .._panels import Lines, make_panels, save
from . import _model as model
from ._model import ESTIMATORS, Setting
from ._options import RATE_FROM, Config

_POINTS = 21
"""Number of values of a swept parameter."""
_SMALLEST_N, _LARGEST_N = 8, 1024
"""Smallest N of all figures, and largest of the published one."""
# Okabe and Ito's colours, which colour-blind readers can distinguish, and a marker for each.
_STYLES: dict[str, dict[str, Any]] = {
    "biased": dict(color="#D55E00", marker="s", linestyle=":"),
    "dcl": dict(color="#0072B2", marker="^", linestyle="--"),
    "bcl": dict(color="#009E73", marker="o", linestyle="-"),
    "bcl_normalised": dict(color="#CC79A7", marker="D", linestyle="-."),
    "bcl_auc": dict(color="#E69F00", marker="v", linestyle=(0, (5, 1, 1, 1))),
}
_SYMBOLS = {
    "alpha": "α",
    "gamma": "γ, variation of the anchors' ranges",
    "tau_plus": "τ⁺",
    "temperature": "t",
    "n_neg": "N",
    "assumed_alpha": "α assumed by BCL",
    "assumed_tau_plus": "τ⁺ assumed by DCL and BCL",
}
_VARIED = ("alpha", "gamma", "tau_plus", "temperature", "n_neg")
"""Parameters of figure 6.9."""
_PUBLISHED = ("biased", "dcl", "bcl", "bcl_normalised")
Sweep = dict[str, np.ndarray]
"""``x`` and the arrays of :func:`._model.measure`, with points on the first axis."""


@dataclass(frozen=True)
class Results:
    """Errors of the estimators along all sweeps.

    Attributes:
      sweeps: Sweeps by parameter; that of N up to the largest of the published figure.
      growing: The whole sweep of N.
      limits: Root mean square errors of the estimates in the limit of large N.
      rates: Exponents of N in those errors of the convergent estimators.
      populations: Errors at the configured values, by density of the scores.
    """

    sweeps: dict[str, Sweep]
    growing: Sweep
    limits: dict[str, float]
    rates: dict[str, float]
    populations: dict[str, Sweep]

    def chosen(self, *names: str) -> dict[str, Sweep]:
        """Returns the sweeps of some parameters."""
        return {name: self.sweeps[name] for name in names}


def run(config: Config, on_stage: Callable[[str], None]) -> Results:
    """Measures the estimators along all sweeps, and calls ``on_stage`` with the name of each."""
    sweeps = {}
    for parameter, values in grids(config).items():
        on_stage(f"sweep of {parameter}")
        settings = repeat_setting(config, len(values), **{parameter: values})
        sweeps[parameter] = {"x": values, **measure(config, settings, config.n_neg)}
    growing = grow(config, lambda n: on_stage(f"N = {n}"))
    in_figure = growing["x"] <= _LARGEST_N
    sweeps["n_neg"] = {name: values[in_figure] for name, values in growing.items()}
    on_stage("densities of the scores")
    centre = repeat_setting(config, _POINTS)
    populations = {name: measure(config, centre, config.n_neg, name) for name in model.POPULATIONS}
    return Results(sweeps, growing, limits(config), rates(growing), populations)


def repeat_setting(config: Config, points: int, **swept: Any) -> Setting:
    """Repeats the configuration ``points`` times; estimators use the true values by default.

    Numbers in ``swept`` replace those of the configuration.
    """
    configured = {name: getattr(config, name) for name in Setting._fields if hasattr(config, name)}
    numbers = configured | swept
    numbers = {"assumed_alpha": numbers["alpha"], "assumed_tau_plus": numbers["tau_plus"]} | numbers
    return Setting(**{name: jnp.full(points, x, jnp.float32) for name, x in numbers.items()})


def grids(config: Config) -> dict[str, np.ndarray]:
    """Returns the swept values, in arrays of the same length, so that shapes compile once."""
    min_temperature = max(0.1, config.half_width / 10)  # below, a few samples dominate every mean
    return {
        "alpha": np.linspace(0.5, 1, _POINTS),
        "gamma": np.linspace(0, 1, _POINTS),
        "tau_plus": np.linspace(0, 0.5, _POINTS + 1)[1:],  # at 0 all estimators agree
        "temperature": np.geomspace(min_temperature, 10 * min_temperature, _POINTS),
        "assumed_tau_plus": np.linspace(0, 0.4, _POINTS),
        "assumed_alpha": np.linspace(0.5, 1, _POINTS),
    }


def grow(config: Config, on_size: Callable[[int], None]) -> Sweep:
    """Measures the estimators along N, up to the largest, and calls ``on_size`` with each N."""
    sizes = [_SMALLEST_N * 2**i for i in range(int(math.log2(config.largest_n / _SMALLEST_N)) + 1)]
    results = []
    for n in sizes:
        on_size(n)
        results.append(measure(config, repeat_setting(config, 1), n))
    stacked = {name: np.concatenate([r[name] for r in results]) for name in results[0]}
    return {"x": np.array(sizes, float), **stacked}


def measure(
    config: Config, settings: Setting, n_neg: int, population: str = ""
) -> dict[str, np.ndarray]:
    """Measures the estimators at each setting, by default with the configured population."""
    sizes = {"n_anchors": config.anchors, "n_neg": n_neg, "n_pos": config.n_pos}
    key = jax.random.key(config.seed)
    measured = model.measure(key, settings, **sizes, population=population or config.population)
    return {name: np.asarray(value, np.float64) for name, value in measured.items()}


def limits(config: Config) -> dict[str, float]:
    """Root mean square errors of the estimates in the limit of large N."""
    setting = jax.tree.map(lambda x: x[0], repeat_setting(config, 1))
    key = jax.random.key(config.seed)
    sizes = {"n_anchors": config.anchors, "n_pos": config.n_pos}
    errors = model.limits(key, setting, **sizes, population=config.population)
    return {name: float(value) for name, value in errors.items()}


def rates(growing: Sweep) -> dict[str, float]:
    """Exponents of N fitted to the root mean square errors of the convergent estimators."""
    from_ = growing["x"] >= RATE_FROM
    rates = {}
    for name in ("bcl", "bcl_normalised"):
        root = np.sqrt(growing["mse"][from_, list(ESTIMATORS).index(name)])
        rates[name] = float(np.polyfit(np.log(growing["x"][from_]), np.log(root), 1)[0])
    return rates


def draw(folder: Path, config: Config, results: Results) -> None:
    """Draws the figures, and writes their data."""
    _draw_errors(folder, results.chosen(*_VARIED))
    _draw_means(folder, results.chosen("gamma", "alpha"))
    truth = {"assumed_tau_plus": config.tau_plus, "assumed_alpha": config.alpha}
    _draw_misspecified(folder, results.chosen(*truth), truth)
    _draw_convergence(folder, results)
    _draw_populations(folder, results.populations)


def _draw_errors(folder: Path, sweeps: dict[str, Sweep]) -> None:
    """Figure 6.9: mean square error along each sweep."""
    figure, panels = make_panels(2, 3, (12.5, 7), "mean square error")
    for axes, (parameter, sweep) in zip(panels, sweeps.items()):
        for name in _PUBLISHED:
            _curve(axes, sweep, name, "mse")
        axes.set_yscale("log")
        if parameter in ("n_neg", "temperature"):
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(_SYMBOLS[parameter])
    panels[5].axis("off")
    panels[5].legend(*panels[0].get_legend_handles_labels(), loc="center", fontsize=10,
                     title="mean ± 95 % over the anchors")  # fmt: skip
    title = "Mean square error of the estimates of the mean over true negatives"
    save(figure, folder / "figure_6_9", title, *_long_form(sweeps, _PUBLISHED))


def _draw_means(folder: Path, sweeps: dict[str, Sweep]) -> None:
    """Figure 6.10: mean of the estimates, with their bias below."""
    figure, panels = make_panels(2, len(sweeps), (5 * len(sweeps), 6.6), sharex="col")
    for above, below, (parameter, sweep) in zip(
        panels[: len(sweeps)], panels[len(sweeps) :], sweeps.items()
    ):
        above.plot(sweep["x"], sweep["supervised"], color="black", linewidth=3, alpha=0.35,
                   label="true negatives")  # fmt: skip
        for name in _PUBLISHED:
            _curve(above, sweep, name, "mean")
            _curve(below, sweep, name, "bias")
        below.axhline(0, color="0.3", linewidth=0.8)
        below.set_xlabel(_SYMBOLS[parameter])
    panels[0].set_ylabel("mean of the estimates")
    panels[len(sweeps)].set_ylabel("bias")
    panels[0].legend()
    table = _long_form(sweeps, _PUBLISHED)
    save(figure, folder / "figure_6_10", "Mean of the estimates", *table)


def _draw_misspecified(folder: Path, sweeps: dict[str, Sweep], truth: dict[str, float]) -> None:
    """Bias of the estimators for a misspecified class prior or encoder quality."""
    names = ("biased", "dcl", "bcl")
    ylabel = "bias, % of the mean over true negatives"
    figure, panels = make_panels(1, len(sweeps), (5 * len(sweeps), 3.8), ylabel, sharey=True)
    for axes, (parameter, sweep) in zip(panels, sweeps.items()):
        percent = 100 / sweep["supervised"][:, None]
        relative = sweep | {key: percent * sweep[key] for key in ("bias", "bias_se")}
        for name in names:
            _curve(axes, relative, name, "bias")
        axes.axhline(0, color="0.3", linewidth=0.8)
        marks = {"truth": truth[parameter]}
        if parameter == "assumed_alpha":
            marks["AUC"] = 0.5 + (2 * truth[parameter] - 1) / 3
        for text, x in marks.items():
            axes.axvline(x, color="0.3", linewidth=0.8, linestyle=":")
            across = axes.get_xaxis_transform()
            axes.text(x, 0.98, f" {text}", transform=across, va="top", fontsize=8)
        axes.set_xlabel(_SYMBOLS[parameter])
    low, high = panels[0].get_ylim()
    panels[0].set_ylim(low, high + 0.1 * (high - low))  # room for the annotations
    panels[0].legend(loc="lower left")
    table = _long_form(sweeps, names)
    save(figure, folder / "misspecified", "Bias under wrong assumptions", *table)


def _draw_convergence(folder: Path, results: Results) -> None:
    """Error of the estimate and of the loss as N grows, with the limits of the populations."""
    figure, (left, right) = make_panels(1, 2, (11.5, 5))
    sweep, limits, rates = results.growing, results.limits, results.rates
    x, bcl = sweep["x"], list(ESTIMATORS).index("bcl")
    for i, (name, label) in enumerate(ESTIMATORS.items()):
        style = dict(_STYLES[name], markersize=5, linewidth=1.5)
        root = np.sqrt(sweep["mse"][:, i])
        band = 1.96 * sweep["mse_se"][:, i] / (2 * root)
        if name in rates:
            limit_label = f"∝ $N^{{{rates[name]:.2f}}}$"
        else:
            limit_label = f"→ {limits[name]:.3g}"
            left.axhline(limits[name], color=style["color"], linewidth=0.8, alpha=0.7)
        left.plot(x, root, label=f"{label} {limit_label}", **style)
        left.fill_between(x, root - band, root + band, color=style["color"], alpha=0.2)
        loss_bias = np.abs(sweep["loss_bias"][:, i])
        is_significant = loss_bias > 1.96 * sweep["loss_bias_se"][:, i]
        right.plot(x, loss_bias, markevery=list(np.flatnonzero(is_significant)), **style)
        right.plot(x[~is_significant], loss_bias[~is_significant], style["marker"],
                   color=style["color"], markersize=5, markerfacecolor="white")  # fmt: skip
    # Reference lines for BCL.
    left.plot(x, 0.6 * np.sqrt(sweep["mse"][0, bcl] * x[0] / x), color="0.4", label="∝ $N^{-1/2}$")
    first = np.abs(sweep["loss_bias"][0, bcl])
    right.plot(x, 0.4 * first * x[0] / x, color="0.4", label="∝ $N^{-1}$")
    right.plot([], [], "o", color="0.4", markerfacecolor="white",
               label="hollow: not significantly (95 %) different from 0")  # fmt: skip
    for axes, label in (
        (left, "root mean square error of the estimate"),
        (right, "|mean loss − mean supervised loss|"),
    ):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="N, unlabelled samples of an anchor", ylabel=label, yscale="log")
        axes.legend(fontsize=9, loc="lower left")
    title = "Theorem 6.2: convergence to the supervised mean and loss as N grows"
    table = _long_form({"n_neg": sweep}, tuple(ESTIMATORS))
    save(figure, folder / "convergence", title, *table)


def _draw_populations(folder: Path, populations: dict[str, Sweep]) -> None:
    """Relative bias of the estimators at the configured values, by density of the scores."""
    ylabel = "bias, % of the mean over true negatives"
    figure, (axes,) = make_panels(1, 1, (7.5, 4), ylabel)
    lines = []
    for i, name in enumerate(ESTIMATORS):
        percent = [
            [100 * sweep[key][0, i] / sweep["supervised"][0] for key in ("bias", "bias_se")]
            for sweep in populations.values()
        ]
        bias, error = np.transpose(percent)
        style = dict(_STYLES[name], linestyle="none")
        positions = np.arange(len(populations)) + 0.12 * (i - len(ESTIMATORS) // 2)
        axes.errorbar(positions, bias, 1.96 * error, capsize=3, label=ESTIMATORS[name], **style)
        lines += [
            [population, name, sweep["supervised"][0], sweep["mean"][0, i], sweep["bias"][0, i],
             sweep["bias_se"][0, i], sweep["mse"][0, i]]
            for population, sweep in populations.items()
        ]  # fmt: skip
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.set_xticks(range(len(populations)), [f"ϕ {name}" for name in populations])
    axes.legend()
    header = ["population", "estimator", "supervised", "mean", "bias", "bias_se", "mse"]
    save(figure, folder / "populations", "Bias by density of the scores", header, lines)


def _curve(axes: Axes, sweep: Sweep, name: str, quantity: str) -> None:
    """Plots an estimator's curve, with a 95 % band if the quantity has a standard error."""
    i = list(ESTIMATORS).index(name)
    x, y = sweep["x"], sweep[quantity][:, i]
    style = _STYLES[name]
    axes.plot(x, y, markersize=4, markevery=2, linewidth=1.5, label=ESTIMATORS[name], **style)
    if f"{quantity}_se" in sweep:
        band = 1.96 * sweep[f"{quantity}_se"][:, i]
        axes.fill_between(x, y - band, y + band, color=style["color"], alpha=0.2, linewidth=0)


def _long_form(sweeps: dict[str, Sweep], names: Sequence[str]) -> Lines:
    """Returns a table with a line for each point of each sweep and each estimator."""
    first, lines = next(iter(sweeps.values())), []
    columns = [q for ndim in (1, 2) for q in first if q != "x" and first[q].ndim == ndim]
    for parameter, sweep in sweeps.items():
        shape = len(ESTIMATORS), len(sweep["x"])
        numbers = np.stack([np.broadcast_to(sweep[q].T, shape) for q in columns], axis=-1)
        by_estimator = dict(zip(ESTIMATORS, numbers))
        lines += [
            [parameter, x, name, *by_estimator[name][point]]
            for point, x in enumerate(sweep["x"])
            for name in names
        ]
    return ["parameter", "value", "estimator", *columns], lines


def report(console: Console, config: Config, results: Results) -> None:
    """Prints the errors for the configured values, and where that of BCL is smaller or larger."""
    centre = measure(config, repeat_setting(config, _POINTS), config.n_neg)
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
        rate = results.rates.get(name)
        limit_label = f"→ {results.limits[name]:.3g}" if rate is None else f"∝ N^{rate:.2f}"
        table.add_row(label, f"{centre['mean'][0, i]:.4g}", bias, mse, limit_label)
    console.print(table)
    console.print(f"DCL's floor clamps {centre['clamped'][0]:.1%} of the anchors.")

    table = Table(title="Points of figure 6.9 where BCL's MSE is clearly (95 %) smaller, larger")
    table.add_column("varied")
    for name in ("biased", "dcl"):
        table.add_column(f"than {ESTIMATORS[name]}", justify="right")
    for parameter, sweep in results.chosen(*_VARIED).items():
        cells = []
        for name in ("biased", "dcl"):
            i = list(ESTIMATORS).index(name)
            excess, noise = sweep["mse_over_bcl"][:, i], 1.96 * sweep["mse_over_bcl_se"][:, i]
            smaller, larger = np.sum(excess > noise), np.sum(excess < -noise)
            where = sweep["x"][excess < -noise]
            span = f" ({where[0]:.3g} to {where[-1]:.3g})" if len(where) else ""
            cells.append(f"{smaller}, {larger} of {len(excess)}{span}")
        table.add_row(_SYMBOLS[parameter].partition(",")[0], *cells)
    console.print(table)


def _with_error(value: float, standard_error: float, digits: int) -> str:
    """Formats the value ± 95 %, with this number of significant digits of the error."""
    error = 1.96 * standard_error
    decimals = max(0, digits - 1 - math.floor(math.log10(error))) if error > 0 else 4
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
