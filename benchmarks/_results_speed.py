"""How fast it is, and how much memory it takes."""

from functools import partial
from pathlib import Path
from typing import Any

from . import scale
from ._results_tables import join, machine_of, number, read_json, strongest, table

Content = dict[str, Any]


def speed(results: Path) -> str:
    """The sections on time and memory."""
    sections = {
        "training": _training,
        "rows": _rows,
        "scale": partial(_scale, "Millions of users and interactions"),
        "many_items": partial(_scale, "A million items"),
        "topk": _topk,
        "propagation": _propagation,
        "lightgcn": _lightgcn,
        "samplers/cost": _samplers,
        "confidence": _confidence,
        "evaluation": _evaluation,
        "contrastive": _contrastive,
        "in_batch": _in_batch,
        "augment": _augment,
        "resnet": _resnet,
        "time_to_quality": _time_to_quality,
        "fold_in": _fold_in,
    }
    contents = {name: read_json(results / f"{name}.json") for name in sections}
    parts = [write(contents[name]) for name, write in sections.items() if contents[name]]
    if not parts:
        return ""
    return join(
        "## Speed",
        "Medians of the runs in the files beside this page, which also hold the fastest ones and "
        "how busy the machine was. All of it is on CPUs. The epoch and the evaluation are compared "
        "with the fastest of several ways to write them in PyTorch, and ours has the better number "
        "of threads, too. The other tables list the ways.",
        *parts,
    )


def training_ratios(results: Path) -> list[tuple[str, float, float, float]]:
    """For each loss: milliseconds an epoch of ours, and of PyTorch eager and compiled over ours."""
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


def _training(content: Content) -> str:
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
        f"Adam, negatives drawn anew. {machine_of(content)}. `python -m benchmarks.training`",
        table(["loss", "way", "ms", "interactions/s", "time over ours"], cells),
        _threads(content["tasks"][0]),
    )


def _threads(task: Content) -> str:
    """What a second thread is worth to ours."""
    ours = [row for row in task["contest"] if row["name"].startswith("crl_jax")]
    said = ", ".join(
        f"{row['name'].removeprefix('crl_jax, ')}: {1000 * row['epoch_seconds_min']:.1f} ms"
        for row in ours
    )
    return (
        f"The fastest epoch of {task['loss'].upper()} by threads: {said}. "
        "`NPROC=1 python -m experiments.recommend …` takes one."
    )


def _rows(content: Content) -> str:
    sizes = sorted({row["rows"] for row in content["rows"]})
    ways = list(dict.fromkeys(row["name"] for row in content["rows"]))
    steps = {(row["name"], row["rows"]): row["step_ms"] for row in content["rows"]}
    cells = [
        [
            name,
            *(number(steps[name, size], 1) for size in sizes),
            number(steps[name, sizes[-1]] / steps[name, sizes[0]], 2),
        ]
        for name in ways
    ]
    setting = content["setting"]
    return join(
        "### A step on large tables",
        f"Milliseconds of a step by the number of rows, of width {setting['dim']}, with BPR and "
        f"batches of {setting['batch']:,} triplets, which read three rows each. PyTorch has "
        "`EmbeddingBag(sparse=True)` and its lazy `SparseAdam`; a dense optimiser takes gradients "
        "of whole tables. All have large pages of memory (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1` "
        f"on Linux). {machine_of(content)}. `python -m benchmarks.rows`",
        table(["way", *(f"{size:,}" for size in sizes), "last over first"], cells),
    )


def at_scale(results: Path) -> str:
    """What millions of users and interactions take, in a sentence; nothing if not measured."""
    content = read_json(results / "scale.json")
    if content is None:
        return ""
    setting = content["setting"]
    rows = {(row["stage"], row["name"]): row for row in content["rows"]}
    ours = {stage: row for (stage, name), row in rows.items() if name == "crl_jax"}
    ranked = ours["evaluate"]["plan_seconds"] + ours["evaluate"]["seconds"]
    theirs = rows.get(("train", "PyTorch"))
    ratio = ""
    if theirs is not None:
        times = theirs["epoch_seconds"] / ours["train"]["epoch_seconds"]
        ratio = f" (PyTorch {times:.1f} times as long)"
    most = max(map(_gigabytes, ours.values()))
    return (
        f"{setting['interactions'] / 1e6:.0f} million interactions of {setting['users']:,} users "
        f"with {setting['items']:,} items are read in {ours['load']['seconds']:.0f} s. An epoch of "
        f"width {setting['dim']} takes {ours['train']['epoch_seconds']:.0f} s{ratio}, and "
        f"evaluation of {setting['tested']:,} users {ranked:.1f} s; no part takes more than "
        f"{most:.1f} GB."
    )


