"""Results published in the dissertation's tables, for comparison with ours."""

import csv
from functools import cache
from pathlib import Path

_TABLE = Path(__file__).with_name("published.csv")


@cache
def published(table: str, dataset: str, encoder: str) -> dict[str, dict[str, float]]:
    """Returns metrics by method, ``{"bns": {"ndcg@20": 0.4176, …}, …}``; empty if not published.

    Args:
      table: Number of the table, such as ``"4.2"``.
      dataset: Name of the dataset, such as ``"ml-100k"``.
      encoder: Name of the encoder, such as ``"mf"``.
    """
    found: dict[str, dict[str, float]] = {}
    with _TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["table"], row["dataset"], row["encoder"]) == (table, dataset, encoder):
                name = f"{row['metric']}@{row['k']}" if row["k"] else row["metric"]
                found.setdefault(row["method"], {})[name] = float(row["value"])
    return found
