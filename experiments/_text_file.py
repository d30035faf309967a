"""Saved text encoders of a run: the vocabulary, and the configuration of its BERT."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from crl_jax import data, models

from ._bert import Encoder
from ._encoder_file import SavedEncoder, save_encoder
from ._ranges import shorten

VOCABULARY = "vocab.txt"


def save_text_encoder(folder: Path, encoder: Encoder, params: Any, rest: Any) -> None:
    """Saves trained variables, including those of a BERT, its configuration and its vocabulary."""
    encoder.words.save(folder / VOCABULARY)
    save_encoder(folder, params, rest, bert=asdict(encoder.settings))


def open_texts(kept: SavedEncoder[Any], lowercase: bool | None, length: int | None) -> Encoder:
    """Returns the text encoder of a run: the configuration of its BERT, and its tokenizer.

    Args:
      kept: The saved networks of the run.
      lowercase: Whether its tokenizer lower-cases texts, from its configuration.
      length: Number of tokens per text, from its configuration.

    Raises:
      DataError: If the vocabulary is missing or corrupt, or does not match the network.
      ValueError: If the configuration of the BERT is missing or corrupt.
    """
    path = kept.folder / VOCABULARY
    try:
        settings = models.BERT(**kept.told["bert"])
    except (KeyError, TypeError, ValueError):
        said = f"{kept.path}: expected the settings of a BERT, got {shorten(kept.told)}."
        raise ValueError(said) from None
    if not path.exists():
        raise data.DataError(f"{kept.folder} has no {path.name}, which {kept.path.name} needs.")
    assert lowercase is not None
    assert length is not None
    words = data.WordPiece.read(path, lowercase=lowercase)
    if len(words) > settings.vocab_size:
        raise data.DataError(
            f"{path}: expected the {settings.vocab_size} pieces of {kept.path}, got {len(words)}."
        )
    return Encoder(settings, words, length)


def read_lines(path: Path) -> list[str]:
    """Returns the stripped lines of a text file.

    Raises:
      DataError: If the file does not exist or is not UTF-8, or a line is blank.
    """
    if not path.is_file():
        raise data.DataError(f"{path}: expected a file with a text in each line, got none.")
    content = path.read_bytes()
    try:
        lines = content.decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise data.DataError(f"{path}:{number}: expected UTF-8, got other bytes.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise data.DataError(f"{path}:{number}: expected a text, got an empty line.")
    return [line.strip() for line in lines]
