"""One door for all images: sets by name, folders and archives, arrays in memory."""

import difflib
import hashlib
import importlib.metadata
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..._checks import check_range
from .._archive import fingerprint, open_store
from .._download import cache_folder, download
from .._errors import Note, warn_if
from .._readers import say_missing
from ._binary import find_release, read_release
from ._cache import keep as keep_decoded
from ._cache import recall
from ._folders import find_in_folders, read_found
from ._memory import as_images, digits
from ._releases import IMAGE_SETS
from ._resize import resized
from ._set import Images, ImageSplit, Read, cut
from ._tfds import read_tfds_images
from ._tiny import find_tiny

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
# Fewer are decoded again in less than the time that their files in the cache would bother anyone.
_WORTH_KEEPING = 2_000


def load_images(
    source: Any,
    *,
    size: int | None = None,
    test: float | None = None,
    labelled: bool = True,
    cache: str | Path | None = None,
    keep: bool = True,
) -> ImageSplit:
    """Loads images: a training part, a test part, and unlabelled ones if there are any.

    Args:
      source: One of

        * ``"digits"``: 1,797 handwritten digits, 8 × 8, grey, which scikit-learn brings along;
        * a name in :data:`IMAGE_SETS`: ``cifar10``, ``cifar100`` (the 100 fine classes),
          ``stl10`` or ``tiny-imagenet`` (its validation part is the test part), downloaded once;
        * a folder, or a zip or tar archive, which holds one of these releases, or images in class
          folders: ``train/<class>/…`` with ``test/<class>/…`` or else ``val/<class>/…``, and
          perhaps ``unlabelled/…``; or ``<class>/…`` alone. A folder may hold a single archive
          instead. Classes are in the order of their names, and images in that of their paths.
          If none lies in a folder of a class, all are read without labels;
        * ``tfds:NAME``, for instance ``tfds:mnist``, with the features ``image`` and ``label``;
        * :class:`Images`, an :class:`ImageSplit`, or a pair of arrays ``(images, labels)``:
          whole numbers ``[n, height, width]`` or ``[n, height, width, 1 or 3]`` from 0 to 255,
          and ``[n]``. Floats are refused; the message says how to convert them.

        (A file or folder with one of these names is ``"./digits"``.)
      size: The side of the squares that all images become: the shorter side is resized to it with
        antialiasing, and the middle is kept. None leaves images as they are, which must be of
        one size then.
      test: The share of each class that becomes the test part, in (0, 1), where the source has
        none; by default 0.2. The draw is the same every time.
      labelled: Whether labels are read. Without them, folders within a part are not classes, and
        images may lie in any.
      cache: Where downloads and decoded images are kept, see :func:`download`.
      keep: Whether 2,000 images or more are kept in the cache once they are decoded, as plain
        arrays, which are there at once the next time. They are made anew when the size or the
        time of a source file changes, and for another ``size``, ``test`` or ``labelled``.

    Returns:
      The parts. Colours are red, green and blue. Images are grey, with a single channel, only if
      all are; images of 16 bits a channel, palettes and transparency (on white) become that too.

    Raises:
      ValueError: If ``source`` or an option is none of these.
      DataError: If a file is broken, animated or too large, or files are not laid out as said.
      FileNotFoundError: If there is no such file, folder or name.
      ImportError: If the source needs a package that is not installed.
      ConnectionError: If a download fails.

    >>> split = load_images("digits")
    >>> split.train
    Images(1438 of 8 × 8 × 1, 10 classes)
    """
    if size is not None and (not isinstance(size, (int, np.integer)) or size < 1):
        raise ValueError(f"`size` must be a whole number of pixels, at least 1, got {size!r}.")
    if test is not None:
        check_range("test", test, 0, 1, low_open=True, high_open=True, dtype=float)
    origin = str(source) if isinstance(source, str | Path) else "images in memory"
    read = _read(source, size, test, labelled, cache_folder(cache), keep)
    for count, text in read.notes:
        warn_if(count, text, of=origin)
    return read.split


