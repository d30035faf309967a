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
    """Returns the content of a JSON file, or None if the file does not exist."""
    return json.loads(path.read_text()) if path.exists() else None


def read_csv(path: Path) -> list[Row]:
    """Returns the rows of a CSV file, or an empty list if the file does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def by_method(path: Path) -> dict[str, Row]:
    """Returns the rows of a CSV file by method, or an empty dict if it does not exist."""
    return {row["method"]: row for row in read_csv(path)}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("|" + "|".join(f" {x} " if x else " " for x in cells) + "|" for cells in lines)


def number(value: Any, digits: int = 4) -> str:
    """Formats a number with the given number of decimals; missing values become empty."""
    if value in (None, "") or math.isnan(float(value)):
        return ""
    return f"{float(value):.{digits}f}"


def mean_of(row: Row, name: str, *, published: bool = False) -> str:
    """Formats mean ± standard deviation of a metric, optionally with the published value."""
    text = f"{number(row[name])} ± {number(row[f'{name}_std'])}"
    known = number(row.get(f"{name}_published"))
    return f"{text} ({known})" if published and known else text


def p_value(value: Any) -> str:
    """Formats a p-value with three decimals."""
    text = number(value, 3)
    return "< 0.001" if text and float(value) < 0.001 else text


def signed(value: Any) -> str:
    """Formats a gain with its sign; a gain of 0 (the baseline row) becomes empty."""
    return "" if float(value) == 0 else f"{float(value):+.4f}".replace("-", "−")


def strongest(rows: Iterable[Any], value: Any) -> Any:
    """Returns the row with the largest value."""
    return max(rows, key=lambda row: float(value(row)))


def picture(folder: Path, name: str, said: str) -> str:
    """Returns a Markdown image with a relative link; empty if the file does not exist."""
    return f"![{said}]({folder.name}/{name})" if (folder / name).exists() else ""


def files_of(folder: Path, pattern: str) -> str:
    """Returns links to the files of a folder that match a glob pattern."""
    found = [path.relative_to(folder).as_posix() for path in sorted(folder.glob(pattern))]
    return ", ".join(f"[{name}]({folder.name}/{name})" for name in found)


def machine_of(content: dict[str, Any]) -> str:
    """Describes the machine and the library versions of a benchmark run."""
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
    busy = f", load {load[0]:.1f} before the run" if load else ""
    return f"{machine['cores']} cores ({machine['cpu']}){busy}, {', '.join(versions)}"


def join(*parts: str) -> str:
    """Joins non-empty paragraphs and wraps lines at 118 characters."""
    kept = (part.strip("\n") for part in parts if part.strip())
    return "\n\n".join("\n".join(map(_wrapped, part.splitlines())) for part in kept)


def _wrapped(line: str) -> str:
    """Wraps a line of prose; table rows, headings and images are left unchanged."""
    if line.startswith(("|", "#", "!")):
        return line
    indent = "  " if line.startswith("* ") else ""
    return textwrap.fill(
        line, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
