"""Images in folders: which files there are, of which part and class."""

from collections import Counter
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from .._archive import Store
from .._errors import DataError, Note
from .._split_sampling import drawn_for_test
from ._decode import FORMATS, decode_all
from ._set import NO_LABEL, Images, ImageSplit, Read

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


class Found(NamedTuple):
    """The image files of each part, and what they are.

    Attributes:
      names: The files of each part.
      labels: Their classes.
      classes: The names of the classes.
      notes: What was left out.
    """

    names: dict[str, list[str]]
    labels: dict[str, Int32[np.ndarray, " n"]]
    classes: tuple[str, ...]
    notes: list[Note]


def find_in_folders(store: Store, share: float | None, labelled: bool) -> Found:
    """Finds ``train/<class>/…`` with ``test`` or ``val`` beside it, or ``<class>/…`` alone.

    Where no image lies in a folder of a class, none has a label.

    Args:
      store: The files. Folders around all of them make no difference.
      share: The share of each class that becomes the test part where there is none; the default
        is 0.2. It must be None where there is one.
      labelled: Whether folders are classes.

    Raises:
      DataError: If there is no image, or one lies outside of the class folders of the others.
      ValueError: If ``share`` is given beside a test part.
    """
    listed = list_files(store)
    notes = [listed.hidden_note(), listed.others_note()]
    if not listed.images:
        raise DataError(
            f"{store.origin}: expected images ({', '.join(FORMATS)}) in folders of their classes, "
            "train/<class>/… with test/<class>/… or val/<class>/… beside it, or <class>/… alone, "
            "or a binary release of CIFAR-10, CIFAR-100 or STL-10; "
            f"got {len(store.sizes)} files, none of them an image."
        )
    parts = _by_part(store, listed.images)
    if "test" in parts and "valid" in parts:
        notes.append(Note(len(parts.pop("valid")), "{n} images for validation are not read"))
    parts = {"test" if part == "valid" else part: found for part, found in parts.items()}

    judged = [path for part in ("train", "test") for path in parts.get(part, ())]
    alone = [path for path in judged if len(path.inside) < 2]
    if labelled and len(alone) == len(judged):
        labelled = False
        notes.append(Note(len(alone), "{n} images lie in no folder of a class; none has a label"))
    if labelled and alone:
        raise DataError(
            f"{store.where(alone[0].name)}: expected a folder of a class around the image, which "
            f"{len(judged) - len(alone)} others have."
        )
    classes = sorted({path.inside[0] for path in judged}) if labelled else []
    number = {name: place for place, name in enumerate(classes)}
    labels = {
        part: np.array(
            [
                number[path.inside[0]] if labelled and part != "unlabelled" else NO_LABEL
                for path in found
            ],
            np.int32,
        )
        for part, found in parts.items()
    }
    names = {part: [path.name for path in found] for part, found in parts.items()}
    if "test" not in parts:
        _draw_test(names, labels, share, str(store.origin))
    elif share is not None:
        raise ValueError(f"`test` belongs to images without a test part, which {store.origin} has.")
    unseen = set(labels["test"].tolist()) - set(labels["train"].tolist())
    notes.append(Note(len(unseen), "{n} classes have no image in training"))
    return Found(names, labels, tuple(classes), notes)


def read_found(store: Store, found: Found, size: int | None) -> Read:
    """Decodes what was found."""
    parts = ("train", "test", *(["unlabelled"] if "unlabelled" in found.names else []))
    pixels = decode_all(store, [name for part in parts for name in found.names[part]], size)
    pixels.setflags(write=False)
    images, end = {}, 0
    for part in parts:
        start, end = end, end + len(found.names[part])
        labels, names = found.labels[part], np.array(found.names[part], np.str_)
        for array in (labels, names):
            array.setflags(write=False)
        images[part] = Images(pixels[start:end], labels, found.classes, names)
    return Read(ImageSplit(**images), found.notes)


class Listed(NamedTuple):
    """What kinds of files a store has.

    Attributes:
      images: Those with the name of an image, in order.
      n_hidden: Number of hidden ones, by a dot or in ``__MACOSX``.
      others: Number of all others by their suffixes.
    """

    images: list[str]
    n_hidden: int
    others: Counter[str]

    def hidden_note(self) -> Note:
        """Says that hidden files were left out."""
        return Note(self.n_hidden, "skipped {n} hidden files")

    def others_note(self) -> Note:
        """Says which files were left out for what they are."""
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.others.items())[:10])
        return Note(self.others.total(), f"skipped {{n}} files that are no images: {kinds}")


def list_files(store: Store) -> Listed:
    """Tells images, hidden files and others apart, by their names."""
    images: list[str] = []
    others: Counter[str] = Counter()
    n_hidden = 0
    for name in store.sizes:
        path = PurePosixPath(name)
        if any(part[0] == "." or part == "__MACOSX" for part in path.parts):
            n_hidden += 1
        elif path.suffix.lower() in FORMATS:
            images.append(name)
        else:
            others[path.suffix.lower() or path.name] += 1
    return Listed(images, n_hidden, others)


class _Path(NamedTuple):
    name: str
    inside: tuple[str, ...]  # of the part


def _by_part(store: Store, names: list[str]) -> dict[str, list[_Path]]:
    """The images of each part; without parts all are of training."""
    paths = [tuple(name.split("/")) for name in names]
    depth = 0
    while (
        len(around := {path[depth] for path in paths}) == 1
        and min(map(len, paths)) > depth + 2
        and not {name.lower() for name in around} & _PARTS.keys()
    ):
        depth += 1
    tops = {path[depth] for path in paths if len(path) > depth + 1}
    known = {top for top in tops if top.lower() in _PARTS}
    unknown = sorted(tops - known)
    if not known or (unknown and len(known) == 1):  # trains are a class beside cars
        return {"train": [_Path(n, p[depth:]) for n, p in zip(names, paths, strict=True)]}
    if unknown:
        raise DataError(
            f"{store.origin}: expected the parts train and test or val, and unlabelled or none, "
            f"got {', '.join(unknown)} beside {', '.join(sorted(known))}."
        )
    parts: dict[str, list[_Path]] = {}
    for name, path in zip(names, paths, strict=True):
        if len(path) < depth + 2:
            raise DataError(f"{store.where(name)}: expected the image in one of the parts.")
        parts.setdefault(_PARTS[path[depth].lower()], []).append(_Path(name, path[depth + 1 :]))
    if "train" not in parts:
        raise DataError(f"{store.origin}: expected a part train, got {', '.join(sorted(known))}.")
    return parts


def _draw_test(
    names: dict[str, list[str]], labels: dict[str, np.ndarray], share: float | None, origin: str
) -> None:
    """Moves a share of the training part to a test part."""
    drawn = drawn_for_test(labels["train"], share, origin)
    everything, of_class = np.array(names["train"], object), labels["train"]
    for part, kept in (("train", ~drawn), ("test", drawn)):
        names[part], labels[part] = everything[kept].tolist(), of_class[kept]
