"""Losses of ``--loss``, which contrast matching image-text pairs with the others of the batch.

To add a loss, add a :class:`PairLoss` and an entry in :data:`LOSSES`. Losses of two views also
apply to pairs; their entries derive from :mod:`experiments.view_losses`.
"""

from dataclasses import dataclass

from crl_jax import losses, summary

from .._ranges import FINITE
from .._registry import Hyperparam, Registry
from ..view_losses import LOSSES as OF_VIEWS
from ..view_losses import UNKNOWN_SHARE, LossEntry


@dataclass(frozen=True, kw_only=True)
class PairLoss(LossEntry):
    """Entry of a loss of pairs.

    Attributes:
      temperature: Default initial temperature.
      least_temperature: Default lower bound of the learned temperature.
    """

    temperature: float = 0.07
    least_temperature: float = 0.01


_NOTES = {
    "tau_plus": "by default that of the training part by its groups of equal images or texts, or "
    f"{UNKNOWN_SHARE} where there are none"
}


def _of_pairs(name: str, help: str = "") -> PairLoss:
    """Returns the entry of a two-view loss, applied to pairs."""
    entry = OF_VIEWS[name]
    return PairLoss(
        help=help or entry.help, loss=entry.loss, defaults=entry.defaults, settings=entry.settings,
        notes=_NOTES if "tau_plus" in entry.hyperparams else {}, weigh=entry.weigh,
    )  # fmt: skip


LOSSES = Registry(
    {
        "clip": _of_pairs("info_nce", summary(losses.clip_contrastive)),
        "siglip": PairLoss(
            loss=losses.sigmoid_contrastive,
            settings={"bias": Hyperparam(-10.0, "Initial value of the learned bias", FINITE)},
            temperature=0.1,
            least_temperature=0.0,
        ),
        **{name: _of_pairs(name) for name in OF_VIEWS if name != "info_nce"},
    },
    make=lambda loss: PairLoss(loss=loss),
)
