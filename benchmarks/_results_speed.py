"""Results page sections on run time and memory."""

from functools import partial
from pathlib import Path
from typing import Any

from . import _results_speed_images as of_images
from . import _results_speed_scale as of_scale
from . import _results_speed_training as of_training
from ._results_tables import join, machine_of, number, read_json, strongest, table

Content = dict[str, Any]


def speed(results: Path) -> str:
    """Returns the sections on run time and memory."""
    sections = {
        "training": of_training.training,
        "rows": of_scale.rows,
        "scale": partial(of_scale.scale, "Millions of users and interactions"),
        "many_items": partial(of_scale.scale, "A million items"),
        "topk": of_scale.topk,
        "propagation": of_training.propagation,
        "lightgcn": of_training.lightgcn,
        "samplers/cost": of_training.samplers,
        "confidence": of_training.confidence,
        "evaluation": _evaluation,
        "contrastive": _contrastive,
        "in_batch": of_training.in_batch,
        "sorting_network": of_training.sorting_network,
        "augment": of_images.augment,
        "resnet": of_images.resnet,
        "time_to_quality": of_training.time_to_quality,
        "fold_in": _fold_in,
    }
    contents = {name: read_json(results / f"{name}.json") for name in sections}
    parts = [write(contents[name]) for name, write in sections.items() if contents[name]]
    if not parts:
        return ""
    return join(
        "## Speed",
        "Medians over the runs in the files next to this page, which also record the fastest runs "
        "and the machine load. All measurements are on CPUs. Training epochs and evaluation are "
        "compared with the fastest of several PyTorch implementations; crl_jax likewise uses its "
        "faster number of threads. The other tables list all implementations.",
        *parts,
    )


def _evaluation(content: Content) -> str:
    cells = []
    for library in ("crl_jax", "torch"):
        rows = [r for r in content["rows"] if r["library"] == library and not r["auc"]]
        best = strongest(rows, lambda r: r["users_per_second_median"])
        cells.append(
            [
                {"torch": "PyTorch"}.get(library, library),
                str(best["block_size"]),
                f"{best['users_per_second_median']:,.0f}",
                f"{best['peak_rss_mb']:.0f}",
            ]
        )
    shape = content["shape"]
    return join(
        "### Evaluation",
        f"{content['data'].capitalize()}, {shape['users']:,} users × {shape['items']:,} items, "
        f"width {shape['width']}, top {shape['k']}, full catalogue, with the best block size of "
        "each library. "
        f"{machine_of(content)}. `python -m benchmarks.evaluation`",
        table(["library", "users per block", "users/s", "peak memory, MB"], cells),
    )


def _contrastive(content: Content) -> str:
    cells = [[r["name"], number(r["milliseconds_median"], 1)] for r in content["losses"]]
    memory = [
        [
            f"{r['batch']:,}",
            f"{r['negatives']:,}",
            "exact" if r["bins"] is None else f"{r['bins']} bins",
            number(r["seconds"], 1),
            f"{r['peak_rss_mb']:.0f}",
            f"{r['rss_before_mb']:.0f}",
        ]
        for r in content["memory"]
    ]
    ways = list(dict.fromkeys(r["way"] for r in content["ranks"]))
    lengths = list(dict.fromkeys(r["row"] for r in content["ranks"]))
    cost = {(r["way"], r["row"]): r["nanoseconds_per_score"] for r in content["ranks"]}
    ranks = [[way, *(number(cost[way, n], 1) for n in lengths)] for way in ways]
    shape = content["shape"]
    return join(
        "### Contrastive losses",
        f"Value and gradient for {shape['batch']} pairs of views, width {shape['dim']}. "
        f"{machine_of(content)}. `python -m benchmarks.contrastive`",
        table(["loss", "ms"], cells),
        "Large batches: value and gradient of the tiled BCL loss, and the peak memory of the "
        "process.",
        table(["pairs", "negatives per anchor", "ranks", "s", "peak, MB", "before, MB"], memory),
        "Ranks are exact unless `bins` is given. Nanoseconds per score, by row length:",
        table(["way", *(f"{n:,}" for n in lengths)], ranks),
        "A histogram does not help with hundreds of negatives, but gives a large speed-up with "
        "tens of thousands. The rank error of a score in a bin with 1 % of its row is at most 1 %.",
    )


def _fold_in(content: Content) -> str:
    rows = [r for r in content["rows"] if not r["method"].startswith("ridge=")]
    methods = list(dict.fromkeys(r["method"] for r in rows))
    scores = {(r["method"], r["similarity"]): r["ndcg@20"] for r in rows}
    cells = [[m, *(number(scores.get((m, s)), 3) for s in ("inner", "cosine"))] for m in methods]
    return join(
        "### Users who were not there in training",
        f"{content['held_out']} users of MovieLens 100K were held out of training; "
        f"{content['given']:.0%} of their items are given and the rest are used for evaluation. "
        f"NDCG@20, mean over {len(content['draws'])} samples of users. `fold_in` is the method of "
        "`serving`; `trained` includes the same users in training. `python -m benchmarks.fold_in`",
        table(["method", "inner products (BPR)", "cosines (InfoNCE)"], cells),
    )
