"""The encoder of a run: how it is written, and read for use."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crl_jax import models

from .. import _bert
from .._encoder_file import encode, open_encoder
from .._text_file import open_texts, save_text_encoder
from ._config import SCHEMA, Config
from ._judge import TextLearned


@dataclass(frozen=True)
class Encoder:
    """What a run learned, for texts.

    Attributes:
      config: Its configuration.
      takes: What cuts texts, and the settings of the network.
      variables: Parameters of the network, and its other variables.
    """

    config: Config
    takes: _bert.Encoder
    variables: tuple[Any, Any]

    def features(self, texts: Sequence[str]) -> np.ndarray:
        """Features ``[n, width]``, float32."""
        tokens = self.takes.words.encode(texts, self.takes.length)
        return encode(models.Network(self.takes.settings), self.variables, tokens)


def save_encoder(folder: Path, learned: TextLearned) -> None:
    """Writes the encoder as the last stage left it, without a head, and its vocabulary."""
    after = learned.after
    save_text_encoder(folder, learned.problem.encoder, after.params, after.model_state)


def load_encoder(folder: Path) -> Encoder:
    """What a run learned.

    Raises:
      ValueError: If there is no trained encoder in ``folder``, or it is damaged.
    """
    kept = open_encoder(folder, SCHEMA)
    config = kept.config
    takes = open_texts(kept, config.encoding.lowercase, config.source.length)
    return Encoder(config, takes, kept.variables(models.Network(takes.settings).init))
