"""Saving and loading of the encoder of a run on texts, and the command ``embed``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from crl_jax import models

from .. import _bert
from .. import _encoder_file as file
from .._bert import open_texts, read_lines, save_text_encoder
from .._ranges import option_group
from ._config import _DATA, SCHEMA, Config, DataOptions
from ._evaluate import TrainedTextModel
from ._problem import load_split

_DESCRIPTION = """Features of texts by the encoder of a run: as fine-tuning left it, or pre-training
where there was no fine-tuning.

Writes an npz with the array features [n, dim], a row for each line of --texts; of --data also
labels [n] (-1: none), classes, and part [n]: which part of the set each text is of.
"""


@option_group
class EmbedOptions(file.EmbedOptions):
    """Options of ``embed``."""

    texts: Path | None = None
    """UTF-8 file with one text per line."""
    data: Annotated[str | None, tyro.conf.arg(help=f"{_DATA} By default the run's own.")] = None
    text_col: str | None = None
    """Column of the texts in --data, by name or 0-based position."""
    label_col: str | None = None
    """Column of the class labels in --data, likewise."""

    def check(self) -> None:
        """See :meth:`experiments._encoder_file.EmbedOptions.check`."""
        if self.texts is not None and self.data is not None:
            raise ValueError("--texts and --data name what is embedded; give one of them.")
        for flag, value in (("--text-col", self.text_col), ("--label-col", self.label_col)):
            if value is not None and self.data is None:
                raise ValueError(f"{flag} {value} is a column of --data; give that, too.")


@dataclass(frozen=True)
class Encoder(file.TrainedNetwork[Config]):
    """Text encoder trained by a run.

    Attributes:
      text_encoder: Tokenizer and settings of the network.
    """

    text_encoder: _bert.Encoder

    def features(self, texts: Sequence[str]) -> np.ndarray:
        """Computes float32 features ``[n, width]`` of texts."""
        tokens = self.text_encoder.tokenizer.encode(texts, self.text_encoder.length)
        return file.encode(self.network, self.variables, tokens)


def save_encoder(folder: Path, learned: TrainedTextModel) -> None:
    """Writes the encoder after the last stage, without a head, and its vocabulary."""
    after = learned.after
    save_text_encoder(folder, learned.problem.encoder, after.params, after.model_state)


def load_encoder(folder: Path) -> Encoder:
    """Loads the encoder of a run.

    Raises:
      ValueError: If there is no trained encoder in ``folder``, or its files are damaged.
    """
    saved = file.open_encoder(folder, SCHEMA)
    config = saved.config
    text_encoder = open_texts(saved, config.encoding.lowercase, config.source.length)
    network = models.Network(text_encoder.settings)
    return Encoder(config, network, saved.variables(network.init), text_encoder)


def _embed(options: EmbedOptions, encoder: Encoder) -> tuple[str, dict[str, Any]]:
    """Returns the features of the texts that the flags select."""
    if options.texts is not None:
        return "texts", {"features": encoder.features(read_lines(options.texts))}
    source = encoder.config.source
    if options.data is not None:
        source = DataOptions(options.data, options.text_col, options.label_col)
    split = load_split(source)
    features = encoder.features([text for _, part in split.parts() for text in part.texts])
    return "texts", {"features": features, **file.label_arrays(split)}


main = file.embed_command(EmbedOptions, "text", _DESCRIPTION, load_encoder, _embed)
