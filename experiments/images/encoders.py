"""Registry of image encoders, by their names on the command line."""

from functools import partial
from typing import Any

from crl_jax import models

from .._backbones import BackboneEntry, entry_of
from .._backbones import make_backbone as make
from .._registry import Registry, declared, settle
from .._study_options import EncoderOptions

_IMAGENET_SIDE = 32
"""Least side of views for the stem ``imagenet``, of which one position is left."""


def _resnet(depth: int, width: int) -> BackboneEntry:
    return BackboneEntry(
        help=f"ResNet of {depth} layers",
        hyperparams=declared(models.ResNet, "width", "stem", "norm", defaults={"width": width}),
        make=partial(models.ResNet, depth),
    )


ENCODERS = Registry(
    {
        "resnet10": _resnet(10, 16),
        "resnet18": _resnet(18, 64),
        "resnet34": _resnet(34, 64),
        "resnet50": _resnet(50, 64),
    },
    make=entry_of,
)


def make_backbone(options: EncoderOptions, n_channels: int) -> Any:
    """Returns the builder of the network from views of ``n_channels`` channels to features."""
    return make(options, ENCODERS, n_channels=n_channels)


def check_view_size(options: EncoderOptions, size: int | None) -> None:
    """Raises ``ValueError`` if views of ``size`` pixels are too small for the stem of the encoder.

    The stem ``imagenet`` and the stages after it halve the side five times.
    """
    stem = settle("encoder", options, ENCODERS).get("stem")
    if stem == "imagenet" and size is not None and size < _IMAGENET_SIDE:
        raise ValueError(
            f"--stem imagenet reduces each side by the factor {_IMAGENET_SIDE}: --view-size must "
            f"be at least {_IMAGENET_SIDE}, got {size}."
        )
