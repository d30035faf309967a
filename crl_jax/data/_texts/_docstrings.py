"""Labelled texts without a download: docstrings of installed packages."""

import ast
import hashlib
import importlib.util
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from ._texts import Texts

PACKAGES = {"numpy": "numpy", "scipy": "scipy", "jax": "jax", "flax": "flax", "optax": "optax",
            "scikit-learn": "sklearn"}  # fmt: skip
_MAX_PER_PACKAGE = 300  # balances the classes
_MIN_WORDS = 4
_MAX_BYTES = 60_000  # per file, bounds the time of parsing
_SKIPPED = re.compile(
    r"^(tests?|testing|conftest|setup|_vendored|externals|\..*)$|^test_|_test\.py$"
)


@cache
def docstrings() -> Texts:
    """Returns the first sentences of docstrings, at most 300 per package.

    Files are parsed without being imported, in the order of a hash of their names, so that the
    result depends only on the installed versions. Duplicates are dropped, and so are sentences of
    several packages.
    """
    sentences_by_package = {}
    for label, module in PACKAGES.items():
        if (spec := importlib.util.find_spec(module)) and spec.submodule_search_locations:
            sentences_by_package[label] = _sentences(Path(spec.submodule_search_locations[-1]))
    n_packages = Counter(chain(*sentences_by_package.values()))
    pairs = [
        (text, label)
        for label, sentences in sentences_by_package.items()
        for text in sentences
        if n_packages[text] == 1
    ]
    texts, names = ([pair[i] for pair in pairs] for i in (0, 1))
    return Texts.from_names(texts, names, sorted(sentences_by_package))


def _sentences(folder: Path) -> list[str]:
    files = [
        path.relative_to(folder)
        for path in folder.rglob("*.py")
        if path.stat().st_size <= _MAX_BYTES
    ]
    files = [path for path in files if not any(map(_SKIPPED.search, path.parts))]
    sentences: dict[str, None] = {}  # an ordered set
    for path in sorted(files, key=lambda x: hashlib.sha256(x.as_posix().encode()).digest()):
        for text in _file_sentences(folder / path):
            if len(text.split()) >= _MIN_WORDS:
                sentences[text] = None
        if len(sentences) >= _MAX_PER_PACKAGE:
            break
    return list(sentences)[:_MAX_PER_PACKAGE]


def _file_sentences(path: Path) -> Iterator[str]:
    """Yields the first sentence of the docstring of each public function and class."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # another version of Python, or no Python
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
            doc = ast.get_docstring(node, clean=False)
            if doc and (text := first_sentence(doc)):
                yield text


def first_sentence(doc: str) -> str:
    """Returns the first sentence of a docstring in one line, without markup."""
    paragraph = re.split(r"\n\s*\n", inspect.cleandoc(doc))[0]
    text = re.sub(r":[\w:+-]+:`~?([^`<]*)(?:<[^`]*>)?`", r"\1", " ".join(paragraph.split()))
    text = re.sub(r"[`*]+", "", text)
    return re.split(r"(?<=[.!?])\s", text)[0].strip()
