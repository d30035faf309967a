"""What ``python -m experiments.numerical`` does, see :mod:`experiments.numerical`."""

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

import crl_jax
from crl_jax import weights

from . import _numerical_figures as figures
from . import _numerical_model as model
from . import _numerical_nce as nce
from . import _numerical_punce as punce
from . import _rundir as rundir
from ._command import run
from ._config import FLAGS
from ._numerical_figures import Sweep
from ._numerical_model import ESTIMATORS, Setting
from ._program import program
from ._ranges import COUNT, MOST, SHARE, Range, check_flags

_DESCRIPTION = """Measure how far the biased, the debiased (DCL) and the Bayesian (BCL) estimate
lie from the mean over the true negatives, in samples of populations whose labels are known; and
how noise-contrastive estimation (NCE) tends to maximum likelihood as its noise samples grow. With
--punce-seeds, networks learn from digits of which some even ones are labelled: by puNCE, which
takes unlabelled ones for positive with a probability, by InfoNCE and by SupCon.

  {0}                      the published setting
  {0} --half-width 4       the score range of the published code
  {0} --punce-seeds 6      with puNCE on digits, in about two minutes more

Leaves in the output directory, each as PNG and CSV: figure_6_4 (densities of true and false
negatives), figure_6_8 (drawn scores), figure_6_9 (mean square errors), figure_6_10 (means),
weights, misspecified (bias under wrong assumptions), convergence (errors as N grows), nce, punce.
"""
_ALPHAS = (0.5, 0.7, 0.9, 1.0)
_POINTS = 21
_SMALLEST_N = 8
_RATE_FROM = 64
"""Smallest N of the fitted rates; below, terms of higher order show."""


@dataclass(frozen=True)
class Config:
    """One run of the numerical experiment. What a figure does not vary is as given here."""

    out: Path | None = None
    """Output directory; by default runs/numerical-TIME."""
    seed: int = 0
    """Seed of all draws."""
    anchors: int = 1000
    """Number of anchors (M)."""
    n_neg: int = 64
    """Unlabelled samples of an anchor (N)."""
    n_pos: int = 10
    """Extra positives of an anchor, for DCL (K)."""
    largest_n: int = 4096
    """Up to which N convergence is followed."""
    alpha: float = 0.9
    """Quality of the encoder, in [0.5, 1]."""
    gamma: float = 0.1
    """Variation of the anchors' score ranges, in [0, 1]: both ends move inwards by up to this share
    of the half width."""
    tau_plus: float = 0.1
    """Share of false negatives, in [0, 0.5]."""
    temperature: float = 0.5
    """Divides all scores; at least 0.01."""
    half_width: float = 0.5
    """Scores lie within plus and minus this; at least 0.01."""
    punce_seeds: int = 0
    """Seeds of the trainings on digits, each with its own draw of labels; 0 leaves them out."""
    punce_epochs: int = 40
    """Epochs of each training on digits."""


