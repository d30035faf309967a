"""A set of texts that is always there: what packages say of their functions."""

import ast
import hashlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ._set import Texts, numbered

PACKAGES = {"numpy": "numpy", "scipy": "scipy", "jax": "jax", "flax": "flax", "optax": "optax",
            "scikit-learn": "sklearn"}  # fmt: skip
_MOST = 300  # of a package, so that no class has most of the texts
_LEAST_WORDS = 4
_LARGEST = 60_000  # bytes of a file, so that parsing takes moments
_SKIPPED = re.compile(
    r"^(tests?|testing|conftest|setup|_vendored|externals|\..*)$|^test_|_test\.py$"
)


@cache
def docstrings() -> Texts:
    """First sentences of docstrings, 300 of a package at most.

    Files are parsed and not imported, in an order by a hash of their names. So the same versions
    give the same texts. A sentence that stands twice counts once, and one of several packages for
    none of them.
    """
    found: dict[str, set[str]] = {}
    of_package: dict[str, list[str]] = {}
    for label, module in PACKAGES.items():
        spec = importlib.util.find_spec(module)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            of_package[label] = _sentences(Path(folder))
            for text in of_package[label]:
                found.setdefault(text, set()).add(label)
    texts, names = [], []
    for label, sentences in of_package.items():
        own = [text for text in sentences if len(found[text]) == 1]
        texts += own
        names += [label] * len(own)
    return numbered(texts, names, tuple(sorted(of_package)))


def _sentences(folder: Path) -> list[str]:
    files = [
        path
        for path in folder.rglob("*.py")
        if path.stat().st_size <= _LARGEST
        and not any(_SKIPPED.search(part) for part in path.relative_to(folder).parts)
    ]
    files.sort(
        key=lambda path: hashlib.sha256(path.relative_to(folder).as_posix().encode()).digest()
    )
    sentences: dict[str, None] = {}  # in order, each once
    for path in files:
        for text in _of_file(path):
            if len(text.split()) >= _LEAST_WORDS:
                sentences[text] = None
        if len(sentences) >= _MOST:
            break
    return list(sentences)[:_MOST]


def _of_file(path: Path) -> Iterator[str]:
    """The first sentence of each docstring of what is public in a file."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # of a later Python, or no Python at all
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
            doc = ast.get_docstring(node, clean=False)
            if doc and (text := first_sentence(doc)):
                yield text


def first_sentence(doc: str) -> str:
    """The first sentence of a docstring in one line, without markup."""
    paragraph = re.split(r"\n\s*\n", inspect.cleandoc(doc))[0]
    text = re.sub(r":[\w:+-]+:`~?([^`<]*)(?:<[^`]*>)?`", r"\1", " ".join(paragraph.split()))
    text = re.sub(r"[`*]+", "", text)
    return re.split(r"(?<=[.!?])\s", text)[0].strip()
