"""The flags of a run on pairs with what was left out, and what does not go together."""

from dataclasses import replace
from typing import Any

from .._bert import Encoder, settled
from .._registry import settle
from ..images.encoders import ENCODERS
from ..view_losses import settle_loss
from ._config import SCHEMA, Config
from ._options import TEXT, TextOptions, TrainOptions
from .losses import LOSSES

_TEXT_LAYERS = 2
"""Of an encoder of texts from scratch."""


def settled_entries(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of the flags of loss and encoder.

    Raises:
      ValueError: If one was given, or swept, that is not taken.
    """
    swept = tuple(SCHEMA.sweep(config.protocol.sweep, config))
    of_loss = settle_loss(config.objective, swept, LOSSES)
    return of_loss, settle("encoder", config.encoding, ENCODERS, swept)


def settled_text(options: TextOptions) -> TextOptions:
    """The flags with what other commands leave out in another way."""
    if options.weights is not None or options.text_n_layers is not None:
        return options
    return replace(options, text_n_layers=_TEXT_LAYERS)


def as_loaded(options: TextOptions, encoder: Encoder) -> TextOptions:
    """The flags with what was left out, as it is."""
    found = settled(settled_text(options).bert, encoder)
    lowercase = found.pop("lowercase")
    own = {TEXT + name: value for name, value in found.items()}
    return replace(options, length=encoder.length, lowercase=lowercase, **own)


def settled_training(options: TrainOptions, loss: str) -> TrainOptions:
    """The flags with what was left out, which depends on the loss.

    Raises:
      ValueError: If the temperature starts below where it stops falling.
    """
    entry = LOSSES[loss]
    if options.temperature is None:
        options = replace(options, temperature=entry.temperature)
    if not options.learn_temperature:
        return options
    if options.least_temperature is None:
        options = replace(options, least_temperature=entry.least_temperature)
    start, least = options.temperature, options.least_temperature
    assert start is not None
    assert least is not None
    if start < least:
        raise ValueError(
            f"--temperature must start from --least-temperature {least:g} or above, got {start:g}."
        )
    return options


def refuse_groups(config: Config) -> None:
    """Refuses what needs to know which images are equal."""
    of_loss = settle_loss(config.objective, (), LOSSES)
    said = {
        "--alpha-from labels": of_loss.get("alpha_from") == "labels",
        "--exclude-equal True": config.training.exclude_equal,
    }
    for flag, is_given in said.items():
        if is_given:
            raise ValueError(
                f"{flag} needs to know which images are equal, and {config.source.data} does not "
                "tell."
            )
