"""Tiny ImageNet: classes by their WordNet numbers, and a validation part with a table of labels."""

import numpy as np

from .._archive import Store
from .._errors import DataError
from ._folders import Found, list_files

_TABLE = "val/val_annotations.txt"
_WORDS = "words.txt"
_LARGEST_TEXT = 16 << 20


def find_tiny(store: Store) -> Found | None:
    """The training part of Tiny ImageNet, and its validation part for testing, or None.

    The images for testing have no labels in the release, and are left alone. Classes stand in the
    order of their WordNet numbers; ``words.txt`` names them, if it is there.

    Raises:
      DataError: If an image for validation has no label.
    """
    tables = [name for name in store.sizes if f"/{name}".endswith(f"/{_TABLE}")]
    if not tables:
        return None
    root, listed = tables[0].removesuffix(_TABLE), list_files(store)
    images = {
        name: name.removeprefix(root).split("/") for name in listed.images if name.startswith(root)
    }
    train = {name: path[1] for name, path in images.items() if path[0] == "train" and len(path) > 2}
    numbers = sorted(set(train.values()))
    label = {number: place for place, number in enumerate(numbers)}

    given = dict(line.split("\t")[:2] for line in _lines(store, root + _TABLE) if "\t" in line)
    test = {name: given.get(path[-1]) for name, path in images.items() if path[0] == "val"}
    for name, number in test.items():
        if number not in label:
            raise DataError(
                f"{store.where(name)}: expected a line in {_TABLE} that gives one of the "
                f"{len(numbers)} classes of train, got {number}."
            )
    if not (train and test):
        raise DataError(
            f"{store.where(root)}: expected images in train/<class>/images and val/images, "
            f"got {len(train)} and {len(test)}."
        )
    return Found(
        {"train": list(train), "test": list(test)},
        {
            "train": np.array([label[number] for number in train.values()], np.int32),
            "test": np.array([label[number or ""] for number in test.values()], np.int32),
        },
        _class_names(store, root, numbers),
        [listed.hidden_note()],
    )


def _class_names(store: Store, root: str, numbers: list[str]) -> tuple[str, ...]:
    """What the words say of each number; the number goes with it where two say the same."""
    lines = _lines(store, root + _WORDS) if root + _WORDS in store.sizes else []
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    names = [words.get(number, number) for number in numbers]
    return tuple(
        f"{name} ({number})" if names.count(name) > 1 else name
        for name, number in zip(names, numbers, strict=True)
    )


def _lines(store: Store, name: str) -> list[str]:
    return store.read(name, _LARGEST_TEXT).decode("utf-8", errors="replace").splitlines()
