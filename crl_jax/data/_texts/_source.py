"""One door for texts: files by their parts, texts in memory, docstrings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ..._checks import check_count, check_range
from ._docstrings import docstrings
from ._lines import Encoding
from ._parts import as_parts, class_names, files_of, read, read_parts
from ._rows import Column
from ._set import Texts, TextSplit, as_texts, cut_texts, unlabelled


def load_texts(
    source: Any,
    *,
    text_col: Column | None = None,
    label_col: Column | None = None,
    test: float | None = None,
    seed: int = 0,
    encoding: Encoding | None = None,
) -> TextSplit:
    """Loads texts: a training part, a test part, and one for validation if there is any.

    Most sources have labels. Texts without any have the label -1, and no classes: a file with a
    text in each line, a table with a single column, a list of texts, or what ``label_col=""`` asks
    to read so.

    Args:
      source: One of

        * ``"docstrings"``: first sentences of the docstrings of numpy, scipy, jax, flax, optax and
          scikit-learn, as far as they are installed, labelled by package;
        * a folder with a file for each part: ``train``, ``test`` and ``dev``, ``valid`` or ``val``
          are their names, perhaps with the name of the set in front and anything behind, such as
          ``TREC.train.all``. Where a folder has several sets, ``folder/TREC`` names one;
        * the same as a dictionary of files: ``{"train": …, "test": …, "valid": …}``;
        * a file, of which a part is drawn for testing;
        * :class:`Texts`, a :class:`TextSplit`, a pair ``(texts, labels)`` of sequences, or a list
          of texts.

        (A file or folder with that first name is ``"./docstrings"``.)
      text_col: The column of the texts, by its name or its position from 0. By default it is one of
        the name text, sentence, title, content or review; or, of two columns without names, the one
        with more different values; or the only one.
      label_col: The column of the classes; by default one of the name label, class, category or
        target, or the other of two. ``""`` reads none, of any source.
      test: The share of each class, or of all texts without labels, that becomes the test part, in
        (0, 1), where the source has none; by default 0.2.
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
      DataError: If a file is not laid out as said, a class is not one of the training part, or a
        part has labels where that for training has none.
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
    columns = text_col, label_col
    origin = str(source) if isinstance(source, str | Path) else "texts in memory"
    if isinstance(source, str) and source == "docstrings":
        return cut_texts(_asked(docstrings(), label_col), test, seed, origin)
    if isinstance(source, str | Path):
        path = Path(source)
        if path.is_file():
            rows = read(path, encoding, columns)
            return cut_texts(as_parts({"train": rows}, columns, None)["train"], test, seed, origin)
        source = files_of(path)
        classes = class_names(path if path.is_dir() else path.parent)
    elif isinstance(source, Mapping):
        source, classes = {name: Path(path) for name, path in source.items()}, None
    elif isinstance(source, TextSplit):
        if test is not None:
            raise ValueError("`test` belongs to texts without a test part.")
        if label_col != "":
            return source
        return TextSplit(**{name: _asked(part, label_col) for name, part in source.parts()})
    else:
        return cut_texts(_asked(_in_memory(source), label_col), test, seed, origin)
    if test is not None:
        raise ValueError("`test` belongs to texts without a test part.")
    return TextSplit(**as_parts(read_parts(source, encoding, columns), columns, classes))


def _in_memory(source: Any) -> Texts:
    listed = source.tolist() if isinstance(source, np.ndarray) else source
    if isinstance(listed, tuple | list) and listed and all(isinstance(x, str) for x in listed):
        return unlabelled(listed)
    if isinstance(source, tuple | list) and len(source) == 2:
        return as_texts(*source)
    if not isinstance(source, Texts):
        raise ValueError(
            "`source` must be a name, a path, files by their parts, Texts, a TextSplit, a pair "
            f"(texts, labels) or a list of texts, got {source!r:.100}."
        )
    return source


def _asked(texts: Texts, label_col: Column | None) -> Texts:
    """The texts, without their labels if none are asked for."""
    return unlabelled(texts.texts) if label_col == "" else texts
