"""Registries of contrastive auxiliary losses and of their loss functions by command-line name.

A new contrast requires a :class:`ContrastEntry` in a file of this folder and an entry in
:data:`CONTRASTS`; a new loss function, a :class:`LossEntry` and an entry in :data:`LOSSES`.
"""

from collections.abc import Mapping
from typing import Any

from crl_jax import data, models, tasks

from .._options import ContrastOptions
from .._registry import Registry, settle
from . import graphs, losses
from ._entry import ContrastEntry as ContrastEntry
from ._entry import LossEntry as LossEntry

CONTRASTS: Mapping[str, ContrastEntry] = {
    "none": ContrastEntry(help="no such term", make=None),
    "sgl": graphs.SGL,
    "simgcl": graphs.SIMGCL,
    "xsimgcl": graphs.XSIMGCL,
    "lightgcl": graphs.LIGHTGCL,
}
LOSSES = Registry(
    {
        "info_nce": losses.INFO_NCE,
        "debiased": losses.DEBIASED,
        "hard": losses.HARD,
        "bayesian": losses.BAYESIAN,
        "decoupled": losses.DECOUPLED,
    },
    make=lambda loss: LossEntry(loss=loss),
)
_GRAPHS = ("lightgcn",)
"""Encoders with layers that can be contrasted."""


def settle_contrast(
    options: ContrastOptions, encoder: str, swept: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns the flag values of the chosen contrast and of its loss function.

    Args:
      options: The flags.
      encoder: The name of the encoder.
      swept: Names of the numbers set by a sweep.

    Raises:
      ValueError: If a flag is not supported by the contrast or its loss function, or the encoder
        has no layers to contrast.
    """
    values = settle("contrast", options, CONTRASTS, swept)
    values |= settle("contrast_loss", options, LOSSES, swept)
    if options.contrast == "none":
        if options.contrast_loss != "info_nce":
            raise ValueError(f"--contrast-loss {options.contrast_loss} needs a --contrast.")
    elif encoder not in _GRAPHS:
        raise ValueError(
            f"--contrast {options.contrast} needs --encoder {' or '.join(_GRAPHS)}, got {encoder}."
        )
    return values


def resolve_contrast(
    options: ContrastOptions,
    log: data.Interactions,
    encoder: models.Encoder,
    swept: tuple[str, ...] = (),
) -> tuple[models.Encoder, tasks.AuxiliaryLoss | None]:
    """Creates the chosen contrast for training on ``log``.

    Returns:
      The encoder for ranking and the auxiliary loss; the given encoder and None for no contrast.

    Raises:
      ValueError: If a number is invalid for the data.
    """
    entry, of_loss = CONTRASTS[options.contrast], LOSSES[options.contrast_loss]
    if entry.make is None:
        return encoder, None
    assert isinstance(encoder, models.LightGCN)
    own = settle("contrast", options, CONTRASTS, swept)
    numbers = settle("contrast_loss", options, LOSSES, swept)
    hyperparams = {of.field: numbers[name] for name, of in of_loss.flags.items()}
    settings = {
        "weight": own.pop("contrast_weight"),
        "hyperparams": {"temperature": own.pop("contrast_temperature"), **hyperparams},
        "loss_fn": of_loss.loss,
    }
    encoder, term = entry.make(log, encoder, settings, **own)
    term.check(encoder)
    return encoder, term


def swept_fields(options: ContrastOptions, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Maps the swept ``numbers`` that are flags of the contrast to sweep field names."""
    flags = {**CONTRASTS[options.contrast].flags, **LOSSES[options.contrast_loss].flags}
    found = {}
    for name, of in flags.items():
        if name in numbers:
            part = "" if of.field == "weight" else "hyperparams."
            found[f"task.auxiliary_loss.{part}{of.field}"] = numbers[name]
    return found
