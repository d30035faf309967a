"""Text encoders: BERT with published weights or from scratch, and their files in a run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from crl_jax import data, models
from crl_jax.models import Pooling

from ._encoder_file import SavedEncoder, save_encoder
from ._program import flag
from ._ranges import COUNT, MAX_COUNT, Range, option_group, read_json, shorten

_FROM_SCRATCH = {"width": 64, "n_layers": 1, "vocab_size": 2000}
_HEADS, _DROPOUT = 4, 0.1
_INNER = 4
"""Ratio of the inner width of feed-forward layers to the model width, as in BERT."""
_MAX_LENGTH = 32
"""Maximum number of tokens per text, if no length is given."""
_ARRAYS = (".safetensors", ".npz")


@option_group
class WeightsOptions:
    """Published weights of a text encoder."""

    weights: str | None = None
    """Published BERT weights, .safetensors or .npz, with vocab.txt in the same folder; or a folder
    with model.safetensors, config.json and vocab.txt. Without them the encoder is initialised at
    random, and its vocabulary is learned from the training texts."""
    lowercase: bool | None = None
    """Whether to lower-case texts and strip accents; by default the setting of the weights'
    tokenizer_config.json, or else True."""


@option_group
class BertOptions(WeightsOptions):
    """Text encoder."""

    width: Annotated[int | None, COUNT] = None
    """Width of an encoder without --weights; 64 by default."""
    n_layers: Annotated[int | None, COUNT] = None
    """Number of layers of an encoder without --weights; 1 by default."""
    vocab_size: Annotated[int | None, Range(5, MAX_COUNT)] = None
    """Maximum vocabulary size of an encoder without --weights; 2000 by default."""
    heads: Annotated[int | None, COUNT] = None
    """Number of attention heads; by default 4, or with --weights that of their config.json."""
    dropout: Annotated[float | None, Range(0, 1, high_open=True)] = None
    """Dropout rate; by default 0.1, or with --weights that of their config.json."""
    pooling: Pooling = "mean"
    """Pooling of the token vectors: their mean, or the vector of the first token ([CLS])."""


@dataclass(frozen=True)
class Encoder:
    """Text encoder before training.

    Attributes:
      settings: Configuration of the network.
      tokenizer: Tokenizer with the vocabulary.
      length: Number of tokens per text.
      params: Published parameters of the network; None for random initialisation.
    """

    settings: models.BERT
    tokenizer: data.WordPiece
    length: int
    params: Any = None


def check_bert(options: BertOptions, prefix: str = "") -> None:
    """Rejects size flags together with published weights, which determine the sizes.

    Args:
      options: The flags.
      prefix: Prefix of the flag names.

    Raises:
      ValueError: If a size is given together with ``--weights``.
    """
    size_flags = [name for name in _FROM_SCRATCH if getattr(options, name) is not None]
    if options.weights is not None and size_flags:
        raise ValueError(f"--weights bring their own {flag(prefix + size_flags[0])}; leave it out.")


def resolve_bert(options: BertOptions, encoder: Encoder) -> dict[str, Any]:
    """Returns the resolved values of omitted flags."""
    settings = encoder.settings
    resolved = {"dropout": settings.dropout, "lowercase": encoder.tokenizer.lowercase}
    if options.weights is None:
        resolved |= {"width": settings.width, "n_layers": settings.n_layers}
        resolved |= {"heads": settings.n_heads}
        resolved |= {"vocab_size": options.vocab_size or _FROM_SCRATCH["vocab_size"]}
    return resolved


def layers(n: int) -> str:
    """Formats a number of layers."""
    return f"{n} layer{'s' * (n > 1)}"


def load_encoder(options: BertOptions, texts: Sequence[str], length: int | None = None) -> Encoder:
    """Returns the encoder that the flags describe.

    Args:
      options: The flags.
      texts: Texts from which the vocabulary is learned, if there are no published weights.
      length: Number of tokens per text; None for that of the longest text, at most 32.

    Raises:
      ValueError: If flags are incompatible with the weights.
      DataError: If the weights or their vocabulary cannot be read.
      ImportError: If the package tokenizers is not installed.
    """
    if options.weights is None:
        return _from_scratch(options, texts, length)
    path = _weights_file(Path(options.weights))
    loaded = models.load_bert(
        path, n_heads=options.heads, dropout=options.dropout, pooling=options.pooling
    )
    tokenizer = data.WordPiece.read(
        path.with_name("vocab.txt"), lowercase=_lowercase(options, path)
    )
    settings, length = loaded.settings, _length(tokenizer, texts, length)
    if len(tokenizer) > settings.vocab_size:
        raise data.DataError(
            f"{path.with_name('vocab.txt')}: expected the {settings.vocab_size} pieces of {path}, "
            f"got {len(tokenizer)}."
        )
    if length > settings.n_positions:
        raise ValueError(
            f"--length must be at most {settings.n_positions}, the number of positions of {path}, "
            f"got {length}."
        )
    return Encoder(settings, tokenizer, length, loaded.params)


def _from_scratch(options: BertOptions, texts: Sequence[str], length: int | None) -> Encoder:
    sizes = {name: getattr(options, name) or n for name, n in _FROM_SCRATCH.items()}
    lowercase = options.lowercase is not False
    tokenizer = data.WordPiece.learn(texts, sizes["vocab_size"], lowercase=lowercase)
    length = _length(tokenizer, texts, length)
    settings = models.BERT(
        len(tokenizer), sizes["width"], sizes["n_layers"], options.heads or _HEADS,
        _INNER * sizes["width"], length, pooling=options.pooling,
        dropout=_DROPOUT if options.dropout is None else options.dropout,
    )  # fmt: skip
    return Encoder(settings, tokenizer, length)


def _length(tokenizer: data.WordPiece, texts: Sequence[str], requested: int | None) -> int:
    return min(int(tokenizer.lengths(texts).max()), _MAX_LENGTH) if requested is None else requested


def _weights_file(path: Path) -> Path:
    """Returns the file of the weights, given the file or its folder."""
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
    config_path = path.with_name("tokenizer_config.json")
    stored = read_json(config_path) if config_path.exists() else {}
    return not isinstance(stored, dict) or stored.get("do_lower_case") is not False


VOCABULARY = "vocab.txt"


def save_text_encoder(folder: Path, encoder: Encoder, params: Any, rest: Any) -> None:
    """Saves trained variables, including those of a BERT, its configuration and its vocabulary."""
    encoder.tokenizer.save(folder / VOCABULARY)
    save_encoder(folder, params, rest, bert=asdict(encoder.settings))


def open_texts(saved: SavedEncoder[Any], lowercase: bool | None, length: int | None) -> Encoder:
    """Returns the text encoder of a run: the configuration of its BERT, and its tokenizer.

    Args:
      saved: The saved networks of the run.
      lowercase: Whether its tokenizer lower-cases texts, from its configuration.
      length: Number of tokens per text, from its configuration.

    Raises:
      DataError: If the vocabulary is missing or corrupt, or does not match the network.
      ValueError: If the configuration of the BERT is missing or corrupt.
    """
    path = saved.folder / VOCABULARY
    try:
        settings = models.BERT(**saved.metadata["bert"])
    except (KeyError, TypeError, ValueError):
        message = f"{saved.path}: expected the settings of a BERT, got {shorten(saved.metadata)}."
        raise ValueError(message) from None
    if not path.exists():
        raise data.DataError(f"{saved.folder} has no {path.name}, which {saved.path.name} needs.")
    assert lowercase is not None
    assert length is not None
    vocab = data.WordPiece.read(path, lowercase=lowercase)
    if len(vocab) > settings.vocab_size:
        raise data.DataError(
            f"{path}: expected the {settings.vocab_size} pieces of {saved.path}, got {len(vocab)}."
        )
    return Encoder(settings, vocab, length)


def read_lines(path: Path) -> list[str]:
    """Returns the stripped lines of a text file.

    Raises:
      DataError: If the file does not exist or is not UTF-8, or a line is blank.
    """
    if not path.exists() or path.is_dir():  # a pipe is a file here
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
