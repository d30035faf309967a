"""Results page sections on the quality of learned representations, by loss."""

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
"""Significance level of the adjusted tests."""


class _Section(NamedTuple):
    """Text of the section on a kind of data.

    Attributes:
      title: Heading of the section.
      said: Description of the experiment; ``{seeds}`` is replaced by the number of seeds.
      metrics: Display names of the metrics. Losses are compared by the first.
    """

    title: str
    said: str
    metrics: Mapping[str, str]


_TESTED = (
    "Gains are relative to the first row of each dataset; p-values are from paired t-tests over "
    "seeds, adjusted by Holm's method within the dataset."
)
SECTIONS = {
    "graphs": _Section(
        "Losses on graphs",
        "GraphCL: a GIN with three layers and width 32 is trained without labels on two views of "
        "each graph for 20 epochs. A support vector machine is then evaluated with ten-fold "
        "cross-validation on all graphs. Mean ± standard deviation over {seeds} seeds, with the "
        "default settings for all losses. The published results are those of GraphCL (You et al., "
        "2020, Table 5) with the decoupled loss. The α of BCL is estimated from labels.",
        {"svm": "accuracy", "knn": "kNN"},
    ),
    "texts": _Section(
        "Pre-training on texts",
        "A BERT with one layer and width 64 is pre-trained from scratch with each loss for 6 "
        "epochs on triplets sampled by label (Shi, 2021), and then fine-tuned for 5 epochs. The "
        "baselines are fine-tuning alone for 5 and for all 11 epochs. TNEWS is reduced to 5,000 "
        "training texts. Default settings for all losses; mean ± standard deviation over {seeds} "
        "seeds on the test data. kNN uses the features before fine-tuning. BCL uses β = 0.5, the "
        "default for texts, which was chosen on validation data of TREC and TNEWS.",
        {"accuracy": "accuracy", "f1": "F1", "knn": "kNN"},
    ),
    "weights": _Section(
        "Pre-training on texts, from published weights",
        "MiniLM, a BERT with three layers and width 384, is trained on 500 TREC questions as "
        "above. The fine-tuning learning rate is the one of 1e-4, 3e-4 and 1e-3 that scored best "
        "for fine-tuning alone on validation data. Mean ± standard deviation over {seeds} seeds on "
        "the test data.",
        {"accuracy": "accuracy", "f1": "F1", "knn": "kNN"},
    ),
    "sentences": _Section(
        "Sentences without labels",
        "SimCSE: a BERT with one layer and width 64 is trained from scratch for 3 epochs; the "
        "views of a sentence are two dropout masks. The table lists Spearman's correlation between "
        "cosine similarities and the scores of the STS-B test data, none of whose sentences occurs "
        "in training. The untrained encoder only reflects word overlap between sentences. "
        "Mean ± standard deviation over {seeds} seeds.",
        {"spearman": "Spearman", "alignment": "alignment", "uniformity": "uniformity"},
    ),
    "pairs": _Section(
        "Images with texts",
        "Two towers trained from scratch: a ResNet with 10 layers and width 32 on 32-pixel images, "
        "and a BERT with two layers and width 64, with the recipes of `experiments.pairs`. Recall "
        "is measured on the test data. Mean ± standard deviation over {seeds} seeds.",
        {
            "text_to_image_recall@10": "recall@10, text → image",
            "image_to_text_recall@10": "recall@10, image → text",
            "text_to_image_recall@1": "recall@1, text → image",
            "chance_recall@10": "recall@10 by chance",
        },
    ),
}
"""Sections by kind of data."""


def representations(results: Path) -> str:
    """Returns the sections of all kinds of data that have results."""
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
