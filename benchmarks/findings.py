"""Published findings on augmentations, heads, batches and negatives, tested at a small scale.

Each study is a command, which trains with each of its settings on each dataset, with the same
seeds, and writes a CSV file and a figure. Completed runs are not repeated, interrupted ones are
resumed. Results of other datasets stay in the file.

    python -m benchmarks.findings graph-kinds --data DATASETS --runs runs/findings
    python -m benchmarks.findings --list
"""

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments._plots import save_figure

from ._comparison import check_names, check_seeds, measure
from ._report import RESULTS, Row, count, environment, one_line_errors, read_csv
from ._runs import record, show


class Study(NamedTuple):
    """Study of a published finding.

    Attributes:
      finding: The finding, with its source.
      command: Training command: ``python -m experiments.COMMAND``.
      datasets: Flags of each dataset, which override those of the scale. ``{data}`` is the folder
        of the datasets.
      ways: Flags of each setting. The others are compared with the first. The names of a matrix are
        pairs ``A+B``; those of curves a name and a number ``A 0.1``.
      metric: Metric to compare: a name in ``metrics.json``.
      plot: Kind of figure.
      scales: Flags of each scale; the first is the default.
    """

    finding: str
    command: str
    datasets: Mapping[str, Sequence[str]]
    ways: Mapping[str, Sequence[str]]
    metric: str
    plot: Literal["bars", "matrix", "curves"]
    scales: Mapping[str, Sequence[str]]


_CIFAR = {"cifar10": ("--data", "{data}/cifar10")}
_IMAGES = {
    **_CIFAR,
    "digits": (
        "--data", "digits", "--train-images", "1250", "--test-images", "350", "--view-size", "8",
        "--eval-size", "8", "--epochs", "20",
    ),
}  # fmt: skip
_VIEWS = ("--view-size", "24", "--eval-size", "32", "--eval-every", "1000")
_TINY = (
    "--train-images", "2048", "--test-images", "2000", "--encoder", "resnet10", "--width", "8",
    *_VIEWS,
)  # fmt: skip
_SMALL = ("--train-images", "10000", "--encoder", "resnet10", "--width", "16", *_VIEWS)
_IMAGE_SCALES = {"tiny": (*_TINY, "--epochs", "10"), "small": (*_SMALL, "--epochs", "20")}

_PLAIN: Mapping[str, str] = {
    "--crop": "1", "--flip": "0", "--jitter-p": "0", "--grey-p": "0", "--blur-p": "0",
}  # fmt: skip
_STEPS: Mapping[str, Mapping[str, str]] = {
    "crop": {"--crop": "0.08"},
    "cutout": {"--cutout-p": "1"},
    "colour": {"--jitter": "1", "--jitter-p": "0.8", "--grey-p": "0.2"},
    "noise": {"--noise-p": "1"},
    "blur": {"--blur-p": "1"},
    "rotation": {"--rotation": "180", "--rotation-p": "1"},
}


def _view_flags(*names: str) -> list[str]:
    """Returns the flags of views with these steps alone."""
    options = dict(_PLAIN)
    for name in names:
        options.update(_STEPS[name])
    return [word for flag in options.items() for word in flag]


_KINDS = ("identity", "drop_nodes", "perturb_edges", "mask_attributes", "subgraph")
_GRAPHS = {
    name: ("--data", f"{{data}}/graphs/{name}")
    for name in ("MUTAG", "IMDBBINARY", "PROTEINS", "NCI1")
}
_GRAPH_SCALES = {
    "small": ("--epochs", "20", "--eval-every", "1000"),
    "tiny": ("--epochs", "5", "--eval-every", "1000"),
}
_SIMCLR = "Chen et al., A Simple Framework for Contrastive Learning, 2020"
_GRAPHCL = "You et al., Graph Contrastive Learning with Augmentations, 2020"

