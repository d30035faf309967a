"""The losses by their names on the command line, with the defaults of each."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from crl_jax import data, losses, samplers, stats, train, weights

from ._config import LossOptions, TrainOptions
from ._flags import flag


@losses.anchorwise
def group_bpr(pos: Any, neg: Any, *, rho: Any, **rest: Any) -> Any:
    """GBPR of the scores that training gives: the own one, then those of the group."""
    return losses.gbpr(pos[:, 0], neg, group=pos[:, 1:], rho=rho, **rest)


@losses.anchorwise
def likely_and_unpopular(pos: Any, neg: Any, *, balance: Any, **rest: Any) -> Any:
    """MPR of two negatives, of which the first is likely to be liked."""
    return losses.mpr(pos, neg[:, 1:], likely=neg[:, 0], balance=balance, **rest)


def popular_and_not(log: data.Interactions) -> samplers.Mixed:
    """A negative by popularity, and one by its inverse."""
    counts = jnp.asarray(log.item_counts, jnp.float32)
    return samplers.Mixed((samplers.PNS.of(log), samplers.PNS(1 / (1 + counts))))


def ramp(progress: Any, knobs: dict[str, Any]) -> dict[str, Any]:
    """The drop rate rises during the first fifth of the training."""
    rate = weights.ramp_drop_rate(progress, drop_rate=knobs["drop_rate"], until=0.2)
    return {**knobs, "drop_rate": rate}


@dataclass(frozen=True)
class Objective:
    """A loss and what a run needs to know of it.

    Attributes:
      loss: The function.
      knobs: Its hyper-parameters with their defaults.
      n_neg: Default number of unlabelled items per anchor.
      n_pos: Default number of extra positives; ``None`` if it has no use for any.
      n_group: Users per anchor who took the same item.
      knob_schedule: How the hyper-parameters change along the training.
      sampler: Makes the negatives that the loss is about; ``None`` if any will do.
      credence: Makes the estimator of credibility from a training part and how it is trained.
    """

    loss: Callable[..., Any]
    knobs: dict[str, float] = field(default_factory=dict)
    n_neg: int = 5
    n_pos: int | None = None
    n_group: int = 0
    knob_schedule: train.KnobSchedule | None = None
    sampler: Callable[[data.Interactions], samplers.Sampler] | None = None
    credence: Callable[[data.Interactions, TrainOptions], train.Credence] | None = None


OBJECTIVES = {
    "bpr": Objective(losses.bpr, n_neg=1),
    "bce": Objective(losses.bce, n_neg=1),
    "info_nce": Objective(losses.info_nce),
    "debiased": Objective(
        losses.debiased_contrastive, {"tau_plus": 0.05, "min_score": -5.0}, n_pos=5
    ),
    "hard": Objective(
        losses.hard_contrastive, {"tau_plus": 0.05, "beta": 0.5, "min_score": -5.0}, n_pos=5
    ),
    "bayesian": Objective(
        losses.bayesian_contrastive, {"tau_plus": 0.05, "alpha": 0.9, "beta": 0.7}
    ),
    "dpl": Objective(losses.debiased_pairwise, {"tau_plus": 0.05, "floor": 1e-2}, n_pos=5),
    "bprac": Objective(losses.bpr, n_neg=1),
    "gbpr": Objective(group_bpr, {"rho": 0.4}, n_neg=1, n_group=3),
    "mpr": Objective(
        likely_and_unpopular, {"balance": 0.5}, n_neg=2, n_pos=2, sampler=popular_and_not
    ),
    "truncated_bce": Objective(
        losses.truncated_bce, {"drop_rate": 0.1}, n_neg=1, knob_schedule=ramp
    ),
    "truncated_bpr": Objective(
        losses.truncated_bpr, {"drop_rate": 0.1}, n_neg=1, knob_schedule=ramp
    ),
    "reweighted_bce": Objective(losses.reweighted_bce, {"exponent": 0.25}, n_neg=1),
    "reweighted_bpr": Objective(losses.reweighted_bpr, {"exponent": 0.25}, n_neg=1),
}
KNOBS = (
    "temperature", "tau_plus", "alpha", "beta", "min_score", "floor",
    "rho", "balance", "drop_rate", "exponent",
)  # fmt: skip
"""The hyper-parameters of losses; a sweep can set each."""
# What bprac takes besides.
_CREDENCE = ("law", "law_scale", "rule", "every")


def resolve(options: LossOptions, swept: tuple[str, ...] = ()) -> Objective:
    """Fills in the defaults of the chosen loss.

    Args:
      options: The flags.
      swept: Names of numbers that a sweep sets.

    Returns:
      The objective with the counts and the hyper-parameters of the flags.

    Raises:
      ValueError: If a flag was given that the loss has no use for.
    """
    objective = OBJECTIVES[options.loss]
    knobs = {"temperature": 1.0, **objective.knobs}
    for name in KNOBS:
        value = getattr(options, name)
        if (value is not None or name in swept) and name not in knobs:
            takes = ", ".join(map(flag, knobs))
            raise ValueError(f"--loss {options.loss} has no {flag(name)}; it takes {takes}.")
        if value is not None:
            knobs[name] = value
    if options.n_pos is not None and objective.n_pos is None:
        raise ValueError(
            f"--loss {options.loss} draws no extra positives; leave out --n-pos {options.n_pos}."
        )
    fixed = objective.sampler is not None
    own = options.n_neg in (None, objective.n_neg) and options.n_pos in (None, objective.n_pos)
    if fixed and not own:
        raise ValueError(f"--loss {options.loss} compares set items; leave out --n-neg, --n-pos.")
    if options.n_group is not None and not objective.n_group:
        raise ValueError(
            f"--loss {options.loss} has no group; leave out --n-group {options.n_group}."
        )
    if options.n_group is not None and options.n_group < 1:
        raise ValueError(f"--n-group must be at least 1, got {options.n_group}.")
    n_neg = objective.n_neg if options.n_neg is None else options.n_neg
    n_pos = objective.n_pos if options.n_pos is None else options.n_pos
    n_group = objective.n_group if options.n_group is None else options.n_group
    return dataclasses.replace(
        objective, knobs=knobs, n_neg=n_neg, n_pos=n_pos or 0, n_group=n_group,
        credence=_resolve_credence(options, swept),
    )  # fmt: skip


def _resolve_credence(
    options: LossOptions, swept: tuple[str, ...]
) -> Callable[[data.Interactions, TrainOptions], train.Credence] | None:
    given = {name: getattr(options, name) for name in _CREDENCE}
    given = {name: value for name, value in given.items() if value is not None}
    if options.loss != "bprac":
        if given:
            raise ValueError(f"--loss {options.loss} has no {flag(next(iter(given)))}; bprac has.")
        return None
    settled = _settle_credence(options)
    if settled["law"] == "variance-gamma" and options.law_scale is None and "init_scale" in swept:
        raise ValueError("--law variance-gamma needs --law-scale where init_scale is swept.")

    def make(log: data.Interactions, training: TrainOptions) -> train.Credence:
        law: stats.Law = stats.Smoothed()
        if settled["law"] == "variance-gamma":
            scale = settled["law_scale"]
            of_initial = _initial_variance(log, training)
            law = stats.VarianceGamma(training.dim, of_initial if scale is None else scale)
        prior = weights.credibility_prior(log)
        return train.Credence(prior, law, rule=settled["rule"], every=settled["every"])

    return make


def _initial_variance(log: data.Interactions, training: TrainOptions) -> float:
    """The λ for which products of N(0, λ) are those of the initial values.

    Xavier's have the variance 2 / (rows + width), another one for users than for items; λ is the
    geometric mean of the two.
    """
    of_tables = (2 / (n + training.dim) for n in (log.n_users, log.n_items))
    return training.init_scale**2 * math.sqrt(math.prod(of_tables))


def _settle_credence(options: LossOptions) -> dict[str, Any]:
    """The flags of bprac with their defaults; no scale is that of the initial values."""
    scale = options.law_scale
    law = options.law or ("smoothed" if scale is None else "variance-gamma")
    if law == "smoothed" and scale is not None:
        raise ValueError("--law smoothed has no --law-scale: it is read off the scores.")
    rule, every = options.rule or train.Credence.rule, options.every or train.Credence.every
    return {"law": law, "law_scale": scale, "rule": rule, "every": every}


def settle(options: LossOptions, swept: tuple[str, ...] = ()) -> LossOptions:
    """The flags with what is used of their defaults filled in, but for what a sweep sets."""
    default, objective = OBJECTIVES[options.loss], resolve(options, swept)
    settled = {name: value for name, value in objective.knobs.items() if name not in swept}
    settled["n_neg"] = objective.n_neg
    if default.n_pos is not None:
        settled["n_pos"] = objective.n_pos or 0
    if default.n_group:
        settled["n_group"] = objective.n_group
    if objective.credence is not None:
        settled |= _settle_credence(options)
    return dataclasses.replace(options, **settled)
