"""Finds the parts, classes and files of images in folders, and of Tiny ImageNet."""

from collections import Counter
from itertools import chain, compress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from .._archive import FileTree
from .._errors import DataError, Note
from ._decode import FORMATS, decode_images
from ._images import NO_LABEL, Images, ImageSplit, LoadedImages, image_test_mask, take_rows

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
    """Labels of the image files of each part, names of classes, and warnings."""

    parts: dict[str, dict[str, int]]
    classes: tuple[str, ...]
    notes: list[Note]


def list_images(tree: FileTree) -> tuple[list[str], list[Note]]:
    """Lists the files with the suffix of an image, with warnings about all others.

    The first warning is that of hidden files: names that start with a dot, and ``__MACOSX``.
    """
    images: list[str] = []
    skipped: Counter[str] = Counter()
    n_hidden = 0
    for name in tree.sizes:
        path = PurePosixPath(name)
        if any(part[0] == "." or part == "__MACOSX" for part in path.parts):
            n_hidden += 1
        elif path.suffix.lower() in FORMATS:
            images.append(name)
        else:
            skipped[path.suffix.lower() or path.name] += 1
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(skipped.items())[:10])
    return images, [
        Note(n_hidden, "skipped {n} hidden files"),
        Note(skipped.total(), f"skipped {{n}} files that are no images: {kinds}"),
    ]


def find_in_folders(tree: FileTree, fraction: float | None, labelled: bool) -> ImageFiles:
    """Finds ``train/<class>/…`` with ``test`` or ``val``, or ``<class>/…`` alone.

    Folders that contain all files are skipped. If no image is in a class folder, or not
    ``labelled``, none has a label. Without a test part, ``fraction`` of each class is sampled, see
    :func:`sample_test_mask`.
    """
    images, notes = list_images(tree)
    if not images:
        raise DataError(
            f"{tree.origin}: expected images ({', '.join(FORMATS)}) in class folders, "
            "train/<class>/… with test/<class>/… or val/<class>/…, or <class>/… alone, "
            "or a binary release of CIFAR-10, CIFAR-100 or STL-10; "
            f"got {len(tree.sizes)} files, none of them an image."
        )
    paths_by_part = _paths_by_part(tree, images, notes if labelled else [])
    if "test" in paths_by_part and "valid" in paths_by_part:
        notes.append(
            Note(len(paths_by_part.pop("valid")), "{n} images for validation are not read")
        )
    if "valid" in paths_by_part:
        paths_by_part["test"] = paths_by_part.pop("valid")

    classified = {**paths_by_part["train"], **paths_by_part.get("test", {})}
    bare = [name for name, path in classified.items() if len(path) < 2]
    has_classes = labelled and not bare
    if labelled and len(bare) == len(classified):
        notes.append(Note(len(bare), "{n} images are in no class folder and have no label"))
    elif labelled and bare:
        raise DataError(
            f"{tree.where(bare[0])}: expected the image in a class folder, as "
            f"{len(classified) - len(bare)} others are."
        )
    classes = sorted({path[0] for path in classified.values()}) if has_classes else []
    label_by_class = {name: i for i, name in enumerate(classes)}
    parts = {
        part: {
            name: label_by_class[path[0]] if has_classes and part != "unlabelled" else NO_LABEL
            for name, path in paths.items()
        }
        for part, paths in paths_by_part.items()
    }
    if "test" not in parts:
        train = parts["train"]
        labels = np.array([*train.values()], np.int32)
        mask = image_test_mask(labels, fraction, str(tree.origin), labelled)
        for part, selected in (("train", ~mask), ("test", mask)):
            parts[part] = dict(compress(train.items(), selected))
    elif fraction is not None:
        raise ValueError(f"`test` requires images without a test part, and {tree.origin} has one.")
    unseen = set(parts["test"].values()) - set(parts["train"].values())
    notes.append(Note(len(unseen), "{n} classes have no image in training"))
    return ImageFiles(parts, tuple(classes), notes)


def load_files(
    tree: FileTree, files: ImageFiles, size: int | None, file: Path | None = None
) -> LoadedImages:
    """Decodes the files of each part, see :func:`decode_images`."""
    parts = {x: files.parts[x] for x in ("train", "test", "unlabelled") if x in files.parts}
    pixels = decode_images(tree, list(chain(*parts.values())), size, files.notes, file)
    images, end = {}, 0
    for part, labels in parts.items():
        start, end = end, end + len(labels)
        images[part] = Images(
            take_rows(pixels, slice(start, end)),
            np.array([*labels.values()], np.int32),
            files.classes,
            np.array([*labels], np.str_),
        )
    return LoadedImages(ImageSplit(**images), files.notes)


