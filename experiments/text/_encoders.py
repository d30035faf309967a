"""The encoder of a run: published weights with their vocabulary, or a small one from scratch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crl_jax import data, models

from .._program import flag
from .._ranges import read_json
from ._options import EncoderOptions

_FROM_SCRATCH = {"width": 64, "n_layers": 1, "vocab_size": 2000}
_HEADS, _DROPOUT = 4, 0.1
_INNER = 4
"""How much wider the inner layer is, as in BERT."""
_ARRAYS = (".safetensors", ".npz")


@dataclass(frozen=True)
class Encoder:
    """What makes features of a text, before any training.

    Attributes:
      settings: Build the network.
      words: The vocabulary, which cuts texts.
      params: Published parameters of the network; None for random ones.
    """

    settings: models.Bert
    words: data.WordPiece
    params: Any = None


def check_encoder(options: EncoderOptions) -> None:
    """Refuses sizes of an encoder whose weights have them.

    Raises:
      ValueError: If there is one.
    """
    given = [name for name in _FROM_SCRATCH if getattr(options, name) is not None]
    if options.weights is not None and given:
        raise ValueError(f"--weights bring their own {flag(given[0])}; leave it out.")


def settled(options: EncoderOptions, encoder: Encoder) -> dict[str, Any]:
    """The flags that were left out, as they are."""
    settings = encoder.settings
    found = {"dropout": settings.dropout, "lowercase": encoder.words.lowercase}
    if options.weights is None:
        found |= {"width": settings.width, "n_layers": settings.n_layers}
        found |= {"heads": settings.n_heads}
        found |= {"vocab_size": options.vocab_size or _FROM_SCRATCH["vocab_size"]}
    return found


def load_encoder(options: EncoderOptions, texts: Sequence[str], length: int) -> Encoder:
    """The encoder of the flags, for texts of some tokens.

    Args:
      options: The flags.
      texts: What a vocabulary is learned from, where none is published.
      length: Tokens of a text.

    Raises:
      ValueError: If flags do not suit the weights.
      DataError: If the weights or their vocabulary cannot be read.
      ImportError: Without the package tokenizers.
    """
    if options.weights is None:
        return _from_scratch(options, texts, length)
    path = _file_of(Path(options.weights))
    words = data.WordPiece.read(path.with_name("vocab.txt"), lowercase=_lowercase(options, path))
    loaded = models.load_bert(
        path, n_heads=options.heads, dropout=options.dropout, pooling=options.pooling
    )
    settings = loaded.settings
    if len(words) > settings.vocab_size:
        raise data.DataError(
            f"{path.with_name('vocab.txt')}: expected the {settings.vocab_size} pieces of {path}, "
            f"got {len(words)}."
        )
    if length > settings.n_positions:
        raise ValueError(
            f"--length must be at most {settings.n_positions}, the places of {path}, got {length}."
        )
    return Encoder(settings, words, loaded.params)


def _from_scratch(options: EncoderOptions, texts: Sequence[str], length: int) -> Encoder:
    sizes = {name: getattr(options, name) or n for name, n in _FROM_SCRATCH.items()}
    lowercase = options.lowercase is not False
    words = data.WordPiece.learn(texts, sizes["vocab_size"], lowercase=lowercase)
    settings = models.Bert(
        len(words), sizes["width"], sizes["n_layers"], options.heads or _HEADS,
        _INNER * sizes["width"], length, pooling=options.pooling,
        dropout=_DROPOUT if options.dropout is None else options.dropout,
    )  # fmt: skip
    return Encoder(settings, words)


def _file_of(path: Path) -> Path:
    """The file of the weights, in a folder or by itself."""
    if not path.is_dir() or (path / "model.safetensors").exists():
        return path / "model.safetensors" if path.is_dir() else path
    files = sorted(file.name for file in path.iterdir() if file.suffix in _ARRAYS)
    if len(files) == 1:
        return path / files[0]
    raise data.DataError(
        f"{path}: expected a model.safetensors, got {', '.join(files) or 'none'}; name the file of "
        "the weights."
    )


def _lowercase(options: EncoderOptions, path: Path) -> bool:
    if options.lowercase is not None:
        return options.lowercase
    beside = path.with_name("tokenizer_config.json")
    said = read_json(beside) if beside.exists() else {}
    return not isinstance(said, dict) or said.get("do_lower_case") is not False
