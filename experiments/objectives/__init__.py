"""The losses by their names on the command line.

A loss of :mod:`crl_jax.losses` is found by itself if it takes a score per anchor and one per
negative, and its hyper-parameters have defaults. One that needs more, or another name, is an
:class:`Objective` in a file of this folder, and a line in :data:`OBJECTIVES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from crl_jax import data, samplers, tasks

from .._options import EncoderOptions, LossOptions, TrainOptions
from .._registry import Registry, settle
from . import contrastive, noisy, pairwise, positives
from ._objective import Objective as Objective
from ._objective import discover

_CHOSEN: Mapping[str, Objective] = {
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
    "directau": positives.DIRECTAU,
}
OBJECTIVES = Registry(
    {**_CHOSEN, **discover({entry.loss for entry in _CHOSEN.values()})},
    make=lambda loss: Objective(loss=loss),
)


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
        return {name: self.values[name] for name in self.entry.hyperparams}

    def count(self, name: str) -> int:
        """How many ``n_neg``, ``n_pos`` or ``n_group`` are drawn; 0 for what the loss has not."""
        return self.values.get(name, 0)

    @property
    def sampler(self) -> Callable[[data.Interactions], samplers.Sampler] | None:
        """Makes the negatives that the loss is about; None if any will do."""
        return self.entry.sampler

    @property
    def term(self) -> tasks.AuxiliaryLoss | None:
        """The further term that the loss brings; None if it brings none."""
        of_term = self.entry.of_term.items()
        if self.entry.term is None:
            return None
        return self.entry.term(**{of.field or name: self.values[name] for name, of in of_term})

    def swept_fields(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Those of ``numbers`` that are the loss's or its term's, by the names of a sweep's."""
        found = {f"task.hyperparams.{n}": numbers[n] for n in self.hyperparams if n in numbers}
        of_term = self.entry.of_term.items()
        return found | {
            f"task.auxiliary_loss.{of.field or n}": numbers[n] for n, of in of_term if n in numbers
        }

    def similar(self, options: EncoderOptions) -> EncoderOptions:
        """The encoder's flags with what a score is, which the loss may have a say in.

        Raises:
          ValueError: If another similarity was given than the loss needs.
        """
        if self.entry.similarities is None:
            return replace(options, similarity=options.similarity or "inner")
        similarity, ranks = self.entry.similarities
        if options.similarity not in (None, similarity):
            raise ValueError(
                f"--similarity {options.similarity}: this loss is of --similarity {similarity}."
            )
        ranks = options.serve_similarity or ranks
        return replace(options, similarity=similarity, serve_similarity=ranks)

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
