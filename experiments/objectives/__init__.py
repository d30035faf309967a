"""The losses by their names on the command line.

A new one is an :class:`Objective` in a file of this folder, and a line in :data:`OBJECTIVES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crl_jax import data, samplers

from .._options import LossOptions, TrainOptions
from .._registry import settle
from . import contrastive, noisy, pairwise
from ._objective import Objective as Objective

OBJECTIVES: Mapping[str, Objective] = {
    "bpr": pairwise.BPR,
    "bce": pairwise.BCE,
    "info_nce": contrastive.INFO_NCE,
    "debiased": contrastive.DEBIASED,
    "hard": contrastive.HARD,
    "bayesian": contrastive.BAYESIAN,
    "bsl": contrastive.BSL,
    "ccl": contrastive.CCL,
    "dpl": pairwise.DPL,
    "bprac": noisy.BPRAC,
    "gbpr": pairwise.GBPR,
    "mpr": pairwise.MPR,
    "truncated_bce": noisy.TRUNCATED_BCE,
    "truncated_bpr": noisy.TRUNCATED_BPR,
    "reweighted_bce": noisy.REWEIGHTED_BCE,
    "reweighted_bpr": noisy.REWEIGHTED_BPR,
}


@dataclass(frozen=True)
class Settled:
    """A loss with the values of its flags.

    Attributes:
      entry: The loss.
      values: The values by the names of the flags.
    """

    entry: Objective
    values: Mapping[str, Any]

    @property
    def hyperparams(self) -> dict[str, float]:
        """What the loss is given."""
        return {name: self.values[name] for name in ("temperature", *self.entry.hyperparams)}

    def count(self, name: str) -> int:
        """How many ``n_neg``, ``n_pos`` or ``n_group`` are drawn; 0 for what the loss has not."""
        return self.values.get(name, 0)

    @property
    def sampler(self) -> Callable[[data.Interactions], samplers.Sampler] | None:
        """Makes the negatives that the loss is about; None if any will do."""
        return self.entry.sampler

    def confidence(self, log: data.Interactions, training: TrainOptions) -> Any:
        """The estimator of confidence for a training part; None if the loss has none."""
        make = self.entry.confidence
        return None if make is None else make(log, training, dict(self.values))


def resolve(options: LossOptions, swept: tuple[str, ...] = ()) -> Settled:
    """Fills in the defaults of the chosen loss.

    Args:
      options: The flags.
      swept: Names of numbers that a sweep sets.

    Raises:
      ValueError: If a flag was given that the loss does not take, or flags contradict each other.
    """
    return Settled(OBJECTIVES[options.loss], settle("loss", options, OBJECTIVES, swept))
