"""Loading of published BERT weights."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..data import DataError
from ._bert import BERT, Pooling

# Attributes of BERT by their names in a config.json.
_CONFIG = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "inner_width",
    "max_position_embeddings": "n_positions",
    "type_vocab_size": "n_types",
}
# Supported values of other entries of a config.json.
_FIXED = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}

# Arrays of pre-training heads, which are not part of the encoder.
_UNUSED = re.compile(r"(pooler|cls|classifier|dropout)\.|embeddings\.position_ids$")

_IN_LAYER = {
    "attention.self.query": "attention/query",
    "attention.self.key": "attention/key",
    "attention.self.value": "attention/value",
    "attention.output.dense": "attention/out",
    "attention.output.LayerNorm": "norm_1",
    "intermediate.dense": "linear_1",
    "output.dense": "linear_2",
    "output.LayerNorm": "norm_2",
}

_DTYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8,
    "BOOL": np.bool_,
}  # fmt: skip

Arrays = dict[str, np.ndarray]


class LoadedBERT(NamedTuple):
    """Configuration and parameters from published weights.

    Attributes:
      settings: Configuration of the module: ``models.Network(loaded.settings)``.
      params: Parameters, float32.
      unused: Names of arrays that do not belong to the encoder, such as the pooler.
    """

    settings: BERT
    params: dict[str, Any]
    unused: tuple[str, ...]


def load_bert(
    path: str | os.PathLike[str],
    *,
    n_heads: int | None = None,
    dropout: float | None = None,
    pooling: Pooling = "mean",
) -> LoadedBERT:
    """Loads published weights of a BERT.

    Args:
      path: A ``.safetensors`` or ``.npz`` file of arrays with their standard names, such as
        ``encoder.layer.0.attention.self.query.weight``, ``[out, in]``, optionally prefixed by
        ``bert.``; or a folder that contains ``model.safetensors``. The configuration is read from
        ``config.json`` in the same folder, or else derived from the shapes except for the heads.
      n_heads: Number of attention heads, required without a ``config.json``.
      dropout: Dropout rate; by default that of ``config.json``, or 0.1.
      pooling: See :class:`BERT`.

    Raises:
      ValueError: If ``n_heads`` is missing, contradicts ``config.json`` or does not fit.
      DataError: If the file is damaged, an array is missing, unknown or has another shape, or
        ``config.json`` describes another network.
      FileNotFoundError: If the file does not exist.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "model.safetensors"
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file.")
    read = _read_arrays(path)
    arrays = {_current_name(name): array for name, array in read.items()}
    if len(arrays) < len(read):
        raise DataError(f"{path}: expected each array once, got some with and without bert.")
    settings = _settings(path, arrays, n_heads, dropout, pooling)
    unused = tuple(sorted(name for name in arrays if _UNUSED.match(name)))
    params: dict[str, Any] = {}
    remaining = set(arrays) - set(unused)
    for name, param_path, shape in _expected_arrays(settings):
        array = arrays.get(name)
        if array is None:
            raise DataError(f"{path}: expected an array {name}, got none.")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise DataError(f"{path}: expected {name} to be floating, got {array.dtype}.")
        if array.shape != shape:
            raise DataError(f"{path}: expected {name} of shape {shape}, got {array.shape}.")
        *folders, leaf = param_path.split("/")
        inside = params
        for folder in folders:
            inside = inside.setdefault(folder, {})
        value = np.asarray(array).astype(np.float32)
        if not np.isfinite(value).all():
            raise DataError(f"{path}: expected finite numbers in {name}, got others.")
        inside[leaf] = jnp.asarray(value.T if leaf == "kernel" else value)
        remaining.remove(name)
    if remaining:
        raise DataError(
            f"{path}: expected arrays of a BERT, got {', '.join(sorted(remaining)[:5])} too."
        )
    return LoadedBERT(settings, params, unused)


