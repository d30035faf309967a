"""Equations, algorithms, tables and figures of the sources, and what became of each.

The file ``sources.csv`` has a row per item. ``--list`` prints it, and ``docs/sources.md`` shows it.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from .._screen import printable

SOURCES = {
    "2": "Chapters 1 and 2: foundations and related work",
    "3": "Chapter 3: confidence of positives",
    "4": "Chapter 4: Bayesian negative sampling",
    "5": "Chapter 5: debiased pairwise learning",
    "6": "Chapter 6: Bayesian contrastive learning",
    "nce": "Notes on noise-contrastive estimation",
    "pu": "Notes on positive-unlabelled learning",
    "views": "Notes on CLIP, SimCLR, MoCo and GraphCL",
    "text": "Classification of texts, Shi, 2021",
}
"""Titles of the sources; chapters are those of the dissertation."""
STATES = {
    "reproduced": "implemented and tested against the formula, or run with the published outcome",
    "differs": "another outcome, a smaller scale or fewer rows, as the note says",
    "not run": "implemented; the command computes it",
    "not implemented": "not in this library",
}
_WIDE = 120
"""Number of columns of a terminal from which the code and the command have a column."""


class Item(NamedTuple):
    """An item of a source.

    Attributes:
      source: Key of the source in :data:`SOURCES`.
      place: Its place in the source, such as ``(5.18)`` or ``table 4.2``.
      item: Description.
      state: Its state, a key of :data:`STATES`.
      note: Reason of the state, or the result.
      code: Public names without ``crl_jax.``, modules of the commands, or test files.
      command: Command after ``python -m experiments``, or a module of ``benchmarks``.
      results: Patterns of files in ``benchmarks/results``.
    """

    source: str
    place: str
    item: str
    state: str
    note: str
    code: tuple[str, ...]
    command: str
    results: tuple[str, ...]


@cache
def read() -> tuple[Item, ...]:
    """Reads all items, in the order of the sources."""
    with Path(__file__).with_name("sources.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return tuple(
        Item(
            row["source"], row["place"], row["item"], row["state"], row["note"],
            tuple(row["code"].split()), row["command"], tuple(row["results"].split()),
        )
        for row in rows
    )  # fmt: skip


def select(words: Sequence[str]) -> list[Item]:
    """Returns the items of the named sources and states; no source or no state means all.

    Args:
      words: Keys of :data:`SOURCES` and states, in any order, such as ``["4", "not", "run"]``.

    Raises:
      ValueError: If a word is neither.
    """
    text, states = f" {' '.join(words)} ", []
    for state in STATES:
        if f" {state} " in text:
            text = text.replace(f" {state} ", "  ")
            states.append(state)
    sources = text.split()
    for name in sources:
        if name not in SOURCES:
            known = ", ".join([*SOURCES, *STATES])
            raise ValueError(f"--list takes targets, or some of {known}, got {name!r}.")
    return [
        item
        for item in read()
        if item.source in (sources or SOURCES) and item.state in (states or STATES)
    ]


def files(item: Item, results: Path) -> list[Path]:
    """Returns the result files of an item, below the folder ``results``.

    Raises:
      ValueError: If there is no file for a pattern.
    """
    matches = []
    for pattern in item.results:
        paths = sorted(results.glob(pattern))
        if not paths:
            raise ValueError(f"no result {pattern} for {item.place}, {item.item}")
        matches += paths
    return matches


def count(items: Iterable[Item]) -> str:
    """Returns the number of items by state, such as ``3 items: 2 reproduced, 1 not run``."""
    counts = Counter(item.state for item in items)
    parts = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    return f"{counts.total()} items: {parts}" if counts else "no items"


def show(items: Sequence[Item], console: Console) -> None:
    """Prints a table for each source, for the width of the terminal, and the counts."""
    for state, meaning in STATES.items():
        console.print(printable(f"{state}: {meaning}"), markup=False, highlight=False)
    for source, title in SOURCES.items():
        own = [item for item in items if item.source == source]
        if own:
            heading = printable(f"{title} ({source}): {count(own)}.")
            console.print(f"\n{heading}", markup=False, highlight=False)
            console.print(_table(own, wide=console.width >= _WIDE), highlight=False)
    console.print(f"\nTotal: {count(items)}.", markup=False, highlight=False)


def _table(items: Sequence[Item], *, wide: bool) -> Table:
    table = Table.grid(padding=(0, 0, 0, 2), pad_edge=True)
    table.add_column(width=18)
    table.add_column(width=13)
    table.add_column(ratio=1)
    if wide:
        table.add_column(ratio=1)
    for item in items:
        text = [item.item, *([f"({item.note})"] if item.note else [])]
        usage = _usage(item)
        cells = ["\n".join(text), "\n".join(usage)] if wide else ["\n".join([*text, *usage])]
        table.add_row(*map(_escaped, (item.place, item.state, *cells)))
    return table


def _usage(item: Item) -> list[str]:
    """Returns the command of an item or, without one, its place in the code."""
    return [f"$ {item.command}"] if item.command else [" ".join(item.code)] if item.code else []


def _escaped(text: str) -> str:
    return printable(text).replace("[", "\\[")
