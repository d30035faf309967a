"""Binary releases of CIFAR-10, CIFAR-100 and STL-10: records of label bytes and pixels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import UInt8

from .._archive import FileTree
from .._errors import DataError, Note
from .._rows import Rows, new_rows
from ._decode import resize
from ._images import NO_LABEL, Images, ImageSplit, LoadedImages

_MAX_TEXT_BYTES = 1 << 20
_BLOCK = 4096  # images that are converted at a time


@dataclass(frozen=True)
class File:
    """Layout of a file of records: bytes of labels, of which the last is the class, and pixels."""

    part: Literal["train", "test", "unlabelled"]
    count: int
    n_labels: int = 0
    pixels: bool = True


@dataclass(frozen=True)
class Release:
    """Layout of a release of RGB images, channel first.

    Files are in the order of their images, and files of labels follow those of their images.
    ``names`` is the file with a class name per line.
    """

    title: str
    side: int
    files: dict[str, File]
    names: str
    by_column: bool = False  # column-major order of pixels
    first_label: int = 0


RELEASES = (
    Release(
        title="CIFAR-10",
        side=32,
        files={
            **{f"data_batch_{i}.bin": File("train", 10_000, 1) for i in range(1, 6)},
            "test_batch.bin": File("test", 10_000, 1),
        },
        names="batches.meta.txt",
    ),
    Release(
        title="CIFAR-100",
        side=32,
        # The first label is the superclass.
        files={"train.bin": File("train", 50_000, 2), "test.bin": File("test", 10_000, 2)},
        names="fine_label_names.txt",
    ),
    Release(
        title="STL-10",
        side=96,
        files={
            "train_X.bin": File("train", 5_000),
            "train_y.bin": File("train", 5_000, 1, pixels=False),
            "test_X.bin": File("test", 8_000),
            "test_y.bin": File("test", 8_000, 1, pixels=False),
            "unlabeled_X.bin": File("unlabelled", 100_000),
        },
        names="class_names.txt",
        by_column=True,
        first_label=1,
    ),
)


def find_release(tree: FileTree) -> tuple[Release, str] | None:
    """Returns the release in a tree and the folder of its files, or None."""
    for path in tree.sizes:
        folder, slash, file = path.rpartition("/")
        folder += slash
        release = next((release for release in RELEASES if file in release.files), None)
        if release is not None:
            required = [n for n, f in release.files.items() if f.part != "unlabelled"]
            required.append(release.names)
            if missing := [name for name in required if folder + name not in tree.sizes]:
                raise DataError(
                    f"{tree.where(folder)}: expected the files of {release.title}, "
                    f"got none named {', '.join(missing)}."
                )
            return release, folder
    return None


def read_release(
    tree: FileTree, release: Release, folder: str, size: int | None, scratch: Path | None = None
) -> LoadedImages:
    """Reads the images and labels of a release in ``folder``, resized unless ``size`` is None.

    Pixels are written to files in the folder ``scratch`` unless it is None.
    """
    files = {folder + n: file for n, file in release.files.items() if folder + n in tree.sizes}
    records = {name: _records(tree, name, release, file) for name, file in files.items()}
    text = tree.read(folder + release.names, _MAX_TEXT_BYTES).decode("utf-8", errors="replace")
    classes = tuple(line.strip() for line in text.splitlines() if line.strip())
    order = (0, 3, 2, 1) if release.by_column else (0, 2, 3, 1)  # channels last
    parts = {}
    for part in dict.fromkeys(file.part for file in files.values()):
        names = [name for name, file in files.items() if file.part == part]
        n = sum(len(records[name]) for name in names if files[name].pixels)
        side = size or release.side
        scratch_path = None if scratch is None else scratch / f"{part}.npy"
        images: Rows = new_rows((n, side, side, 3), scratch_path)
        labels = np.full(n, NO_LABEL, np.int32)
        end = 0
        for name in names:
            file, rows = files[name], records[name]
            if file.pixels:
                start, end = end, end + len(rows)
                for first in range(0, len(rows), _BLOCK):
                    block = rows[first : first + _BLOCK, file.n_labels :]
                    planes = block.reshape(-1, 3, release.side, release.side)
                    images.append(resize(planes.transpose(order), size))
            elif len(rows) == n:
                start = 0
            else:
                raise DataError(
                    f"{tree.where(name)}: expected {n} labels, one for each image, got {len(rows)}."
                )
            if file.n_labels:
                codes = rows[:, file.n_labels - 1].astype(np.int32) - release.first_label
                invalid = codes[(codes < 0) | (codes >= len(classes))] + release.first_label
                if len(invalid):
                    low, high = release.first_label, release.first_label + len(classes) - 1
                    raise DataError(
                        f"{tree.where(name)}: expected labels from {low} to {high}, one for each "
                        f"of the {len(classes)} names in {release.names}, got {invalid[0]}."
                    )
                labels[start : start + len(rows)] = codes
        parts[part] = Images(images.close(), labels, classes)
    changed = [
        f"{name.split('/')[-1]} {len(records[name])} (not {file.count})"
        for name, file in files.items()
        if len(records[name]) != file.count
    ]
    text = f"{{n}} files have another length than in {release.title}: {', '.join(changed)}"
    return LoadedImages(ImageSplit(**parts), [Note(len(changed), text)])


def _records(
    tree: FileTree, name: str, release: Release, file: File
) -> UInt8[np.ndarray, "n n_bytes"]:
    """Maps a file of records into memory."""
    n_bytes = file.n_labels + 3 * release.side**2 * file.pixels
    count, remainder = divmod(tree.sizes[name], n_bytes)
    if remainder or not count:
        raise DataError(
            f"{tree.where(name)}: expected {file.count * n_bytes} bytes, {file.count} records of "
            f"{n_bytes}, got {tree.sizes[name]}, which is no whole number of records."
        )
    return np.memmap(tree.root / name, np.uint8, "r", shape=(count, n_bytes))
