"""Comparison of rows with committed ones, and the largest batch of a family of programs."""

import math
from collections.abc import Sequence

from .._report import Row

TOLERANCE = 0.1
"""Relative increase of a limited column that is accepted."""
LIMITED = {
    "need_mib": "memory (MiB)", "kernels": "kernels per step", "mcycles": "Mcycles per step",
    "scheduled_mcycles": "scheduled Mcycles per step",
    "collective_mib": "collectives (MiB per step)",
}  # fmt: skip
COUNTED = {
    "table_gathers": "gathers of whole tables", "float64": "operations in float64",
    "host": "transfers to the host",
}  # fmt: skip
Key = tuple[str, str]


def get_key(row: Row) -> Key:
    """Returns program and target of a row."""
    return row["program"], row["target"]


def number(row: Row, name: str) -> float:
    """Returns a value of a row, 0 if it is missing."""
    return float(row.get(name) or 0)


def failures(rows: Sequence[Row], limits: Sequence[Row]) -> list[str]:
    """Returns a line for each violated limit.

    A program must not stop compiling or fitting into memory, must not exceed a limited column by
    more than 10 %, and must not exceed a counted column at all. A limit compiled without scheduled
    cycles does not limit them.
    """
    limit_by_key, violations = {get_key(row): row for row in limits}, []
    for row in rows:
        label = " on ".join(get_key(row))
        if (limit := limit_by_key.get(get_key(row))) is None:
            violations.append(f"{label}: has no committed limit; run with --update")
            continue
        if row.get("error"):
            if not limit.get("error"):
                violations.append(f"{label}: does not compile: {row['error']}")
            continue
        if row.get("fits") == "no" and limit.get("fits") == "yes":
            violations.append(f"{label}: no longer fits, needs {number(row, 'need_mib'):,.0f} MiB")
        if limit.get("error"):
            continue
        for name, text in (LIMITED | COUNTED).items():
            if name == "scheduled_mcycles" and not limit.get(name):  # compiled without it
                continue
            new, old = number(row, name), number(limit, name)
            max_value = old * (1 + TOLERANCE) if name in LIMITED else old
            if new > max_value + 1e-6 * abs(max_value):
                violations.append(
                    f"{label}: {text}: {new:,.4g}, limit {max_value:,.4g} (was {old:,.4g})"
                )
    return violations


def largest_batch(rows: Sequence[Row], growth: int, memory_mib: float) -> int | None:
    """Returns the largest power of two that fits, estimated from two batch sizes.

    The need of memory is taken as ``a + b * batch**growth``; a and b follow from the two largest
    batches that compile. None if there are fewer than two.
    """
    measurements = sorted((int(row["batch"]), number(row, "need_mib")) for row in rows)
    if len(measurements) < 2:
        return None
    (small, low), (large, high) = measurements[-2:]
    slope = (high - low) / (large**growth - small**growth)
    room = memory_mib - (low - slope * small**growth)
    if slope <= 0 or room < slope:
        return None
    return 2 ** math.floor(math.log2((room / slope) ** (1 / growth)))
