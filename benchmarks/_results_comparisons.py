"""Results page section comparing losses across datasets and encoders (tables 5.2 and 6.3)."""

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
"""Baseline loss of each table."""


def comparisons(results: Path) -> str:
    """Returns the section, or an empty string if there are no result files."""
    folder = results / "comparisons"
    found = {name: list(tables_of(results, name)) for name in _TABLES}
    if not any(found.values()):
        return ""
    return join(
        "## Losses on several datasets",
        "The protocol of the dissertation: all interactions of a dataset are pooled, and a random "
        "20% are the test data. All losses have a search with the same number of points, evaluated "
        "on a validation part of the training data; all seeds are then trained on all training "
        "data. Published results are in brackets. "
        "p-values are from paired t-tests over seeds and over users, adjusted by Holm's method "
        "within each dataset and encoder.",
        "```bash\n"
        + "\n".join(
            f"python -m experiments.reproduce {name} --data DATASETS --datasets NAME --out OUT"
            for name in _TABLES
        )
        + "\n```",
        *(_table(name, paths, folder) for name, paths in found.items() if paths),
        f"All metrics: {files_of(folder, '*/*.md')}.",
    )


def tables_of(results: Path, name: str) -> Iterator[Path]:
    """Yields the CSV files of a table: one per dataset, or one per dataset and encoder."""
    for dataset in DATASETS:
        for folder in (dataset, *(f"{dataset}-{encoder}" for encoder in ENCODERS)):
            path = results / "comparisons" / folder / f"{name}-minibatch.csv"
            if path.exists():
                yield path


def _table(name: str, paths: list[Path], folder: Path) -> str:
    against, rows = _TABLES[name], {path: read_csv(path) for path in paths}
    return join(
        f"### {name.capitalize().replace('-', ' ')}",
        table(
            ["data", "encoder", "loss", "NDCG@20", f"gain over {against}", "p, seeds", "p, users"],
            (_cells(row) for of_file in rows.values() for row in of_file),
        ),
        *(
            picture(
                folder,
                f"{path.parent.name}/{path.stem}.png",
                f"NDCG@20 on {_data_of(of_file)} beside the published numbers",
            )
            for path, of_file in rows.items()
        ),
    )


def _data_of(rows: list[Row]) -> str:
    """Returns the dataset name, followed by the encoder if there is only one."""
    (dataset,), encoders = ({row[name] for row in rows} for name in ("dataset", "encoder"))
    with_one = f", {ENCODERS[encoders.pop()]}," if len(encoders) == 1 else ""
    return f"{DATASETS[dataset]}{with_one}"


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
