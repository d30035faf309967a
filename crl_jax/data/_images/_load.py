"""Loads labelled images by name, from folders and archives, and from arrays."""

import difflib
from pathlib import Path
from typing import Any

from ..._checks import check_range
from .._archive import fingerprint, open_tree, require_exists
from .._datasets import IMAGE_SETS
from .._download import cache_folder, download
from .._errors import Note, warn_if
from ._binary import find_release, read_release
from ._cache import decode_to_disk, load_cached, save_cached, source_name
from ._decode import check_size, pillow_version, resized
from ._folders import find_in_folders, find_tiny_imagenet, load_files
from ._images import Images, ImageSplit, LoadedImages, as_images, digits, split_images
from ._tfds import read_tfds_images

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_MIN_CACHED_IMAGES = 2_000  # fewer are decoded again in a moment


def load_images(
    source: Any,
    *,
    size: int | None = None,
    test: float | None = None,
    labelled: bool = True,
    cache: str | Path | None = None,
    keep: bool = True,
    on_disk: bool = False,
) -> ImageSplit:
    """Loads images as training, test and optional unlabelled parts.

    Args:
      source: One of

        * ``"digits"``: scikit-learn's 1,797 handwritten digits, 8 × 8, grey;
        * a name in :data:`IMAGE_SETS`: ``cifar10``, ``cifar100`` (the 100 fine classes), ``stl10``
          or ``tiny-imagenet`` (its validation part is the test part), downloaded once;
        * a folder, a zip or tar archive, or a folder with a single archive, with one of these
          releases, or with images in class folders: ``train/<class>/…`` with ``test/<class>/…`` or
          else ``val/<class>/…``, and optionally ``unlabelled/…``; or ``<class>/…`` alone. Classes
          are in the order of their names, images in that of their paths. If no image is in a class
          folder, all are read without labels;
        * ``tfds:NAME``, for example ``tfds:mnist``, with the features ``image`` and ``label``;
        * :class:`Images`, an :class:`ImageSplit`, or a pair of arrays ``(images, labels)``:
          integers in 0 … 255, ``[n, height, width]`` or ``[n, height, width, 1 or 3]``, and
          integers ``[n]``, whose distinct values are the classes.

        (A file or folder with one of these names is ``"./digits"``.)
      size: Side length in pixels. Images are resized with antialiasing so that the shorter side
        fits, and the centre is cropped. With None, images must have one size.
      test: Test fraction of each class in (0, 1) for sources without a test part, 0.2 by default.
        The split is deterministic.
      labelled: Whether to read labels. Without them, folders are not classes, and the test part
        may be empty if there is only one image.
      cache: Folder of downloads and decoded images, see :func:`download`.
      keep: Whether to cache 2,000 decoded images or more as memory-mapped arrays. The cache is
        invalidated by the size or modification time of a source file, and is separate for each
        ``size``, ``test`` and ``labelled``.
      on_disk: Whether pixels remain in the cache as :class:`DiskArray`, for sets that exceed
        memory. Always cached, also those of ``tfds:NAME``; the first call decodes all images, block
        by block, and temporarily needs twice the space.

    Returns:
      The parts. Channels are RGB, or grey if all images are; 16-bit images, palettes and
      transparency (on white) are converted.

    Raises:
      ValueError: If ``source`` or an option is none of these.
      DataError: If a file is broken, animated or too large, or the layout is ambiguous.
      FileNotFoundError: If there is no such file, folder or name.
      ImportError: If the source needs a package that is not installed.
      ConnectionError: If a download fails.

    >>> load_images("digits").train
    Images(1438 of 8 × 8 × 1, 10 classes)
    """
    check_size(size)
    if test is not None:
        check_range("test", test, 0, 1, low_open=True, high_open=True, dtype=float)
    in_memory = not isinstance(source, str | Path)
    origin = "images in memory" if in_memory else str(source)
    if isinstance(source, str) and source.startswith("tfds:"):
        name = source.removeprefix("tfds:")
        folder = _entries(cache, source.replace("/", "-"), size, test, labelled)
        split, notes = read_tfds_images(name, size, test, labelled, folder if on_disk else None)
    elif in_memory or source == "digits":
        if on_disk:
            raise ValueError(f"`on_disk` needs images in files, got {origin}.")
        split, notes = _from_memory(source, size, test, labelled), []
    else:
        split, notes = _load_path(source, size, test, labelled, cache, keep, on_disk)
    for note in notes:
        warn_if(*note, origin=origin)
    if labelled:
        return split
    return ImageSplit(**{name: part.without_labels() for name, part in split.parts()})


