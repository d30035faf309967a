"""How fast it is on large tables, and how much memory it takes."""

from pathlib import Path
from typing import Any

from . import scale as benchmark
from ._results_tables import join, machine_of, number, read_json, table

Content = dict[str, Any]


def rows(content: Content) -> str:
    """The section of ``rows.json``."""
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


def scale(title: str, content: Content) -> str:
    """The section of a file of :mod:`benchmarks.scale`."""
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


def topk(content: Content) -> str:
    """The section of ``topk.json``."""
    setting, (row,) = content["setting"], content["rows"]
    return join(
        "### Lists for a million users",
        f"The command `topk --all` writes {setting['k']} of {setting['items']:,} items for each of "
        f"{setting['users']:,} users to a Parquet file of {row['file_mb']:.0f} MB in "
        f"{row['seconds']:.0f} s, from the start of the process to its end, with at most "
        f"{row['peak_gb']:.1f} GB. {machine_of(content)}. `python -m benchmarks.topk`",
    )


def _gigabytes(row: dict[str, Any]) -> float:
    """The most memory of a stage. Parquet is decoded by a process beside the one that reads it."""
    beside = row["gigabytes_of_child"] if row["stage"] == "load" else 0
    return row["gigabytes"] + beside


def _command(setting: dict[str, int]) -> str:
    """The command line of these sizes."""
    usual = {
        "users": benchmark.USERS,
        "items": benchmark.ITEMS,
        "interactions": benchmark.INTERACTIONS,
    }
    flags = [f"--{name} {setting[name]}" for name, n in usual.items() if setting[name] != n]
    return " ".join(["python -m benchmarks.scale --folder FOLDER", *flags])
