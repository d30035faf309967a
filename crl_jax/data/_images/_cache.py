"""Cache of decoded images: memory-mapped arrays with checksums."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import DataError, Note
from .._rows import DiskArray, FileRows
from ._images import Images, ImageSplit, LoadedImages

_METADATA = "made_of.json"
_BLOCK_BYTES = 4 << 20
_LAYOUT = 4  # version of the file layout; another one invalidates the cache


def source_name(path: Path) -> str:
    """Name of the cache folder of a file or folder, unique to its absolute path."""
    return f"{path.name[:80]}-{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]}"


def load_cached(folder: Path, key: dict[str, str], on_disk: bool = False) -> LoadedImages | None:
    """Returns what :func:`save_cached` wrote for ``key``, or None if it is absent or damaged.

    Arrays are read-only memory maps, and with ``on_disk`` images a :class:`DiskArray`. Each file is
    compared with its checksum.
    """
    entry = _entry_folder(folder, key)
    try:
        metadata = json.loads((entry / _METADATA).read_bytes())
        if metadata.pop("checksum") != _metadata_checksum(metadata):
            return None
        classes, parts = tuple(metadata["classes"]), {}
        for part, checksums in metadata["parts"].items():
            paths = {kind: entry / f"{part}-{kind}.npy" for kind in checksums}
            if any(_checksum(path) != checksums[kind] for kind, path in paths.items()):
                return None
            arrays: dict[str, Any] = {
                kind: DiskArray.open(path)
                if on_disk and kind == "images"
                else np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
                for kind, path in paths.items()
            }
            parts[part] = Images(classes=classes, **arrays)
        return LoadedImages(ImageSplit(**parts), [Note(*note) for note in metadata["notes"]])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError):
        return None


def save_cached(folder: Path, key: dict[str, str], loaded: LoadedImages) -> None:
    """Writes the arrays and their metadata atomically, and removes other entries of ``folder``."""
    entry = _entry_folder(folder, key)
    folder.mkdir(parents=True, exist_ok=True)
    # Another process may write the same entry: each has its own folder until it is complete.
    with tempfile.TemporaryDirectory(
        prefix=".part-", dir=folder, ignore_cleanup_errors=True
    ) as scratch:
        partial_entry = Path(scratch, "entry")
        partial_entry.mkdir()
        checksums: dict[str, dict[str, int]] = {}
        for part, images in loaded.split.parts():
            checksums[part] = {}
            for kind in ("images", "labels", "names"):
                if (array := getattr(images, kind)) is not None:
                    path = partial_entry / f"{part}-{kind}.npy"
                    _save(path, array)
                    checksums[part][kind] = _checksum(path)
        metadata = {
            "made_of": key,
            "parts": checksums,
            "classes": loaded.split.train.classes,
            "notes": loaded.notes,
        }
        metadata["checksum"] = _metadata_checksum(metadata)
        (partial_entry / _METADATA).write_text(json.dumps(metadata))
        for other in folder.iterdir():
            if other.name[0] != "." and other != entry:
                shutil.rmtree(other, ignore_errors=True)
        if load_cached(folder, key) is None:
            shutil.rmtree(entry, ignore_errors=True)
            with suppress(OSError):  # another process was faster
                partial_entry.rename(entry)


def decode_to_disk(
    folder: Path, key: dict[str, str], read: Callable[[Path], LoadedImages]
) -> LoadedImages:
    """Returns cached images whose pixels remain in files.

    Args:
      folder, key: As in :func:`load_cached`.
      read: ``read(scratch)``, called if the cache has no images for ``key``; returns images that it
        decoded to files in the folder ``scratch``, which is deleted.
    """
    if (cached := load_cached(folder, key, True)) is not None:
        return cached
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=".part-", dir=folder, ignore_cleanup_errors=True
        ) as scratch:
            save_cached(folder, key, read(Path(scratch)))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise DataError(
            f"{folder}: no space left for decoded images, of which the first reading writes two "
            "copies. Reduce `size`, or use another `cache`."
        ) from error
    if (cached := load_cached(folder, key, True)) is None:
        raise DataError(f"{folder}: decoded images changed while they were written.")
    return cached


def _save(path: Path, array: np.ndarray | DiskArray) -> None:
    if isinstance(array, np.ndarray):
        np.save(path, array, allow_pickle=False)
        return
    rows = FileRows(path, array.shape)
    for block in array.blocks():
        rows.append(block)
    rows.close()


def _checksum(path: Path) -> int:
    """CRC-32 of a file: detects damage at about 1 GB/s; it is no protection from an attacker."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _metadata_checksum(metadata: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(metadata, sort_keys=True).encode())


def _entry_folder(folder: Path, key: dict[str, str]) -> Path:
    text = json.dumps([_LAYOUT, key], sort_keys=True)
    return folder / hashlib.sha256(text.encode()).hexdigest()[:32]
