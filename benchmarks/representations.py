"""Downstream quality of representations, by the loss that they were trained with.

Runs a command of the experiments on each dataset with each method, with the same seeds, and
collects the metrics of the runs, with tests against the first method. Completed runs are not
repeated, interrupted ones are resumed. Datasets that were measured before stay in the file.

    python -m benchmarks.representations graphs --data DATASETS --runs runs/representations
"""

import argparse
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from experiments.studies.tables import holm

from . import _common as common


class Comparison(NamedTuple):
    """Comparison of training methods.

    Attributes:
      command: Training command: ``python -m experiments.COMMAND``.
      datasets: Flags of each dataset. ``{data}`` is the datasets' folder, ``{way}`` the method.
      ways: Flags of each method. The others are compared with the first.
      metric: Metric to compare: a name in ``metrics.json``.
      published: By dataset, published mean and standard deviation of the first method.
    """

    command: str
    datasets: Mapping[str, Sequence[str]]
    ways: Mapping[str, Sequence[str]]
    metric: str
    published: Mapping[str, tuple[float, float]] = {}

    def flags(self, dataset: str, way: str, data: Path) -> list[str]:
        """Returns the flags of a run, except for its seeds and folder."""
        place = [flag.format(data=data, way=way) for flag in self.datasets[dataset]]
        return [*place, *self.ways[way]]


def _ways(losses: Sequence[str], alpha_from: str) -> dict[str, tuple[str, ...]]:
    """Returns the flags of each loss; that of BCL estimates its α from ``alpha_from``."""
    own = {"bayesian": ("--alpha-from", alpha_from)}
    return {loss: ("--loss", loss, *own.get(loss, ())) for loss in losses}


_DEBIASED = ("info_nce", "debiased", "hard", "bayesian")
_ENGLISH, _CHINESE = "{data}/text-en/sentconv", "{data}/text-zh"
_STS = "{data}/text-en/sts/stsb-test.csv"
_BY_LABELS = _ways(_DEBIASED, "labels")
_PRE_TRAINED = {
    "none": ("--method", "none"),
    "none_longer": ("--method", "none", "--fine-tune-epochs", "11"),
    **_BY_LABELS,
    "bayesian_hard": (*_BY_LABELS["bayesian"], "--beta", "0.9"),
}
COMPARISONS = {
    "graphs": Comparison(
        "graphs",
        {
            name: ("--data", f"{{data}}/graphs/{name}")
            for name in ("MUTAG", "PROTEINS", "IMDBBINARY", "NCI1")
        },
        _ways(("decoupled", *_DEBIASED), "labels"),
        "svm",
        {  # GraphCL (You et al., 2020, Table 5)
            "MUTAG": (0.8680, 0.0134),
            "PROTEINS": (0.7439, 0.0045),
            "NCI1": (0.7787, 0.0041),
            "IMDBBINARY": (0.7114, 0.0044),
        },
    ),
    "texts": Comparison(
        "text",
        {
            "THUCNews": ("--data", f"{_CHINESE}/thucnews-title"),
            "TNEWS": ("--data", f"{_CHINESE}/tnews", "--n-train", "5000"),
            "TREC": ("--data", f"{_ENGLISH}/TREC"),
            "MR": ("--data", f"{_ENGLISH}/rt-polarity.all"),
        },
        _PRE_TRAINED,
        "accuracy",
    ),
    "weights": Comparison(
        "text",
        {
            "TREC": (
                "--data", f"{_ENGLISH}/TREC", "--n-train", "500", "--length", "16",
                "--weights", "{data}/minilm-l3/paraphrase-MiniLM-L3-v2.fp16.npz", "--heads", "12",
                "--batch-size", "32", "--fine-tune-lr", "1e-3",
            ),
        },
        _PRE_TRAINED,
        "accuracy",
    ),
    "sentences": Comparison(
        "text",
        {
            "MR": (
                "--data", f"{_ENGLISH}/rt-polarity.all", "--pairs", _STS, "--method", "dropout",
                "--epochs", "3", "--fine-tune-epochs", "0",
            ),
        },
        {**_ways((*_DEBIASED, "decoupled"), "views"), "untrained": ("--lr", "1e-12")},
        "spearman",
    ),
    "pairs": Comparison(
        "pairs",
        {
            "flickr8k": ("--recipe", "flickr8k-small-{way}", "--data", "{data}/flickr8k-80px"),
            "pictograms": ("--recipe", "pictograms-small-{way}", "--data", "{data}/emoji-pairs"),
        },
        dict.fromkeys(("clip", "siglip", "debiased", "hard", "bayesian"), ()),
        "text_to_image_recall@10",
    ),
}  # fmt: skip
"""Comparisons by kind of data."""