def _read(
    source: Any, size: int | None, test: float | None, labelled: bool, cache: Path, keep: bool
) -> Read:
    if isinstance(source, str) and source.startswith("tfds:"):
        return _as_asked(read_tfds_images(source.removeprefix("tfds:"), size, test), labelled)
    if source == "digits" if isinstance(source, str) else not isinstance(source, Path):
        return _as_asked(Read(_from_memory(source, size, test), []), labelled)
    named = source if isinstance(source, str) and source in IMAGE_SETS else None
    if named:
        origin, path = IMAGE_SETS[named].sha256, None
    else:
        path = _existing(Path(source))
        origin = fingerprint(path)
        named = f"{path.name[:80]}-{_short(path.resolve())}"
    made_of = {"source": origin, "pillow": _version_of_pillow()}
    read_as = "" if labelled else "-unlabelled"
    folder = cache / "images" / f"{named}-size-{size}-test-{test}{read_as}"
    if keep and (kept := recall(folder, made_of)):
        return kept
    read, worth_keeping = _read_path(path or download(named, cache=cache), size, test, labelled)
    if keep and worth_keeping:
        try:
            keep_decoded(folder, made_of, read)
        except OSError as error:
            read.notes.append(Note(1, f"decoded images were not kept in the cache: {error}"))
    return read


def _from_memory(source: Any, size: int | None, test: float | None) -> ImageSplit:
    if isinstance(source, ImageSplit):
        if test is not None:
            raise ValueError("`test` belongs to images without a test part.")
        parts = {name: _resized(part, size) for name, part in source.parts()}
        return ImageSplit(**parts)
    if isinstance(source, str):
        source = digits()
    elif isinstance(source, tuple | list) and len(source) == 2:
        source = as_images(*source)
    if not isinstance(source, Images):
        raise ValueError(
            "`source` must be a name, a path, Images, an ImageSplit or a pair of arrays "
            f"(images, labels), got {source!r:.100}."
        )
    return cut(_resized(source, size), test, "images")


def _resized(data: Images, size: int | None) -> Images:
    if size is None:
        return data
    return Images(resized(data.images, size), data.labels, data.classes, data.names)


def _as_asked(read: Read, labelled: bool) -> Read:
    """Without its labels, unless they are asked for."""
    if labelled:
        return read
    return Read(
        ImageSplit(**{name: part.without_labels() for name, part in read.split.parts()}), read.notes
    )


def _existing(path: Path) -> Path:
    """The path itself, or the archive that is all that a folder has."""
    if not path.exists():
        names = ["digits", *IMAGE_SETS]
        text = say_missing(path)
        if path.parent == Path():  # meant for a name, it may be
            near = difflib.get_close_matches(path.name.lower(), names, n=1)
            text += f" The names of image sets are {', '.join(names)}, and tfds:NAME."
            text += f" Did you mean {near[0]}?" if near else ""
        raise FileNotFoundError(text)
    if path.is_dir():
        there = [child for child in path.iterdir() if child.name[0] != "."]
        archives = [child for child in there if child.name.lower().endswith(_ARCHIVES)]
        if len(archives) == 1 and not any(child.is_dir() for child in there):
            return archives[0]
    return path


def _read_path(
    path: Path, size: int | None, test: float | None, labelled: bool
) -> tuple[Read, bool]:
    """What a folder or archive has, and whether reading it again would take its time."""
    with open_store(path) as store:
        release = find_release(store)
        found = None if release else find_tiny(store)
        if test is not None and (release or found):
            raise ValueError(f"`test` belongs to images without a test part, which {path} has.")
        if release:
            read = _as_asked(read_release(store, *release, size), labelled)
        elif found:
            read = _as_asked(read_found(store, found, size), labelled)
        else:
            read = read_found(store, find_in_folders(store, test, labelled), size)
    n_images = sum(len(part) for _, part in read.split.parts())
    as_it_lies = release is not None and size is None and path.is_dir()
    return read, n_images >= _WORTH_KEEPING and not as_it_lies


def _version_of_pillow() -> str:
    """Decoders differ in the last bit."""
    try:
        return importlib.metadata.version("pillow")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _short(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