def _gigabytes(row: dict[str, Any]) -> float:
    """The most memory of a stage. Parquet is decoded by a process beside the one that reads it."""
    beside = row["gigabytes_of_child"] if row["stage"] == "load" else 0
    return row["gigabytes"] + beside


def _command(setting: dict[str, int]) -> str:
    """The command line of these sizes."""
    usual = {"users": scale.USERS, "items": scale.ITEMS, "interactions": scale.INTERACTIONS}
    flags = [f"--{name} {setting[name]}" for name, n in usual.items() if setting[name] != n]
    return " ".join(["python -m benchmarks.scale --folder FOLDER", *flags])


_STAGES = {
    "simulate": ("write the shards", "seconds"),
    "load": ("read Parquet", "seconds"),
    "load CSV": ("read CSV", "seconds"),
    "split": ("split", "seconds"),
    "train": ("an epoch of Adam", "epoch_seconds"),
    "train SGD": ("an epoch of SGD", "epoch_seconds"),
    "evaluate": ("evaluate", "seconds"),
    "recommend": ("recommend to all users", "seconds"),
}


def _scale(title: str, content: Content) -> str:
    rows = {(row["stage"], row["name"]): row for row in content["rows"]}
    names = [name for name in ("crl_jax", "PyTorch", "implicit") if ("evaluate", name) in rows]

    def cell(stage: str, name: str) -> str:
        row = rows.get((stage, name))
        if row is None:
            return ""
        seconds = row[_STAGES[stage][1]] + row.get("plan_seconds", 0)
        return f"{number(seconds, 1)} s, {number(_gigabytes(row), 1)} GB"

    setting, said = content["setting"], rows["evaluate", names[0]]["users"]
    ways = ", ".join(
        f"{name} {row['way']}" for (stage, name), row in rows.items() if stage == "train"
    )
    return join(
        f"### {title}",
        f"{setting['interactions']:,} simulated interactions of {setting['users']:,} users with "
        f"{setting['items']:,} items, width {setting['dim']}, BPR in batches of "
        f"{setting['batch']:,}. Evaluation ranks all items for {setting['tested']:,} users, of "
        f"whom {said:,} have test "
        f"items; every user gets {setting['k']} items. Seconds, and the most memory of a "
        "stage, the process that decodes Parquet included. Epochs and evaluation come after a "
        "first one, which compiles. All rank the same tables, and find the same NDCG. `implicit` "
        "takes a step of SGD for each interaction, and its threads do not wait for each other. "
        f"PyTorch does not check its negatives. Steps of Adam: {ways}. {machine_of(content)}. "
        f"`{_command(setting)}`",
        table(
            ["stage", *names],
            [
                [said, *(cell(stage, name) for name in names)]
                for stage, (said, _) in _STAGES.items()
            ],
        ),
    )


def _topk(content: Content) -> str:
    setting, (row,) = content["setting"], content["rows"]
    return join(
        "### Lists for a million users",
        f"The command `topk --all` writes {setting['k']} of {setting['items']:,} items for each of "
        f"{setting['users']:,} users to a Parquet file of {row['file_mb']:.0f} MB in "
        f"{row['seconds']:.0f} s, from the start of the process to its end, with at most "
        f"{row['peak_gb']:.1f} GB. {machine_of(content)}. `python -m benchmarks.topk`",
    )


def _propagation(content: Content) -> str:
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
        "`gradient` is value and gradient of all layers. `rows` is what `LightGCN` uses on CPUs. "
        f"{machine_of(content)}. `python -m benchmarks.propagation`",
        table(["data", "way", "product, ms", "gradient, ms", "gradient over ours"], cells),
    )


def _lightgcn(content: Content) -> str:
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
        f"{setting['batch_size']}. The first epoch compiles. Each has a process of its own, whose "
        f"peak memory stands there. {machine_of(content)}. `python -m benchmarks.lightgcn`",
        table(
            ["way", "epoch, s", "CPU, s", "first epoch, s", "peak, MB", "over the best PyTorch"],
            cells,
        ),
    )


def _samplers(content: Content) -> str:
    cells = [
        [r["setting"], r["sampler"], number(r["epoch_ms"], 1), number(r["relative"], 1)]
        for r in content["rows"]
    ]
    return join(
        "### An epoch with each sampler",
        f"BPR on MovieLens 100K, in minibatches and in single triplets. {machine_of(content)}. "
        "`python -m benchmarks.samplers`",
        table(["setting", "sampler", "ms", "over RNS"], cells),
    )


