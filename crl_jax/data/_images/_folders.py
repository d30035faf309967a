"""Finds the parts, classes and files of images in folders, and of Tiny ImageNet."""

from collections import Counter
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from .._archive import FileTree
from .._errors import DataError, Note
from ._decode import FORMATS, decode_images
from ._images import NO_LABEL, Images, ImageSplit, Loaded, image_test_mask

_PARTS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "valid",
    "valid": "valid",
    "validation": "valid",
    "unlabelled": "unlabelled",
    "unlabeled": "unlabelled",
}
_TINY_TABLE = "val/val_annotations.txt"
_TINY_WORDS = "words.txt"
_MAX_TEXT_BYTES = 16 << 20


class ImageFiles(NamedTuple):
    """Image files of each part, with labels.

    Attributes:
      names: Files of each part.
      labels: Class of each file.
      classes: Class names.
      notes: Warnings.
    """

    names: dict[str, list[str]]
    labels: dict[str, Int32[np.ndarray, " n"]]
    classes: tuple[str, ...]
    notes: list[Note]


class Listing(NamedTuple):
    """Files of a tree by kind.

    Attributes:
      images: Files with the suffix of an image, in path order.
      n_hidden: Number of hidden files: names that start with a dot, and ``__MACOSX``.
      others: Number of other files by suffix.
    """

    images: list[str]
    n_hidden: int
    others: Counter[str]

    def notes(self) -> list[Note]:
        """Returns the warnings about skipped files."""
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.others.items())[:10])
        return [
            Note(self.n_hidden, "skipped {n} hidden files"),
            Note(self.others.total(), f"skipped {{n}} files that are no images: {kinds}"),
        ]


def list_images(tree: FileTree) -> Listing:
    """Classifies files by name as images, hidden files and others."""
    images: list[str] = []
    others: Counter[str] = Counter()
    n_hidden = 0
    for name in tree.sizes:
        path = PurePosixPath(name)
        if any(part[0] == "." or part == "__MACOSX" for part in path.parts):
            n_hidden += 1
        elif path.suffix.lower() in FORMATS:
            images.append(name)
        else:
            others[path.suffix.lower() or path.name] += 1
    return Listing(images, n_hidden, others)


def find_in_folders(tree: FileTree, fraction: float | None, labelled: bool) -> ImageFiles:
    """Finds ``train/<class>/…`` with ``test`` or ``val``, or ``<class>/…`` alone.

    If no image is in a class folder, none has a label.

    Args:
      tree: The files; folders that contain all of them are skipped.
      fraction: Test fraction of each class if there is no test part, 0.2 by default; must be None
        if there is one.
      labelled: Whether folders are classes.

    Raises:
      DataError: If there is no image, or only some are in class folders.
      ValueError: If ``fraction`` is given and there is a test part.
    """
    listing, read_labels = list_images(tree), labelled
    notes = listing.notes()
    if not listing.images:
        raise DataError(
            f"{tree.origin}: expected images ({', '.join(FORMATS)}) in class folders, "
            "train/<class>/… with test/<class>/… or val/<class>/…, or <class>/… alone, "
            "or a binary release of CIFAR-10, CIFAR-100 or STL-10; "
            f"got {len(tree.sizes)} files, none of them an image."
        )
    parts = _parts_of(tree, listing.images, notes if labelled else [])
    if "test" in parts and "valid" in parts:
        notes.append(Note(len(parts.pop("valid")), "{n} images for validation are not read"))
    parts = {"test" if part == "valid" else part: paths for part, paths in parts.items()}

    classified = [path for part in ("train", "test") for path in parts.get(part, ())]
    bare = [path for path in classified if len(path.relative) < 2]
    if labelled and len(bare) == len(classified):
        labelled = False
        notes.append(Note(len(bare), "{n} images are in no class folder and have no label"))
    if labelled and bare:
        raise DataError(
            f"{tree.where(bare[0].name)}: expected the image in a class folder, as "
            f"{len(classified) - len(bare)} others are."
        )
    classes = sorted({path.relative[0] for path in classified}) if labelled else []
    class_index = {name: i for i, name in enumerate(classes)}
    labels = {
        part: np.array(
            [
                class_index[path.relative[0]] if labelled and part != "unlabelled" else NO_LABEL
                for path in paths
            ],
            np.int32,
        )
        for part, paths in parts.items()
    }
    names = {part: [path.name for path in paths] for part, paths in parts.items()}
    if "test" not in parts:
        mask = image_test_mask(labels["train"], fraction, str(tree.origin), read_labels)
        _move_to_test(names, labels, mask)
    elif fraction is not None:
        raise ValueError(f"`test` requires images without a test part, and {tree.origin} has one.")
    unseen = set(labels["test"].tolist()) - set(labels["train"].tolist())
    notes.append(Note(len(unseen), "{n} classes have no image in training"))
    return ImageFiles(names, labels, tuple(classes), notes)


def load_files(tree: FileTree, files: ImageFiles, size: int | None) -> Loaded:
    """Decodes the files of each part."""
    parts = ("train", "test", *(["unlabelled"] if "unlabelled" in files.names else []))
    notes = list(files.notes)
    pixels = decode_images(tree, [x for part in parts for x in files.names[part]], size, notes)
    pixels.setflags(write=False)
    images, end = {}, 0
    for part in parts:
        start, end = end, end + len(files.names[part])
        labels, names = files.labels[part], np.array(files.names[part], np.str_)
        for array in (labels, names):
            array.setflags(write=False)
        images[part] = Images(pixels[start:end], labels, files.classes, names)
    return Loaded(ImageSplit(**images), notes)


