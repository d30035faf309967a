"""Texts from files: one for each part of a set, or one alone."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from .._errors import DataError, warn_if
from .._readers import say_missing
from ._lines import Encoding, Single
from ._rows import Column, Rows, read_rows
from ._set import Texts, numbered, sorted_classes, unlabelled

_TEXT_NAMES = ("text", "sentence", "texta", "title", "content", "review")
_LABEL_NAMES = ("label", "class", "category", "labelname", "labeldesc", "target")
_PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test",
          "dev": "valid", "valid": "valid", "val": "valid", "validation": "valid"}  # fmt: skip
_OF_PART = re.compile(rf"(?:(.+)[._-])?({'|'.join(_PARTS)})(?:[._-].*)?", re.IGNORECASE)
_CLASS_FILES = ("class.txt", "classes.txt")


def files_of(path: Path) -> dict[str, Path]:
    """The file of each part, in a folder or of one of the sets in it."""
    folder, prefix = (path, None) if path.is_dir() else (path.parent, path.name)
    sets: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        found = _OF_PART.fullmatch(file.name)
        if found and file.is_file():
            parts, part = sets.setdefault(found[1] or "", {}), _PARTS[found[2].lower()]
            if part in parts:
                raise DataError(f"{file}: expected one file of a part, got {parts[part]} too.")
            parts[part] = file
    if prefix is not None:
        if prefix not in sets:
            raise FileNotFoundError(say_missing(path))
        return sets[prefix]
    if len(sets) != 1:
        names = ", ".join(sorted(sets)) or "none"
        raise DataError(
            f"{path}: expected files train and test of one set, got {names}. "
            "A set is named by folder/NAME, and a file by its path."
        )
    return next(iter(sets.values()))


def read_parts(
    files: Mapping[str, Path], encoding: Encoding | None, columns: tuple[Column | None, ...]
) -> dict[str, Rows]:
    """The rows of each part, a test part without labels left out where that to train has some."""
    if unknown := set(files) - {"train", "test", "valid"}:
        raise ValueError(f"`source` must name train, test and valid, got {sorted(unknown)}.")
    for path in files.values():
        if not path.is_file():
            raise FileNotFoundError(say_missing(path))
    parts = {name: read(path, encoding, columns) for name, path in files.items()}
    test, first = parts.get("test"), parts.get("train", parts.get("valid"))
    if test and first and _is_labelled(first, columns[1]) and _lacks_labels(test, columns[1]):
        warn_if(1, "it has no labels, and is not read", of=str(test.path))
        del parts["test"]
    origin = ", ".join(map(str, files.values()))
    for missing in ("test", "train"):
        if missing not in parts and "valid" in parts:
            parts[missing] = parts.pop("valid")
            warn_if(1, f"the file for validation is the {missing} part", of=origin)
    if not {"train", "test"} <= parts.keys():
        raise DataError(
            f"{origin}: expected labelled files for training and for testing, or "
            "both without labels."
        )
    return parts


def read(path: Path, encoding: Encoding | None, columns: tuple[Column | None, ...]) -> Rows:
    """The rows of a file."""
    single: Single = "told" if columns[1] is None else "asked" if columns[1] == "" else "never"
    return read_rows(path, encoding, (*_TEXT_NAMES, *_LABEL_NAMES), columns, single)


def _is_labelled(rows: Rows, label_col: Column | None) -> bool:
    """Whether there are labels to read: a column is asked for, or there is one beside the text."""
    return label_col != "" and (label_col is not None or rows.width > 1)


def _lacks_labels(rows: Rows, label_col: Column | None) -> bool:
    """Whether a part cannot have the labels that that to train has."""
    are_unnamed = rows.names is not None and rows.named(_LABEL_NAMES) is None
    return label_col is None and (are_unnamed or rows.width == 1)


def as_parts(
    parts: dict[str, Rows], columns: tuple[Column | None, ...], names: list[str] | None
) -> dict[str, Texts]:
    """Texts of each part, with the classes of the training part."""
    train, (_, label_col) = parts["train"], columns
    labelled = _is_labelled(train, label_col)
    by_position = _positions(train, labelled)
    found: dict[str, tuple[list[str], list[str], Rows]] = {}
    for part, rows in parts.items():
        text, label = (
            own if own is not None else rows.named(known) if rows.names else place
            for own, known, place in zip(columns, (_TEXT_NAMES, _LABEL_NAMES), by_position)
        )
        there = ", ".join(rows.names or [f"{rows.width} columns"])
        if _is_labelled(rows, label_col) != labelled:
            expected = "texts with labels" if labelled else "a single column"
            raise DataError(
                f"{rows.path}: expected {expected}, as {train.path} has, got {there}; "
                '`label_col` "" reads no labels.'
            )
        if text is None:
            raise DataError(f"{rows.path}: cannot tell `text_col`, got {there}.")
        if label is None and labelled:
            raise DataError(
                f'{rows.path}: cannot tell `label_col`, got {there}. With "" no labels are read.'
            )
        rows = rows.without_empty(text, "a text")
        of_class = rows.column(label, "a class") if label is not None and labelled else []
        found[part] = rows.column(text, "a text"), of_class, rows
    if not labelled:
        return {part: unlabelled(texts) for part, (texts, _, _) in found.items()}
    classes = sorted_classes(found["train"][1])
    for _, labels, rows in found.values():
        for label, line in zip(labels, rows.lines, strict=True):
            if label not in classes:
                raise DataError(
                    f"{rows.path}:{line}: expected a class of the training part, got {label!r:.60}."
                )
    shown = _named(classes, names)
    return {
        part: replace(numbered(texts, labels, classes), classes=shown)
        for part, (texts, labels, _) in found.items()
    }


def _positions(rows: Rows, labelled: bool) -> tuple[int | None, int | None]:
    """The text and the label of two columns: fewer labels than texts are different."""
    widths = set(map(len, rows.fields))
    if widths == {1} and not rows.names:
        return 0, None
    if widths != {2} or rows.names:
        return None, None
    if rows.way == "blank":
        return 1, 0
    n_first, n_second = (len({row[place] for row in rows.fields}) for place in (0, 1))
    if n_first == n_second and not labelled:
        return None, None
    return (1, 0) if n_first < n_second else (0, 1)


def class_names(folder: Path) -> list[str] | None:
    """The names of classes in a file of the folder, if there is one."""
    for name in _CLASS_FILES:
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8").split()
    return None


def _named(classes: tuple[str, ...], names: list[str] | None) -> tuple[str, ...]:
    """The names of numbered classes, if a file has as many."""
    if names is None or classes != tuple(map(str, range(len(names)))):
        return classes
    return tuple(names)
