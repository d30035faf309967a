"""Export of vectors and ids to formats that other tools read."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from .._files import whole, write_npz

_HEADER_LIMIT = 100_000_000  # bytes that readers of safetensors accept

Arrays = Mapping[str, np.ndarray]
"""``user_ids``, ``item_ids``, and the model: for Parquet the vectors ``users`` and ``items``."""


def export(
    path: str | os.PathLike[str],
    arrays: Arrays,
    formats: Sequence[str] = (".npz", ".safetensors", ".parquet"),
) -> None:
    """Writes the arrays atomically in the format given by the suffix of ``path``."""
    path = Path(path)
    if path.suffix not in formats:
        raise ValueError(f"`path` must end in one of {', '.join(formats)}, got {str(path)!r}.")
    _WRITERS[path.suffix](path, arrays)


def _safetensors(path: Path, arrays: Arrays) -> None:
    """The format has no string arrays: text ids are stored as JSON in its metadata."""
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError:
        raise ValueError(
            "Exporting to .safetensors needs the package safetensors: pip install safetensors."
        ) from None
    texts = {name: json.dumps(a.tolist()) for name, a in arrays.items() if a.dtype.kind == "U"}
    size = sum(len(json.dumps(text)) for text in texts.values())
    if size > _HEADER_LIMIT:
        raise ValueError(
            f"{path}: the ids take {size} bytes of a header of at most {_HEADER_LIMIT}; "
            "export to .npz or .parquet."
        )
    numbers = {name: np.ascontiguousarray(a) for name, a in arrays.items() if name not in texts}
    with whole(path, SafetensorError) as partial:
        save_file(numbers, partial, metadata=texts or None)


def _parquet(path: Path, arrays: Arrays) -> None:
    """Writes a row per vector: ``kind`` (user or item), ``id``, ``vector``."""
    try:
        import polars
    except ImportError:
        raise ValueError(
            "Exporting to .parquet needs the package polars: pip install 'crl_jax[experiments]'."
        ) from None
    kinds = "user", "item"
    integer_ids = all(arrays[f"{kind}_ids"].dtype.kind == "i" for kind in kinds)
    parts = []
    for kind in kinds:
        ids = arrays[f"{kind}_ids"]
        ids = ids if integer_ids else ids.astype(np.str_)
        columns = {"kind": np.full(len(ids), kind), "id": ids, "vector": arrays[f"{kind}s"]}
        parts.append(polars.DataFrame(columns))
    with whole(path, polars.exceptions.PolarsError) as partial:
        polars.concat(parts).write_parquet(partial)


_WRITERS: dict[str, Callable[[Path, Arrays], None]] = {
    ".npz": write_npz,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
}
