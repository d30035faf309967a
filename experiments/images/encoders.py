"""The encoders of images by their names on the command line.

A new one is an :class:`EncoderEntry` and a line in :data:`ENCODERS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from crl_jax import models

from .._registry import Entry, declared, settle
from ._options import EncoderOptions


@dataclass(frozen=True, kw_only=True)
class EncoderEntry(Entry):
    """A network from images to features.

    Attributes:
      make: ``make(n_channels=…, **values)``: what :class:`crl_jax.models.Network` builds.
    """

    make: Callable[..., Any]


def _resnet(depth: int, width: int) -> EncoderEntry:
    return EncoderEntry(
        help=f"ResNet of {depth} layers",
        hyperparams=declared(models.ResNet, "width", "stem", "norm", defaults={"width": width}),
        make=partial(models.ResNet, depth),
    )


ENCODERS: Mapping[str, EncoderEntry] = {
    "resnet10": _resnet(10, 16),
    "resnet18": _resnet(18, 64),
    "resnet34": _resnet(34, 64),
    "resnet50": _resnet(50, 64),
}


def make_backbone(options: EncoderOptions, n_channels: int) -> Any:
    """What builds the network from views of ``n_channels`` to features, by the flags."""
    values = settle("encoder", options, ENCODERS)
    return ENCODERS[options.encoder].make(n_channels=n_channels, **values)
