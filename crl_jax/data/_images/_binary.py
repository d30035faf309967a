"""The binary releases of CIFAR-10, CIFAR-100 and STL-10: bytes of labels and pixels in a row."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import UInt8

from .._archive import Content, Store
from .._errors import DataError, Note
from ._layout import File, Release
from ._resize import resized
from ._set import NO_LABEL, Images, ImageSplit, Read

_LARGEST_TEXT = 1 << 20
_BLOCK = 16 << 20  # bytes


_CIFAR10 = Release(
    title="CIFAR-10",
    side=32,
    by_column=False,
    first_label=0,
    names="batches.meta.txt",
    files={
        **{f"data_batch_{i}.bin": File("train", 10_000, 1) for i in range(1, 6)},
        "test_batch.bin": File("test", 10_000, 1),
    },
)
_CIFAR100 = Release(
    title="CIFAR-100",
    side=32,
    by_column=False,
    first_label=0,
    names="fine_label_names.txt",
    files={  # the first label is that of the superclass
        "train.bin": File("train", 50_000, 2),
        "test.bin": File("test", 10_000, 2),
    },
)
_STL10 = Release(
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
)
RELEASES = (_CIFAR10, _CIFAR100, _STL10)


def find_release(store: Store) -> tuple[Release, str] | None:
    """The release that a store holds and the folder of its files, or None.

    Raises:
      DataError: If a file of it is missing. The unlabelled images of STL-10 need not be there.
    """
    for name in store.sizes:
        folder, slash, file = name.rpartition("/")
        for release in RELEASES:
            if file in release.files:
                _check_complete(store, release, folder + slash)
                return release, folder + slash
    return None


def read_release(store: Store, release: Release, folder: str, size: int | None) -> Read:
    """Reads the images and labels of a release.

    Args:
      store: What holds it.
      release: Its layout.
      folder: Where its files lie in the store.
      size: The side of the images, None for that of the release.

    Raises:
      DataError: If a file ends within a record, or a label is of no class.
    """
    files = {folder + n: file for n, file in release.files.items() if folder + n in store.sizes}
    counts = {name: _count(store, name, release, file) for name, file in files.items()}
    images, labels, starts = _room(store, files, counts, size or release.side)
    classes: tuple[str, ...] = ()
    for content in store.each([*files, folder + release.names]):
        if content.name not in files:
            classes = _class_names(content)
            continue
        file, place = files[content.name], starts[content.name]
        for records in _records(content, _record_size(release, file)):
            here = slice(place, place := place + len(records))
            if file.n_labels:
                given = records[:, file.n_labels - 1].astype(np.int32)
                labels[file.part][here] = given - release.first_label
            if file.pixels:
                pixels = _upright(records[:, file.n_labels :], release)
                images[file.part][here] = resized(pixels, size)

    for name, file in files.items():
        if file.n_labels:
            of_file = labels[file.part][starts[name] : starts[name] + counts[name]]
            _check_labels(of_file, classes, store.where(name), release)

    def part_of(name: str) -> Images:
        for array in (images[name], labels[name]):
            array.setflags(write=False)
        return Images(images[name], labels[name], classes)

    unlabelled = part_of("unlabelled") if "unlabelled" in images else None
    split = ImageSplit(part_of("train"), part_of("test"), unlabelled)
    return Read(split, _notes(release, files, counts))


def _room(
    store: Store, files: dict[str, File], counts: dict[str, int], side: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, int]]:
    """Arrays for the images and labels of each part, and where in them each file begins."""
    images: dict[str, np.ndarray] = {}
    labels: dict[str, np.ndarray] = {}
    starts: dict[str, int] = {}
    for part in dict.fromkeys(file.part for file in files.values()):
        of_part = {name: file for name, file in files.items() if file.part == part}
        total = 0
        for name, file in of_part.items():
            if file.pixels:
                starts[name], total = total, total + counts[name]
            elif counts[name] != total:
                raise DataError(
                    f"{store.where(name)}: expected {total} labels, one for each image, "
                    f"got {counts[name]}."
                )
            else:
                starts[name] = 0
        images[part] = np.empty((total, side, side, 3), np.uint8)
        labels[part] = np.full(total, NO_LABEL, np.int32)
    return images, labels, starts


def _check_complete(store: Store, release: Release, folder: str) -> None:
    wanted = [name for name, file in release.files.items() if file.part != "unlabelled"]
    missing = [n for n in (*wanted, release.names) if folder + n not in store.sizes]
    if missing:
        raise DataError(
            f"{store.where(folder)}: expected the files of {release.title}, "
            f"got none named {', '.join(missing)}."
        )


def _record_size(release: Release, file: File) -> int:
    return file.n_labels + 3 * release.side**2 * file.pixels


def _count(store: Store, name: str, release: Release, file: File) -> int:
    """Number of records, by the size of the file."""
    count, rest = divmod(store.sizes[name], each := _record_size(release, file))
    if rest or not count:
        raise DataError(
            f"{store.where(name)}: expected {file.count * each} bytes, {file.count} records of "
            f"{each}, got {store.sizes[name]}, which is no whole number of records."
        )
    return count


def _class_names(content: Content) -> tuple[str, ...]:
    if content.size > _LARGEST_TEXT:
        raise DataError(f"{content.where}: expected names of classes, got {content.size} bytes.")
    text = content.read().decode("utf-8", errors="replace")
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _records(content: Content, each: int) -> Iterator[UInt8[np.ndarray, "block each"]]:
    left, block = content.size, max(1, _BLOCK // each) * each
    while left:
        got = content.read(min(block, left))
        left -= len(got)
        yield np.frombuffer(got, np.uint8).reshape(-1, each)


def _upright(
    pixels: UInt8[np.ndarray, "n pixels"], release: Release
) -> UInt8[np.ndarray, "n side side 3"]:
    planes = pixels.reshape(-1, 3, release.side, release.side)
    return planes.transpose((0, 3, 2, 1) if release.by_column else (0, 2, 3, 1))


def _check_labels(
    labels: np.ndarray, classes: tuple[str, ...], where: str, release: Release
) -> None:
    low, high = release.first_label, release.first_label + len(classes) - 1
    wrong = labels[(labels < 0) | (labels >= len(classes))]
    if len(wrong):
        raise DataError(
            f"{where}: expected labels from {low} to {high}, one for each of the "
            f"{len(classes)} names in {release.names}, got {wrong[0] + low}."
        )


def _notes(release: Release, files: dict[str, File], counts: dict[str, int]) -> list[Note]:
    other = [name for name, file in files.items() if counts[name] != file.count]
    listed = ", ".join(f"{n.split('/')[-1]} {counts[n]} (not {files[n].count})" for n in other)
    return [Note(len(other), f"{{n}} files have another length than in {release.title}: {listed}")]
