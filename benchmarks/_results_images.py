"""Losses on images: what the kept tables say, in Markdown."""

from pathlib import Path

from . import _results_tables as tables
from ._results_tables import Row

_SETS = {"cifar10": "CIFAR-10"}
_LOSSES = {"simclr": "InfoNCE (SimCLR)", "dcl": "debiased (DCL)", "hcl": "hard (HCL)", "bcl": "BCL"}


def images(results: Path) -> str:
    """The losses on images, at the scale of two cores."""
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
        "The comparison of table 6.5, at a scale for two cores: 10,000 images, a ResNet of 10 "
        "layers and width 16, 20 epochs, three seeds with the same views and batches. The "
        "published numbers are of a ResNet-50, all images and 400 epochs, and far higher. Both "
        "accuracies are of 10,000 test images. Gains are those of the linear classifier over "
        "SimCLR; the tests are paired, over seeds and over images, each averaged over seeds. Fewer "
        "negatives come with smaller batches, so with more steps: the two sizes do not compare "
        "with each other.",
        tables.table(heads, cells),
        _said(rows),
        tables.picture(
            folder, "table-6.5-small.png", "Accuracy of the losses by the number of negatives"
        ),
        "`python -m experiments.reproduce table-6.5 --data sets --datasets cifar10 --scale small "
        f"--seeds 3`. {tables.files_of(folder, '*.csv')}",
    )


def _said(rows: list[Row]) -> str:
    """Which loss leads, and where the one that leads in the publication stands."""
    lines = []
    for group in dict.fromkeys(row["encoder"] for row in rows):
        own = {row["method"]: row for row in rows if row["encoder"] == group}
        if not {"simclr", "bcl"} <= own.keys():
            continue
        best = tables.strongest(own.values(), lambda row: row["linear"])
        lines.append(
            f"* With {group.partition(', ')[2]} the best is {_LOSSES[best['method']]} "
            f"({tables.signed(best['gain'])}). In the publication it is BCL, here with "
            f"{tables.signed(own['bcl']['gain'])}."
        )
    return "\n".join(lines)
