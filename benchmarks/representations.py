"""Downstream quality of representations, by the loss that they were trained with.

Runs a command of the experiments on each dataset with each method, with the same seeds, and
collects the metrics of the runs, with tests against the first method. Completed runs are not
repeated, interrupted ones are resumed. Datasets that were measured before stay in the file.

    python -m benchmarks.representations graphs --data DATASETS --runs runs/representations
"""

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ._comparison import check_names, check_seeds, measure
from ._report import RESULTS, count, environment, one_line_errors
from ._runs import record, show


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
        data_flags = [flag.format(data=data, way=way) for flag in self.datasets[dataset]]
        return [*data_flags, *self.ways[way]]


def _ways(losses: Sequence[str], alpha_from: str) -> dict[str, tuple[str, ...]]:
    """Returns the flags of each loss; that of BCL estimates its α from ``alpha_from``."""
    extra_flags = {"bayesian": ("--alpha-from", alpha_from)}
    return {loss: ("--loss", loss, *extra_flags.get(loss, ())) for loss in losses}


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


@one_line_errors
def main() -> None:
    """Runs all methods on each dataset, and collects their results."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=COMPARISONS, help="kind of data")
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--datasets", nargs="+", help="by default all")
    parser.add_argument("--seeds", type=count, default=5, help="number of seeds, at least 2")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/representations"),
        help="folder of the run directories",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "representations", help="folder for the results"
    )
    args = parser.parse_args()
    comparison = COMPARISONS[args.kind]
    check_names(parser, "--datasets", args.datasets or (), comparison.datasets)
    check_seeds(parser, args.seeds)
    about = environment("crl_jax", "jax", "jaxlib", "flax", "optax", "numpy")
    metric = comparison.metric
    for dataset in args.datasets or comparison.datasets:
        folders = {way: args.runs / args.kind / f"{dataset}-{way}" for way in comparison.ways}
        rows, seed_rows = measure(
            comparison.command, partial(comparison.flags, dataset), folders, {"dataset": dataset},
            metric=metric, n_seeds=args.seeds, data=args.data,
        )  # fmt: skip
        if dataset in comparison.published:
            published = comparison.published[dataset]
            rows[0][f"{metric}_published"], rows[0][f"{metric}_published_std"] = published
        record(args.out / f"{args.kind}.csv", rows, ["dataset"], about)
        record(args.out / f"{args.kind}-per_seed.csv", seed_rows, ["dataset"], {})
        show(rows, ("way", metric, f"{metric}_std", "gain", "p"))


if __name__ == "__main__":
    main()
