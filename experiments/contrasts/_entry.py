"""Command-line entries of contrasts and of their loss functions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from crl_jax import models, tasks

from .._ranges import POSITIVE
from .._registry import Entry, Hyperparam, declared

_WEIGHT = declared(tasks.ContrastiveAuxiliaryLoss, "weight")["weight"]
_TEMPERATURE = Hyperparam(
    None, "Temperature of the contrast, the divisor of its cosines", POSITIVE, field="temperature"
)
Made = tuple[models.LightGCN, tasks.ContrastiveAuxiliaryLoss]
"""The encoder for ranking and the auxiliary loss."""


@dataclass(frozen=True, kw_only=True)
class ContrastEntry(Entry):
    """A method that creates two views of users and items.

    Attributes:
      make: ``make(log, encoder, settings, **values)``, which returns :data:`Made` for training on
        ``log``. It receives the encoder of ``--encoder``, the weight and the loss function of the
        auxiliary loss, keyed by field name, and the values of the entry's own flags. None for no
        contrast.
      weight: Default of ``--contrast-weight``, the published value on Yelp2018.
      temperature: Default of ``--contrast-temperature``, likewise.
    """

    make: Callable[..., Made] | None
    weight: float = 0.1
    temperature: float = 0.2

    @property
    def flags(self) -> Mapping[str, Hyperparam]:
        """Weight, temperature and the entry's own flags. A sweep cannot set the latter."""
        if self.make is None:
            return {}
        shared = {
            "contrast_weight": replace(_WEIGHT, default=self.weight, field="weight"),
            "contrast_temperature": replace(_TEMPERATURE, default=self.temperature),
        }
        return {**shared, **self.hyperparams}


@dataclass(frozen=True, kw_only=True)
class LossEntry(Entry):
    """A loss function for contrasts; its flags are named ``contrast_NAME``.

    Attributes:
      loss: ``loss(pos, neg, *, temperature, where, reduce_fn, …)``.
    """

    loss: Callable[..., Any]
