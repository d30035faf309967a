"""One door for labelled texts: files by their parts, texts in memory, docstrings."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from ..._checks import check_count, check_range
from .._outcomes import DataError, warn_if
from .._readers import say_missing
from ._docstrings import docstrings
from ._rows import Column, Encoding, Rows, read_rows
from ._set import Texts, TextSplit, as_texts, cut_texts, numbered, sorted_classes

_TEXT_NAMES = ("text", "sentence", "texta", "title", "content", "review")
_LABEL_NAMES = ("label", "class", "category", "labelname", "labeldesc", "target")
_PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test",
          "dev": "valid", "valid": "valid", "val": "valid", "validation": "valid"}  # fmt: skip
_OF_PART = re.compile(rf"(?:(.+)[._-])?({'|'.join(_PARTS)})(?:[._-].*)?", re.IGNORECASE)
_CLASS_FILES = ("class.txt", "classes.txt")


def load_texts(
    source: Any,
    *,
    text_col: Column | None = None,
    label_col: Column | None = None,
    test: float | None = None,
    seed: int = 0,
    encoding: Encoding | None = None,
) -> TextSplit:
    """Loads labelled texts: a training part, a test part, and one for validation if there is any.

    Args:
      source: One of

        * ``"docstrings"``: first sentences of the docstrings of numpy, scipy, jax, flax, optax and
          scikit-learn, as far as they are installed, labelled by package;
        * a folder with a file for each part: ``train``, ``test`` and ``dev``, ``valid`` or ``val``
          are their names, perhaps with the name of the set in front and anything behind, such as
          ``TREC.train.all``. Where a folder has several sets, ``folder/TREC`` names one;
        * the same as a dictionary of files: ``{"train": …, "test": …, "valid": …}``;
        * a file, of which a part is drawn for testing;
        * :class:`Texts`, a :class:`TextSplit`, or a pair ``(texts, labels)`` of sequences.

        (A file or folder with that first name is ``"./docstrings"``.)
      text_col: The column of the texts, by its name or its position from 0. By default it is one of
        the name text, sentence, title, content or review; or, of two columns without names, the one
        with more different values.
      label_col: The column of the classes; by default one of the name label, class, category or
        target, or the other of two.
      test: The share of each class that becomes the test part, in (0, 1), where the source has
        none; by default 0.2.
      seed: What that draw depends on, besides the labels in their order, >= 0.
      encoding: ``"utf-8"`` or ``"latin-1"``. By default Latin-1 is taken for a file that is not
        UTF-8, with a warning.

    Returns:
      The parts. Classes are those of the training part, in the order of their numbers or names; a
      file ``class.txt`` in the folder names them. Texts lose the blanks around them, and empty ones
      are left out, with a warning.
      Where no file for testing has labels, that for validation is the test part; where there is
      none for training, that for validation is it. A warning says so.

    Raises:
      ValueError: If ``source`` or an option is none of these.
      DataError: If a file is not laid out as said, or a class is not one of the training part.
      FileNotFoundError: If there is no such file, folder or name.

    >>> texts = ["a fine film", "a bore", "great", "so dull"]
    >>> split = load_texts((texts, ["+", "-", "+", "-"]), test=0.5)
    >>> split.train, split.test.classes
    (Texts(2, 2 classes), ('+', '-'))
    """
    if test is not None:
        check_range("test", test, 0, 1, low_open=True, high_open=True, dtype=float)
    check_count("seed", seed, 0)
    if encoding not in (None, *get_args(Encoding)):
        raise ValueError(f"`encoding` must be 'utf-8' or 'latin-1', got {encoding!r}.")
    columns = text_col, label_col
    origin = str(source) if isinstance(source, str | Path) else "texts in memory"
    if isinstance(source, str) and source == "docstrings":
        return cut_texts(docstrings(), test, seed, origin)
    if isinstance(source, str | Path):
        path = Path(source)
        if path.is_file():
            rows = _read(path, encoding, columns)
            return cut_texts(_as_parts({"train": rows}, columns, None)["train"], test, seed, origin)
        source = _files_of(path)
        classes = _class_names(path if path.is_dir() else path.parent)
    elif isinstance(source, Mapping):
        source, classes = {name: Path(path) for name, path in source.items()}, None
    elif isinstance(source, TextSplit):
        if test is not None:
            raise ValueError("`test` belongs to texts without a test part.")
        return source
    else:
        return cut_texts(_in_memory(source), test, seed, origin)
    if test is not None:
        raise ValueError("`test` belongs to texts without a test part.")
    return TextSplit(**_as_parts(_labelled(source, encoding, columns), columns, classes))


def _in_memory(source: Any) -> Texts:
    if isinstance(source, tuple | list) and len(source) == 2:
        return as_texts(*source)
    if not isinstance(source, Texts):
        raise ValueError(
            "`source` must be a name, a path, files by their parts, Texts, a TextSplit or a pair "
            f"(texts, labels), got {source!r:.100}."
        )
    return source


def _files_of(path: Path) -> dict[str, Path]:
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


def _labelled(
    files: Mapping[str, Path], encoding: Encoding | None, columns: tuple[Column | None, ...]
) -> dict[str, Rows]:
    """The rows of each part that has labels; at least those to train and to test."""
    if unknown := set(files) - {"train", "test", "valid"}:
        raise ValueError(f"`source` must name train, test and valid, got {sorted(unknown)}.")
    for path in files.values():
        if not path.is_file():
            raise FileNotFoundError(say_missing(path))
    parts = {name: _read(path, encoding, columns) for name, path in files.items()}
    test = parts.get("test")
    if test and test.names and columns[1] is None and test.named(_LABEL_NAMES) is None:
        warn_if(1, "it has no labels, and is not read", of=str(test.path))
        del parts["test"]
    origin = ", ".join(map(str, files.values()))
    for missing in ("test", "train"):
        if missing not in parts and "valid" in parts:
            parts[missing] = parts.pop("valid")
            warn_if(1, f"the file for validation is the {missing} part", of=origin)
    if not {"train", "test"} <= parts.keys():
        raise DataError(f"{origin}: expected labelled files for training and for testing.")
    return parts


def _read(path: Path, encoding: Encoding | None, columns: tuple[Column | None, ...]) -> Rows:
    return read_rows(path, encoding, (*_TEXT_NAMES, *_LABEL_NAMES), columns)


def _as_parts(
    parts: dict[str, Rows], columns: tuple[Column | None, ...], names: list[str] | None
) -> dict[str, Texts]:
    """Texts of each part, with the classes of the training part."""
    by_position = _positions(parts["train"])
    found = {}
    for part, rows in parts.items():
        text, label = (
            own if own is not None else rows.named(known) if rows.names else place
            for own, known, place in zip(columns, (_TEXT_NAMES, _LABEL_NAMES), by_position)
        )
        for what, column in (("text_col", text), ("label_col", label)):
            if column is None:
                there = ", ".join(rows.names or [f"{len(rows.fields[0])} columns"])
                raise DataError(f"{rows.path}: cannot tell `{what}`, got {there}.")
        assert text is not None
        assert label is not None
        rows = rows.without_empty(text, "a text")
        found[part] = rows.column(text, "a text"), rows.column(label, "a class"), rows
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


def _positions(rows: Rows) -> tuple[int | None, int | None]:
    """The text and the label of two columns: fewer labels than texts are different."""
    if rows.names or any(len(row) != 2 for row in rows.fields):
        return None, None
    if rows.way == "blank":
        return 1, 0
    n_first, n_second = (len({row[place] for row in rows.fields}) for place in (0, 1))
    return (1, 0) if n_first < n_second else (0, 1)


def _class_names(folder: Path) -> list[str] | None:
    for name in _CLASS_FILES:
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8").split()
    return None


def _named(classes: tuple[str, ...], names: list[str] | None) -> tuple[str, ...]:
    """The names of numbered classes, if a file has as many."""
    if names is None or classes != tuple(map(str, range(len(names)))):
        return classes
    return tuple(names)
