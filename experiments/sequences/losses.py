"""Losses of ``--loss`` for sequences: the next item is the positive of each position.

To add a loss, add a :class:`SequenceLoss` to :data:`LOSSES`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from crl_jax import losses, tasks

from .._registry import Hyperparam, Registry, count, resolve_flags, words
from ..view_losses import UNKNOWN_SHARE, LossEntry, loss_arguments


@dataclass(frozen=True, kw_only=True)
class SequenceLoss(LossEntry):
    """Loss of one positive against negatives that are drawn for each position, or all items.

    Attributes:
      n_neg: Default number of negatives per position.
      negatives: Default of ``--negatives``.
      is_full: Whether the loss is defined for all items as negatives only.
    """

    n_neg: int = 1
    negatives: tasks.NextItemNegatives = "unseen"
    is_full: bool = False
    settings: Mapping[str, Hyperparam] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not self.is_full:
            settings = {
                "n_neg": count(self.n_neg, "Number of negatives drawn per position (N)"),
                "negatives": words(
                    self.negatives,
                    "Negatives of a position: drawn from the items that are not in the sequence "
                    "(unseen) or from all other items (any), or all other items (all)",
                    get_args(tasks.NextItemNegatives),
                ),
            }
            object.__setattr__(self, "settings", settings)
        super().__post_init__()

    def check(self, values: Mapping[str, Any], given: Collection[str]) -> None:
        """Rejects a number of negatives if all items are negatives."""
        if values.get("negatives") == "all" and "n_neg" in given:
            raise ValueError("--negatives all uses all items; omit --n-neg.")

    def complete(self, values: dict[str, Any], swept: tuple[str, ...]) -> dict[str, Any]:
        """Omits the number of negatives if all items are negatives."""
        del swept
        is_all = values.get("negatives") == "all"
        return {name: value for name, value in values.items() if not (is_all and name == "n_neg")}


_PRIOR = {
    "defaults": {"tau_plus": None}, "notes": {"tau_plus": f"by default {UNKNOWN_SHARE}"},
}  # fmt: skip
LOSSES = Registry(
    {
        "bce": SequenceLoss(loss=losses.bce),
        "bpr": SequenceLoss(loss=losses.bpr),
        "gbce": SequenceLoss(loss=losses.gbce, n_neg=64, negatives="any"),
        "softmax": SequenceLoss(
            help="Softmax over all items, in linear memory", loss=losses.info_nce, is_full=True
        ),
        "info_nce": SequenceLoss(loss=losses.info_nce, n_neg=64),
        "dpl": SequenceLoss(loss=losses.debiased_pairwise, n_neg=5, **_PRIOR),
        "debiased": SequenceLoss(loss=losses.debiased_contrastive, n_neg=64, **_PRIOR),
        "bayesian": SequenceLoss(loss=losses.bayesian_contrastive, n_neg=64, **_PRIOR),
    },
    make=lambda loss: SequenceLoss(loss=loss),
)


def task_arguments(
    options: Any, temperature: float, numbers: dict[str, float], n_items: int
) -> dict[str, Any]:
    """Returns ``loss_fn``, ``hyperparams``, ``negatives`` and ``n_neg`` of the task.

    The sampling rate of gBCE follows from the numbers of negatives and items. Arguments are those
    of :func:`loss_arguments`.
    """
    values = resolve_flags("loss", options, LOSSES, tuple(numbers))
    kwargs = loss_arguments(options, temperature, numbers, LOSSES)
    del kwargs["alpha"]
    kwargs["negatives"], kwargs["n_neg"] = values.get("negatives", "all"), values.get("n_neg", 1)
    if kwargs["loss_fn"] is losses.gbce:
        n_drawn = n_items - 1 if kwargs["negatives"] == "all" else kwargs["n_neg"]
        kwargs["hyperparams"]["sampling_rate"] = min(1.0, n_drawn / (n_items - 1))
    return kwargs
