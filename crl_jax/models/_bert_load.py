"""Published weights of BERT as settings and parameters."""

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
from ._bert_arrays import Arrays, read_arrays

# Settings by their names in a config.json.
_CONFIG = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "inner_width",
    "max_position_embeddings": "n_positions",
    "type_vocab_size": "n_types",
}
# What a config.json may say besides that changes the network.
_FIXED = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}

# What belongs to the tasks that BERT was trained on, and not to the encoder.
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


class LoadedBERT(NamedTuple):
    """What a file of weights holds.

    Attributes:
      settings: What builds the module: ``models.Network(loaded.settings)``.
      params: Its parameters, float32.
      unused: Names of the arrays of the file that are not of the encoder, such as its pooler.
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
    """Reads published weights of a BERT.

    Args:
      path: A file ``.safetensors`` or ``.npz`` of arrays with their usual names, such as
        ``encoder.layer.0.attention.self.query.weight``, ``[out, in]``, all with ``bert.`` before
        them or none; or a folder with a ``model.safetensors``. A ``config.json`` beside it gives
        the settings; without one they follow from the shapes, but for the heads.
      n_heads: Heads of attention, where no ``config.json`` tells.
      dropout: As of :class:`BERT`; by default what ``config.json`` says, or 0.1.
      pooling: As of :class:`BERT`.

    Raises:
      ValueError: If ``n_heads`` is missing, contradicts ``config.json`` or does not fit.
      DataError: If the file is broken, or an array is missing, misshapen or unknown; or
        ``config.json`` speaks of another network.
      FileNotFoundError: If there is no such file.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "model.safetensors"
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file.")
    read = read_arrays(path)
    arrays = {_usual(name): array for name, array in read.items()}
    if len(arrays) < len(read):
        raise DataError(f"{path}: expected each array once, got some with and without bert.")
    settings = _settings(path, arrays, n_heads, dropout, pooling)
    unused = tuple(sorted(name for name in arrays if _UNUSED.match(name)))
    params: dict[str, Any] = {}
    left = set(arrays) - set(unused)
    for name, place, shape in _wanted(settings):
        array = arrays.get(name)
        if array is None:
            raise DataError(f"{path}: expected an array {name}, got none.")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise DataError(f"{path}: expected {name} to be floating, got {array.dtype}.")
        if array.shape != shape:
            raise DataError(f"{path}: expected {name} of shape {shape}, got {array.shape}.")
        *folders, leaf = place.split("/")
        inside = params
        for folder in folders:
            inside = inside.setdefault(folder, {})
        value = np.asarray(array).astype(np.float32)
        if not np.isfinite(value).all():
            raise DataError(f"{path}: expected finite numbers in {name}, got others.")
        inside[leaf] = jnp.asarray(value.T if leaf == "kernel" else value)
        left.remove(name)
    if left:
        raise DataError(
            f"{path}: expected arrays of a BERT, got {', '.join(sorted(left)[:5])} too."
        )
    return LoadedBERT(settings, params, unused)


def _usual(name: str) -> str:
    """Without the name of the encoder in front; LayerNorm's had other names once."""
    name = name.removeprefix("bert.")
    return re.sub(r"LayerNorm\.(gamma|beta)$", _renamed, name)


def _renamed(found: re.Match[str]) -> str:
    return "LayerNorm." + {"gamma": "weight", "beta": "bias"}[found[1]]


def _wanted(settings: BERT) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Of each array its name in files, its place in the parameters, and its shape in files."""
    width, inner = settings.width, settings.inner_width
    for name, place, n in (
        ("word", "token", settings.vocab_size),
        ("position", "position", settings.n_positions),
        ("token_type", "type", settings.n_types),
    ):
        yield f"embeddings.{name}_embeddings.weight", f"{place}_embedding", (n, width)
    yield from _norm("embeddings.LayerNorm", "norm", width)
    for layer in range(settings.n_layers):
        for name, place in _IN_LAYER.items():
            name, place = f"encoder.layer.{layer}.{name}", f"layer_{layer + 1}/{place}"
            if name.endswith("LayerNorm"):
                yield from _norm(name, place, width)
                continue
            shape = {"linear_1": (inner, width), "linear_2": (width, inner)}
            shape = shape.get(place.split("/")[-1], (width, width))
            yield f"{name}.weight", f"{place}/kernel", shape
            yield f"{name}.bias", f"{place}/bias", shape[:1]


def _norm(name: str, place: str, width: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    yield f"{name}.weight", f"{place}/scale", (width,)
    yield f"{name}.bias", f"{place}/bias", (width,)


def _settings(
    path: Path, arrays: Arrays, n_heads: int | None, dropout: float | None, pooling: Pooling
) -> BERT:
    config_path = path.with_name("config.json")
    config = _read_config(config_path) if config_path.exists() else {}
    found = {own: config[name] for name, own in _CONFIG.items() if name in config}
    if n_heads is not None:
        if found.get("n_heads", n_heads) != n_heads:
            raise ValueError(
                f"`n_heads` must be the {found['n_heads']} of {config_path}, got {n_heads}."
            )
        found["n_heads"] = n_heads
    if "n_heads" not in found:
        raise ValueError("`n_heads` must be given: no config.json tells it, and shapes do not.")
    for name, value in _of_shapes(path, arrays).items():
        found.setdefault(name, value)
    rate = config.get("hidden_dropout_prob", 0.1) if dropout is None else dropout
    epsilon = config.get("layer_norm_eps", 1e-12)
    try:
        return BERT(**found, dropout=rate, epsilon=epsilon, pooling=pooling)
    except ValueError as error:
        where = f"{config_path}: " if config else ""
        raise ValueError(f"{where}{error}") from None


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
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


def _of_shapes(path: Path, arrays: Arrays) -> dict[str, int]:
    """The settings that shapes tell."""

    def rows(name: str) -> int:
        array = arrays.get(name)
        if array is None or not array.ndim:
            raise DataError(f"{path}: expected an array {name}, got none.")
        return array.shape[0]

    layers = [re.match(r"encoder\.layer\.(\d+)\.", name) for name in arrays]
    return {
        "vocab_size": rows("embeddings.word_embeddings.weight"),
        "width": rows("embeddings.LayerNorm.weight"),
        "n_layers": 1 + max((int(found[1]) for found in layers if found), default=0),
        "inner_width": rows("encoder.layer.0.intermediate.dense.bias"),
        "n_positions": rows("embeddings.position_embeddings.weight"),
        "n_types": rows("embeddings.token_type_embeddings.weight"),
    }
