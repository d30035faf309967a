"""Results page section on image losses."""

from pathlib import Path

from . import _results_tables as tables
from ._results_tables import Row

_SETS = {"cifar10": "CIFAR-10"}
_LOSSES = {"simclr": "InfoNCE (SimCLR)", "dcl": "debiased (DCL)", "hcl": "hard (HCL)", "bcl": "BCL"}


def images(results: Path) -> str:
    """Returns the section on image losses, at a scale suited to two CPU cores."""
    folder = results / "images"
    rows = tables.read_csv(folder / "table-6.5-small.csv")
    if not rows:
        return ""
    cells = [
        [
            _SETS.get(row["dataset"], row["dataset"]), row["encoder"].partition(", ")[2],
            _LOSSES[row["method"]], tables.mean_of(row, "linear"), tables.mean_of(row, "knn"),
            tables.signed(row["gain"]),
            *(tables.p_value(row[name]) for name in ("p_seeds", "p_images")),
        ]
        for row in rows
    ]  # fmt: skip
    heads = ["images", "negatives", "loss", "linear", "kNN", "gain", "p (seeds)", "p (images)"]
    return tables.join(
        "## Losses on images",
        "The comparison of table 6.5, scaled down to two CPU cores: 10,000 images, a ResNet with "
        "10 layers and width 16, 20 epochs, three seeds with the same views and batches. The "
        "published results are for a ResNet-50 trained on all images for 400 epochs, and are far "
        "higher. Both accuracies are measured on 10,000 test images. Gains are those of the linear "
        "classifier over SimCLR; p-values are from paired tests over seeds, and over images "
        "averaged over seeds. Fewer negatives imply smaller batches and therefore more steps, so "
        "the two settings are not comparable.",
        tables.table(heads, cells),
        _said(rows),
        tables.picture(
            folder, "table-6.5-small.png", "Accuracy of the losses by the number of negatives"
        ),
        "`python -m experiments.reproduce table-6.5 --data sets --datasets cifar10 --scale small "
        f"--seeds 3`. {tables.files_of(folder, '*.csv')}",
    )


def _said(rows: list[Row]) -> str:
    """Reports the best loss per setting and the gain of BCL, the best published one."""
    lines = []
    for group in dict.fromkeys(row["encoder"] for row in rows):
        own = {row["method"]: row for row in rows if row["encoder"] == group}
        if not {"simclr", "bcl"} <= own.keys():
            continue
        best = tables.strongest(own.values(), lambda row: row["linear"])
        lines.append(
            f"* With {group.partition(', ')[2]} the best loss is {_LOSSES[best['method']]} "
            f"({tables.signed(best['gain'])}). In the publication it is BCL, whose gain here is "
            f"{tables.signed(own['bcl']['gain'])}."
        )
    return "\n".join(lines)
