"""Recall and NDCG of training-free graph filters on the standard splits of Gowalla and Yelp2018.

The filters have the hyper-parameters of their published code. They are fitted to the training part
and evaluated once on the test part, in minutes on one CPU core.

    python -m benchmarks.filters --data DATASETS --datasets gowalla --filters BSPM
"""

from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from time import process_time

import numpy as np

from crl_jax import baselines, data, metrics

from ._report import RESULTS, Row, environment, one_line_errors
from ._runs import record, show

METRICS = ("recall@20", "ndcg@20")
FILTERS = ("GF-CF", "BSPM", "ChebyCF")


def _published_row(recall: float, ndcg: float, source: str) -> Row:
    values = dict(zip((f"{name}_published" for name in METRICS), (recall, ndcg), strict=True))
    return {**values, "source": source}


_PUBLISHED: Mapping[tuple[str, str], Row] = {
    ("gowalla", "GF-CF"): _published_row(0.1850, 0.1518, "Kim et al., 2025"),
    ("gowalla", "ChebyCF"): _published_row(0.1941, 0.1616, "Kim et al., 2025"),
    ("gowalla", "BSPM"): _published_row(0.1920, 0.1597, "Choi et al., 2023"),
    ("yelp2018", "BSPM"): _published_row(0.0720, 0.0593, "Choi et al., 2023"),
    ("yelp2018", "GF-CF"): _published_row(0.0697, 0.0571, "Shen et al., 2021"),
}


def models(dataset: str) -> Mapping[str, tuple[baselines.Baseline, Row]]:
    """Returns the filters by name, with the published metrics on this dataset and their source."""
    bspm_by_dataset = {
        "gowalla": baselines.BSPM(order=4, time=2.5, blurred=0.0, rank=448, weight=0.2),
        "yelp2018": baselines.BSPM(order=1, time=1.2, blurred=0.5, rank=384, weight=0.3),
    }
    filters: dict[str, baselines.Baseline] = {
        "GF-CF": baselines.GFCF(rank=256, weight=0.3),
        "BSPM": bspm_by_dataset[dataset],
        # The published code has no settings for Yelp2018; those of Gowalla are taken unchanged.
        "ChebyCF": baselines.ChebyCF(order=8, flatness=1.5, rank=512, weight=0.2, power=0.4),
    }
    return {name: (model, _PUBLISHED.get((dataset, name), {})) for name, model in filters.items()}


def measure(split: data.HeldOutSplit, model: baselines.Baseline) -> Row:
    """Fits a filter, and returns its test metrics and the processor time."""
    began = process_time()
    layout = metrics.eval_layout(split.train, split.test)
    lists, _ = model.fit(split.train).recommend(layout.users, 20)
    values = metrics.evaluate_lists(lists, layout, ks=(20,))
    means = {name: float(np.mean(values[name])) for name in METRICS}
    return {**means, "cpu_seconds": round(process_time() - began, 1)}


@one_line_errors
def main() -> None:
    """Evaluates the filters."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets' folders")
    parser.add_argument("--datasets", nargs="+", choices=("gowalla", "yelp2018"),
                        default=["gowalla", "yelp2018"])  # fmt: skip
    parser.add_argument("--filters", nargs="+", choices=FILTERS, default=list(FILTERS))
    parser.add_argument("--out", type=Path, default=RESULTS / "standard" / "filters.csv")
    args = parser.parse_args()
    about, keys = environment("crl_jax", "jax", "numpy", "scipy"), ("dataset", "model")
    for dataset in args.datasets:
        split = data.load(args.data / dataset)
        assert isinstance(split, data.Split)
        filters = models(dataset)
        for name in args.filters:
            model, published = filters[name]
            row = {"dataset": dataset, "model": name, "settings": repr(model)}
            row |= {**measure(split, model), **published}
            record(args.out, [row], keys, about)
            show([row], (*keys, *METRICS, "cpu_seconds"))


if __name__ == "__main__":
    main()
