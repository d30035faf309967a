"""Arrays that grow row by row, in memory or in a file, and arrays whose rows stay in files."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from ._errors import DataError

_BLOCK_BYTES = 4 << 20


class DiskArray:
    """Read-only array in ``.npy`` files, of which rows are read when they are indexed.

    ``array[index]`` returns a NumPy array for an integer, a slice, integers or a mask. Unlike those
    of a memory-mapped array, rows that were read do not remain in the memory of the process.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(Path(folder, "x.npy"), np.arange(8).reshape(4, 2))
    ...     array = DiskArray.open(Path(folder, "x.npy"))
    ...     array.shape, array[[3, 0]].tolist(), array.take(slice(1, 3))[:1].tolist()
    ((4, 2), [[6, 7], [0, 1]], [[2, 3]])
    """

    def __init__(
        self,
        files: Sequence[tuple[Path, int, int]],  # path, offset of the first row in bytes, length
        rows: Int[np.ndarray, " n"],
        row_shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self._files, self._rows, self._row_shape = tuple(files), rows, row_shape
        self.dtype = dtype
        self._ends = np.cumsum([n for _, _, n in self._files])

    @classmethod
    def open(cls, path: Path) -> "DiskArray":
        """Opens an ``.npy`` file in C order."""
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not array.ndim or not array.flags.c_contiguous:
            raise ValueError(f"{path}: expected an array in C order, got shape {array.shape}.")
        return cls(
            [(path, array.offset, len(array))], np.arange(len(array)), array.shape[1:], array.dtype
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return len(self._rows), *self._row_shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        selected = self._rows[index]
        rows = np.atleast_1d(selected)
        out = np.empty((len(rows), *self._row_shape), self.dtype)
        file_indices = np.searchsorted(self._ends, rows, side="right").tolist()
        with ExitStack() as stack:
            files = [
                stack.enter_context(path.open("rb", buffering=0)) for path, _, _ in self._files
            ]
            for target, row, i in zip(out, rows.tolist(), file_indices):
                path, offset, n = self._files[i]
                files[i].seek(offset + (row - int(self._ends[i]) + n) * target.nbytes)
                if files[i].readinto(target) != target.nbytes:
                    raise DataError(f"{path}: expected {n} rows of {target.nbytes} bytes.")
        return out if np.ndim(selected) else out[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def take(self, index: Any) -> "DiskArray":
        """Selects rows by a slice, integers or a mask, without reading them."""
        return DiskArray(self._files, self._rows[index], self._row_shape, self.dtype)

    @classmethod
    def concatenate(cls, arrays: Sequence["DiskArray"]) -> "DiskArray":
        """Concatenates arrays of equal row shape and dtype, without reading them."""
        ends = [int(array._ends[-1]) for array in arrays]
        rows = [array._rows + start for array, start in zip(arrays, np.cumsum([0, *ends]).tolist())]
        files = [file for array in arrays for file in array._files]
        return cls(files, np.concatenate(rows), arrays[0]._row_shape, arrays[0].dtype)

    def blocks(self) -> Iterable[np.ndarray]:
        """Yields all rows in order, in blocks that bound the memory."""
        row_bytes = max(1, int(np.prod(self._row_shape)) * self.dtype.itemsize)
        size = max(1, _BLOCK_BYTES // row_bytes)
        for start in range(0, len(self), size):
            yield self[start : start + size]


class MemoryRows:
    """Array of known shape in memory, filled row by row."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._array, self._end = np.empty(shape, np.uint8), 0

    def append(self, rows: np.ndarray) -> None:
        """Appends rows, which are broadcast along axes of length 1."""
        start, self._end = self._end, self._end + len(rows)
        self._array[start : self._end] = rows

    def in_color(self) -> "MemoryRows":
        """Returns the rows so far, with three equal channels."""
        color = MemoryRows((*self.shape[:-1], 3))
        color.append(self._array[: self._end])
        return color

    def close(self) -> np.ndarray:
        """Returns the array, which is read-only."""
        self._array.setflags(write=False)
        return self._array


class FileRows:
    """Array of known shape in an ``.npy`` file, filled row by row."""

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.shape, self._path = shape, path
        with path.open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)

    def append(self, rows: np.ndarray) -> None:
        """Appends rows, which are broadcast along axes of length 1."""
        whole = np.broadcast_to(rows, (len(rows), *self.shape[1:]))
        with self._path.open("ab") as file:  # closed even if reading the rows fails
            file.write(np.ascontiguousarray(whole).data)

    def in_color(self) -> "FileRows":
        """Returns the rows so far, with three equal channels, in a new file."""
        grey = self._path.rename(self._path.with_suffix(".grey"))
        color = FileRows(self._path, (*self.shape[:-1], 3))
        n_bytes = int(np.prod(self.shape[1:]))
        with grey.open("rb") as file:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
            while block := file.read(n_bytes * max(1, _BLOCK_BYTES // n_bytes)):
                color.append(np.frombuffer(block, np.uint8).reshape(-1, *self.shape[1:]))
        grey.unlink()
        return color

    def close(self) -> DiskArray:
        """Returns the array."""
        return DiskArray.open(self._path)


Rows = MemoryRows | FileRows


def new_rows(shape: tuple[int, ...], file: Path | None) -> Rows:
    """Creates an array of uint8 to fill, in memory or in a file."""
    return MemoryRows(shape) if file is None else FileRows(file, shape)
