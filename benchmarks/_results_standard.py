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
        "The standard splits, width 64. The recipes have all numbers, fixed beforehand, the number "
        "of epochs among them: they train on the whole training part. The test part was scored "
        "once, at the end: mean ± standard deviation of "
        f"{len(rows[0]['per_seed'])} seeds.",
        "```bash\npython -m benchmarks.standard_splits --data DATASETS\n```",
        table(
            ["data", "encoder", "loss", "recall@20", "published", "NDCG@20", "published",
             "gain over InfoNCE", "p, seeds", "p, users"],
            [_cells(row) for row in rows],
        ),
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
