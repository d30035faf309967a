"""Terminal output shared by all commands."""

import codecs
import io
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from ._program import in_flags, suggest
from ._study import SearchResult

_WIDTH = 1000
_SPELL = "crl_jax.spell"
"""Name of the error handler that spells out characters that an encoding lacks."""
_SPELLING = {
    "α": "alpha", "β": "beta", "γ": "gamma", "λ": "lambda", "τ": "tau", "φ": "phi", "ω": "omega",
    "⁺": "+", "≥": ">=", "≤": "<=", "±": "+-", "×": "x", "·": "*", "−": "-", "→": "->", "∞": "inf",
    "…": "...", "–": "-", "—": "-", "’": "'",
}  # fmt: skip
# The pattern of `rich.markup.escape`, which in addition doubles a backslash at the end of a text.
_MARKUP = re.compile(r"(\\*)(\[[a-z#/@][^[]*?])")


def output(*, stderr: bool = False) -> Console:
    """Returns a console of the terminal's width; in files, lines and tables are not wrapped."""
    # No emoji codes: an item id such as ":x:" must be printed literally.
    console = Console(stderr=stderr, emoji=False)
    return console if console.is_terminal else Console(stderr=stderr, emoji=False, width=_WIDTH)


def accept_all_characters() -> None:
    """Makes standard output and error spell out the characters that their encoding lacks.

    Otherwise a ``≥`` would end a training whose output goes to a file in cp1252, as on Windows.
    """
    codecs.register_error(_SPELL, _transliterate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors=_SPELL)


def printable(text: str) -> str:
    """Returns a text as standard output shows it, after :func:`accept_all_characters`."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, _SPELL).decode(encoding)


def _transliterate(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_SPELLING.get(character, "?") for character in characters), error.end


def describe_devices(mesh: Mesh | None) -> str:
    """Describes the devices in use."""
    device = jax.devices()[0]
    description = f"{device.platform} ({device.device_kind})"
    if mesh is not None:
        axes = ", ".join(f"{axis}={n}" for axis, n in mesh.shape.items())
        description = f"{mesh.size} × {description}, {axes}"
    if jax.process_count() > 1:
        description += f", {jax.process_count()} processes"
    return description


def grid_table(searched: SearchResult, n_seeds: int, metric: str) -> Table:
    """Returns a table of the points of a search and their validation scores, the best in bold."""
    points, choice = searched.points, searched.choice
    seeds = f", mean of {n_seeds} seeds" if n_seeds > 1 else ", one seed"
    kind = "Search" if searched.description else "Grid"
    table = Table(title=f"{kind}, decided on validation data{seeds}")
    epochs = [str(epoch or "") for epoch in choice.best_epochs] if any(choice.best_epochs) else None
    names = list(dict.fromkeys(name for point in points for name in point))
    for name in (*names, f"valid {metric}", *(["best epoch"] if epochs else [])):
        table.add_column(name, justify="right")
    for i, point in enumerate(points):
        if np.isnan(choice.scores[i]) and i != choice.point and searched.description:
            continue  # not trained, or diverged
        table.add_row(
            *(_number(point.get(name, "")) for name in names),
            f"{choice.scores[i]:.4f}",
            *([epochs[i]] if epochs else []),
            style="bold" if i == choice.point else None,
        )
    return table


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def cell(values: Sequence[float]) -> str:
    """Formats the mean of values and, if there are several, their standard deviation."""
    mean = f"{np.mean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.4f}"


def seeds_suffix(n: int) -> str:
    """Returns the suffix of a table title for several seeds; empty for one seed."""
    return f", mean ± standard deviation of {n} seeds" if n > 1 else ""


def show_warning(flags: Mapping[str, str], message: Warning | str, *_: Any, **__: Any) -> None:
    """Prints a warning as one line; replaces :func:`warnings.showwarning`."""
    text = plain(in_flags(message, flags))
    output(stderr=True).print(f"[yellow]warning:[/] {text}", highlight=False)


def show_error(flags: Mapping[str, str], error: object) -> None:
    """Prints an error as one line."""
    text = plain(suggest(in_flags(error, flags)))
    output(stderr=True).print(f"[red]error:[/] {text}", highlight=False)


def plain(message: object) -> str:
    """Escapes rich markup, such as ``[red]``, and the backslashes before it."""
    return _MARKUP.sub(lambda match: f"{match[1]}{match[1]}\\{match[2]}", str(message))