class _Path(NamedTuple):
    name: str
    relative: tuple[str, ...]  # to the folder of the part


def _parts_of(tree: FileTree, names: list[str], notes: list[Note]) -> dict[str, list[_Path]]:
    """Groups images by part; without part folders, all are training images."""
    paths = [tuple(name.split("/")) for name in names]
    depth = 0
    while (
        len(outer := {path[depth] for path in paths}) == 1
        and min(map(len, paths)) > depth + 2
        and not {name.lower() for name in outer} & _PARTS.keys()
    ):
        depth += 1
    tops = {path[depth] for path in paths if len(path) > depth + 1}
    known = {top for top in tops if top.lower() in _PARTS}
    unknown = sorted(tops - known)
    # A part has class folders. "train" next to "bus", both with images in them, is a class.
    is_class = len(known) == 1 and any(
        path[depth] in known and len(path) == depth + 2 for path in paths
    )
    if not known or (unknown and is_class):
        if depth and tree.root == tree.origin:
            outer_folder = "/".join(paths[0][:depth])
            text = f"all images are in {outer_folder}; the folders in it are the {{n}} classes"
            notes.append(Note(len(tops), text))
        return {"train": [_Path(n, p[depth:]) for n, p in zip(names, paths, strict=True)]}
    if unknown:
        raise DataError(
            f"{tree.origin}: expected the parts train and test or val, and optionally unlabelled, "
            f"got {', '.join(unknown)} beside {', '.join(sorted(known))}."
        )
    parts: dict[str, list[_Path]] = {}
    for name, path in zip(names, paths, strict=True):
        if len(path) < depth + 2:
            raise DataError(f"{tree.where(name)}: expected the image in one of the parts.")
        parts.setdefault(_PARTS[path[depth].lower()], []).append(_Path(name, path[depth + 1 :]))
    if "train" not in parts:
        raise DataError(f"{tree.origin}: expected a part train, got {', '.join(sorted(known))}.")
    return parts


def _move_to_test(
    names: dict[str, list[str]], labels: dict[str, np.ndarray], mask: np.ndarray
) -> None:
    """Moves the masked training images to a test part."""
    all_names, all_labels = np.array(names["train"], object), labels["train"]
    for part, selected in (("train", ~mask), ("test", mask)):
        names[part], labels[part] = all_names[selected].tolist(), all_labels[selected]


def find_tiny_imagenet(tree: FileTree) -> ImageFiles | None:
    """Finds the training and validation parts of Tiny ImageNet; None if the tree is another.

    The validation part is the test part, since the release has no labels for its test images.
    Classes are in the order of their WordNet ids, with the names in ``words.txt`` if present.

    Raises:
      DataError: If a validation image has no label.
    """
    tables = [name for name in tree.sizes if f"/{name}".endswith(f"/{_TINY_TABLE}")]
    if not tables:
        return None
    root, listing = tables[0].removesuffix(_TINY_TABLE), list_images(tree)
    images = {
        name: name.removeprefix(root).split("/") for name in listing.images if name.startswith(root)
    }
    train = {name: path[1] for name, path in images.items() if path[0] == "train" and len(path) > 2}
    ids = sorted(set(train.values()))
    label = {wordnet_id: i for i, wordnet_id in enumerate(ids)}

    table = dict(line.split("\t")[:2] for line in _lines(tree, root + _TINY_TABLE) if "\t" in line)
    test = {name: table.get(path[-1], "") for name, path in images.items() if path[0] == "val"}
    for name, wordnet_id in test.items():
        if wordnet_id not in label:
            raise DataError(
                f"{tree.where(name)}: expected a line in {_TINY_TABLE} with one of the "
                f"{len(ids)} classes of train, got {wordnet_id or None}."
            )
    if not (train and test):
        raise DataError(
            f"{tree.where(root)}: expected images in train/<class>/images and val/images, "
            f"got {len(train)} and {len(test)}."
        )
    parts = {"train": train, "test": test}
    return ImageFiles(
        {part: list(ids_of) for part, ids_of in parts.items()},
        {
            part: np.array([label[x] for x in ids_of.values()], np.int32)
            for part, ids_of in parts.items()
        },
        _tiny_class_names(tree, root, ids),
        listing.notes()[:1],
    )


def _tiny_class_names(tree: FileTree, root: str, ids: list[str]) -> tuple[str, ...]:
    """Names of the WordNet ids; the id is appended to names of several classes."""
    lines = _lines(tree, root + _TINY_WORDS) if root + _TINY_WORDS in tree.sizes else []
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    names = [words.get(wordnet_id, wordnet_id) for wordnet_id in ids]
    return tuple(
        f"{name} ({wordnet_id})" if names.count(name) > 1 else name
        for name, wordnet_id in zip(names, ids, strict=True)
    )


def _lines(tree: FileTree, name: str) -> list[str]:
    return tree.read(name, _MAX_TEXT_BYTES).decode("utf-8", errors="replace").splitlines()
