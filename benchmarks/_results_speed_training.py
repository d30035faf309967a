"""Results page sections on training speed."""

from pathlib import Path
from typing import Any

from ._results_tables import join, machine_of, number, read_json, table

Content = dict[str, Any]


def training_ratios(results: Path) -> list[tuple[str, float, float, float]]:
    """Returns the loss, ms per epoch, and the time ratios of eager and compiled PyTorch."""
    content = read_json(results / "training.json")
    found = []
    for task in content["tasks"] if content else []:
        ours, eager, compiled = task["rows"]
        found.append(
            (
                task["loss"],
                1000 * ours["epoch_seconds_median"],
                eager["times_ours"],
                compiled["times_ours"],
            )
        )
    return found


def training(content: Content) -> str:
    """Returns the section of ``training.json``."""
    cells = [
        [
            f"{task['loss'].upper()}, {task['n_neg']} negatives, {task['n_pos']} extra positives",
            row["name"],
            number(1000 * row["epoch_seconds_median"], 1),
            f"{row['interactions_per_second'] / 1e6:.1f} M",
            number(row["times_ours"], 1),
        ]
        for task in content["tasks"]
        for row in task["rows"]
    ]
    return join(
        "### An epoch of training",
        f"MovieLens 100K, width {content['shape']['dim']}, batches of {content['batch_size']:,}, "
        f"Adam, resampled negatives. {machine_of(content)}. `python -m benchmarks.training`",
        table(["loss", "way", "ms", "interactions/s", "time over ours"], cells),
        _threads(content["tasks"][0]),
    )


def _threads(task: Content) -> str:
    """Reports the epoch time of crl_jax by number of threads."""
    ours = [row for row in task["contest"] if row["name"].startswith("crl_jax")]
    said = ", ".join(
        f"{row['name'].removeprefix('crl_jax, ')}: {1000 * row['epoch_seconds_min']:.1f} ms"
        for row in ours
    )
    return (
        f"Fastest {task['loss'].upper()} epoch by number of threads: {said}. "
        "`NPROC=1 python -m experiments.recommend …` uses one thread."
    )


def propagation(content: Content) -> str:
    """Returns the section of ``propagation.json``."""
    cells = [
        [
            data["data"],
            row["name"],
            number(row["product_ms"], 1),
            number(row["gradient_ms"], 1),
            number(row["times_rows"]["gradient"], 1),
        ]
        for data in content["datasets"]
        for row in data["rows"]
    ]
    shape = content["datasets"][0]["shape"]
    return join(
        "### Propagation of LightGCN",
        f"Width {shape['dim']}, {shape['layers']} layers. `product` is one pass over the graph; "
        "`gradient` is value and gradient of all layers. `LightGCN` uses `rows` on CPUs. "
        f"{machine_of(content)}. `python -m benchmarks.propagation`",
        table(["data", "way", "product, ms", "gradient, ms", "gradient over ours"], cells),
    )


def lightgcn(content: Content) -> str:
    """Returns the section of ``lightgcn.json``."""
    cells = [
        [
            row["name"],
            number(row["epoch_seconds"], 1),
            number(row["epoch_cpu_seconds"], 1),
            number(row["first_epoch_seconds"], 1),
            number(row["peak_mb"], 0),
            number(row["times_best_pytorch"], 2),
        ]
        for row in content["rows"]
    ]
    setting = content["setting"]
    return join(
        "### An epoch of LightGCN",
        f"{content['data']}, width {setting['dim']}, {setting['layers']} layers, BPR, batches of "
        f"{setting['batch_size']}. The first epoch includes compilation. Each implementation runs "
        f"in a separate process, whose peak memory is listed. {machine_of(content)}. "
        "`python -m benchmarks.lightgcn`",
        table(
            ["way", "epoch, s", "CPU, s", "first epoch, s", "peak, MB", "over the best PyTorch"],
            cells,
        ),
    )


def samplers(content: Content) -> str:
    """Returns the section of ``samplers/cost.json``."""
    cells = [
        [r["setting"], r["sampler"], number(r["epoch_ms"], 1), number(r["relative"], 1)]
        for r in content["rows"]
    ]
    return join(
        "### An epoch with each sampler",
        f"BPR on MovieLens 100K, with mini-batches and single triplets. {machine_of(content)}. "
        "`python -m benchmarks.samplers`",
        table(["setting", "sampler", "ms", "over RNS"], cells),
    )


def confidence(content: Content) -> str:
    """Returns the section of ``confidence.json``."""
    cells = [
        [
            row["what"],
            row["rule"],
            row["law"],
            f"{row['per_second']:,.0f}",
            f"{row['times_scipy']:,.0f}",
        ]
        for row in content["rows"]
    ]
    return join(
        "### The expectation step of BPRAC",
        f"{content['interactions']:,} interactions. SciPy uses one quadrature per interaction. "
        f"{machine_of(content)}. `python -m benchmarks.confidence`",
        table(["what", "rule", "law", "interactions/s", "times SciPy"], cells),
    )


def in_batch(content: Content) -> str:
    """Returns the section of ``in_batch.json``."""
    cells = [
        [
            f"{size['batch']:,}",
            row["name"],
            number(row["step_ms"], 0),
            number(row["step_cpu_ms"], 0),
            number(row["grown_mb"], 0),
            number(row["times_training"], 2),
        ]
        for size in content["batches"]
        for row in size["rows"]
    ]
    setting = content["setting"]
    return join(
        "### A softmax over the items of a batch",
        "Value and gradient of InfoNCE, with the items of the other users in the batch as "
        f"negatives: cosine similarity, width {setting['dim']}, temperature "
        f"{setting['temperature']}. "
        "`training` is the loss that `fit_ranking` uses with `InBatch()`, `tiled` is "
        "`losses.tiled_tower_loss`. Memory is the growth of the process during a step. "
        f"{machine_of(content)}. `python -m benchmarks.in_batch`",
        table(["batch", "way", "ms", "CPU, ms", "memory, MB", "time over training"], cells),
    )


def sorting_network(content: Content) -> str:
    """Returns the section of ``sorting_network.json``."""
    cells = [
        [row["method"], number(row["epoch_seconds"], 1), number(row["times_sorting_network"], 2)]
        for row in content["rows"]
    ]
    return join(
        "### Exact ranks in training",
        "Epochs of BCL with in-batch negatives, whose weights require score ranks: matrix "
        f"factorisation of width 64, batches of {content['batch_size']:,}, simulated interactions. "
        f"{machine_of(content)}. `python -m benchmarks.sorting_network`",
        table(["ranks by", "s per epoch", "ratio"], cells),
    )


def time_to_quality(content: Content) -> str:
    """Returns the section of ``time_to_quality.json``."""
    target = content["target"]["ndcg@20"]
    cells = [
        [
            row["name"],
            number(row["total"], 1),
            number(row["import"], 1),
            number(row["train"], 1),
            number(row["ndcg"], 3),
            "yes" if row["reached"] else "no",
        ]
        for row in content["rows"]
    ]
    return join(
        "### From the start of the process to a good model",
        f'MovieLens 100K, seconds until NDCG@20 reaches {target}. "cached" uses a warm JAX '
        f"compilation cache. {machine_of(content)}. `python -m benchmarks.time_to_quality`",
        table(["library", "s", "import", "training", "NDCG@20", "reached"], cells),
    )
