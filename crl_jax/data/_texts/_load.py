"""Loads labelled texts from files, folders, sequences and docstrings."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ..._checks import check_count, check_range
from .._archive import Encoding, read_text
from .._errors import DataError, warn_if
from .._readers import missing_file_message
from ._docstrings import docstrings
from ._table import Column, Table, read_table, refuse_unknown_header
from ._texts import Texts, TextSplit, as_texts, sorted_classes, split_texts

_NAMES = (
    ("text", "sentence", "texta", "title", "content", "review"),
    ("label", "class", "category", "labelname", "labeldesc", "target"),
)
_PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test",
          "dev": "valid", "valid": "valid", "val": "valid", "validation": "valid"}  # fmt: skip
_PART_FILE = re.compile(rf"(?:(.+)[._-])?({'|'.join(_PARTS)})(?:[._-].*)?", re.IGNORECASE)
_CLASS_FILES = ("class.txt", "classes.txt")

_Columns = tuple[Column | None, Column | None]  # of texts and of labels


def load_texts(
    source: Any,
    *,
    text_col: Column | None = None,
    label_col: Column | None = None,
    test: float | None = None,
    seed: int = 0,
    encoding: Encoding | None = None,
) -> TextSplit:
    """Loads texts as training, test and optional validation parts.

    Args:
      source: One of

        * ``"docstrings"``: first sentences of docstrings of numpy, scipy, jax, flax, optax and
          scikit-learn, if installed, labelled by package;
        * a file, of which a test part is sampled: a text per line, or columns separated by tabs,
          by commas or semicolons in ``.csv``, or in JSON lines; ``.gz`` is decompressed;
        * a dictionary of such files, ``{"train": …, "test": …, "valid": …}``, or their folder:
          ``train``, ``test`` and ``dev``, ``valid`` or ``val`` with any prefix and suffix, such as
          ``TREC.train.all``. If a folder has several datasets, ``folder/TREC`` selects one;
        * :class:`Texts`, a :class:`TextSplit`, a pair ``(texts, labels)`` of sequences, or a list
          of texts.

        (A file or folder of that first name is ``"./docstrings"``.)
      text_col: Column of the texts, by name or by position from 0. By default, a column named text,
        sentence, title, content or review; or, of two columns without names, the one with more
        distinct values; or the only one, or the only one besides ``label_col``.
      label_col: Column of the classes; by default one named label, class, category or target, or
        the other of two. ``""`` reads no labels.
      test: Test fraction of each class (or of all texts without labels) in (0, 1) for sources
        without a test part; 0.2 by default.
      seed: Seed of the split, >= 0. It depends on the labels and their order otherwise.
      encoding: ``"utf-8"`` or ``"latin-1"``. By default UTF-8, or UTF-16 with a byte order mark, or
        else Latin-1 with a warning.

    Returns:
      The parts. Classes are those of the training part, in numerical or alphabetical order; a file
      ``class.txt`` in the folder names them. Texts without labels have the label -1 and no classes.
      Blanks around texts are removed, and empty texts of files are skipped with a warning; those
      of sequences are refused. The validation file replaces a missing file for training or a
      missing labelled one for testing, with a warning.

    Raises:
      ValueError: If ``source`` or an option is none of these, or a column of a source without
        columns is given.
      DataError: If a file is malformed, a class is missing in the training part, or only some parts
        have labels.
      FileNotFoundError: If there is no such file, folder or name.

    >>> texts = ["a fine film", "a bore", "great", "so dull"]
    >>> split = load_texts((texts, ["+", "-", "+", "-"]), test=0.5)
    >>> split.train, split.test.classes
    (Texts(2, 2 classes), ('+', '-'))
    >>> load_texts(texts, test=0.5).train
    Texts(2, 0 classes)
    """
    if test is not None:
        check_range("test", test, 0, 1, low_open=True, high_open=True, dtype=float)
    check_count("seed", seed, 0)
    if encoding not in (None, *get_args(Encoding)):
        raise ValueError(f"`encoding` must be 'utf-8' or 'latin-1', got {encoding!r}.")
    columns: _Columns = (text_col, label_col)
    path = Path(source) if isinstance(source, str | Path) else None
    origin = "texts in memory" if path is None else str(source)
    is_named = isinstance(source, str) and source == "docstrings"
    if is_named or not (path or isinstance(source, Mapping)):
        for name, column in (("text_col", text_col), ("label_col", label_col or None)):
            if column is not None:
                raise ValueError(
                    f"`{name}` requires files: {origin} have no columns, got {column!r}."
                )
    loaded: Any = source  # the texts of all parts, those of each part, or the file of each part
    classes = None
    if is_named:
        loaded = docstrings()
    elif path is not None and path.exists() and not path.is_dir():
        loaded = _as_parts({"train": _read(path, encoding, columns)}, columns, None)["train"]
    elif path is not None:
        loaded = _part_files(path)
        classes = _class_names(path if path.is_dir() else path.parent)
    elif not isinstance(source, Mapping | TextSplit):
        loaded = _from_memory(source)
    if isinstance(loaded, Texts):
        loaded = loaded.without_labels() if label_col == "" else loaded
        return split_texts(loaded, test, seed, origin)
    if test is not None:
        raise ValueError("`test` requires texts without a test part.")
    if isinstance(loaded, Mapping):
        files = {name: Path(file) for name, file in loaded.items()}
        return TextSplit(**_as_parts(_read_parts(files, encoding, columns), columns, classes))
    if label_col != "":
        return loaded
    return TextSplit(**{name: part.without_labels() for name, part in loaded.parts()})


def _from_memory(source: Any) -> Texts:
    texts = source.tolist() if isinstance(source, np.ndarray) else source
    if isinstance(texts, tuple | list) and texts and all(isinstance(x, str) for x in texts):
        return as_texts(texts)
    if isinstance(source, tuple | list) and len(source) == 2:
        return as_texts(*source)
    if not isinstance(source, Texts):
        raise ValueError(
            "`source` must be a name, a path, files by their parts, Texts, a TextSplit, a pair "
            f"(texts, labels) or a list of texts, got {source!r:.100}."
        )
    return source


def _part_files(path: Path) -> dict[str, Path]:
    """Returns the file of each part in a folder, or of the dataset ``path.name`` in its parent."""
    folder = path if path.is_dir() else path.parent
    datasets: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _PART_FILE.fullmatch(file.name)
        if match and file.is_file():
            parts, part = datasets.setdefault(match[1] or "", {}), _PARTS[match[2].lower()]
            if part in parts:
                raise DataError(f"{file}: expected one file of a part, got {parts[part]} too.")
            parts[part] = file
    if folder != path:
        if path.name not in datasets:
            raise FileNotFoundError(missing_file_message(path))
        return datasets[path.name]
    if len(datasets) != 1:
        names = ", ".join(sorted(datasets)) or "none"
        raise DataError(
            f"{path}: expected files train and test of one set, got {names}. "
            "Select a set by folder/NAME, or a file by its path."
        )
    return next(iter(datasets.values()))


def _read(path: Path, encoding: Encoding | None, columns: _Columns) -> Table:
    labelled = None if columns[1] is None else columns[1] != ""
    return read_table(path, encoding, _NAMES, columns, labelled)


def _read_parts(
    files: Mapping[str, Path], encoding: Encoding | None, columns: _Columns
) -> dict[str, Table]:
    """Reads the table of each part; a test part without labels is dropped if others have them."""
    if unknown := set(files) - {"train", "test", "valid"}:
        raise ValueError(f"`source` must name train, test and valid, got {sorted(unknown)}.")
    parts = {name: _read(path, encoding, columns) for name, path in files.items()}
    test, first = parts.get("test"), parts.get("train", parts.get("valid"))
    if test and first and columns[1] is None and _is_labelled(first, None):
        has_no_label = test.names is not None and not test.find((None,), _NAMES[1:], (None,))[0]
        if has_no_label or test.width == 1:
            warn_if(1, "it has no labels, and is not read", origin=str(test.path))
            del parts["test"]
    origin = ", ".join(map(str, files.values()))
    for missing in ("test", "train"):
        if missing not in parts and "valid" in parts:
            parts[missing] = parts.pop("valid")
            warn_if(1, f"the file for validation is the {missing} part", origin=origin)
    if not {"train", "test"} <= parts.keys():
        raise DataError(
            f"{origin}: expected labelled files for training and for testing, or "
            "both without labels."
        )
    return parts


def _is_labelled(table: Table, label_col: Column | None) -> bool:
    return label_col != "" and (label_col is not None or table.width > 1)


def _as_parts(
    parts: dict[str, Table], columns: _Columns, class_names: list[str] | None
) -> dict[str, Texts]:
    """Converts the tables of all parts to texts with the classes of the training part."""
    train, label_col = parts["train"], columns[1]
    labelled = _is_labelled(train, label_col)
    positions = _columns_by_position(train, labelled)
    if labelled and columns == (None, None) and positions[1] is not None:
        refuse_unknown_header(train, positions[1])
    texts: dict[str, list[str]] = {}
    labels: dict[str, list[str]] = {}
    for part, table in parts.items():
        text, label = table.find(columns, _NAMES, positions)
        if _is_labelled(table, label_col) != labelled:
            expected = "texts with labels" if labelled else "a single column"
            raise DataError(
                f"{table.path}: expected {expected}, as {train.path} has, got {table.columns}; "
                '`label_col` "" reads no labels.'
            )
        if text is None and label_col and table.width == 2:
            text = 1 - table.index(label_col, "a class")
        if text is None:
            raise DataError(f"{table.path}: cannot determine `text_col`, got {table.columns}.")
        if label is None and labelled:
            raise DataError(
                f"{table.path}: cannot determine `label_col`, got {table.columns}. "
                'With "" no labels are read.'
            )
        label_index = None if label is None or not labelled else table.index(label, "a class")
        if label_index == table.index(text, "a text"):
            raise ValueError(
                f"{table.path}: `text_col` and `label_col` must be different columns, got one of "
                f"{table.columns} for both."
            )
        table = parts[part] = table.drop_empty(text, "a text")
        texts[part] = table.column(text, "a text")
        if labelled and label is not None:
            labels[part] = table.column(label, "a class")
    if not labelled:
        return {part: as_texts(column) for part, column in texts.items()}
    classes = sorted_classes(labels["train"])
    index = {name: i for i, name in enumerate(classes)}
    if class_names is not None and classes == tuple(map(str, range(len(class_names)))):
        classes = tuple(class_names)
    for part, names in labels.items():
        for name, (line, _) in zip(names, parts[part].rows, strict=True):
            if name not in index:
                raise DataError(
                    f"{parts[part].path}:{line}: expected a class of the training part, "
                    f"got {name!r:.60}."
                )
    return {
        part: Texts(tuple(texts[part]), np.array([index[x] for x in names], np.int32), classes)
        for part, names in labels.items()
    }


def _columns_by_position(table: Table, labelled: bool) -> tuple[int | None, int | None]:
    """Text and label column of a table without names: labels have fewer distinct values."""
    widths = {len(row) for _, row in table.rows}
    if table.names or widths not in ({1}, {2}):
        return None, None
    if widths == {1}:
        return 0, None
    if table.separator == "blank":
        return 1, 0
    n_first, n_second = (len({row[i] for _, row in table.rows}) for i in (0, 1))
    if n_first == n_second and not labelled:
        return None, None
    return (1, 0) if n_first < n_second else (0, 1)


def _class_names(folder: Path) -> list[str] | None:
    """Class names in a file of the folder, or None."""
    file = next((folder / name for name in _CLASS_FILES if (folder / name).is_file()), None)
    return None if file is None else read_text(file).split()
