"""Comparison of losses on several datasets and with several encoders: chapters 5 and 6.

Each loss uses the grid of :mod:`experiments.recommend.recipes`, which has the same number of points
for every loss. The budget of a training depends on the size of the data, see :class:`Budget`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..recommend._config import SCHEMA, Config
from ..recommend._ranking import sweep_paths
from ..recommend.objectives import resolve
from ..recommend.recipes import RECIPES
from .methods import SAMPLING, Method, Minibatch, Problem

ENCODERS = ("mf", "lightgcn")
TABLES = {
    "5.2": ("bpr", "info_nce", "dcl", "hcl", "dpl"),
    "6.3": ("info_nce", "dcl", "hcl", "bcl"),
}
"""The rows of each table."""
_LOSSES = {
    "bpr": "bpr", "info_nce": "info_nce", "dcl": "debiased", "hcl": "hard", "bcl": "bayesian",
    "dpl": "dpl",
}  # fmt: skip
# Users and items of MovieLens 100K, on which the grids were tuned.
_ROWS = 943 + 1682


@dataclass(frozen=True)
class Budget:
    """Budget of the search and the trainings of one loss, for data of a given size.

    Attributes:
      minibatch: Number of epochs, batch size and validation of a training.
      dim: Width of the embeddings.
      fixed: Numbers of the grid that are not searched, with their fixed values.
      faster: Factor on the learning rates of the grid.
      l2: Factor on the L2 of the grid.
      l2_by_label: Additional factors on the L2 of single losses, by label.
    """

    minibatch: Minibatch
    dim: int = 32
    fixed: Mapping[str, float] = field(default_factory=dict)
    faster: float = 1.0
    l2: float = 1.0
    l2_by_label: Mapping[str, float] = field(default_factory=dict)


_SMALL = {
    "mf": Budget(Minibatch(epochs=300)),
    "lightgcn": Budget(Minibatch(epochs=150, eval_every=10)),
}
# DPL on MF needs less L2 on larger data than in its grid: searches chose the smallest value there.
_WEAKER = {"dpl": 1 / 3}
# About as many steps as on the small dataset, or two thirds. There are four times as many rows, and
# steps are four times as long: with the learning rates of the small dataset no loss converges,
# least of all DCL and DPL, which have the smallest gradients.
_MIDDLE = {
    "mf": Budget(
        Minibatch(epochs=60, eval_every=3, batch_size=2048), faster=4.0, l2_by_label=_WEAKER
    ),
    "lightgcn": Budget(
        Minibatch(epochs=40, eval_every=4, batch_size=4096, at_once=False), faster=4.0
    ),
}
# Half of the grid: omits one of the numbers for which all losses search two values. One validation
# training each of BPR, InfoNCE, BCL and DPL with MF favoured larger learning rates and an even
# weaker L2. With LightGCN a step takes as long as a propagation, so that steps are few, with large
# batches and even larger learning rates: a search of DPL over two of them took the larger one and
# the last epoch, single trainings of InfoNCE, HCL and BCL favoured the smaller one.
_LARGE = {
    "mf": Budget(
        Minibatch(epochs=40, batch_size=4096, valid=0.1),
        dim=64, fixed={"init_scale": 1.0}, faster=8.0, l2=1 / 3, l2_by_label=_WEAKER,
    ),
    "lightgcn": Budget(
        Minibatch(epochs=40, eval_every=4, batch_size=16384, valid=0.1, at_once=False),
        dim=64, fixed={"lr": 6e-3}, faster=10.0, l2=0.2,
    ),
}  # fmt: skip
BUDGETS: Mapping[str, Mapping[str, Budget]] = {
    "ml-100k": _SMALL,
    "ml-1m": _MIDDLE,
    "yahoo-r3": _SMALL,
    "gowalla": _LARGE,
    "yelp2018": _LARGE,
}
"""Budgets, keyed by dataset and encoder."""


def methods(number: str, encoder: str, dataset: str, problem: Problem) -> tuple[Method, ...]:
    """Returns the rows of a table for a dataset and an encoder."""
    budget = BUDGETS[dataset][encoder]
    return tuple(
        _method(label, _recipe(label, encoder, "-search"), budget, problem)
        for label in TABLES[number]
    )


def on_dataset(method: Method, encoder: str, dataset: str, problem: Problem) -> Method:
    """Returns a method on MF or LightGCN with a search for data of this size.

    The search is that of BPR for any loss, with the budget of :data:`BUDGETS`. On MF and small
    data it is the method's own.
    """
    budget = BUDGETS.get(dataset, _SMALL)[encoder]
    is_small = budget is _SMALL[encoder]
    if encoder == "mf" and is_small:
        return method
    bpr = _method("bpr", _recipe("bpr", encoder, "-search"), budget, None if is_small else problem)
    return dataclasses.replace(method, recipe=bpr.recipe, minibatch=bpr.minibatch)


def tuned(label: str, encoder: str) -> Method:
    """Returns a loss with the hyper-parameters that were chosen for it on MovieLens 100K."""
    return _method(label, _recipe(label, encoder), _SMALL[encoder])


def _recipe(label: str, encoder: str, end: str = "") -> Config:
    graph = "lightgcn-" if encoder == "lightgcn" else ""
    return RECIPES[f"ml-100k-{graph}{_LOSSES[label]}{end}"]


def _method(label: str, config: Config, budget: Budget, problem: Problem | None = None) -> Method:
    axes = {
        name: tuple(values)
        for name, values in SCHEMA.axes(config).items()
        if name not in budget.fixed
    }
    objective = resolve(config.objective, tuple(axes))
    scaled = {
        name: tuple(_factor(name, label, config, budget, problem) * value for value in values)
        for name, values in axes.items()
    }
    training, encoding = config.training, vars(config.encoding)
    return Method(
        label,
        loss=objective.entry.loss,
        hyperparams=objective.hyperparams,
        n_neg=objective.count("n_neg"),
        n_pos=objective.count("n_pos"),
        recipe=dataclasses.replace(SAMPLING, encoder=encoding["encoder"], dim=budget.dim),
        minibatch=dataclasses.replace(
            budget.minibatch,
            axes=tuple(sweep_paths(config, objective, scaled).items()),
            learning_rate=budget.fixed.get("lr", training.lr) * budget.faster,
            weight_decay=training.weight_decay,
            init_scale=budget.fixed.get("init_scale", training.init_scale),
            l2_target=training.l2_target,
            layers=encoding["layers"],
        ),
    )


def _factor(
    name: str, label: str, config: Config, budget: Budget, problem: Problem | None
) -> float:
    """Returns the scale factor for a grid that was tuned on another dataset.

    A batch covers a smaller share of larger tables, which reduces the gradient of each row; L2 on
    all rows has to be reduced accordingly.
    """
    if name == "lr":
        return budget.faster
    if name != "weight_decay":
        return 1.0
    factor = budget.l2 * budget.l2_by_label.get(label, 1.0)
    if config.training.l2_target == "rows" or problem is None:
        return factor
    return factor * _ROWS / (problem.train.n_users + problem.train.n_items)
