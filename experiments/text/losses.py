"""Losses of ``--loss``: the two-view losses of :mod:`experiments.view_losses`."""

from dataclasses import replace

from .._registry import Registry
from ..view_losses import LOSSES as OF_VIEWS
from ..view_losses import LossEntry

_BAYESIAN = OF_VIEWS["bayesian"]
LOSSES = Registry(
    {
        **OF_VIEWS,
        # Texts of one class share few words, so ranks are uninformative at first. With harder
        # negatives, the features of an encoder trained from scratch collapse to one point.
        "bayesian": replace(_BAYESIAN, defaults={**_BAYESIAN.defaults, "beta": 0.5}),
    },
    make=lambda loss: LossEntry(loss=loss),
)
