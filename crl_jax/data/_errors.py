"""Data errors and warnings.

In messages of :mod:`crl_jax.data`, backticks enclose argument names and nothing else, so that a
command line can replace them with the names of its flags.
"""

import warnings
from pathlib import Path
from typing import NamedTuple


class DataError(ValueError):
    """Data that cannot be used; the message gives the place, the expectation and the value."""


class DataWarning(UserWarning):
    """Data that were changed or are doubtful; the message counts the cases."""


def warn_if(count: int, message: str, *, origin: str | None = None) -> None:
    """Warns of ``count`` cases, ``{n}`` in the message, of a file or dataset, unless it is 0."""
    if count:
        text = message.format(n=count)
        warnings.warn(f"{origin}: {text}" if origin else text, DataWarning, stacklevel=3)


def warn_about_blank_lines(count: int, path: Path) -> None:
    """Warns of blank lines that were skipped; those at the end of a file do not count."""
    warn_if(count, "skipped {n} blank lines between the others", origin=str(path))


class Note(NamedTuple):
    """Pending warning; ``{n}`` in the text is replaced by the count."""

    n_cases: int
    text: str


def printable(name: str) -> str:
    """Name of a file with control characters escaped, so that a message stays on one line."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in name)


def shorten(value: object) -> str:
    """Representation of a value in a message, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
