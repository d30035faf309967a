"""The numbers that the dissertation's tables report, to be printed beside ours."""

import csv
from functools import cache
from pathlib import Path

_TABLE = Path(__file__).with_name("published.csv")


@cache
def published(table: str, dataset: str, encoder: str) -> dict[str, dict[str, float]]:
    """Metrics by method, ``{"bns": {"ndcg@20": 0.4176, …}, …}``; empty for what it has not.

    Args:
      table: Such as ``"4.2"``.
      dataset: Such as ``"ml-100k"``.
      encoder: Such as ``"mf"``.
    """
    found: dict[str, dict[str, float]] = {}
    with _TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["table"], row["dataset"], row["encoder"]) == (table, dataset, encoder):
                name = f"{row['metric']}@{row['k']}" if row["k"] else row["metric"]
                found.setdefault(row["method"], {})[name] = float(row["value"])
    return found
