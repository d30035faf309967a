"""What a run keeps to take texts as it did: the vocabulary, and the settings of its BERT."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from crl_jax import data, models

from ._bert import Encoder
from ._encoder_file import SavedEncoder, save_encoder
from ._ranges import shorten

VOCABULARY = "vocab.txt"


def save_text_encoder(folder: Path, encoder: Encoder, params: Any, rest: Any) -> None:
    """Writes trained variables, among others those of a BERT, and what it takes texts by."""
    encoder.words.save(folder / VOCABULARY)
    save_encoder(folder, params, rest, bert=asdict(encoder.settings))


def open_texts(kept: SavedEncoder[Any], lowercase: bool | None, length: int | None) -> Encoder:
    """The settings of the BERT of a run, and what it takes texts by.

    Args:
      kept: What the run has kept.
      lowercase: Of its vocabulary, as its configuration says.
      length: Tokens of a text, likewise.

    Raises:
      DataError: If the vocabulary is missing or broken, or not that of the network.
      ValueError: If the settings are missing or broken.
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
    """The lines of a file, none of them empty.

    Raises:
      DataError: If there is no such file, it is not UTF-8, or a line is blank.
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
