"""How losses compare on several datasets and encoders, searched alike: tables 5.2 and 6.3."""

from pathlib import Path

from ._results_quality import NDCG
from ._results_tables import (
    DATASETS,
    ENCODERS,
    Row,
    files_of,
    join,
    mean_of,
    p_value,
    picture,
    read_csv,
    signed,
    table,
)

METHODS = {
    "bpr": "BPR", "info_nce": "InfoNCE", "dcl": "DCL", "hcl": "HCL", "dpl": "DPL", "bcl": "BCL",
}  # fmt: skip
_TABLES = {"table-5.2": "BPR", "table-6.3": "InfoNCE"}
"""What the gains of each table are over."""


def comparisons(results: Path) -> str:
    """The section; nothing without its files."""
    folder = results / "comparisons"
    found = {name: read_csv(folder / f"{name}-minibatch.csv") for name in _TABLES}
    if not any(found.values()):
        return ""
    return join(
        "## Losses on several datasets",
        "The dissertation's protocol: all interactions of a dataset are put together, and a random "
        "fifth of them is the test part. Every loss has a search of as many points, decided on a "
        "part of the training data; then all seeds train on all of these. Published numbers are in "
        "brackets. "
        "p-values are of paired t-tests over seeds and over users, adjusted by Holm's method "
        "within a dataset and encoder.",
        "```bash\n"
        + "\n".join(f"python -m experiments.reproduce {name} --data DATASETS" for name in _TABLES)
        + "\n```",
        *(_table(name, rows, folder) for name, rows in found.items() if rows),
        f"All metrics: {files_of(folder, '*.md')}.",
    )


def _table(name: str, rows: list[Row], folder: Path) -> str:
    against = _TABLES[name]
    return join(
        f"### {name.capitalize().replace('-', ' ')}",
        table(
            ["data", "encoder", "loss", "NDCG@20", f"gain over {against}", "p, seeds", "p, users"],
            (_cells(row) for row in rows),
        ),
        picture(folder, f"{name}-minibatch.png", "NDCG@20 beside the published numbers"),
    )


def _cells(row: Row) -> list[str]:
    return [
        DATASETS[row["dataset"]],
        ENCODERS[row["encoder"]],
        METHODS[row["method"]],
        mean_of(row, NDCG, published=True),
        signed(row["gain"]),
        p_value(row["p_seeds"]),
        p_value(row["p_users"]),
    ]
