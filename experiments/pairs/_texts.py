"""The encoder of texts: from scratch, with pieces of words of its own, or with given weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crl_jax import data, models

from .._flags import spoken
from ._options import TextOptions

_LONGEST = 32
"""Tokens of a text at most, if no flag says."""
_INNER = 4
"""By how much the inner layer of a BERT is wider, as published."""


@dataclass(frozen=True)
class TextEncoder:
    """What makes features of a text.

    Attributes:
      words: The vocabulary.
      length: Tokens of a text.
      settings: What builds the network.
      params: What its training starts from; None for what is drawn.
    """

    words: data.WordPiece
    length: int
    settings: models.Bert
    params: Any = None


def make_encoder(options: TextOptions, texts: Sequence[str]) -> TextEncoder:
    """The encoder of the flags.

    Args:
      options: The flags, settled.
      texts: Those of the training part, which a vocabulary is learned from.

    Raises:
      ValueError: If flags do not go together.
      DataError: If files are broken.
      ImportError: If the package tokenizers is missing.
    """
    if options.weights is not None:
        return _given(options, options.weights, texts)
    width, layers, heads = options.text_width, options.text_layers, options.text_heads
    assert width is not None
    assert layers is not None
    assert heads is not None
    assert options.vocabulary is not None
    words = data.WordPiece.learn(texts, options.vocabulary, lowercase=options.lowercase)
    length = _length(options, words, texts)
    with spoken(width="--text-width"):
        settings = models.Bert(
            len(words), width=width, n_layers=layers, n_heads=heads, inner_width=_INNER * width,
            n_positions=length, dropout=options.text_dropout,
        )  # fmt: skip
    return TextEncoder(words, length, settings)


def _given(options: TextOptions, path: Path, texts: Sequence[str]) -> TextEncoder:
    vocabulary = (path if path.is_dir() else path.parent) / "vocab.txt"
    loaded = models.load_bert(path, n_heads=options.text_heads, dropout=options.text_dropout)
    if not vocabulary.exists():
        raise FileNotFoundError(f"{vocabulary}: there is no such file beside the --weights.")
    words = data.WordPiece.read(vocabulary, lowercase=options.lowercase)
    if len(words) != loaded.settings.vocab_size:
        raise data.DataError(
            f"{vocabulary}: expected the {loaded.settings.vocab_size} pieces of the --weights, "
            f"got {len(words)}."
        )
    length = _length(options, words, texts)
    if length > loaded.settings.n_positions:
        raise ValueError(
            f"--length must be at most the {loaded.settings.n_positions} places of the --weights, "
            f"got {length}."
        )
    return TextEncoder(words, length, loaded.settings, loaded.params)


def _length(options: TextOptions, words: data.WordPiece, texts: Sequence[str]) -> int:
    longest = int(words.lengths(texts).max())
    return min(longest, _LONGEST) if options.length is None else options.length