def _confidence(content: Content) -> str:
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
        f"{content['interactions']:,} interactions. SciPy takes a quadrature for each. "
        f"{machine_of(content)}. `python -m benchmarks.confidence`",
        table(["what", "rule", "law", "interactions/s", "times SciPy"], cells),
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
        f"width {shape['width']}, top {shape['k']}, full catalogue. The best block size of each. "
        f"{machine_of(content)}. `python -m benchmarks.evaluation`",
        table(["library", "users in a block", "users/s", "peak memory, MB"], cells),
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
        f"Value and gradient of {shape['batch']} pairs of views, width {shape['dim']}. "
        f"{machine_of(content)}. `python -m benchmarks.contrastive`",
        table(["loss", "ms"], cells),
        "Large batches: value and gradient of the tiled BCL, and the peak memory of the whole "
        "process.",
        table(["pairs", "negatives of an anchor", "ranks", "s", "peak, MB", "before, MB"], memory),
        "Ranks are exact unless `bins` says otherwise. Nanoseconds for each score, by the length "
        "of a row:",
        table(["way", *(f"{n:,}" for n in lengths)], ranks),
        "A histogram is no gain for hundreds of negatives, and a large one for tens of thousands. "
        "There the rank of a score in a bin that holds 1 % of its row is off by 1 % at most.",
    )


def _in_batch(content: Content) -> str:
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
        "Value and gradient of InfoNCE, whose negatives are the items of the other users of the "
        f"batch: cosines of width {setting['dim']}, temperature {setting['temperature']}. "
        "`training` is what `fit_ranking` takes with `InBatch()`, `tiled` is "
        "`losses.tiled_tower_loss`. Memory is by how much the process grows in a step. "
        f"{machine_of(content)}. `python -m benchmarks.in_batch`",
        table(["batch", "way", "ms", "CPU, ms", "memory, MB", "time over training"], cells),
    )


def _augment(content: Content) -> str:
    rows = {(row["name"], row["size"], row["cores"]): row for row in content["speed"]}
    heads = list(dict.fromkeys((size, cores) for _, size, cores in rows))

    def cell(name: str, head: tuple[int, int]) -> str:
        row = rows.get((name, *head))
        return f"{row['images_per_second_median']:,.0f}" if row else ""

    worst = max(content["differences"], key=lambda row: row["largest_difference"])
    return join(
        "### Views of images",
        "Views of CIFAR-10 a second: crop, flip, jitter, grey, blur and normalisation, in batches "
        f"of {content['batch']}. torchvision takes one image after another, Kornia a batch. With "
        "given numbers our functions and torchvision's differ by at most "
        f"{worst['largest_difference']:.0e}, in `{worst['function']}`. {machine_of(content)}. "
        "`python -m benchmarks.augment`",
        table(
            ["way", *(f"{size} pixels, {_cores(cores)}" for size, cores in heads)],
            [
                [name, *(cell(name, head) for head in heads)]
                for name in dict.fromkeys(name for name, *_ in rows)
            ],
        ),
    )


def _resnet(content: Content) -> str:
    cells = []
    for row in content["rows"]:
        depth, width = row["network"].split(":")
        way = row["name"] if row["name"] == "crl_jax" else f"{row['name']}, {row['layout']}"
        cells.append(
            [
                f"ResNet-{depth}, width {width}",
                _cores(row["cores"]),
                way,
                number(row["step_ms"], 0),
                number(row["step_cpu_ms"], 0),
                number(row["peak_mb"], 0),
                number(row["times_best_pytorch"], 2),
            ]
        )
    setting = content["setting"]
    return join(
        "### A step of SimCLR",
        f"Both views of {setting['batch']} images of {setting['size']} pixels, forward, backward "
        "and Adam, in float32. The memory is the most that the process takes. "
        f"{machine_of(content)}. `python -m benchmarks.resnet`",
        table(
            ["network", "on", "way", "ms", "CPU, ms", "memory, MB", "time over the best PyTorch"],
            cells,
        ),
    )


def _cores(n: int) -> str:
    return f"{n} core{'s' if n > 1 else ''}"


def _time_to_quality(content: Content) -> str:
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
        f'MovieLens 100K, seconds until NDCG@20 is {target}. "Cached" has JAX\'s compilation '
        f"cache filled. {machine_of(content)}. `python -m benchmarks.time_to_quality`",
        table(["library", "s", "import", "training", "NDCG@20", "reached"], cells),
    )


def _fold_in(content: Content) -> str:
    rows = [r for r in content["rows"] if not r["method"].startswith("ridge=")]
    methods = list(dict.fromkeys(r["method"] for r in rows))
    scores = {(r["method"], r["similarity"]): r["ndcg@20"] for r in rows}
    cells = [[m, *(number(scores.get((m, s)), 3) for s in ("inner", "cosine"))] for m in methods]
    return join(
        "### Users who were not there in training",
        f"{content['held_out']} users of MovieLens 100K were left out, gave "
        f"{content['given']:.0%} of their items, and were scored on the rest. NDCG@20, mean of "
        f"{len(content['draws'])} draws of users. `fold_in` is what `serving` does; `trained` has "
        "the same users in the training. `python -m benchmarks.fold_in`",
        table(["method", "inner products (BPR)", "cosines (InfoNCE)"], cells),
    )