STUDIES = {
    "image-augmentations": Study(
        f"Compositions beat single augmentations, crop with colour most ({_SIMCLR}, fig. 5)",
        "images",
        _CIFAR,
        {f"{a}+{b}": _view_flags(a, b) for a, b in combinations_with_replacement(_STEPS, 2)},
        "linear",
        "matrix",
        _IMAGE_SCALES,
    ),
    "image-heads": Study(
        f"A nonlinear head is better than a linear one, and that than none ({_SIMCLR}, fig. 8)",
        "images",
        _IMAGES,
        {
            "no head": ("--method", "directclr", "--first-features", "{features}"),
            "linear head": ("--head", "128"),
            "nonlinear head": ("--head", "512", "128"),
        },
        "linear",
        "bars",
        _IMAGE_SCALES,
    ),
    "image-batches": Study(
        f"Larger batches are better ({_SIMCLR}, fig. 9), here after equal numbers of steps",
        "images",
        _CIFAR,
        {
            str(size): ("--batch-size", str(size), "--epochs", str(size // 8))
            for size in (32, 64, 128, 256)
        },
        "linear",
        "bars",
        # Batches divide the images, so that the numbers of steps are exactly equal.
        {"tiny": _TINY, "small": ("--train-images", "10240", *_SMALL[2:])},
    ),
    "image-negatives": Study(
        "A queue of momentum keys equals negatives of the batch and beats a memory bank "
        "(He et al., Momentum Contrast, 2020, fig. 3)",
        "images",
        _IMAGES,
        {
            "end to end": ("--method", "simclr"),
            "MoCo": ("--method", "moco", "--queue", "1024"),
            "memory bank": ("--method", "memory-bank", "--n-neg", "1024"),
        },
        "linear",
        "bars",
        _IMAGE_SCALES,
    ),
    "graph-kinds": Study(
        f"Compositions of different augmentations are best; edges help social networks and hurt "
        f"molecules ({_GRAPHCL}, fig. 2)",
        "graphs",
        _GRAPHS,
        {
            f"{a}+{b}": ("--kinds", *dict.fromkeys((a, b)))
            for a, b in combinations_with_replacement(_KINDS, 2)
        },
        "svm",
        "matrix",
        _GRAPH_SCALES,
    ),
    "graph-ratios": Study(
        f"Stronger augmentations help, to a point that depends on the graphs ({_GRAPHCL}, fig. 4)",
        "graphs",
        _GRAPHS,
        {
            f"{kind} {ratio}": ("--kinds", kind, "--ratio", str(ratio))
            for kind in _KINDS[1:]
            for ratio in (0.05, 0.1, 0.2, 0.3, 0.4)
        },
        "svm",
        "curves",
        _GRAPH_SCALES,
    ),
    "pair-losses": Study(
        "Texts classify images without training on classes (Radford et al., Learning Transferable "
        "Visual Models, 2021, section 3.1); false negatives have equal texts",
        "pairs",
        {"digits": ("--data", "digits")},
        {
            "CLIP": ("--loss", "clip"),
            "equal excluded": ("--loss", "clip", "--exclude-equal", "True"),
            "DCL": ("--loss", "debiased"),
            "HCL": ("--loss", "hard"),
            "BCL": ("--loss", "bayesian", "--alpha-from", "labels"),
        },
        "zero_shot",
        "bars",
        {"small": ("--epochs", "10")},
    ),
}
"""Studies by name."""


def build_flags(study: Study, dataset: str, scale: str, way: str, data: Path) -> list[str]:
    """Returns the flags of a run, except for its seeds and folder."""
    common = study.scales[scale]
    width = int(common[common.index("--width") + 1]) if "--width" in common else 0
    # A ResNet has 8 features for each channel of its first block.
    values = {"data": str(data), "features": str(8 * width)}
    flags = *common, *study.datasets[dataset], *study.ways[way]  # the last of equal flags counts
    return [word.format(**values) for word in flags]


def draw(name: str, rows: Sequence[Row], path: Path) -> None:
    """Draws a panel for each dataset and scale of a study."""
    study = STUDIES[name]
    panels = list(dict.fromkeys((row["dataset"], row["scale"]) for row in rows))
    size = 5.5 if study.plot == "matrix" else 4.5
    figure = Figure(figsize=(size * len(panels), 4.2), layout="constrained")
    plot = {"bars": _bars, "matrix": _matrix, "curves": _curves}[study.plot]
    for axes, (dataset, scale) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        panel_rows = [row for row in rows if (row["dataset"], row["scale"]) == (dataset, scale)]
        plot(axes, panel_rows, study.metric)
        axes.set_title(f"{dataset}, {scale} scale, {panel_rows[0]['seeds']} seeds")
    figure.suptitle(f"Published: {study.finding}", wrap=True, fontsize=9)
    save_figure(figure, path)


def _float_column(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.array([float(row[name]) for row in rows])


def _bars(axes: Axes, rows: Sequence[Row], metric: str) -> None:
    x = np.arange(len(rows))
    mean, std = (_float_column(rows, name) for name in (metric, f"{metric}_std"))
    axes.errorbar(x, mean, std, fmt="o", capsize=4)
    axes.set_xticks(x, [row["way"].replace(" ", "\n") for row in rows])
    axes.set(xlim=(-0.5, len(rows) - 0.5), ylabel=f"{metric}, mean ± deviation over seeds")
    axes.grid(axis="y", alpha=0.3)


def _matrix(axes: Axes, rows: Sequence[Row], metric: str) -> None:
    pairs = [row["way"].split("+") for row in rows]
    names = list(dict.fromkeys(pair[0] for pair in pairs))
    table = np.full((len(names), len(names)), np.nan)
    stds = np.full_like(table, np.nan)
    means, deviations = (_float_column(rows, name) for name in (metric, f"{metric}_std"))
    for (a, b), value, std in zip(pairs, means, deviations, strict=True):
        table[names.index(b), names.index(a)] = 100 * value
        stds[names.index(b), names.index(a)] = 100 * std
    axes.imshow(table, cmap="viridis")
    middle = (np.nanmin(table) + np.nanmax(table)) / 2
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            colour = "white" if value < middle else "black"
            text = f"{value:.1f}\n± {stds[i, j]:.1f}"
            axes.text(j, i, text, ha="center", va="center", color=colour, fontsize=7)
    labels = [name.replace("_", " ") for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), labels)
    axes.set_xlabel(f"{metric}, %, mean ± deviation over seeds")


def _curves(axes: Axes, rows: Sequence[Row], metric: str) -> None:
    settings = [row["way"].rsplit(" ", 1) for row in rows]
    mean, std = (_float_column(rows, name) for name in (metric, f"{metric}_std"))
    for kind in dict.fromkeys(name for name, _ in settings):
        indices = [i for i, (name, _) in enumerate(settings) if name == kind]
        x = [float(settings[i][1]) for i in indices]
        axes.errorbar(
            x, mean[indices], std[indices], fmt="o-", capsize=3, label=kind.replace("_", " ")
        )
    axes.set(xlabel="ratio", ylabel=metric)
    axes.legend()
    axes.grid(alpha=0.3)


@one_line_errors
def main() -> None:
    """Runs a study and writes its results."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("study", choices=STUDIES, help="the study")
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--datasets", nargs="+", help="by default all of the study")
    parser.add_argument("--scale", help="by default the first of the study")
    parser.add_argument("--seeds", type=count, default=3, help="number of seeds, at least 2")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/findings"), help="folder of the run directories"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "findings", help="folder for the results"
    )
    if "--list" in sys.argv:
        for name, study in STUDIES.items():
            dataset_names = ", ".join(study.datasets)
            print(f"{name}: {study.finding}; {len(study.ways)} settings on {dataset_names}")
        return
    args = parser.parse_args()
    study = STUDIES[args.study]
    scale = args.scale or next(iter(study.scales))
    check_names(parser, "--datasets", args.datasets or (), study.datasets)
    check_names(parser, "--scale", [scale], study.scales)
    check_seeds(parser, args.seeds)
    about = environment("crl_jax", "jax", "jaxlib", "flax", "optax", "numpy")
    path = args.out / f"{args.study}.csv"
    for dataset in args.datasets or study.datasets:
        folders = {
            way: args.runs / args.study / f"{dataset}-{scale}-{way.replace(' ', '-')}"
            for way in study.ways
        }
        rows, seed_rows = measure(
            study.command, partial(build_flags, study, dataset, scale), folders,
            {"dataset": dataset, "scale": scale}, metric=study.metric, n_seeds=args.seeds,
            data=args.data,
        )  # fmt: skip
        record(path, rows, ["dataset", "scale"], about)
        record(args.out / f"{args.study}-per_seed.csv", seed_rows, ["dataset", "scale"], {})
        show(rows, ("way", study.metric, f"{study.metric}_std", "gain", "p"))
        draw(args.study, read_csv(path), path.with_suffix(".png"))


if __name__ == "__main__":
    main()
