"""The losses by their names on the command line, with the defaults of each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from crl_jax import losses

from ._config import LossOptions


@dataclass(frozen=True)
class Objective:
    """A loss and what a run needs to know of it.

    Attributes:
      loss: The function.
      knobs: Its hyper-parameters with their defaults.
      n_neg: Default number of unlabelled items per anchor.
      n_pos: Default number of extra positives; ``None`` if it has no use for any.
    """

    loss: Callable[..., Any]
    knobs: dict[str, float] = field(default_factory=dict)
    n_neg: int = 5
    n_pos: int | None = None


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
}


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
    for name in ("temperature", "tau_plus", "alpha", "beta", "min_score", "floor"):
        value = getattr(options, name)
        if (value is not None or name in swept) and name not in knobs:
            raise ValueError(f"--loss {options.loss} has no {name}; it takes {', '.join(knobs)}.")
        if value is not None:
            knobs[name] = value
    if options.n_pos is not None and objective.n_pos is None:
        raise ValueError(f"--loss {options.loss} draws no extra positives; leave out --n-pos.")
    n_neg = objective.n_neg if options.n_neg is None else options.n_neg
    n_pos = objective.n_pos if options.n_pos is None else options.n_pos
    return Objective(objective.loss, knobs, n_neg, n_pos or 0)
