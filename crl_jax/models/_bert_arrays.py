"""Arrays of published weights from safetensors and npz files, without pickle."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..data import DataError

_DTYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8,
    "BOOL": np.bool_,
}  # fmt: skip

Arrays = dict[str, np.ndarray]


def read_arrays(path: Path) -> Arrays:
    """Returns all arrays of a file.

    Raises:
      DataError: If the file is damaged, contains objects or has another suffix.
      FileNotFoundError: If the file does not exist.
      ImportError: If the file is of safetensors and that library is not installed.
    """
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