def _paths_by_part(
    tree: FileTree, names: list[str], notes: list[Note]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Paths of images relative to the folder of their part, which is train without such folders."""
    paths = {name: tuple(name.split("/")) for name in names}
    first, depth = paths[names[0]], 0
    while (
        min(map(len, paths.values())) > depth + 2
        and len({path[depth] for path in paths.values()}) == 1
        and first[depth].lower() not in _PARTS
    ):
        depth += 1
    tops = {path[depth] for path in paths.values() if len(path) > depth + 1}
    known = {top for top in tops if top.lower() in _PARTS}
    unknown = sorted(tops - known)
    # A part has class folders. "train" next to "bus", both with images in them, is a class.
    is_class = len(known) == 1 and any(
        path[depth] in known and len(path) == depth + 2 for path in paths.values()
    )
    if not known or (unknown and is_class):
        if depth and tree.root == tree.origin:
            outer_folder = "/".join(first[:depth])
            text = f"all images are in {outer_folder}; the folders in it are the {{n}} classes"
            notes.append(Note(len(tops), text))
        return {"train": {name: path[depth:] for name, path in paths.items()}}
    if unknown:
        raise DataError(
            f"{tree.origin}: expected the parts train and test or val, and optionally unlabelled, "
            f"got {', '.join(unknown)} beside {', '.join(sorted(known))}."
        )
    parts: dict[str, dict[str, tuple[str, ...]]] = {}
    for name, path in paths.items():
        if len(path) < depth + 2:
            raise DataError(f"{tree.where(name)}: expected the image in one of the parts.")
        parts.setdefault(_PARTS[path[depth].lower()], {})[name] = path[depth + 1 :]
    if "train" not in parts:
        raise DataError(f"{tree.origin}: expected a part train, got {', '.join(sorted(known))}.")
    return parts


def find_tiny_imagenet(tree: FileTree) -> ImageFiles | None:
    """Finds the training and validation parts of Tiny ImageNet; None if the tree is another.

    The validation part is the test part, since the release has no labels for its test images.
    Classes are in the order of their WordNet ids, with the names in ``words.txt`` if present.
    """
    tables = [name for name in tree.sizes if f"/{name}".endswith(f"/{_TINY_TABLE}")]
    if not tables:
        return None
    root, (images, notes) = tables[0].removesuffix(_TINY_TABLE), list_images(tree)
    paths = {name: name.removeprefix(root).split("/") for name in images if name.startswith(root)}
    train = {name: path[1] for name, path in paths.items() if path[0] == "train" and len(path) > 2}
    ids = sorted(set(train.values()))
    label_by_id = {wordnet_id: i for i, wordnet_id in enumerate(ids)}
    table = _read_pairs(tree, root + _TINY_TABLE)
    test = {
        name: table.get(path[-1], "").partition("\t")[0]
        for name, path in paths.items()
        if path[0] == "val"
    }
    for name, wordnet_id in test.items():
        if wordnet_id not in label_by_id:
            raise DataError(
                f"{tree.where(name)}: expected a line in {_TINY_TABLE} with one of the "
                f"{len(ids)} classes of train, got {wordnet_id or None}."
            )
    if not (train and test):
        raise DataError(
            f"{tree.where(root)}: expected images in train/<class>/images and val/images, "
            f"got {len(train)} and {len(test)}."
        )
    words = _read_pairs(tree, root + _TINY_WORDS) if root + _TINY_WORDS in tree.sizes else {}
    names = [words.get(wordnet_id, wordnet_id) for wordnet_id in ids]
    classes = tuple(  # some classes have one name
        f"{name} ({wordnet_id})" if names.count(name) > 1 else name
        for name, wordnet_id in zip(names, ids, strict=True)
    )
    parts = {
        part: {name: label_by_id[wordnet_id] for name, wordnet_id in id_by_name.items()}
        for part, id_by_name in (("train", train), ("test", test))
    }
    return ImageFiles(parts, classes, notes[:1])


def _read_pairs(tree: FileTree, name: str) -> dict[str, str]:
    """Reads the texts before and after the first tab of each line."""
    text = tree.read(name, _MAX_TEXT_BYTES).decode("utf-8", errors="replace")
    return dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)
