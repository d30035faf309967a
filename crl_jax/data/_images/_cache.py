"""Decoded images in the cache: plain arrays, mapped into memory when they are wanted again."""

import hashlib
import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..._files import whole
from .._errors import Note
from ._set import Images, ImageSplit, Read

_NOTE = "made_of.json"
_LAYOUT = 2  # of these files; another number makes all of them anew


def recall(folder: Path, made_of: dict[str, str]) -> Read | None:
    """What :func:`keep` left there, if it was made of the same, or None.

    The arrays are read-only maps of the files: memory holds what was looked at.
    """
    place = _place(folder, made_of)
    try:
        note = json.loads((place / _NOTE).read_bytes())
        classes = tuple(note["classes"])
        parts = {
            part: Images(classes=classes, **{kind: _mapped(place, part, kind) for kind in kinds})
            for part, kinds in note["parts"].items()
        }
        return Read(ImageSplit(**parts), [Note(*one) for one in note["notes"]])
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None  # not there, or not whole: it is made anew


def keep(folder: Path, made_of: dict[str, str], read: Read) -> None:
    """Writes the arrays beside a note of what they were made of: all of it, or nothing.

    Of one source it keeps what was made last.

    Raises:
      OSError: If the folder cannot be written.
    """
    place = _place(folder, made_of)
    folder.mkdir(parents=True, exist_ok=True)
    # Another process may write the same: each has a folder of its own until it is complete.
    with tempfile.TemporaryDirectory(
        prefix=".part-", dir=folder, ignore_cleanup_errors=True
    ) as scratch:
        made = Path(scratch, "made")
        parts = {part: _arrays(images) for part, images in read.split.parts()}
        for part, arrays in parts.items():
            for kind, array in arrays.items():
                with whole(made / _name(part, kind)) as partial, partial.open("wb") as file:
                    np.save(file, array, allow_pickle=False)
        note = {
            "made_of": made_of,
            "parts": {part: list(arrays) for part, arrays in parts.items()},
            "classes": read.split.train.classes,
            "notes": read.notes,
        }
        with whole(made / _NOTE) as partial:
            partial.write_text(json.dumps(note))
        for other in folder.iterdir():
            if other.name[0] != "." and other != place:
                shutil.rmtree(other, ignore_errors=True)
        if recall(folder, made_of) is None:
            shutil.rmtree(place, ignore_errors=True)
            with suppress(OSError):  # the other process was quicker
                made.rename(place)


def _name(part: str, kind: str) -> str:
    return f"{part}-{kind}.npy"


def _mapped(place: Path, part: str, kind: str) -> np.ndarray:
    return np.asarray(np.load(place / _name(part, kind), mmap_mode="r", allow_pickle=False))


def _arrays(images: Images) -> dict[str, np.ndarray]:
    """The arrays of a part by their names."""
    found = {"images": images.images, "labels": images.labels, "names": images.names}
    return {kind: array for kind, array in found.items() if array is not None}


def _place(folder: Path, made_of: dict[str, str]) -> Path:
    text = json.dumps([_LAYOUT, made_of], sort_keys=True)
    return folder / hashlib.sha256(text.encode()).hexdigest()[:32]
