"""Loading and tokenization of the images and texts of a run."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from crl_jax.data import CaptionedImages, Tokens, load_captioned

from .._bert import Encoder, load_encoder
from .._program import rename_arguments
from .._study import OnStage
from ._config import DataOptions, TextOptions

Leaf = Array | np.ndarray


class Captions(NamedTuple):
    """Tokenized texts of each image, padded to the same number of texts.

    Attributes:
      ids: Token ids, int32 ``[n, most, length]``.
      mask: Whether an id is a token rather than padding, ``[n, most, length]``.
      n_texts: Number of texts of each image, at least 1, ``[n]``.
    """

    ids: Int[Leaf, "*n most length"]
    mask: Bool[Leaf, "*n most length"]
    n_texts: Int[Leaf, "*n"]


def draw_caption(key: Key[Array, ""], captions: Captions) -> Tokens:
    """Samples one of the texts of an image uniformly."""
    index = jax.random.randint(key, (), 0, captions.n_texts, jnp.int32)
    return Tokens(captions.ids[index], captions.mask[index])


@dataclass(frozen=True)
class Part:
    """Captioned images, with tokenized texts.

    Attributes:
      captioned: Images and texts.
      tokens: Tokens of all texts, on the host.
    """

    captioned: CaptionedImages
    tokens: Tokens

    @classmethod
    def from_captioned(cls, captioned: CaptionedImages, encoder: Encoder) -> "Part":
        """Creates an instance by tokenizing the texts for the encoder."""
        return cls(captioned, encoder.tokenizer.encode(captioned.texts, encoder.length))

    def sample(self, n: int) -> "Part":
        """Returns at most ``n`` images, evenly spaced, with their texts."""
        if n >= len(self.captioned):
            return self
        indices = np.arange(n) * len(self.captioned) // n
        text_mask = np.isin(self.captioned.image_of_text, indices)
        tokens = Tokens(self.tokens.ids[text_mask], self.tokens.mask[text_mask])
        return Part(self.captioned.take(indices), tokens)

    @cached_property
    def captions(self) -> Captions:
        """Texts grouped by image; each image must have at least one."""
        image_of_text, n = self.captioned.image_of_text, len(self.captioned)
        order = np.argsort(image_of_text, kind="stable")
        count = np.bincount(image_of_text, minlength=n).astype(np.int32)
        first = np.cumsum(count) - count
        position = np.minimum(np.arange(count.max())[None], count[:, None] - 1)
        text_indices = order[first[:, None] + position]
        return Captions(self.tokens.ids[text_indices], self.tokens.mask[text_indices], count)


@dataclass(frozen=True)
class Problem:
    """The images and texts of a run.

    Attributes:
      train: Training part.
      valid: Validation part, for reports and for the hyper-parameter search.
      test: Test part, evaluated once, at the end.
      encoder: The text encoder before training, with its tokenizer.
    """

    train: Part
    valid: Part
    test: Part
    encoder: Encoder

    @property
    def grouped(self) -> bool:
        """Whether it is known which images are equal."""
        return self.train.captioned.groups is not None

    @property
    def equal_share(self) -> float | None:
        """Fraction of pairs of distinct training images that are equal; None without groups."""
        groups = self.train.captioned.groups
        if groups is None:
            return None
        sizes = np.unique(groups[groups >= 0], return_counts=True)[1].astype(float)
        n = len(groups)
        return float(np.sum(sizes * (sizes - 1)) / max(n * (n - 1), 1))


def load_problem(
    source: DataOptions, text: TextOptions, on_stage: OnStage, on_disk: bool = False
) -> Problem:
    """Reads images and texts, learns or reads the vocabulary, and tokenizes the texts.

    Pixels may remain on disk.

    Raises:
      ValueError: If there is no validation part, or flags are incompatible.
      DataError: If files are invalid.
      ImportError: If the package tokenizers is missing.
    """
    on_stage("reading images and texts")
    split = load_captioned(
        source.data, size=source.image_size, valid=source.valid_fraction, test=source.test_fraction,
        seed=source.split_seed, column=source.column, drawings=source.drawings or None,
        on_disk=on_disk,
    )  # fmt: skip
    if split.valid is None:
        raise ValueError(
            f"--data {source.data} has no part for validation: a file dev.txt next to train.txt "
            "names its images."
        )
    on_stage("cutting the texts")
    captioned_train = split.train.take(np.unique(split.train.image_of_text))
    with rename_arguments(width="--text-width", size="--text-vocab-size"):
        encoder = load_encoder(text.bert, captioned_train.texts, text.length)
    train, valid, test = (
        Part.from_captioned(part, encoder) for part in (captioned_train, split.valid, split.test)
    )
    return Problem(train, valid, test, encoder)
