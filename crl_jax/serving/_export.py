"""Vectors and ids in files that other tools read."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .._files import whole

_HEADER_LIMIT = 100_000_000  # of a safetensors file, as its readers have it

Arrays = dict[str, np.ndarray]
"""``users``, ``items`` (vectors), ``user_ids``, ``item_ids``."""


def export(path: str | os.PathLike[str], arrays: Arrays) -> None:
    """Writes the arrays in the format that the ending of ``path`` names, atomically."""
    path = Path(path)
    if path.suffix not in _WRITERS:
        raise ValueError(f"`path` must end in one of {', '.join(_WRITERS)}, got {str(path)!r}.")
    _WRITERS[path.suffix](path, arrays)


def _npz(path: Path, arrays: Arrays) -> None:
    with whole(path) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def _safetensors(path: Path, arrays: Arrays) -> None:
    """Length of the header (8 bytes), the header in JSON, and the arrays one after another.

    Ids that are text, which the format has no arrays for, stand in the header as JSON.
    """
    header: dict[str, object] = {}
    texts = {name: json.dumps(a.tolist()) for name, a in arrays.items() if a.dtype.kind == "U"}
    if texts:
        header["__metadata__"] = texts
    # Readers want wide types first, so that every array is aligned.
    numbers = sorted((a.dtype.itemsize, name) for name, a in arrays.items() if name not in texts)
    bodies, end = [], 0
    for _, name in reversed(numbers):
        array = arrays[name]
        body = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        start, end = end, end + body.nbytes
        kind = {"f": "F", "i": "I"}[array.dtype.kind] + str(8 * array.dtype.itemsize)
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
        bodies.append(body)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER_LIMIT:
        raise ValueError(
            f"{path}: the ids take {len(text)} bytes of a header of at most {_HEADER_LIMIT}; "
            "export to .npz or .parquet."
        )
    with whole(path) as partial, partial.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for body in bodies:
            file.write(body.data if body.size else b"")


def _parquet(path: Path, arrays: Arrays) -> None:
    """A row for each vector: ``kind`` (user or item), ``id``, ``vector``."""
    try:
        import polars
    except ImportError:
        raise ValueError(
            "Exporting to .parquet needs the package polars: pip install 'crl_jax[experiments]'."
        ) from None
    parts = []
    all_numbers = all(arrays[f"{kind}_ids"].dtype.kind == "i" for kind in ("user", "item"))
    for kind in ("user", "item"):
        vectors, ids = arrays[f"{kind}s"], arrays[f"{kind}_ids"]
        columns = {
            "kind": np.full(len(ids), kind),
            "id": ids if all_numbers else ids.astype(np.str_),
            "vector": vectors,
        }
        parts.append(polars.DataFrame(columns))
    with whole(path) as partial:
        polars.concat(parts).write_parquet(partial)


_WRITERS: dict[str, Callable[[Path, Arrays], None]] = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
}
