"""Results page section on learning with few labelled positives: puNCE, InfoNCE and SupCon."""

from pathlib import Path

from ._results_tables import Row, join, number, p_value, picture, read_csv, signed, table

_NAMES = {
    "info_nce": "InfoNCE, no labels",
    "supcon": "SupCon, one class per unlabelled image",
    "supcon_negative": "SupCon, all unlabelled images in one class",
    "punce_half": "puNCE, assumed prior π / 2",
    "punce": "puNCE, assumed prior π",
    "punce_more": "puNCE, assumed prior 1.5 π",
}
_MEASURES = {"linear": "accuracy", "pu_auc": "AUC"}


def punce(results: Path) -> str:
    """Returns the section on positive-unlabelled learning."""
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
        "Small networks are trained on scikit-learn's digits dataset. Even digits are positive; 1, "
        f"10 or 50 % of them are labelled and all other images are unlabelled. {seeds} seeds, each "
        "with a different sample of labels and the same test data. Accuracy is that of a linear "
        "even-odd classifier fitted with all labels. AUC measures the ranking of even above odd "
        "test images by a linear function fitted to separate labelled from unlabelled images.",
        f"```bash\npython -m experiments.numerical --punce-seeds {seeds} --out runs/punce\n```",
        table(["method", *header], means),
        "Improvement of puNCE with the true class prior π of the unlabelled images over each other "
        "method; in brackets the p-value of a paired t-test over seeds, adjusted by Holm's method "
        "for all tests of the metric:",
        table(["against", *header], ahead),
        "* The published claim is that puNCE outperforms InfoNCE and SupCon when labels are scarce "
        "and matches them when labels are abundant. These results do not confirm the former: at 1 "
        f"and 10 % puNCE's accuracy is {_points(at, shares[:2], 'info_nce')} points above "
        f"InfoNCE's and {_points(at, shares[:2], 'supcon')} above that of SupCon with one class "
        "per unlabelled image, and no difference is statistically significant. 1 % amounts to 7 "
        "images, so not every batch contains a labelled one.\n"
        "* At 1 % its accuracy is significantly above that of SupCon with all unlabelled images in "
        "one class, the biased alternative; at 50 % the two do not differ significantly.\n"
        "* Labels help when they are abundant: at 50 % puNCE is significantly better than InfoNCE "
        "in both metrics, and better than SupCon with one class per unlabelled image in AUC.\n"
        "* The prior need not be exact: with half or 1.5 times the true prior, puNCE differs "
        "significantly only once, in the AUC at 50 %.",
        picture(folder, "punce.png", "Accuracy and AUC of the methods by the share of labels"),
    )


def _points(at: dict[tuple[str, str, str], Row], shares: list[str], other: str) -> str:
    """Formats the improvement of puNCE over another method, in percentage points of accuracy."""
    return " and ".join(
        number(100 * float(at["linear", share, other]["punce_ahead"]), 1) for share in shares
    )


def _mean(row: Row) -> str:
    return f"{number(row['mean'], 3)} ± {number(row['deviation'], 3)}"


def _ahead(row: Row) -> str:
    return f"{signed(row['punce_ahead'])} ({p_value(row['p'])})"
