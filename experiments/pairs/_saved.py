"""The two networks of a run: how they are written, and read for use."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import losses, models

from .. import _bert
from .._encoder_file import encode, open_encoder
from .._text_file import open_texts, save_text_encoder
from ..images._saved import channels_of
from ..images._views import make_views
from ._config import SCHEMA, Config
from ._judge import Found
from ._training import networks_of

_HALVES = ("first", "second")


@dataclass(frozen=True)
class SavedTowers:
    """What a run learned: images and texts in one space, embedded with length 1.

    Attributes:
      config: Its configuration.
      takes: What cuts texts.
      networks: Of images, and of texts.
      variables: Their parameters, and their other variables, by ``first`` and ``second``.
    """

    config: Config
    takes: _bert.Encoder
    networks: tuple[models.Network, models.Network]
    variables: tuple[Any, Any]

    @property
    def n_channels(self) -> int:
        """Channels of the images that it takes."""
        return channels_of(self.config)

    @property
    def image_size(self) -> int | None:
        """Pixels a side that images are brought to."""
        return self.config.source.image_size or self.config.views.judged_size

    def images(self, images: np.ndarray) -> np.ndarray:
        """Embeddings ``[n, dim]`` of images ``[n, height, width, channels]``, uint8."""
        return self._embed("first", images, make_views(self.config.views))

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings ``[n, dim]`` of texts."""
        return self._embed("second", self.takes.words.encode(texts, self.takes.length))

    def _embed(self, half: str, examples: Any, augment: Any = None) -> np.ndarray:
        network = self.networks[_HALVES.index(half)]
        params, rest = (variables[half] for variables in self.variables)
        embedded = encode(network, (params, rest), examples, augment)
        return np.asarray(losses.normalize(jnp.asarray(embedded)))


def save_towers(folder: Path, found: Found) -> None:
    """Writes both networks with their way into the space, and the vocabulary."""
    learned = found.learned
    both = learned.task.network_variables(learned.params, learned.model_state)
    save_text_encoder(folder, found.encoder, *both)


def load_towers(folder: Path) -> SavedTowers:
    """What a run learned.

    Raises:
      ValueError: If there are no trained networks in ``folder``, or they are damaged.
    """
    kept = open_encoder(folder, SCHEMA)
    config = kept.config
    takes = open_texts(kept, config.text.lowercase, config.text.length)
    networks = networks_of(config, channels_of(config), takes.settings)

    def init(key: jax.Array) -> tuple[Any, Any]:
        params, rest = zip(*(network.init(key) for network in networks))
        return dict(zip(_HALVES, params)), dict(zip(_HALVES, rest))

    return SavedTowers(config, takes, networks, kept.variables(init))
