"""Reads the files of ``benchmarks/results`` and writes their numbers as Markdown."""

import csv
import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, str]
ENCODERS = {"mf": "MF", "lightgcn": "LightGCN"}
DATASETS = {
    "ml-100k": "MovieLens 100K", "ml-1m": "MovieLens 1M", "gowalla": "Gowalla",
    "yelp2018": "Yelp2018",
}  # fmt: skip


def read_json(path: Path) -> Any:
    """The content of a file; None if there is no such file."""
    return json.loads(path.read_text()) if path.exists() else None


def read_csv(path: Path) -> list[Row]:
    """The rows of a file; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def by_method(path: Path) -> dict[str, Row]:
    """The rows of a table by their method; none if there is no such file."""
    return {row["method"]: row for row in read_csv(path)}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("|" + "|".join(f" {x} " if x else " " for x in cells) + "|" for cells in lines)


def number(value: Any, digits: int = 4) -> str:
    """A number with so many digits after the point; nothing where there is none."""
    if value in (None, "") or math.isnan(float(value)):
        return ""
    return f"{float(value):.{digits}f}"


def mean_of(row: Row, name: str, *, published: bool = False) -> str:
    """Mean and deviation of a metric, the published value in brackets if it is asked for."""
    text = f"{number(row[name])} ± {number(row[f'{name}_std'])}"
    known = number(row.get(f"{name}_published"))
    return f"{text} ({known})" if published and known else text


def p_value(value: Any) -> str:
    """A p-value with three digits."""
    text = number(value, 3)
    return "< 0.001" if text and float(value) < 0.001 else text


def signed(value: Any) -> str:
    """A gain with its sign; nothing for the row that the others are compared with."""
    return "" if float(value) == 0 else f"{float(value):+.4f}".replace("-", "−")


def strongest(rows: Iterable[Any], value: Any) -> Any:
    """The row with the largest value."""
    return max(rows, key=lambda row: float(value(row)))


def picture(folder: Path, name: str, said: str) -> str:
    """A picture by its relative link; nothing if it is not there."""
    return f"![{said}]({folder.name}/{name})" if (folder / name).exists() else ""


def files_of(folder: Path, pattern: str) -> str:
    """Links to the files of a folder that match."""
    found = [path.relative_to(folder).as_posix() for path in sorted(folder.glob(pattern))]
    return ", ".join(f"[{name}]({folder.name}/{name})" for name in found)


def machine_of(content: dict[str, Any]) -> str:
    """What a benchmark ran on, and with which versions."""
    names = {
        "jax": "JAX", "torch": "PyTorch", "torchvision": "torchvision", "kornia": "Kornia",
        "scipy": "SciPy", "implicit": "implicit",
    }  # fmt: skip
    versions = [
        f"{said} {content['versions'][name].partition('+')[0]}"
        for name, said in names.items()
        if name in content["versions"]
    ]
    machine = content["machine"]
    load = machine.get("load_before")
    busy = f", load {load[0]:.1f} before it" if load else ""
    return f"{machine['cores']} cores ({machine['cpu']}){busy}, {', '.join(versions)}"


def join(*parts: str) -> str:
    """Paragraphs, in lines of at most 118; those that are empty leave no gap."""
    kept = (part.strip("\n") for part in parts if part.strip())
    return "\n\n".join("\n".join(map(_wrapped, part.splitlines())) for part in kept)


def _wrapped(line: str) -> str:
    """A line of prose in several; rows of tables, headings and pictures stay as they are."""
    if line.startswith(("|", "#", "!")):
        return line
    indent = "  " if line.startswith("* ") else ""
    return textwrap.fill(
        line, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
