"""Comparison of every method with its published result, with explanations of shortfalls."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ._results_comparisons import METHODS, tables_of
from ._results_quality import LOSSES, NDCG, SAMPLERS, loss_rows
from ._results_tables import DATASETS, ENCODERS, join, number, read_csv, read_json, table

_POSITIVES = {
    "bpr": "BPR", "gbpr": "GBPR", "mpr": "MPR", "reweighted bpr": "DenoiseRec", "bprac": "BPRAC",
}  # fmt: skip
_LEAST = 0.99
_SECTIONS = {
    "losses": "its split, searched",
    "samplers": "its split, published setting",
    "positives": "noisy positives, published setting",
    "comparisons": "random split, searched",
    "standard": "standard split",
}


class _Reason(NamedTuple):
    """Explanation of a shortfall by section, method and dataset; None matches any value."""

    section: str
    method: str | None
    data: str | None
    text: str


_REASONS = (
    _Reason(
        "samplers",
        "SRNS",
        None,
        "It has the settings of its authors' code. With Adam and tuned hyper-parameters it exceeds "
        "the published result, see below.",
    ),
    _Reason(
        "positives",
        None,
        None,
        "The published code samples users uniformly and weights interactions by rating; the text "
        "mentions neither. Trained this way, BPR matches its published result and BPRAC is 5% "
        "below its result, see below. The other methods were not trained this way.",
    ),
    _Reason(
        "standard",
        "InfoNCE",
        "Gowalla",
        "It trains for 30 epochs, as do the losses that are compared with it. BSL reaches its "
        "published result after 240 epochs; InfoNCE was not trained that long.",
    ),
    _Reason(
        "standard",
        "BSL",
        "Yelp2018",
        "It trains for 30 epochs. The published log reports 0.0725 / 0.0604 after 30 epochs; the "
        "published result is the best of several hundred epochs.",
    ),
    _Reason(
        "comparisons",
        "BCL",
        "MovieLens 100K",
        "All losses score lower on the random split than on the published split, where BCL is "
        "within 1% of its published result.",
    ),
    _Reason(
        "comparisons",
        "DPL",
        "MovieLens 100K",
        "Here too the random split lowers the score, as it does for the other losses. In addition, "
        "the search trains on four fifths of the training data and selects an L2 penalty that is "
        "too strong for MF on all of it ([dpl-l2.csv](comparisons/ml-100k/dpl-l2.csv), not used "
        "for model selection).",
    ),
    _Reason(
        "comparisons",
        "DPL",
        "Gowalla, LightGCN",
        "All losses share one learning rate there, which is too small for DPL, whose gradients are "
        "the smallest. Doubling it improves DPL from 0.0923 to 0.0969 on validation data; doubling "
        "the number of epochs as well, with a weaker L2 penalty, gives 0.0986 "
        "([dpl-settings.csv](comparisons/gowalla-lightgcn/dpl-settings.csv), one run each). In "
        "addition, the split differs from the published one, as with MF.",
    ),
    _Reason(
        "comparisons",
        None,
        "Gowalla",
        "The published results were obtained on a different split: there recall@20 is 3.9 times "
        "precision@20 with most losses, compared with 3.4 times on a random 20% test split. In "
        "terms of precision@20 the results here exceed the published ones.",
    ),
    _Reason(
        "comparisons",
        "BPR",
        "Yelp2018, LightGCN",
        "All losses train for 20 epochs there, which is too short for BPR: 60 epochs improve it "
        "from 0.0460 to 0.0502 on validation data "
        "([settings.csv](comparisons/yelp2018/settings.csv), one run each), and it has not "
        "converged.",
    ),
    _Reason(
        "comparisons",
        "DPL",
        "Yelp2018, LightGCN",
        "As on Gowalla it converges the slowest: twice the learning rate and 60 epochs, with the "
        "stronger L2 penalty of its grid, improve it from 0.0460 to 0.0535 on validation data "
        "([settings.csv](comparisons/yelp2018/settings.csv)). InfoNCE reaches 0.0550 in 20 epochs.",
    ),
    _Reason(
        "comparisons",
        "DPL",
        "Yelp2018, MF",
        "The published results were obtained on a different split: there recall@20 is 2.35 times "
        "precision@20 with DPL, compared with 2.18 times on a random 20% test split. In terms of "
        "precision@20 it is 2.8% below. Twice the learning rate and twice the epochs improve it "
        "from 0.0478 to 0.0487 on validation data "
        "([settings.csv](comparisons/yelp2018/settings.csv)), which leaves a gap of about 1%.",
    ),
    _Reason(
        "comparisons",
        None,
        "MovieLens 1M",
        "The searches ended at the edge of their grids, which are those of MovieLens 100K: DPL "
        "at the weakest L2 penalty, all losses with LightGCN at the largest learning rate "
        "and the last epoch. With LightGCN, four times the learning rate improves DPL from 0.228 "
        "to 0.246 on validation data, and twice the learning rate improves DCL from 0.246 to "
        "0.252. MF with the hyper-parameters of the published DPL code, ten negatives and a weaker "
        "L2 penalty, reaches 0.3788 on this split "
        "([dpl-settings.csv](comparisons/ml-1m/dpl-settings.csv), not used for model selection); "
        "that code reports the best epoch on the test data, on a different split.",
    ),
)


class Compared(NamedTuple):
    """Measured and published value of a metric.

    Attributes:
      section: Section of the results page.
      method: Name of the method.
      data: Dataset and encoder.
      metric: Name of the metric.
      ours: Measured value.
      published: Published value.
    """

    section: str
    method: str
    data: str
    metric: str
    ours: float
    published: float


def published(results: Path) -> str:
    """Returns the section, or an empty string if no result has a published value."""
    # Two tables may share a run.
    rows = list(dict.fromkeys(
        row for read in (_losses, _standard, _comparisons, _samplers, _positives)
        for row in read(results)
    ))  # fmt: skip
    if not rows:
        return ""
    cells = [
        [
            row.method, f"{row.data}, {_SECTIONS[row.section]}", row.metric, number(row.ours),
            number(row.published), f"{row.ours / row.published - 1:+.1%}".replace("-", "−"),
        ]
        for row in rows
    ]  # fmt: skip
    return join(
        "## Every method beside its published figure",
        "Means over seeds. The tables below report standard deviations, settings and sources.",
        table(["method", "data", "metric", "ours", "published", "difference"], cells),
        _below(rows),
    )


def _below(rows: list[Compared]) -> str:
    said: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if row.ours >= _LEAST * row.published:
            continue
        reason = next((r.text for r in _REASONS if _holds(r, row)), "The reason was not found.")
        named = said.setdefault(reason, {}).setdefault(row.data, [])
        if row.method not in named:
            named.append(row.method)
    if not said:
        return ""
    lines = []
    for reason, of_data in said.items():
        which = "; ".join(f"{data}: {', '.join(names)}" for data, names in of_data.items())
        lines.append(f"* {which}. {reason}")
    return join("Results more than 1% below the published value:", "\n".join(lines))


def _holds(reason: _Reason, row: Compared) -> bool:
    dataset = row.data.partition(",")[0]
    return (
        reason.section == row.section
        and reason.method in (None, row.method)
        and reason.data in (None, dataset, row.data)
    )


def _losses(results: Path) -> Iterator[Compared]:
    for file, encoder in (("quality.json", "MF"), ("lightgcn.json", "LightGCN")):
        for row in loss_rows(results, file):
            if row["published"]:
                data = f"MovieLens 100K, {encoder}"
                yield Compared(
                    "losses", LOSSES[row["loss"]], data, "NDCG@20", row[NDCG], row["published"]
                )


def _standard(results: Path) -> Iterator[Compared]:
    content = read_json(results / "standard" / "standard_splits.json") or {"rows": []}
    for row in content["rows"]:
        for metric, name in (("recall@20", "recall"), (NDCG, "ndcg")):
            if row["published"]:
                data = f"{DATASETS[row['dataset']]}, {ENCODERS[row['encoder']]}"
                yield Compared(
                    "standard", {**LOSSES, "bsl": "BSL"}[row["loss"]], data,
                    metric.replace("ndcg", "NDCG"), row[metric], row["published"][name],
                )  # fmt: skip


def _comparisons(results: Path) -> Iterator[Compared]:
    for name in ("table-5.2", "table-6.3"):
        for path in tables_of(results, name):
            yield from _of_table("comparisons", path, METHODS, NDCG)


def _samplers(results: Path) -> Iterator[Compared]:
    folder = results / "samplers"
    yield from _of_table("samplers", folder / "table-4.2-published.csv", SAMPLERS, NDCG)
    yield from _of_table("losses", folder / "lightgcn/table-4.2-minibatch.csv", SAMPLERS, NDCG)


def _positives(results: Path) -> Iterator[Compared]:
    path = results / "confidence" / "table-3.3-published-5-splits.csv"
    return _of_table("positives", path, _POSITIVES, "ndcg@10")


def _of_table(
    section: str, path: Path, names: Mapping[str, str], metric: str
) -> Iterator[Compared]:
    """Yields the rows of a table whose method is in ``names``.

    The dataset defaults to MovieLens 100K and the encoder to MF.
    """
    for row in read_csv(path):
        if row["method"] in names and row[f"{metric}_published"]:
            of = DATASETS[row.get("dataset", "ml-100k")], ENCODERS[row.get("encoder", "mf")]
            yield Compared(
                section, names[row["method"]], ", ".join(of), metric.replace("ndcg", "NDCG"),
                float(row[metric]), float(row[f"{metric}_published"]),
            )  # fmt: skip
