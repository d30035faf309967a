"""Registries of the encoders of images, graphs and sequences, by their command-line names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from crl_jax import models

from ._registry import Entry, Registry, declared, resolve_flags
from ._study_options import EncoderOptions

_IMAGENET_SIDE = 32
"""Least side of views for the stem ``imagenet``, of which one position is left."""


@dataclass(frozen=True, kw_only=True)
class BackboneEntry(Entry):
    """A network from examples to features.

    Attributes:
      make: ``make(**sizes, **values)`` returns the builder of a :class:`crl_jax.models.Network`,
        from the sizes of the data and the values of the flags.
    """

    make: Callable[..., Any]


def _make_entry(source: Any) -> BackboneEntry:
    """Returns the entry of a network with the hyper-parameters that it declares."""
    return BackboneEntry(source=source, hyperparams=declared(source, sweeps=False), make=source)


def _resnet(depth: int, width: int) -> BackboneEntry:
    return BackboneEntry(
        help=f"ResNet of {depth} layers",
        hyperparams=declared(models.ResNet, "width", "stem", "norm", defaults={"width": width}),
        make=partial(models.ResNet, depth),
    )


IMAGE_ENCODERS = Registry(
    {
        "resnet10": _resnet(10, 16),
        "resnet18": _resnet(18, 64),
        "resnet34": _resnet(34, 64),
        "resnet50": _resnet(50, 64),
    },
    make=_make_entry,
)
GRAPH_ENCODERS = Registry({"gin": _make_entry(models.GIN)}, make=_make_entry)


def _sasrec(n_items: int, window: int, **values: Any) -> models.SASRec:
    return models.SASRec(n_items, n_positions=window, **values)


SEQUENCE_ENCODERS = Registry(
    {
        "sasrec": BackboneEntry(
            source=models.SASRec,
            hyperparams=declared(
                models.SASRec, "width", "n_layers", "n_heads", "dropout", sweeps=False
            ),
            make=_sasrec,
        )
    },
    make=_make_entry,
)


def make_backbone(
    options: EncoderOptions, entries: Mapping[str, BackboneEntry], **sizes: int
) -> Any:
    """Returns the builder of the chosen network for examples of these sizes.

    Args:
      options: The flags.
      entries: The available encoders.
      **sizes: ``n_channels`` of images; ``n_in``, the number of features of a node; or ``n_items``
        and ``window`` of sequences.
    """
    values = resolve_flags("encoder", options, entries)
    return entries[options.encoder].make(**sizes, **values)


def check_view_size(options: EncoderOptions, size: int | None) -> None:
    """Raises ``ValueError`` if views of ``size`` pixels are too small for the stem of the encoder.

    The stem ``imagenet`` and the stages after it halve the side five times.
    """
    stem = resolve_flags("encoder", options, IMAGE_ENCODERS).get("stem")
    if stem == "imagenet" and size is not None and size < _IMAGENET_SIDE:
        raise ValueError(
            f"--stem imagenet reduces each side by the factor {_IMAGENET_SIDE}: --view-size must "
            f"be at least {_IMAGENET_SIDE}, got {size}."
        )
