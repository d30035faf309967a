"""Arrays by name from files of published weights: safetensors and npz, without pickle."""

import json
from pathlib import Path
from typing import Any, TypeGuard

import jax.numpy as jnp
import numpy as np

from ..data import DataError

_HEADER_LIMIT = 100_000_000  # as the format has it
_DTYPES: dict[str, Any] = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"),
    "BF16": np.dtype(jnp.bfloat16), "I64": np.dtype("<i8"), "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"), "I8": np.dtype("i1"), "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
}  # fmt: skip

Arrays = dict[str, np.ndarray]


def read_arrays(path: Path) -> Arrays:
    """Returns all arrays of a file; those of safetensors are memory-mapped.

    Raises:
      DataError: If the file is broken, holds objects, or is of neither kind.
      FileNotFoundError: If there is none.
    """
    if path.suffix == ".safetensors":
        return _safetensors(path)
    if path.suffix == ".npz":
        return _npz(path)
    raise DataError(
        f"{path}: expected a file that ends in .safetensors or .npz, got {path.suffix!r}."
    )


def _npz(path: Path) -> Arrays:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile and NumPy raise nearly anything on damaged bytes
        raise DataError(f"{path}: expected an archive of arrays, got {error!r}.") from error


def _safetensors(path: Path) -> Arrays:
    """Length of the header (8 bytes), the header in JSON, and the arrays one after another."""
    size = path.stat().st_size
    with path.open("rb") as file:
        n = int.from_bytes(file.read(8), "little")
        if size < 8 or not 0 < n <= min(_HEADER_LIMIT, size - 8):
            raise DataError(f"{path}: expected a header of at most {max(size - 8, 0)} bytes.")
        header = _header(path, file.read(n))
    length = size - 8 - n
    body = np.memmap(path, np.uint8, "r", 8 + n, (length,)) if length else np.empty(0, np.uint8)
    arrays, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: _offsets(path, *item)):
        start, stop = _offsets(path, name, entry)
        dtype, shape = _DTYPES.get(str(entry.get("dtype"))), entry.get("shape")
        if dtype is None or not _are_counts(shape):
            raise DataError(
                f"{path}: expected {name} to have a shape and one of the types "
                f"{', '.join(_DTYPES)}, got {entry.get('dtype')!r} and {shape!r}."
            )
        # Python's numbers do not overflow.
        wanted = dtype.itemsize * int(np.prod(np.array(shape, object), initial=1))
        if start != end or stop > length or stop - start != wanted:
            raise DataError(
                f"{path}: expected {name} in {wanted} bytes from {end} on, of {length}, "
                f"got those from {start} to {stop}."
            )
        arrays[name] = body[start:stop].view(dtype).reshape(shape)
        end = stop
    if end != length:
        raise DataError(f"{path}: expected {end} bytes of arrays, got {length}.")
    return arrays


def _header(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name that stands there twice")
        return found

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except ValueError as error:
        raise DataError(f"{path}: expected a header in JSON, got {error}.") from None
    if not isinstance(header, dict):
        raise DataError(f"{path}: expected a header of names, got {type(header).__name__}.")
    header.pop("__metadata__", None)
    return header


def _offsets(path: Path, name: str, entry: Any) -> list[int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not _are_counts(offsets) or len(offsets) != 2:
        raise DataError(f"{path}: expected two data_offsets of {name}, got {offsets!r}.")
    return offsets


def _are_counts(numbers: Any) -> TypeGuard[list[int]]:
    return isinstance(numbers, list) and all(type(x) is int and x >= 0 for x in numbers)
