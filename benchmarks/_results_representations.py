"""How well representations serve by the loss that they were learned with."""

from pathlib import Path
from typing import Any

from ._results_tables import join, number, p_value, read_json, signed, strongest, table

_LOSSES = {
    "decoupled": "decoupled", "info_nce": "InfoNCE", "debiased": "debiased (DCL)",
    "hard": "hard (HCL)", "bayesian": "Bayesian (BCL)",
}  # fmt: skip
_GRAPHS = {"IMDBBINARY": "IMDB-BINARY"}


def representations(results: Path) -> str:
    """The sections of what was measured."""
    content = read_json(results / "representations" / "graphs.json")
    return _graphs(content["datasets"]) if content else ""


def _graphs(datasets: dict[str, Any]) -> str:
    cells, leads = [], []
    for name, measured in datasets.items():
        said = _GRAPHS.get(name, name)
        published = measured["published"]
        for i, row in enumerate(measured["rows"]):
            known = "" if i or not published else " ± ".join(map(number, published))
            cells.append(
                [said, _LOSSES[row["loss"]], _scored(row, "svm"), known, _scored(row, "knn"),
                 signed(row.get("gain", 0)), p_value(row.get("p"))]
            )  # fmt: skip
        best = strongest(measured["rows"], lambda row: row["svm"])
        leads.append(f"{_LOSSES[best['loss']]} on {said}")
    n_seeds = len(next(iter(datasets.values()))["rows"][0]["per_seed"])
    return join(
        "## Losses on graphs",
        "GraphCL: a GIN of three layers and width 32 learns from two views of each graph, without "
        "labels, for 20 epochs. Then a support vector machine is cross-validated in ten folds, on "
        f"all graphs. Mean ± standard deviation of {n_seeds} seeds, with the default settings for "
        "all. The published figures are GraphCL's (You et al., 2020, Table 5), of the decoupled "
        "loss. Gains are of the support vector machine over that loss; p is of a paired t-test "
        "over seeds, adjusted by Holm's method within the dataset. BCL has its α from labels.",
        "```bash\npython -m benchmarks.representations graphs --data DATASETS\n```",
        table(["graphs", "loss", "accuracy", "published", "kNN", "gain", "p"], cells),
        f"The best: {', '.join(leads)}.",
    )


def _scored(row: dict[str, Any], name: str) -> str:
    return f"{number(row[name])} ± {number(row[f'{name}_std'])}"