def run(command: str, flags: Sequence[str], folder: Path) -> None:
    """Runs a command, resumes it, or does nothing if it is complete."""
    if (folder / "config.json").exists():
        flags = ["--resume", str(folder)]
    else:
        flags = [*flags, "--out", str(folder)]
    if status := importlib.import_module(f"experiments.{command}").main(flags):
        raise SystemExit(status)


def collect(way: str, flags: Sequence[str], folder: Path) -> dict[str, Any]:
    """Returns a row of the table: the metrics of a run, as means and by seed."""
    return {
        "way": way,
        "flags": " ".join(flags),
        **{
            name: value
            for name, value in json.loads((folder / "metrics.json").read_text()).items()
            if isinstance(value, float)
        },
        "per_seed": json.loads((folder / "metrics_by_seed.json").read_text()),
    }


def compare(rows: Sequence[dict[str, Any]], metric: str) -> None:
    """Adds to each row its ``gain`` over the first, and the p-value ``p``.

    The p-value comes from a two-sided paired t-test over seeds, adjusted by Holm's method.
    """
    of_seeds = [np.array([each[metric] for each in row["per_seed"]]) for row in rows]
    p = [float(stats.ttest_rel(own, of_seeds[0]).pvalue) for own in of_seeds[1:]]
    for row, own, adjusted in zip(rows[1:], of_seeds[1:], holm(p), strict=True):
        row["gain"], row["p"] = float(np.mean(own - of_seeds[0])), adjusted


def main() -> None:
    """Parses the command line, runs, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=COMPARISONS)
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--datasets", nargs="+", help="by default all")
    parser.add_argument("--seeds", type=common.count, default=5)
    parser.add_argument("--runs", type=Path, default=Path("runs/representations"))
    default = Path(__file__).parent / "results" / "representations"
    parser.add_argument("--out", type=Path, default=default, help="folder for the figures")
    args = parser.parse_args()
    comparison = COMPARISONS[args.kind]
    for dataset in args.datasets or ():
        if dataset not in comparison.datasets:
            known = ", ".join(comparison.datasets)
            parser.error(f"--datasets takes some of {known}, got {dataset}")
    if args.seeds < 2:
        parser.error("--seeds must be at least 2, which a test over seeds takes, got 1")
    about = {
        "machine": common.machine(),
        "versions": common.versions("crl_jax", "jax", "jaxlib", "flax", "optax", "numpy"),
    }
    path = args.out / f"{args.kind}.json"
    content = json.loads(path.read_text()) if path.exists() else {"datasets": {}}
    for dataset in args.datasets or comparison.datasets:
        rows = []
        for way in comparison.ways:
            folder = args.runs / args.kind / f"{dataset}-{way}"
            seeds = "--seeds", str(args.seeds)
            flags = comparison.flags(dataset, way, args.data)
            run(comparison.command, [*flags, *seeds], folder)
            shown = comparison.flags(dataset, way, Path("DATASETS"))
            rows.append(collect(way, [*shown, *seeds], folder))
        compare(rows, comparison.metric)
        known = comparison.published.get(dataset)
        content["datasets"][dataset] = {**about, "published": known, "rows": rows}
        common.write_json(path, content)
        shown = ("way", comparison.metric, f"{comparison.metric}_std", "gain", "p")
        common.print_table([{name: row.get(name, "") for name in shown} for row in rows])


if __name__ == "__main__":
    main()
