"""Results page sections on run time and memory with large embedding tables."""

from pathlib import Path
from typing import Any

from . import scale as benchmark
from ._results_tables import join, machine_of, number, read_json, table

Content = dict[str, Any]


def rows(content: Content) -> str:
    """Returns the section of ``rows.json``."""
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
        f"Milliseconds per step by number of embedding rows, width {setting['dim']}, with BPR and "
        f"batches of {setting['batch']:,} triplets, each of which reads three rows. PyTorch uses "
        "`EmbeddingBag(sparse=True)` and its lazy `SparseAdam`; a dense optimiser computes "
        "gradients of whole tables. All use huge pages (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1` "
        f"on Linux). {machine_of(content)}. `python -m benchmarks.rows`",
        table(["way", *(f"{size:,}" for size in sizes), "ratio last / first"], cells),
    )


def at_scale(results: Path) -> str:
    """Summarises time and memory at scale in a sentence; empty if there are no results."""
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
        ratio = f" (PyTorch: {times:.1f} times as long)"
    most = max(map(_gigabytes, ours.values()))
    return (
        f"{setting['interactions'] / 1e6:.0f} million interactions of {setting['users']:,} users "
        f"with {setting['items']:,} items load in {ours['load']['seconds']:.0f} s. An epoch with "
        f"width {setting['dim']} takes {ours['train']['epoch_seconds']:.0f} s{ratio}, and "
        f"evaluation of {setting['tested']:,} users {ranked:.1f} s; peak memory is at most "
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
    """Returns the section of a result file of :mod:`benchmarks.scale`."""
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
        f"whom {said:,} have test items; each user receives {setting['k']} recommendations. Time "
        "and peak memory of each stage, including the process that decodes Parquet. Epochs and "
        "evaluation are timed after a first one, which includes compilation. All libraries rank "
        "the same embedding tables and obtain the same NDCG. `implicit` takes one SGD step per "
        "interaction with unsynchronised threads. PyTorch does not check that negatives are "
        f"unseen. Adam steps: {ways}. {machine_of(content)}. "
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
    """Returns the section of ``topk.json``."""
    setting, (row,) = content["setting"], content["rows"]
    return join(
        "### Lists for a million users",
        f"The command `topk --all` writes the top {setting['k']} of {setting['items']:,} items for "
        f"{setting['users']:,} users to a Parquet file of {row['file_mb']:.0f} MB in "
        f"{row['seconds']:.0f} s, including process start-up, with a peak memory of "
        f"{row['peak_gb']:.1f} GB. {machine_of(content)}. `python -m benchmarks.topk`",
    )


def _gigabytes(row: dict[str, Any]) -> float:
    """Peak memory of a stage in GB, including the child process that decodes Parquet."""
    beside = row["gigabytes_of_child"] if row["stage"] == "load" else 0
    return row["gigabytes"] + beside


def _command(setting: dict[str, int]) -> str:
    """Returns the command line for the given sizes."""
    usual = {
        "users": benchmark.USERS,
        "items": benchmark.ITEMS,
        "interactions": benchmark.INTERACTIONS,
    }
    flags = [f"--{name} {setting[name]}" for name, n in usual.items() if setting[name] != n]
    return " ".join(["python -m benchmarks.scale --folder FOLDER", *flags])
