"""Binary releases of CIFAR-10, CIFAR-100 and STL-10: records of label bytes and pixels."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import UInt8

from .._archive import FileTree
from .._errors import DataError, Note
from ._decode import resize
from ._images import NO_LABEL, Images, ImageSplit, Loaded

_MAX_TEXT_BYTES = 1 << 20
_BLOCK = 16 << 20  # bytes


@dataclass(frozen=True)
class File:
    """Layout of a file of records; the label bytes precede the pixels.

    Attributes:
      part: Part of the dataset.
      count: Number of records in the release.
      n_labels: Label bytes per record, of which the last is the class.
      pixels: Whether records have pixels.
    """

    part: Literal["train", "test", "unlabelled"]
    count: int
    n_labels: int = 0
    pixels: bool = True


@dataclass(frozen=True)
class Release:
    """Layout of a release.

    Attributes:
      title: Name for messages.
      side: Side length of its images, which have three channels, channel first.
      by_column: Whether pixels are in column-major order.
      first_label: Number of the first class.
      names: File with a class name per line.
      files: Layout of each file, in the order of their images; files of labels follow those of
        their images.
    """

    title: str
    side: int
    by_column: bool
    first_label: int
    names: str
    files: dict[str, File]


RELEASES = (
    Release(
        title="CIFAR-10",
        side=32,
        by_column=False,
        first_label=0,
        names="batches.meta.txt",
        files={
            **{f"data_batch_{i}.bin": File("train", 10_000, 1) for i in range(1, 6)},
            "test_batch.bin": File("test", 10_000, 1),
        },
    ),
    Release(
        title="CIFAR-100",
        side=32,
        by_column=False,
        first_label=0,
        names="fine_label_names.txt",
        files={  # the first label is the superclass
            "train.bin": File("train", 50_000, 2),
            "test.bin": File("test", 10_000, 2),
        },
    ),
    Release(
        title="STL-10",
        side=96,
        by_column=True,
        first_label=1,
        names="class_names.txt",
        files={
            "train_X.bin": File("train", 5_000),
            "train_y.bin": File("train", 5_000, 1, pixels=False),
            "test_X.bin": File("test", 8_000),
            "test_y.bin": File("test", 8_000, 1, pixels=False),
            "unlabeled_X.bin": File("unlabelled", 100_000),
        },
    ),
)


def find_release(tree: FileTree) -> tuple[Release, str] | None:
    """Returns the release in a tree and the folder of its files, or None.

    Raises:
      DataError: If a file is missing. The unlabelled images of STL-10 are optional.
    """
    for path in tree.sizes:
        folder, slash, file = path.rpartition("/")
        folder += slash
        for release in RELEASES:
            if file in release.files:
                required = [n for n, f in release.files.items() if f.part != "unlabelled"]
                missing = [
                    name for name in (*required, release.names) if folder + name not in tree.sizes
                ]
                if missing:
                    raise DataError(
                        f"{tree.where(folder)}: expected the files of {release.title}, "
                        f"got none named {', '.join(missing)}."
                    )
                return release, folder
    return None


def read_release(tree: FileTree, release: Release, folder: str, size: int | None) -> Loaded:
    """Reads the images and labels of a release.

    Args:
      tree: The files.
      release: Layout.
      folder: Folder of its files in the tree.
      size: Side length to resize to; None keeps that of the release.

    Raises:
      DataError: If a file ends within a record, or a label is out of range.
    """
    files = {folder + n: file for n, file in release.files.items() if folder + n in tree.sizes}
    counts = {name: _count(tree, name, release, file) for name, file in files.items()}
    images, labels, starts = _allocate(tree, files, counts, size or release.side)
    classes = _class_names(tree, folder + release.names)
    for name, file in files.items():
        row = starts[name]
        for records in _records(tree, name, _record_bytes(release, file)):
            rows = slice(row, row := row + len(records))
            if file.n_labels:
                given = records[:, file.n_labels - 1].astype(np.int32)
                labels[file.part][rows] = given - release.first_label
            if file.pixels:
                pixels = _channels_last(records[:, file.n_labels :], release)
                images[file.part][rows] = resize(pixels, size)
        if file.n_labels:
            _check_labels(labels[file.part][starts[name] : row], classes, tree.where(name), release)
    parts = {}
    for part in images:
        for array in (images[part], labels[part]):
            array.setflags(write=False)
        parts[part] = Images(images[part], labels[part], classes)
    changed = [name for name, file in files.items() if counts[name] != file.count]
    listed = ", ".join(f"{n.split('/')[-1]} {counts[n]} (not {files[n].count})" for n in changed)
    text = f"{{n}} files have another length than in {release.title}: {listed}"
    return Loaded(ImageSplit(**parts), [Note(len(changed), text)])


def _allocate(
    tree: FileTree, files: dict[str, File], counts: dict[str, int], side: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, int]]:
    """Allocates the images and labels of each part, and the first row of each file."""
    images: dict[str, np.ndarray] = {}
    labels: dict[str, np.ndarray] = {}
    starts: dict[str, int] = {}
    for part in dict.fromkeys(file.part for file in files.values()):
        total = 0
        for name, file in files.items():
            if file.part != part:
                continue
            if file.pixels:
                starts[name], total = total, total + counts[name]
            elif counts[name] != total:
                raise DataError(
                    f"{tree.where(name)}: expected {total} labels, one for each image, "
                    f"got {counts[name]}."
                )
            else:
                starts[name] = 0
        images[part] = np.empty((total, side, side, 3), np.uint8)
        labels[part] = np.full(total, NO_LABEL, np.int32)
    return images, labels, starts


def _record_bytes(release: Release, file: File) -> int:
    return file.n_labels + 3 * release.side**2 * file.pixels


def _count(tree: FileTree, name: str, release: Release, file: File) -> int:
    """Number of records, from the size of the file."""
    n_bytes = _record_bytes(release, file)
    count, rest = divmod(tree.sizes[name], n_bytes)
    if rest or not count:
        raise DataError(
            f"{tree.where(name)}: expected {file.count * n_bytes} bytes, {file.count} records of "
            f"{n_bytes}, got {tree.sizes[name]}, which is no whole number of records."
        )
    return count


def _class_names(tree: FileTree, name: str) -> tuple[str, ...]:
    text = tree.read(name, _MAX_TEXT_BYTES).decode("utf-8", errors="replace")
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _records(tree: FileTree, name: str, n_bytes: int) -> Iterator[UInt8[np.ndarray, "block n"]]:
    """Yields blocks of records of ``n_bytes`` each."""
    remaining, block = tree.sizes[name], max(1, _BLOCK // n_bytes) * n_bytes
    with (tree.root / name).open("rb") as file:
        while remaining:
            content = file.read(min(block, remaining))
            if len(content) < min(block, remaining):
                raise DataError(f"{tree.where(name)}: the file changed while it was being read.")
            remaining -= len(content)
            yield np.frombuffer(content, np.uint8).reshape(-1, n_bytes)


def _channels_last(
    pixels: UInt8[np.ndarray, "n pixels"], release: Release
) -> UInt8[np.ndarray, "n side side 3"]:
    planes = pixels.reshape(-1, 3, release.side, release.side)
    return planes.transpose((0, 3, 2, 1) if release.by_column else (0, 2, 3, 1))


def _check_labels(
    labels: np.ndarray, classes: tuple[str, ...], where: str, release: Release
) -> None:
    low, high = release.first_label, release.first_label + len(classes) - 1
    invalid = labels[(labels < 0) | (labels >= len(classes))]
    if len(invalid):
        raise DataError(
            f"{where}: expected labels from {low} to {high}, one for each of the "
            f"{len(classes)} names in {release.names}, got {invalid[0] + low}."
        )
