"""Data of the figures: estimates of the denominator along sweeps of single parameters."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _model as model
from ._figures import Sweep
from ._model import ESTIMATORS, Setting
from ._options import RATE_FROM, Config

POINTS = 21
"""Number of values of a swept parameter."""
_SMALLEST_N = 8


def setting_of(config: Config, points: int, **swept: Any) -> Setting:
    """Repeats the configuration ``points`` times; estimators use the true values by default.

    Numbers in ``swept`` replace those of the configuration.
    """
    own = {name: getattr(config, name) for name in Setting._fields if hasattr(config, name)}
    numbers = own | swept
    numbers = {"told_alpha": numbers["alpha"], "told_tau_plus": numbers["tau_plus"]} | numbers
    return Setting(**{name: jnp.full(points, x, jnp.float32) for name, x in numbers.items()})


def grids(config: Config) -> dict[str, np.ndarray]:
    """Returns the swept values, in arrays of the same length, so that shapes compile once."""
    coolest = max(0.1, config.half_width / 10)  # below, a few samples dominate every mean
    return {
        "alpha": np.linspace(0.5, 1, POINTS),
        "gamma": np.linspace(0, 1, POINTS),
        "tau_plus": np.linspace(0, 0.5, POINTS + 1)[1:],  # at 0 all estimators agree
        "temperature": np.geomspace(coolest, 10 * coolest, POINTS),
        "told_tau_plus": np.linspace(0, 0.4, POINTS),
        "told_alpha": np.linspace(0.5, 1, POINTS),
    }


def sweep(config: Config, parameter: str, values: np.ndarray) -> Sweep:
    """Measures the estimators along the values of one parameter."""
    settings = setting_of(config, len(values), **{parameter: values})
    return {"x": values, **measure(config, settings, config.n_neg)}


def grow(config: Config, on_size: Callable[[int], None]) -> Sweep:
    """Measures the estimators along N, up to the largest, and calls ``on_size`` with each N."""
    sizes = [_SMALLEST_N * 2**i for i in range(int(math.log2(config.largest_n / _SMALLEST_N)) + 1)]
    results = []
    for n in sizes:
        on_size(n)
        results.append(measure(config, setting_of(config, 1), n))
    stacked = {name: np.concatenate([r[name] for r in results]) for name in results[0]}
    return {"x": np.array(sizes, float), **stacked}


def measure(config: Config, settings: Setting, n_neg: int) -> dict[str, np.ndarray]:
    """Measures the estimators at each setting."""
    sizes = {"n_anchors": config.anchors, "n_neg": n_neg, "n_pos": config.n_pos}
    measured = model.measure(jax.random.key(config.seed), settings, **sizes)
    return {name: np.asarray(value, np.float64) for name, value in measured.items()}


def limits(config: Config) -> dict[str, float]:
    """Root mean square errors of the estimates in the limit of large N."""
    setting = jax.tree.map(lambda x: x[0], setting_of(config, 1))
    key = jax.random.key(config.seed)
    found = model.limits(key, setting, n_anchors=config.anchors, n_pos=config.n_pos)
    return {name: float(value) for name, value in found.items()}


def rates(growing: Sweep) -> dict[str, float]:
    """Exponents of N fitted to the root mean square errors of the convergent estimators."""
    from_ = growing["x"] >= RATE_FROM
    rates = {}
    for name in ("bcl", "bcl_normalised"):
        root = np.sqrt(growing["mse"][from_, list(ESTIMATORS).index(name)])
        rates[name] = float(np.polyfit(np.log(growing["x"][from_]), np.log(root), 1)[0])
    return rates
