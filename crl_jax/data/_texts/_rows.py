"""Rows of text files, whichever way their columns are told apart."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._errors import DataError, warn_if
from ._lines import Encoding, Single, by_commas, by_tabs, decoded, is_single, numbered, whole

Column = str | int


@dataclass(frozen=True)
class Rows:
    """The fields of each line that is not blank.

    Attributes:
      path: The file.
      fields: A row of fields for each, without blanks around them.
      lines: Where each begins in the file, from 1.
      names: The names of the columns, None without any.
      way: What tells columns apart: "tab", "comma", "json", "blank", or "line" where there is one.
    """

    path: Path
    fields: list[list[str]]
    lines: list[int]
    names: list[str] | None
    way: str

    @property
    def width(self) -> int:
        """How many fields every row has at least."""
        return len(self.names) if self.names else min(map(len, self.fields), default=0)

    def place(self, column: Column, what: str) -> int:
        """Where a column stands.

        Raises:
          DataError: If there is none of this name, or it stands too far right.
        """
        if isinstance(column, str):
            if self.names is None or column not in self.names:
                there = ", ".join(self.names or ["no names"])
                raise DataError(
                    f"{self.path}: expected a column {column!r} of {what}, got {there}."
                )
            return self.names.index(column)
        if not 0 <= column < self.width:
            raise DataError(
                f"{self.path}: expected a column {column} of {what}, got {self.width} columns."
            )
        return column

    def column(self, column: Column, what: str) -> list[str]:
        """A column, no field of which is empty.

        Raises:
          DataError: As of :meth:`place`, or if a field is empty.
        """
        place = self.place(column, what)
        values = [row[place] for row in self.fields]
        for value, line in zip(values, self.lines, strict=True):
            if not value:
                raise DataError(f"{self.path}:{line}: expected {what}, got an empty field.")
        return values

    def without_empty(self, column: Column, what: str) -> "Rows":
        """The rows with something in a column; a warning counts the others."""
        place = self.place(column, what)
        kept = [i for i, row in enumerate(self.fields) if row[place]]
        n_empty = len(self.fields) - len(kept)
        warn_if(n_empty, f"skipped {{n}} lines without {what}", of=str(self.path))
        fields, lines = [self.fields[i] for i in kept], [self.lines[i] for i in kept]
        return replace(self, fields=fields, lines=lines)

    def named(self, candidates: Sequence[str]) -> str | None:
        """The first column with one of these names; case and ``_`` make no difference."""
        plain = {_plain(name): name for name in self.names or ()}
        return next((plain[each] for each in candidates if each in plain), None)


def read_rows(
    path: Path, encoding: Encoding | None, known: Sequence[str], asked: Sequence[Column | None],
    single: Single = "never",
) -> Rows:  # fmt: skip
    """Reads a file, whose form follows from what stands in it.

    Columns are told apart by tabs if the first line has one; else by commas in a file ``.csv``,
    where fields may stand in quotes; else each line is a whole number, a blank and a text. A file
    ``.json`` or ``.jsonl`` has an object in each line. The first line has names if its fields are
    single words, distinct, and one of those that are known or asked for is among
    them.

    Where a single field is told, it may be all that a row of a ``.csv`` has, and lines without tabs
    are a text each if most have no whole number in front; where it is asked for, if one has none.

    Raises:
      DataError: If a line does not have the fields of the others.
    """
    header_words = (*known, *(_plain(name) for name in asked if name and isinstance(name, str)))
    text = decoded(path, encoding)
    if path.suffix.lower() in (".json", ".jsonl"):
        return _json_lines(path, text)
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    kept = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not kept:
        raise DataError(f"{path}: expected a text in each line, got none.")
    warn_if(kept[-1][0] - len(kept), "skipped {n} blank lines between the others", of=str(path))
    numbers = [number for number, _ in kept]
    if "\t" in kept[0][1]:
        way, rows = "tab", [by_tabs(path, *each) for each in kept]
    elif path.suffix.lower() == ".csv":
        way, (rows, numbers) = "comma", by_commas(path, text, single)
    elif is_single(kept, single):
        way, rows = "line", [whole(path, *each) for each in kept]
    else:
        way, rows = "blank", [numbered(path, *each) for each in kept]
    names = _names(rows[0], header_words)
    if names is None:
        return Rows(path, rows, numbers, None, way)
    for row, number in zip(rows, numbers, strict=True):
        if len(row) != len(names):
            raise DataError(
                f"{path}:{number}: expected {len(names)} fields, as the first line has, "
                f"got {len(row)}."
            )
    return Rows(path, rows[1:], numbers[1:], names, way)


def _names(first: list[str], header_words: Sequence[str]) -> list[str] | None:
    has_known = any(_plain(name) in header_words for name in first)
    are_words = all(re.fullmatch(r"\w+", name) for name in first)
    return first if has_known and are_words and len(set(first)) == len(first) else None


def _plain(name: str) -> str:
    """Without case and what is no letter."""
    return re.sub(r"[\W_]", "", name.lower())


def _json_lines(path: Path, text: str) -> Rows:
    objects: list[dict[str, Any]] = []
    numbers = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}:{number}: expected JSON, got {error}.") from None
        if not isinstance(found, dict) or (objects and found.keys() != objects[0].keys()):
            names = ", ".join(objects[0]) if objects else "names"
            raise DataError(f"{path}:{number}: expected an object of {names}, got {line!r:.60}.")
        objects.append(found)
        numbers.append(number)
    if not objects:
        raise DataError(f"{path}: expected an object in each line, got none.")
    names = list(objects[0])
    fields = [[_field(each[name]) for name in names] for each in objects]
    return Rows(path, fields, numbers, names, "json")


def _field(value: Any) -> str:
    return "" if value is None else str(value).strip()
