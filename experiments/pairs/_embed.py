"""Saving and loading of the two networks of a run, and the command ``embed``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, losses, models

from .. import _bert
from .. import _encoder_file as file
from .._bert import open_texts, read_lines, save_text_encoder
from .._ranges import option_group
from ..backbones import IMAGE_ENCODERS, make_backbone
from ..images._embed import count_channels, embed_images
from ..images._views import make_views
from ._config import SCHEMA, Config
from ._evaluate import EmbeddedTestPart

_DESCRIPTION = """Images or texts in the space that a run learned, as vectors of length 1: what
belongs together is near.

Writes an npz with the array features [n, dim], a row for each line of --texts; of --images also
labels [n] (-1: none), classes, part [n], which part of the set each image is of, and, of folders
and archives, names [n], the paths of the files.
"""


@option_group
class EmbedOptions(file.EmbedOptions):
    """Options of ``embed``."""

    images: str | None = None
    """Images to embed: a --data value of experiments.images, such as a folder or archive; resized
    as in the run."""
    labels: bool = True
    """Whether to read labels of --images. Without labels, folders may have any names."""
    texts: Path | None = None
    """UTF-8 file with one text per line."""

    def check(self) -> None:
        """See :meth:`experiments._encoder_file.EmbedOptions.check`."""
        if (self.images is None) == (self.texts is None):
            raise ValueError("--images and --texts name what is embedded; give one of them.")


def make_networks(
    config: Config, n_channels: int, settings: models.BERT
) -> tuple[models.Network, models.Network]:
    """Returns the image and text networks, each with its projection into the shared space."""
    projection = models.Projection((config.training.dim,), norm=False, last_bias=False)
    images = make_backbone(config.encoding, IMAGE_ENCODERS, n_channels=n_channels)
    return (
        models.Network(models.BackboneWithHead(images, projection)),
        models.Network(models.BackboneWithHead(settings, projection)),
    )


_TOWERS = ("first", "second")


@dataclass(frozen=True)
class SavedTowers:
    """Image and text encoders trained by a run, with normalized embeddings in a shared space.

    Attributes:
      config: Configuration of the run.
      text_encoder: Tokenizer and settings of the text network.
      networks: The image network and the text network.
      variables: Their parameters, and their other variables, with keys ``first`` and ``second``.
    """

    config: Config
    text_encoder: _bert.Encoder
    networks: tuple[models.Network, models.Network]
    variables: tuple[Any, Any]

    def images(self, images: np.ndarray) -> np.ndarray:
        """Computes embeddings ``[n, dim]`` of uint8 images ``[n, height, width, channels]``."""
        return self._embed("first", images, make_views(self.config.views))

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Computes embeddings ``[n, dim]`` of texts."""
        return self._embed(
            "second", self.text_encoder.tokenizer.encode(texts, self.text_encoder.length)
        )

    def _embed(self, tower: str, examples: Any, augment: Any = None) -> np.ndarray:
        network = self.networks[_TOWERS.index(tower)]
        params, rest = (variables[tower] for variables in self.variables)
        embedded = file.encode(network, (params, rest), examples, augment)
        return np.asarray(losses.normalize(jnp.asarray(embedded)))


def save_towers(folder: Path, embedded: EmbeddedTestPart) -> None:
    """Writes both networks, including their projections, and the vocabulary."""
    learned = embedded.learned
    variables = learned.task.network_variables(learned.params, learned.model_state)
    save_text_encoder(folder, embedded.encoder, *variables)


def load_towers(folder: Path) -> SavedTowers:
    """Loads the encoders of a run.

    Raises:
      ValueError: If there are no trained networks in ``folder``, or their files are damaged.
    """
    saved = file.open_encoder(folder, SCHEMA)
    config = saved.config
    text_encoder = open_texts(saved, config.text.lowercase, config.text.length)
    networks = make_networks(config, count_channels(config), text_encoder.settings)

    def init(key: jax.Array) -> tuple[Any, Any]:
        params, rest = zip(*(network.init(key) for network in networks))
        return dict(zip(_TOWERS, params)), dict(zip(_TOWERS, rest))

    return SavedTowers(config, text_encoder, networks, saved.variables(init))


def _embed(options: EmbedOptions, towers: SavedTowers) -> tuple[str, dict[str, Any]]:
    """Returns the embeddings of the images or texts that the flags select."""
    if options.texts is not None:
        return "texts", {"features": towers.texts(read_lines(options.texts))}
    source, config = f"--images {options.images}", towers.config
    size = config.source.image_size or config.views.eval_size
    split = data.load_images(options.images, size=size, labelled=options.labels)
    return embed_images(source, split, towers.images, count_channels(config), options.run)


main = file.embed_command(EmbedOptions, "pairs", _DESCRIPTION, load_towers, _embed)
