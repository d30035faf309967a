"""Registry of losses by command-line name.

A loss of :mod:`crl_jax.losses` is discovered automatically if it takes a score per anchor and one
per negative, and its hyper-parameters have defaults. A loss that needs more, or another name,
requires an :class:`Objective` in a file of this folder and an entry in :data:`OBJECTIVES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from crl_jax import data, losses, samplers, tasks

from .._options import EncoderOptions, LossOptions, TrainOptions
from .._registry import Registry, settle
from . import noisy, pairwise, positives
from ._objective import Objective as Objective
from ._objective import discover

# Unlike cosines, inner products are unbounded below; few of those seen in training are lower.
_INNER = {"min_score": -5.0}
_CHOSEN: Mapping[str, Objective] = {
    "bpr": pairwise.BPR,
    "bce": pairwise.BCE,
    "info_nce": Objective(loss=losses.info_nce),
    "debiased": Objective(loss=losses.debiased_contrastive, defaults=_INNER, n_pos=5),
    "hard": Objective(loss=losses.hard_contrastive, defaults=_INNER, n_pos=5),
    "bayesian": Objective(loss=losses.bayesian_contrastive),
    "bsl": Objective(loss=losses.bilateral_softmax, n_neg=50, n_pos=0),
    "ccl": Objective(loss=losses.cosine_contrastive, n_neg=50),
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
      values: Flag values, keyed by flag name.
    """

    entry: Objective
    values: Mapping[str, Any]

    @property
    def hyperparams(self) -> dict[str, float]:
        """Hyper-parameters passed to the loss."""
        return {name: self.values[name] for name in self.entry.hyperparams}

    def count(self, name: str) -> int:
        """Returns the number of ``n_neg``, ``n_pos`` or ``n_group`` drawn; 0 if not supported."""
        return self.values.get(name, 0)

    @property
    def sampler(self) -> Callable[[data.Interactions], samplers.Sampler] | None:
        """Factory of the sampler that the loss prescribes; None if any sampler is supported."""
        return self.entry.sampler

    @property
    def term(self) -> tasks.AuxiliaryLoss | None:
        """Auxiliary loss that belongs to this loss; None if there is none."""
        of_term = self.entry.of_term.items()
        if self.entry.term is None:
            return None
        return self.entry.term(**{of.field or name: self.values[name] for name, of in of_term})

    def swept_fields(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Maps the swept ``numbers`` of the loss and its auxiliary loss to sweep field names."""
        found = {f"task.hyperparams.{n}": numbers[n] for n in self.hyperparams if n in numbers}
        of_term = self.entry.of_term.items()
        return found | {
            f"task.auxiliary_loss.{of.field or n}": numbers[n] for n, of in of_term if n in numbers
        }

    def similar(self, options: EncoderOptions) -> EncoderOptions:
        """Resolves the similarity in the encoder's flags, which the loss may constrain.

        Raises:
          ValueError: If the given similarity differs from the one that the loss requires.
        """
        if self.entry.similarities is None:
            return replace(options, similarity=options.similarity or "inner")
        similarity, ranks = self.entry.similarities
        if options.similarity not in (None, similarity):
            raise ValueError(
                f"--similarity {options.similarity}: this loss needs --similarity {similarity}."
            )
        ranks = options.serve_similarity or ranks
        return replace(options, similarity=similarity, serve_similarity=ranks)

    def confidence(self, log: data.Interactions, training: TrainOptions) -> Any:
        """Creates the confidence estimator for a training part; None if the loss has none."""
        make = self.entry.confidence
        return None if make is None else make(log, training, dict(self.values))


def resolve(options: LossOptions, swept: tuple[str, ...] = ()) -> Settled:
    """Fills in the defaults of the chosen loss.

    Args:
      options: The flags.
      swept: Names of the numbers set by a sweep.

    Raises:
      ValueError: If a flag is not supported by the loss, or flags contradict each other.
    """
    return Settled(OBJECTIVES[options.loss], settle("loss", options, OBJECTIVES, swept))
