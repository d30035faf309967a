"""The losses of ``--loss``: a half of a pair against its other half and those of the others.

A new one is a :class:`PairLoss` and a line in :data:`LOSSES`. What serves two views serves pairs,
too: its entry is that of :mod:`experiments.view_losses`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from crl_jax import losses

from .._ranges import Range
from .._registry import Hyperparam
from ..view_losses import LOSSES as OF_VIEWS
from ..view_losses import UNKNOWN_SHARE, LossEntry


@dataclass(frozen=True, kw_only=True)
class PairLoss(LossEntry):
    """A loss of pairs.

    Attributes:
      temperature: Where the temperature starts from.
      least_temperature: Where it stops falling.
    """

    temperature: float = 0.07
    least_temperature: float = 0.01


_TAU_PLUS = (
    "Share of images or texts that are equal to the anchor's own; by default that of the training "
    f"part by its groups, or {UNKNOWN_SHARE} where there are none"
)


def _of_pairs(name: str, help: str) -> PairLoss:
    """A loss of two views."""
    entry = OF_VIEWS[name]
    hyperparams = dict(entry.hyperparams)
    if "tau_plus" in hyperparams:
        hyperparams["tau_plus"] = replace(hyperparams["tau_plus"], help=_TAU_PLUS)
    return PairLoss(
        help=help, hyperparams=hyperparams, loss=entry.loss, settings=entry.settings,
        weigh=entry.weigh,
    )  # fmt: skip


LOSSES: Mapping[str, PairLoss] = {
    "clip": _of_pairs("info_nce", "one positive against all others, in both directions"),
    "siglip": PairLoss(
        help="each pair by itself, a match or none, with a bias that is learned",
        loss=losses.sigmoid_contrastive,
        settings={"bias": Hyperparam(-10.0, "Where the bias starts from", Range())},
        temperature=0.1,
        least_temperature=0.0,
    ),
    **{name: _of_pairs(name, OF_VIEWS[name].help) for name in OF_VIEWS if name != "info_nce"},
}
