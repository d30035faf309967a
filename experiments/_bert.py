"""The encoder of texts: published weights with their vocabulary, or a small one from scratch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from crl_jax import data, models
from crl_jax.models import Pooling

from ._program import flag
from ._ranges import COUNT, MOST, Range, read_json

_FROM_SCRATCH = {"width": 64, "n_layers": 1, "vocab_size": 2000}
_HEADS, _DROPOUT = 4, 0.1
_INNER = 4
"""How much wider the inner layer is, as in BERT."""
_LONGEST = 32
"""Tokens of a text at most, where nobody says how many."""
_ARRAYS = (".safetensors", ".npz")


@dataclass(frozen=True)
class WeightsOptions:
    """Published weights of an encoder of texts."""

    weights: str | None = None
    """Published weights of a BERT, .safetensors or .npz, with a vocab.txt beside them; or a folder
    with model.safetensors, config.json and vocab.txt. Without them an encoder starts at random, and
    its vocabulary is learned from the training texts."""
    lowercase: bool | None = None
    """Whether texts become lower-case without accents; by default what the tokenizer_config.json
    beside the weights says, or else True."""


@dataclass(frozen=True)
class BertOptions(WeightsOptions):
    """What makes features of a text."""

    width: Annotated[int | None, COUNT] = None
    """Width of an encoder without --weights; 64."""
    n_layers: Annotated[int | None, COUNT] = None
    """Its layers; 1."""
    vocab_size: Annotated[int | None, Range(5, MOST)] = None
    """Pieces in its vocabulary at most; 2000."""
    heads: Annotated[int | None, COUNT] = None
    """Heads of attention: 4; of --weights what their config.json says."""
    dropout: Annotated[float | None, Range(0, 1, high_open=True)] = None
    """Share that dropout leaves out: 0.1, or what config.json says."""
    pooling: Pooling = "mean"
    """How the vectors of tokens become the feature: their mean, or that of the first ([CLS])."""


@dataclass(frozen=True)
class Encoder:
    """What makes features of a text, before any training.

    Attributes:
      settings: Build the network.
      words: The vocabulary, which cuts texts.
      length: Tokens of a text.
      params: Published parameters of the network; None for random ones.
    """

    settings: models.BERT
    words: data.WordPiece
    length: int
    params: Any = None


def check_bert(options: BertOptions, prefix: str = "") -> None:
    """Refuses sizes of an encoder whose weights have them.

    Args:
      options: The flags.
      prefix: What the names of flags begin with.

    Raises:
      ValueError: If there is one.
    """
    given = [name for name in _FROM_SCRATCH if getattr(options, name) is not None]
    if options.weights is not None and given:
        raise ValueError(f"--weights bring their own {flag(prefix + given[0])}; leave it out.")


def settled(options: BertOptions, encoder: Encoder) -> dict[str, Any]:
    """The flags that were left out, as they are."""
    settings = encoder.settings
    found = {"dropout": settings.dropout, "lowercase": encoder.words.lowercase}
    if options.weights is None:
        found |= {"width": settings.width, "n_layers": settings.n_layers}
        found |= {"heads": settings.n_heads}
        found |= {"vocab_size": options.vocab_size or _FROM_SCRATCH["vocab_size"]}
    return found


def layers(n: int) -> str:
    """So many layers, in words."""
    return f"{n} layer{'s' * (n > 1)}"


def load_encoder(options: BertOptions, texts: Sequence[str], length: int | None = None) -> Encoder:
    """The encoder of the flags, for texts of some tokens.

    Args:
      options: The flags.
      texts: What a vocabulary is learned from, where none is published.
      length: Tokens of a text; None for those of the longest, but 32 at most.

    Raises:
      ValueError: If flags do not suit the weights.
      DataError: If the weights or their vocabulary cannot be read.
      ImportError: Without the package tokenizers.
    """
    if options.weights is None:
        return _from_scratch(options, texts, length)
    path = _file_of(Path(options.weights))
    loaded = models.load_bert(
        path, n_heads=options.heads, dropout=options.dropout, pooling=options.pooling
    )
    words = data.WordPiece.read(path.with_name("vocab.txt"), lowercase=_lowercase(options, path))
    settings, length = loaded.settings, _length(words, texts, length)
    if len(words) > settings.vocab_size:
        raise data.DataError(
            f"{path.with_name('vocab.txt')}: expected the {settings.vocab_size} pieces of {path}, "
            f"got {len(words)}."
        )
    if length > settings.n_positions:
        raise ValueError(
            f"--length must be at most {settings.n_positions}, the places of {path}, got {length}."
        )
    return Encoder(settings, words, length, loaded.params)


def _from_scratch(options: BertOptions, texts: Sequence[str], length: int | None) -> Encoder:
    sizes = {name: getattr(options, name) or n for name, n in _FROM_SCRATCH.items()}
    lowercase = options.lowercase is not False
    words = data.WordPiece.learn(texts, sizes["vocab_size"], lowercase=lowercase)
    length = _length(words, texts, length)
    settings = models.BERT(
        len(words), sizes["width"], sizes["n_layers"], options.heads or _HEADS,
        _INNER * sizes["width"], length, pooling=options.pooling,
        dropout=_DROPOUT if options.dropout is None else options.dropout,
    )  # fmt: skip
    return Encoder(settings, words, length)


def _length(words: data.WordPiece, texts: Sequence[str], asked: int | None) -> int:
    return min(int(words.lengths(texts).max()), _LONGEST) if asked is None else asked


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


def _lowercase(options: BertOptions, path: Path) -> bool:
    if options.lowercase is not None:
        return options.lowercase
    beside = path.with_name("tokenizer_config.json")
    said = read_json(beside) if beside.exists() else {}
    return not isinstance(said, dict) or said.get("do_lower_case") is not False
