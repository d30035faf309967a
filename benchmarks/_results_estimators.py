"""Results page section on the error of the contrastive loss estimators."""

from pathlib import Path

from ._results_tables import Row, join, number, picture, read_csv, table

NAMES = {
    "biased": "biased mean",
    "dcl": "DCL",
    "bcl": "BCL",
    "bcl_normalised": "BCL, weights normalised to average 1",
    "bcl_auc": "BCL with the AUC as α",
}
N = 64
"""Number of negatives in the published setting."""


def estimators(results: Path) -> str:
    """Returns the section on the numerical experiment."""
    folder = results / "numerical"
    rows = read_csv(folder / "convergence.csv")
    if not rows:
        return ""
    most = max(int(row["value"]) for row in rows)
    at = {n: {r["estimator"]: r for r in rows if int(r["value"]) == n} for n in (N, most)}
    cells = [
        [
            said,
            f"{number(at[N][name]['bias'])} ± {_margin(at[N][name]['bias_se'])}".replace("-", "−"),
            f"{number(at[N][name]['mse'], 5)} ± {_margin(at[N][name]['mse_se'], 5)}",
            number(float(at[most][name]["mse"]) ** 0.5),
        ]
        for name, said in NAMES.items()
        if name in at[N]
    ]
    return join(
        "## Estimators",
        "Scores are sampled from populations with known labels. The estimators of "
        "`crl_jax.losses` are compared with the mean over the true negatives. Published setting: "
        f"α 0.9, γ 0.1, τ⁺ 0.1, temperature 0.5, {N} negatives, 10 extra positives for DCL, 1,000 "
        "anchors, seed 0. ± denotes a 95 % confidence interval.",
        "```bash\npython -m experiments.numerical --out runs/numerical\n```",
        table(["estimator", "bias", "mean squared error", f"its root at N = {most:,}"], cells),
        _against_dcl(read_csv(folder / "figure_6_9.csv")),
        "* BCL is asymptotically unbiased, but not unbiased at every N: its bias decreases as "
        "1/N.\n"
        "* Theorem 6.2 holds for the α of the densities. If α is measured as the AUC of "
        "independent samples, an error remains for any N. `weights.estimate_alpha(..., "
        'rule="model")` takes that into account.',
        _misspecified(read_csv(folder / "misspecified.csv")),
        "Scores are in ±0.5 in the text and in ±1/t² in the published code. `--half-width 4` "
        "reproduces the latter. There the lower bound of DCL clamps some of the anchors, so that "
        "DCL is biased as well. γ is the maximum inward shift of both ends of an anchor's score "
        "range, as a fraction of the half width.",
        picture(
            folder, "figure_6_9.png", "Mean squared error of the estimators by α, γ, τ⁺, t and N"
        ),
    )


def _margin(error: str, digits: int = 4) -> str:
    """Formats the half width of a 95 % confidence interval."""
    return number(1.96 * float(error), digits)


def _against_dcl(rows: list[Row]) -> str:
    """Reports for how many settings the error of BCL is below that of DCL."""
    if not rows:
        return ""
    errors: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["parameter"] != "n_neg":
            key = row["parameter"], row["value"]
            errors.setdefault(key, {})[row["estimator"]] = float(row["mse"])
    below = sum(at["bcl"] < at["dcl"] for at in errors.values())
    return (
        f"* The error of BCL is below that of DCL at {below} of {len(errors)} values of α, γ, τ⁺ "
        "and the temperature. The population satisfies the assumptions of BCL, and BCL is given "
        "the true α and τ⁺."
    )


def _misspecified(rows: list[Row]) -> str:
    told = {
        row["estimator"]: float(row["bias"]) / float(row["supervised"])
        for row in rows
        if row["parameter"] == "told_tau_plus" and float(row["value"]) == 0.2
    }
    if not told:
        return ""
    return (
        f"* A misspecified τ⁺ affects both. With 0.2 instead of 0.1, DCL is off by "
        f"{told['dcl']:.1%} and BCL by {told['bcl']:.1%}. With 0, both equal the biased mean, off "
        f"by {_told_nothing(rows):.1%}."
    ).replace("-", "−")


def _told_nothing(rows: list[Row]) -> float:
    row = next(r for r in rows if r["parameter"] == "told_tau_plus" and float(r["value"]) == 0)
    return float(row["bias"]) / float(row["supervised"])