def _from_memory(source: Any, size: int | None, test: float | None, labelled: bool) -> ImageSplit:
    if isinstance(source, ImageSplit):
        if test is not None:
            raise ValueError("`test` requires images without a test part.")
        return resized(source, size)
    if isinstance(source, str):
        source = digits()
    elif isinstance(source, tuple | list) and len(source) == 2:
        source = as_images(*source)
    if not isinstance(source, Images):
        raise ValueError(
            "`source` must be a name, a path, Images, an ImageSplit or a pair of arrays "
            f"(images, labels), got {source!r:.100}."
        )
    return split_images(resized(source, size), test, "images", labelled)


def _load_path(
    source: str | Path,
    size: int | None,
    test: float | None,
    labelled: bool,
    cache: str | Path | None,
    keep: bool,
    on_disk: bool,
) -> LoadedImages:
    """Loads a downloadable set, a folder or an archive, by way of the cache of decoded images."""
    if isinstance(source, str) and source in IMAGE_SETS:
        name, digest, path = source, IMAGE_SETS[source].sha256, None
    else:
        path = _existing_path(Path(source))
        name, digest = source_name(path), fingerprint(path)
    key = {"source": digest, "pillow": pillow_version()}
    folder = _entries(cache, name, size, test, labelled)
    is_mapped = False

    def read(scratch: Path | None = None) -> LoadedImages:
        nonlocal is_mapped
        archive = path or download(name, cache=cache)
        with open_tree(archive, cache) as tree:
            release = find_release(tree)
            files = None if release else find_tiny_imagenet(tree)
            if test is not None and (release or files):
                raise ValueError(
                    f"`test` requires images without a test part, and {archive} has one."
                )
            if release:
                is_mapped = size is None and archive.is_dir()
                return read_release(tree, *release, size, scratch)
            file = None if scratch is None else scratch / "images.npy"
            files = files or find_in_folders(tree, test, labelled)
            return load_files(tree, files, size, file)

    if on_disk:
        return decode_to_disk(folder, key, read)
    if keep and (cached := load_cached(folder, key)):
        return cached
    loaded = read()
    n_images = sum(len(part) for _, part in loaded.split.parts())
    if keep and n_images >= _MIN_CACHED_IMAGES and not is_mapped:
        try:
            save_cached(folder, key, loaded)
        except OSError as error:
            loaded.notes.append(Note(1, f"decoded images were not kept in the cache: {error}"))
    return loaded


def _entries(
    cache: str | Path | None, name: str, size: int | None, test: float | None, labelled: bool
) -> Path:
    """Returns the folder of the decoded images of a set."""
    suffix = "" if labelled else "-unlabelled"
    return cache_folder(cache) / "images" / f"{name}-size-{size}-test-{test}{suffix}"


def _existing_path(path: Path) -> Path:
    """Returns the path, or the single archive in a folder without subfolders."""
    hint = ""
    if path.parent == Path():  # probably meant as a name
        names = ["digits", *IMAGE_SETS]
        near = difflib.get_close_matches(path.name.lower(), names, n=1)
        hint = f" The names of image sets are {', '.join(names)}, and tfds:NAME."
        hint += f" Did you mean {near[0]}?" if near else ""
    require_exists(path, hint)
    if path.is_dir():
        children = [child for child in path.iterdir() if child.name[0] != "."]
        archives = [child for child in children if child.name.lower().endswith(_ARCHIVES)]
        if len(archives) == 1 and not any(child.is_dir() for child in children):
            return archives[0]
    return path
