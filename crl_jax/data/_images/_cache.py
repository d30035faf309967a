"""Cache of decoded images: memory-mapped arrays with checksums."""

import hashlib
import json
import shutil
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import Note
from ._images import Images, ImageSplit, Loaded

_METADATA = "made_of.json"
_LAYOUT = 4  # version of the file layout; another one invalidates the cache


def load_cached(folder: Path, key: dict[str, str]) -> Loaded | None:
    """Returns what :func:`save_cached` wrote for ``key``, or None if it is absent or damaged.

    Arrays are read-only memory maps. Each file is compared with its checksum.
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
            arrays = {
                kind: np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
                for kind, path in paths.items()
            }
            parts[part] = Images(classes=classes, **arrays)
        return Loaded(ImageSplit(**parts), [Note(*note) for note in metadata["notes"]])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError):
        return None


def save_cached(folder: Path, key: dict[str, str], loaded: Loaded) -> None:
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
                    np.save(path, array, allow_pickle=False)
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


def _checksum(path: Path) -> int:
    """CRC-32 of a file: detects damage at about 1 GB/s; it is no protection from an attacker."""
    return zlib.crc32(np.memmap(path, np.uint8, "r").data)


def _metadata_checksum(metadata: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(metadata, sort_keys=True).encode())


def _entry_folder(folder: Path, key: dict[str, str]) -> Path:
    text = json.dumps([_LAYOUT, key], sort_keys=True)
    return folder / hashlib.sha256(text.encode()).hexdigest()[:32]
