"""How losses compare on several datasets and encoders, searched alike: tables 5.2 and 6.3."""

from collections.abc import Iterator
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
    found = {name: list(tables_of(results, name)) for name in _TABLES}
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
        + "\n".join(
            f"python -m experiments.reproduce {name} --data DATASETS --datasets NAME --out OUT/NAME"
            for name in _TABLES
        )
        + "\n```",
        *(_table(name, paths, folder) for name, paths in found.items() if paths),
        f"All metrics: {files_of(folder, '*/*.md')}.",
    )


def tables_of(results: Path, name: str) -> Iterator[Path]:
    """The files of a table, one of each dataset."""
    for dataset in DATASETS:
        path = results / "comparisons" / dataset / f"{name}-minibatch.csv"
        if path.exists():
            yield path


def _table(name: str, paths: list[Path], folder: Path) -> str:
    against, rows = _TABLES[name], [row for path in paths for row in read_csv(path)]
    return join(
        f"### {name.capitalize().replace('-', ' ')}",
        table(
            ["data", "encoder", "loss", "NDCG@20", f"gain over {against}", "p, seeds", "p, users"],
            (_cells(row) for row in rows),
        ),
        *(
            picture(
                folder,
                f"{path.parent.name}/{path.stem}.png",
                f"NDCG@20 on {DATASETS[path.parent.name]} beside the published numbers",
            )
            for path in paths
        ),
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
