"""How well representations serve by the loss that they were learned with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ._results_tables import join, number, p_value, read_json, signed, table

_DATA = {
    "IMDBBINARY": "IMDB-BINARY", "THUCNews": "THUCNews, titles", "TNEWS": "TNEWS, titles",
    "flickr8k": "Flickr8k", "pictograms": "pictograms",
}  # fmt: skip
_WAYS = {
    "decoupled": "decoupled", "info_nce": "InfoNCE", "clip": "InfoNCE (CLIP)",
    "siglip": "sigmoid (SigLIP)", "debiased": "debiased (DCL)", "hard": "hard (HCL)",
    "bayesian": "Bayesian (BCL)", "bayesian_hard": "Bayesian (BCL), β = 0.9",
    "none": "fine-tuning alone",
    "none_longer": "fine-tuning alone, 11 epochs", "untrained": "untrained",
}  # fmt: skip

_LEVEL = 0.05
"""Of the adjusted tests."""


class _Section(NamedTuple):
    """What the page says of a kind of data.

    Attributes:
      title: Its heading.
      said: What was done; ``{seeds}`` is how many there are.
      metrics: Names in words. The first is what is compared.
    """

    title: str
    said: str
    metrics: Mapping[str, str]


_TESTED = (
    "Gains are over the first row of each dataset; p is of a paired t-test over seeds, adjusted by "
    "Holm's method within the dataset."
)
SECTIONS = {
    "graphs": _Section(
        "Losses on graphs",
        "GraphCL: a GIN of three layers and width 32 learns from two views of each graph, without "
        "labels, for 20 epochs. Then a support vector machine is cross-validated in ten folds, on "
        "all graphs. Mean ± standard deviation of {seeds} seeds, with the default settings for "
        "all. The published figures are GraphCL's (You et al., 2020, Table 5), of the decoupled "
        "loss. BCL has its α from labels.",
        {"svm": "accuracy", "knn": "kNN"},
    ),
    "texts": _Section(
        "Pre-training on texts",
        "A BERT of one layer and width 64 is pre-trained from scratch for 6 epochs on triplets "
        "drawn by labels (Shi, 2021), with each loss, and then fine-tuned for 5. Beside it stands "
        "fine-tuning alone, for 5 and for all 11 epochs. TNEWS has 5,000 of its training texts. "
        "Default settings for all; mean ± standard deviation of {seeds} seeds, on the test part. "
        "kNN is of the features before fine-tuning. BCL has β = 0.5, the default for texts, which "
        "was chosen on validation parts of TREC and TNEWS.",
        {"accuracy": "accuracy", "f1": "F1", "knn": "kNN"},
    ),
    "weights": _Section(
        "Pre-training on texts, from published weights",
        "MiniLM, a BERT of three layers and width 384, learns from 500 questions of TREC as above, "
        "and is fine-tuned at the rate that did best for fine-tuning alone on a validation part, "
        "of 1e-4, 3e-4 and 1e-3. Mean ± standard deviation of {seeds} seeds, on the test part.",
        {"accuracy": "accuracy", "f1": "F1", "knn": "kNN"},
    ),
    "sentences": _Section(
        "Sentences without labels",
        "SimCSE: a BERT of one layer and width 64 learns from two dropouts of each sentence, from "
        "scratch and for 3 epochs. Spearman's correlation is of cosines with the scores of the "
        "test part of STS-B, none of whose sentences was learned from. The untrained encoder tells "
        "sentences by the words that they share. Mean ± standard deviation of {seeds} seeds.",
        {"spearman": "Spearman", "alignment": "alignment", "uniformity": "uniformity"},
    ),
    "pairs": _Section(
        "Images with texts",
        "Two towers from scratch, a ResNet of 10 layers and width 32 on images of 32 pixels and a "
        "BERT of two layers and width 64, with the recipes of `experiments.pairs`. Recall is of "
        "the test part. Mean ± standard deviation of {seeds} seeds.",
        {
            "text_to_image_recall@10": "recall@10, text → image",
            "image_to_text_recall@10": "recall@10, image → text",
            "text_to_image_recall@1": "recall@1, text → image",
            "chance_recall@10": "recall@10 by chance",
        },
    ),
}
"""By the kind of the data."""


def representations(results: Path) -> str:
    """The sections of what was measured."""
    contents = {kind: read_json(results / "representations" / f"{kind}.json") for kind in SECTIONS}
    return join(
        *(_section(kind, content["datasets"]) for kind, content in contents.items() if content)
    )


def _section(kind: str, datasets: dict[str, Any]) -> str:
    section = SECTIONS[kind]
    published = any(measured["published"] for measured in datasets.values())
    first, *others = section.metrics.values()
    heads = ["data", "way", first, *(["published"] if published else []), *others, "gain", "p"]
    cells, told = [], []
    n_seeds = _seeds(next(iter(datasets.values())))
    for name, measured in datasets.items():
        said = _DATA.get(name, name)
        if (own := _seeds(measured)) != n_seeds:
            said = f"{said}, {own} seeds"
        for i, row in enumerate(measured["rows"]):
            scored, *rest = (_scored(row, metric) for metric in section.metrics)
            known = "" if i or not measured["published"] else _pair(*measured["published"])
            cells.append(
                [said, _WAYS[row["way"]], scored, *([known] if published else []), *rest,
                 signed(row.get("gain", 0)), p_value(row.get("p"))]
            )  # fmt: skip
        told += [
            f"{_WAYS[row['way']]} on {said} ({'more' if row['gain'] > 0 else 'less'})"
            for row in measured["rows"][1:]
            if row["p"] < _LEVEL
        ]
    return join(
        f"## {section.title}",
        f"{section.said.format(seeds=n_seeds)} {_TESTED}",
        f"```bash\npython -m benchmarks.representations {kind} --data DATASETS\n```",
        table(heads, cells),
        f"Told from the first row at {_LEVEL:.0%}: {', '.join(told) or 'none'}.",
    )


def _seeds(measured: dict[str, Any]) -> int:
    return len(measured["rows"][0]["per_seed"])


def _scored(row: dict[str, Any], name: str) -> str:
    return _pair(row[name], row[f"{name}_std"])


def _pair(mean: float, deviation: float) -> str:
    return f"{number(mean)} ± {number(deviation)}"
