"""The losses of ``--loss``: those of two views, see :mod:`experiments.view_losses`."""

from dataclasses import replace

from .._registry import Registry
from ..view_losses import LOSSES as OF_VIEWS
from ..view_losses import LossEntry

_BAYESIAN = OF_VIEWS["bayesian"]
LOSSES = Registry(
    {
        **OF_VIEWS,
        # Texts of one class have few words in common, and ranks say little at first. With harder
        # negatives an encoder from scratch stays at one point.
        "bayesian": replace(_BAYESIAN, defaults={**_BAYESIAN.defaults, "beta": 0.5}),
    },
    make=lambda loss: LossEntry(loss=loss),
)