def _current_name(name: str) -> str:
    """Current name of an array, without the prefix of the encoder."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name.removeprefix("bert."))
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)


def _expected_arrays(settings: BERT) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yields name in files, path in the parameters and shape in files of each array."""
    width, inner = settings.width, settings.inner_width
    for name, path, n in (
        ("word", "token", settings.vocab_size),
        ("position", "position", settings.n_positions),
        ("token_type", "type", settings.n_types),
    ):
        yield f"embeddings.{name}_embeddings.weight", f"{path}_embedding", (n, width)
    yield from _norm("embeddings.LayerNorm", "norm", width)
    for layer in range(settings.n_layers):
        for name, path in _IN_LAYER.items():
            name, path = f"encoder.layer.{layer}.{name}", f"layer_{layer + 1}/{path}"
            if name.endswith("LayerNorm"):
                yield from _norm(name, path, width)
                continue
            shape = {"linear_1": (inner, width), "linear_2": (width, inner)}
            shape = shape.get(path.split("/")[-1], (width, width))
            yield f"{name}.weight", f"{path}/kernel", shape
            yield f"{name}.bias", f"{path}/bias", shape[:1]


def _norm(name: str, path: str, width: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    yield f"{name}.weight", f"{path}/scale", (width,)
    yield f"{name}.bias", f"{path}/bias", (width,)


def _settings(
    path: Path, arrays: Arrays, n_heads: int | None, dropout: float | None, pooling: Pooling
) -> BERT:
    config_path = path.with_name("config.json")
    config = _read_config(config_path) if config_path.exists() else {}
    fields = {own: config[name] for name, own in _CONFIG.items() if name in config}
    if n_heads is not None:
        if fields.get("n_heads", n_heads) != n_heads:
            raise ValueError(
                f"`n_heads` must be the {fields['n_heads']} of {config_path}, got {n_heads}."
            )
        fields["n_heads"] = n_heads
    if "n_heads" not in fields:
        raise ValueError("`n_heads` must be given if there is no config.json.")
    for name, value in _config_from_shapes(path, arrays).items():
        fields.setdefault(name, value)
    rate = config.get("hidden_dropout_prob", 0.1) if dropout is None else dropout
    epsilon = config.get("layer_norm_eps", 1e-12)
    try:
        return BERT(**fields, dropout=rate, epsilon=epsilon, pooling=pooling)
    except ValueError as error:
        where = f"{config_path}: " if config else ""
        raise ValueError(f"{where}{error}") from None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected JSON, got {error}.") from None
    if not isinstance(config, dict):
        raise DataError(f"{path}: expected names and values, got {type(config).__name__}.")
    for name, value in _FIXED.items():
        if config.get(name, value) != value:
            raise DataError(f"{path}: expected {name} {value!r}, got {config[name]!r}.")
    for name in _CONFIG:
        if name in config and type(config[name]) is not int:
            raise DataError(f"{path}: expected a whole number as {name}, got {config[name]!r}.")
    return config


def _config_from_shapes(path: Path, arrays: Arrays) -> dict[str, int]:
    """Configuration derived from shapes."""

    def rows(name: str) -> int:
        array = arrays.get(name)
        if array is None or not array.ndim:
            raise DataError(f"{path}: expected an array {name}, got none.")
        return array.shape[0]

    layers = [re.match(r"encoder\.layer\.(\d+)\.", name) for name in arrays]
    return {
        "vocab_size": rows("embeddings.word_embeddings.weight"),
        "width": rows("embeddings.LayerNorm.weight"),
        "n_layers": 1 + max((int(match[1]) for match in layers if match), default=0),
        "inner_width": rows("encoder.layer.0.intermediate.dense.bias"),
        "n_positions": rows("embeddings.position_embeddings.weight"),
        "n_types": rows("embeddings.token_type_embeddings.weight"),
    }


def _read_arrays(path: Path) -> Arrays:
    """Returns all arrays of a file, without pickle."""
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix != ".npz":
        raise DataError(
            f"{path}: expected a file that ends in .safetensors or .npz, got {path.suffix!r}."
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile and NumPy raise nearly anything on damaged bytes
        raise DataError(f"{path}: expected an archive of arrays, got {error!r}.") from error


def _read_safetensors(path: Path) -> Arrays:
    try:
        from safetensors import SafetensorError, deserialize
    except ImportError:
        raise ImportError(f"{path}: reading safetensors needs `pip install safetensors`.") from None
    try:
        entries = deserialize(path.read_bytes())
    except SafetensorError as error:
        raise DataError(f"{path}: expected a safetensors file, got {error}.") from None
    arrays = {}
    for name, entry in entries:
        if (dtype := _DTYPES.get(entry["dtype"])) is None:
            raise DataError(
                f"{path}: expected {name} to have one of the types {', '.join(_DTYPES)}, "
                f"got {entry['dtype']}."
            )
        arrays[name] = np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
    return arrays