_RANGES = {
    "seed": Range(0, 2**31 - 1),
    "anchors": Range(2, MOST),
    "n_neg": Range(2, MOST),
    "n_pos": COUNT,
    "largest_n": Range(2 * _RATE_FROM, MOST),
    "alpha": Range(0.5, 1),
    "gamma": SHARE,
    "tau_plus": Range(0, 0.5),
    "temperature": Range(0.01),
    "half_width": Range(0.01),
    "punce_seeds": Range(0, MOST),
    "punce_epochs": COUNT,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status, see :func:`experiments._command.run`."""

    def command() -> None:
        config = parse(arguments)
        folder = config.out or Path("runs") / f"numerical-{time.strftime('%Y%m%d-%H%M%S')}"
        with rundir.claim(folder, "; name another directory."):
            _run(config, folder, Console())
            # Last: where it stands, the run is complete; until then the command may start again.
            _write_config(folder, config)

    return run(command, FLAGS)


def parse(arguments: list[str] | None) -> Config:
    """Turns flags into a configuration.

    Raises:
      ValueError: If a number is out of range. The message names the flag.
    """
    config = tyro.cli(
        Config,
        prog=program("numerical"),
        description=_DESCRIPTION.format(program("numerical")),
        args=arguments,
    )
    check_flags(config, _RANGES)
    largest = config.half_width / config.temperature
    if largest > 30:  # the square of its exponential still fits float32
        raise ValueError(
            f"--half-width / --temperature must be at most 30, got {largest:g}: larger "
            "exponentials have no square in float32."
        )
    return config


def _write_config(folder: Path, config: Config) -> None:
    versions = {"crl_jax": crl_jax.__version__, "jax": jax.__version__}
    stored = {**dataclasses.asdict(config), "out": str(folder), "environment": versions}
    rundir.write_json(folder / rundir.CONFIG, stored)


def _run(config: Config, folder: Path, console: Console) -> None:
    with console.status("densities, scores and weights") as status:
        figures.densities(folder, _densities())
        figures.score_histograms(folder, _scores(config))
        figures.weight_curves(folder, _weights(config))

        sweeps = {}
        for parameter, values in _grids(config).items():
            status.update(f"sweep of {parameter}")
            sweeps[parameter] = _sweep(config, parameter, values)
        growing = _grow(config, lambda n: status.update(f"N = {n}"))
        status.update("NCE")
        figures.nce(folder, _nce(config))
        status.update("figures")
        published = {name: sweeps[name] for name in ("alpha", "gamma", "tau_plus", "temperature")}
        published["n_neg"] = {
            name: values[: _up_to(growing, 1024)] for name, values in growing.items()
        }
        told = {name: sweeps[name] for name in ("told_tau_plus", "told_alpha")}
        figures.errors(folder, published)
        figures.means(folder, {name: published[name] for name in ("gamma", "alpha")})
        truth = {"told_tau_plus": config.tau_plus, "told_alpha": config.alpha}
        figures.misspecified(folder, told, truth)
        limits, rates = _limits(config), _rates(config, growing)
        figures.convergence(folder, growing, limits, rates)
        judged = []
        if config.punce_seeds:
            rows = punce.compare(config.punce_seeds, config.punce_epochs, status.update)
            judged = punce.summarize(rows)
            figures.punce(folder, rows, judged)
    _report(config, console, published, growing, limits, rates)
    if judged:
        _report_punce(config, console, judged)
    console.print(f"figures and numbers in {folder}")


def _setting(config: Config, points: int, **swept: Any) -> Setting:
    """The configuration, ``points`` times; estimators are told the truth unless ``swept``."""
    numbers = {
        name: getattr(config, name) for name in Setting._fields if not name.startswith("told_")
    } | swept
    told = {"told_alpha": numbers["alpha"], "told_tau_plus": numbers["tau_plus"]}
    numbers = told | numbers
    return Setting(
        **{
            name: jnp.broadcast_to(jnp.asarray(value, jnp.float32), (points,))
            for name, value in numbers.items()
        }
    )


def _one_setting(config: Config) -> Setting:
    return jax.tree.map(lambda x: x[0], _setting(config, 1))


def _grids(config: Config) -> dict[str, np.ndarray]:
    """What is varied, all of the same length: the shapes are compiled once."""
    coolest = max(0.1, config.half_width / 10)  # below, a few samples decide every mean
    return {
        "alpha": np.linspace(0.5, 1, _POINTS),
        "gamma": np.linspace(0, 1, _POINTS),
        "tau_plus": np.linspace(0, 0.5, _POINTS + 1)[1:],  # at 0 all of them agree
        "temperature": np.geomspace(coolest, 10 * coolest, _POINTS),
        "told_tau_plus": np.linspace(0, 0.4, _POINTS),
        "told_alpha": np.linspace(0.5, 1, _POINTS),
    }


def _sweep(config: Config, parameter: str, values: np.ndarray) -> Sweep:
    settings = _setting(config, len(values), **{parameter: values})
    return {"x": values, **_measure(config, settings, config.n_neg)}


def _grow(config: Config, on_size: Callable[[int], None]) -> Sweep:
    sizes = [_SMALLEST_N * 2**i for i in range(int(math.log2(config.largest_n / _SMALLEST_N)) + 1)]
    results = []
    for n in sizes:
        on_size(n)
        results.append(_measure(config, _setting(config, 1), n))
    stacked = {name: np.concatenate([r[name] for r in results]) for name in results[0]}
    return {"x": np.array(sizes, float), **stacked}


def _measure(config: Config, settings: Setting, n_neg: int) -> dict[str, np.ndarray]:
    measured = model.measure(
        jax.random.key(config.seed),
        settings,
        n_anchors=config.anchors,
        n_neg=n_neg,
        n_pos=config.n_pos,
    )
    return {name: np.asarray(value, np.float64) for name, value in measured.items()}


def _up_to(sweep: Sweep, largest: int) -> int:
    return int(np.sum(sweep["x"] <= largest))


def _limits(config: Config) -> dict[str, float]:
    found = model.limits(
        jax.random.key(config.seed),
        _one_setting(config),
        n_anchors=config.anchors,
        n_pos=config.n_pos,
    )
    return {name: float(value) for name, value in found.items()}


def _rates(config: Config, growing: Sweep) -> dict[str, float]:
    """Fitted exponents of N in the root mean square error of what converges."""
    from_ = growing["x"] >= _RATE_FROM
    rates = {}
    for name in ("bcl", "bcl_normalised"):
        root = np.sqrt(growing["mse"][from_, list(ESTIMATORS).index(name)])
        rates[name] = float(np.polyfit(np.log(growing["x"][from_]), np.log(root), 1)[0])
    return rates


def _nce(config: Config) -> dict[str, dict[str, np.ndarray]]:
    """By the noise, what each k comes to."""
    found = {}
    for name, power in nce.NOISES.items():
        items_key, draw_key = jax.random.split(jax.random.key(config.seed))
        items = nce.items_of(items_key, power)
        of_gradients = nce.distances(draw_key, items)
        found[name] = {"k": np.array(nce.RATIOS), **of_gradients, **nce.fits(config.seed, items)}
    return found


def _densities() -> dict[float, dict[str, np.ndarray]]:
    s = np.linspace(-4, 4, 401)
    below = np.asarray(jax.scipy.stats.norm.cdf(jnp.asarray(s)), np.float64)
    pdf = np.exp(-(s**2) / 2) / np.sqrt(2 * np.pi)
    return {
        alpha: {
            "score": s,
            "true_negative": 2 * pdf * (alpha * (1 - below) + (1 - alpha) * below),
            "false_negative": 2 * pdf * ((1 - alpha) * (1 - below) + alpha * below),
        }
        for alpha in _ALPHAS
    }


def _scores(config: Config, n: int = 20_000, temperature: float = 2.0) -> dict[float, dict]:
    """Histograms of one anchor's ``n`` scores, drawn as for the other figures but from a normal."""
    edges = np.linspace(0, 6, 61)
    rows = {}
    for alpha in _ALPHAS:
        setting = Setting(alpha, 0.0, config.tau_plus, temperature, 0.5, alpha, config.tau_plus)
        key = jax.random.key(config.seed)
        sample = model.draw(key, setting, n_anchors=1, n_neg=n, n_pos=1)  # uniform in ±0.5
        scores = jnp.exp(jax.scipy.stats.norm.ppf(sample.neg + 0.5) / temperature)
        scores, is_true = np.asarray(scores[0]), np.asarray(sample.is_true[0])
        rows[alpha] = {"from": edges[:-1], "to": edges[1:]} | {
            name: np.histogram(scores[label], edges)[0] / max(label.sum(), 1) / np.diff(edges)
            for name, label in (("true_negative", is_true), ("false_negative", ~is_true))
        }
    return rows


def _weights(config: Config, n: int = 1000) -> dict[str, dict[float, np.ndarray]]:
    ranked = jnp.arange(float(n))

    def omega(alpha: float, beta: float) -> np.ndarray:
        return np.asarray(
            weights.bayesian_weights(ranked, tau_plus=config.tau_plus, alpha=alpha, beta=beta)
        )

    tau = f"τ⁺ = {config.tau_plus:g}"
    return {
        f"α: β = 0.5, {tau}": {alpha: omega(alpha, 0.5) for alpha in _ALPHAS},
        f"β: α = 0.9, {tau}": {beta: omega(0.9, beta) for beta in (0.5, 0.7, 0.9, 1.0)},
    }


def _report(
    config: Config,
    console: Console,
    published: dict[str, Sweep],
    growing: Sweep,
    limits: dict[str, float],
    rates: dict[str, float],
) -> None:
    centre = _measure(config, _setting(config, _POINTS), config.n_neg)
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


def _report_punce(config: Config, console: Console, judged: list[dict[str, Any]]) -> None:
    table = Table(
        title=f"Digits, even against odd: mean ± deviation of {config.punce_seeds} seeds, and p of "
        "puNCE told π being different"
    )
    table.add_column("method")
    for measure in punce.JUDGED:
        for share in punce.SHARES:
            table.add_column(f"{measure}, {share:.0%}", justify="right")
    for name, label in punce.METHODS.items():
        cells = []
        for row in judged:
            if row["method"] == name:
                p = "" if math.isnan(row["p"]) else f"\np = {row['p']:.2g}"
                cells.append(f"{row['mean']:.3f} ± {row['deviation']:.3f}{p}")
        table.add_row(label, *cells)
    console.print(table)


def _with_error(value: float, standard_error: float, digits: int) -> str:
    """The value ± 95 %, with that many digits of the error."""
    error = 1.96 * standard_error
    decimals = max(0, digits - 1 - math.floor(math.log10(error))) if error > 0 else 4
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
