"""Shared helpers for tests of the documentation."""

import doctest
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FRONT = ROOT / "README.md"
DOCS = ROOT / "docs"


def pages() -> dict[str, Path]:
    """Returns the pages of the site by name, such as ``guide/losses``."""
    found = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
    return {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in found}


def is_notebook(page: Path) -> bool:
    """Whether a page is a notebook, which is executed while the site is built."""
    return "{code-cell}" in page.read_text()


def blocks(page: Path, *languages: str) -> list[str]:
    """Returns the code blocks of a page in these languages."""
    return [code for code, _ in _blocks(page, *languages)]


def _blocks(page: Path, *languages: str) -> list[tuple[str, int]]:
    """Returns the code blocks and the number of lines before each."""
    pattern, text = rf"^```(?:{'|'.join(languages)})\n(.*?)^```$", page.read_text()
    found = re.finditer(pattern, text, re.MULTILINE | re.DOTALL)
    return [(match[1], text.count("\n", 0, match.start(1))) for match in found]


def without_code(page: Path) -> str:
    """Returns the text of a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def run(page: Path) -> dict[str, Any]:
    """Runs the examples of a page in order, in a shared namespace.

    Relative imports on a page of the user guide resolve as in a module of its package.
    """
    found = _blocks(page, "python", "pycon")
    assert found
    names: dict[str, Any] = {"__name__": "__main__", "__package__": f"crl_jax.{page.stem}"}
    for code, line in found:
        if not code.startswith(">>>"):
            exec(compile("\n" * line + code, str(page), "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), line)
        assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
        names.update(test.globs)
    return names


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page: its headings, as MyST and GitHub convert them."""
    found: set[str] = set(re.findall(r"^\(([\w-]+)\)=$", page.read_text(), re.MULTILINE))
    for heading in re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        while name in found:
            name += "-1"
        found.add(name)
    return found


def known_items(log: Any, user: Any) -> list[Any]:
    """Returns the items of a user in a log, by the ids of the dataset."""
    place = log.user_index(user)
    return log.item_ids[log.items[log.indptr[place] : log.indptr[place + 1]]].tolist()
