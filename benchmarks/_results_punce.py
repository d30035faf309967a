"""What a few labelled positives are worth: puNCE beside InfoNCE and SupCon."""

from pathlib import Path

from ._results_tables import Row, join, number, p_value, picture, read_csv, signed, table

_NAMES = {
    "info_nce": "InfoNCE, no labels",
    "supcon": "SupCon, each unlabelled image its own class",
    "supcon_negative": "SupCon, all unlabelled images one class",
    "punce_half": "puNCE, told π / 2",
    "punce": "puNCE, told π",
    "punce_more": "puNCE, told 1.5 π",
}
_MEASURES = {"linear": "accuracy", "pu_auc": "AUC"}


def punce(results: Path) -> str:
    """The section on positive and unlabelled examples."""
    folder = results / "numerical"
    rows = read_csv(folder / "punce_paired.csv")
    if not rows:
        return ""
    at = {(row["measure"], row["share"], row["method"]): row for row in rows}
    shares = sorted({row["share"] for row in rows}, key=float)
    of = [(measure, share) for measure in _MEASURES for share in shares]
    seeds = len({row["seed"] for row in read_csv(folder / "punce.csv")})
    header = [f"{_MEASURES[measure]}, {float(share):.0%}" for measure, share in of]
    means = [[said, *(_mean(at[*where, name]) for where in of)] for name, said in _NAMES.items()]
    ahead = [
        [said, *(_ahead(at[*where, name]) for where in of)]
        for name, said in _NAMES.items()
        if name != "punce"
    ]
    return join(
        "## Positive and unlabelled",
        "Small networks learn from scikit-learn's digits. Even ones are positive; 1, 10 or 50 % of "
        f"them are labelled, and nothing is known of the rest. {seeds} seeds, each with its own "
        "draw of labels; the test part is the same. Accuracy: of a linear classifier of even "
        "against odd, fitted with all labels. AUC: how well a linear function ranks even test "
        "images above odd ones that was fitted to tell the labelled from the unlabelled.",
        f"```bash\npython -m experiments.numerical --punce-seeds {seeds} --out runs/punce\n```",
        table(["method", *header], means),
        "By how much puNCE, told the true prior π of the unlabelled, is ahead; in brackets p of a "
        "paired t-test over seeds, by Holm's method for all tests of the measure:",
        table(["against", *header], ahead),
        "* The published claim is that puNCE is better than InfoNCE and SupCon where labels are "
        "few, and like them where they are many. These digits do not show the former. At 1 and "
        f"10 % puNCE's accuracy is {_points(at, shares[:2], 'info_nce')} points above InfoNCE's "
        f"and {_points(at, shares[:2], 'supcon')} above that of SupCon with a class for each "
        "unlabelled image, and no test tells that from chance. 1 % are 7 images, and not every "
        "batch has one.\n"
        "* At 1 % its accuracy is clearly above that of SupCon that takes all unlabelled images "
        "for one class. That is the biased alternative; at 50 % the two cannot be told apart.\n"
        "* Labels show where they are many: at 50 % puNCE is clearly better than InfoNCE by both "
        "measures, and than the first SupCon by AUC.\n"
        "* The prior need not be exact: told half of it or half as much again, puNCE is clearly "
        "off once alone, in the AUC at 50 %.",
        picture(folder, "punce.png", "Accuracy and AUC of the methods by the share of labels"),
    )


def _points(at: dict[tuple[str, str, str], Row], shares: list[str], other: str) -> str:
    """By how many points of accuracy puNCE is ahead."""
    return " and ".join(
        number(100 * float(at["linear", share, other]["punce_ahead"]), 1) for share in shares
    )


def _mean(row: Row) -> str:
    return f"{number(row['mean'], 3)} ± {number(row['deviation'], 3)}"


def _ahead(row: Row) -> str:
    return f"{signed(row['punce_ahead'])} ({p_value(row['p'])})"
