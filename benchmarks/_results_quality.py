"""Results page sections on ranking quality, by loss and by negative sampler."""

from pathlib import Path
from typing import Any

from ._results_tables import (
    Row,
    by_method,
    files_of,
    join,
    mean_of,
    number,
    p_value,
    picture,
    read_csv,
    read_json,
    signed,
    strongest,
    table,
)

LOSSES = {
    "bpr": "BPR",
    "bce": "BCE",
    "info_nce": "InfoNCE",
    "debiased": "debiased contrastive (DCL)",
    "hard": "hard contrastive (HCL)",
    "dpl": "debiased pairwise (DPL)",
    "bayesian": "Bayesian contrastive (BCL)",
}
SAMPLERS = {
    "rns": "RNS",
    "pns": "PNS",
    "aobpr": "AOBPR, λ = 500",
    "dns": "DNS, m = 2",
    "srns": "SRNS",
    "bns": "BNS, exact eCDF",
    "bns, eCDF of 64": "BNS, eCDF of 64 items",
}
NDCG = "ndcg@20"


def loss_rows(results: Path, file: str = "quality.json") -> list[dict[str, Any]]:
    """Returns the results of all losses in the order of :data:`LOSSES`."""
    content = read_json(results / "quality" / file)
    found = {row["loss"]: row for row in content["rows"]} if content else {}
    return [found[name] for name in LOSSES if name in found]


def graph(results: Path) -> str:
    """Returns the section on LightGCN."""
    rows, folder = loss_rows(results, "lightgcn.json"), results / "quality"
    if not rows:
        return ""
    best = strongest(rows, lambda r: r[NDCG])
    return join(
        "### LightGCN",
        "The same data and width with two layers of LightGCN. The L2 penalty applies to the "
        "embeddings of the batch before propagation. Each loss has a search of 8 points and 150 "
        f"epochs on validation data, and {len(rows[0]['per_seed'])} seeds.",
        "```bash\npython -m benchmarks.quality --data ml-100k --encoder lightgcn --search\n"
        "python -m benchmarks.quality --data ml-100k --encoder lightgcn\n```",
        _table(rows, folder, "ml-100k-lightgcn-"),
        f"Searches: {files_of(folder, 'ml-100k-lightgcn-*-search.csv')}. Exploratory runs on "
        f"validation data before the searches: {files_of(folder, 'lightgcn-exploration.csv')}. All "
        f"metrics of all seeds: {files_of(folder, 'lightgcn.json')}.",
        picture(
            folder,
            f"ml-100k-lightgcn-{best['loss']}.png",
            f"Loss and validation score of {LOSSES[best['loss']]} on LightGCN over the epochs",
        ),
    )


def losses(results: Path) -> str:
    """Returns the section on losses."""
    rows, folder = loss_rows(results), results / "quality"
    if not rows:
        return ""
    searched = {row["loss"]: _chosen(folder, f"ml-100k-{row['loss']}") for row in rows}
    best, published = strongest(rows, lambda r: r[NDCG]), [r for r in rows if r["published"]]
    valid = {name: row for name, row in searched.items() if row}
    best_valid = strongest(valid, lambda name: valid[name][f"valid_{NDCG}"]) if valid else ""
    return join(
        "## Losses",
        "MovieLens 100K with the split of the dissertation, matrix factorisation of width 32. The "
        "metric is NDCG@20 on the test data, as mean ± standard deviation over "
        f"{len(rows[0]['per_seed'])} seeds. Each loss has the same search of 8 points and 300 "
        "epochs on validation data held out from the training data. The test data were used once, "
        "at the end. The validation score is from the search, with one seed.",
        "```bash\npython -m benchmarks.quality --data ml-100k --search\n"
        "python -m benchmarks.quality --data ml-100k\n```",
        _table(rows, folder, "ml-100k-"),
        f"* {LOSSES[best_valid]} is best on the validation data, {LOSSES[best['loss']]} on the "
        "test data."
        if best_valid
        else "",
        _against_published(published, best),
        _initial_values(folder),
        f"Searches: {files_of(folder, 'ml-100k-[!l]*-search.csv')}. Exploratory runs on validation "
        f"data before the searches: {files_of(folder, 'exploration.csv')}. All metrics of all "
        f"seeds: {files_of(folder, 'quality.json')}.",
        picture(folder, "ml-100k-bayesian.png", "Loss and validation score of BCL over the epochs"),
    )


def _against_published(rows: list[dict[str, Any]], best: dict[str, Any]) -> str:
    first = strongest(rows, lambda r: r["published"])
    most = strongest(rows, lambda r: r[NDCG] - r["published"])
    said = (
        "It is best here as well."
        if first is best
        else f"Here it is {best[NDCG] - first[NDCG]:.4f} below the best."
    )
    return (
        f"* Among the published results {LOSSES[first['loss']]} is best. {said} All losses had the "
        f"same search here. {LOSSES[most['loss']]} improves the most over its published result, by "
        f"{most[NDCG] - most['published']:.4f}."
    )


def _table(rows: list[dict[str, Any]], folder: Path, recipe: str) -> str:
    best = strongest(rows, lambda r: r[NDCG])
    cells = [
        [
            LOSSES[row["loss"]],
            number(_chosen(folder, recipe + row["loss"]).get(f"valid_{NDCG}")),
            _bold(f"{number(row[NDCG])} ± {number(row['std'])}", row is best),
            number(row["published"]),
        ]
        for row in rows
    ]
    return table(["loss", "validation", "test", "published"], cells)


def _chosen(folder: Path, recipe: str) -> Row:
    rows = read_csv(folder / f"{recipe}-search.csv")
    return next((row for row in rows if row["chosen"] == "1"), {})


def _initial_values(folder: Path) -> str:
    gains = {}
    for loss in LOSSES:
        best: dict[float, float] = {}
        for row in read_csv(folder / f"ml-100k-{loss}-search.csv"):
            scale, score = float(row["init_scale"]), float(row[f"valid_{NDCG}"])
            best[scale] = max(score, best.get(scale, 0.0))
        if {0.1, 1.0} <= best.keys():
            gains[loss] = best[0.1] - best[1.0]
    if not gains:
        return ""
    most = strongest(gains, gains.__getitem__)
    rising = sum(gain > 0 for gain in gains.values())
    return (
        f"* Scaling Xavier initialisation by 0.1 improves {rising} of {len(gains)} losses on the "
        f"validation data, {LOSSES[most]} the most, by {gains[most]:.4f}."
    )


def samplers(results: Path) -> str:
    """Returns the section on negative samplers."""
    folder = results / "samplers"
    published = by_method(folder / "table-4.2-published.csv")
    minibatch = by_method(folder / "table-4.2-minibatch.csv")
    if not published:
        return ""
    best = strongest(published.values(), lambda r: r[NDCG])
    best_batch = strongest(minibatch.values(), lambda r: r[NDCG]) if minibatch else {}
    cells = []
    for name, row in published.items():
        ours = minibatch.get(name, {})
        cells.append(
            [
                SAMPLERS.get(name, name),
                number(row[f"{NDCG}_published"]) if name != "bns, eCDF of 64" else "",
                _bold(mean_of(row, NDCG), row is best),
                p_value(row["p_seeds"]),
                _bold(mean_of(ours, NDCG), ours is best_batch) if ours else "not run",
                p_value(ours["p_seeds"]) if ours else "",
            ]
        )
    return join(
        "## Negative samplers",
        "The same data and encoder with the BPR loss. NDCG@20 on the test data, 5 seeds. p-values "
        "are from paired t-tests over seeds against RNS, adjusted for the comparisons of their "
        "column.",
        "* *Published setting*: SGD, one triplet per step, 100 epochs, no validation.\n"
        "* *Minibatch*: Adam, batches of 1,024, a search of 8 points and 200 epochs for each "
        "sampler on validation data.",
        "```bash\n"
        "python -m experiments.reproduce table-4.2 --data ml-100k --seeds 5\n"
        "python -m experiments.reproduce table-4.2 --data ml-100k --seeds 5 --setting "
        "minibatch\n"
        "```",
        table(["sampler", "published numbers", "published setting", "p", "minibatch", "p"], cells),
        _gains(published, minibatch),
        _on_graph(folder),
        _drawn(folder),
        _variants(folder),
        _oracle(folder),
        _other_losses(folder),
        _two_numbers(folder),
        f"All metrics: {files_of(folder, '*.md')}.",
        picture(
            folder,
            "table-4.2-published.png",
            "NDCG@20 of the samplers compared with the published results",
        ),
    )


def _gains(published: dict[str, Row], minibatch: dict[str, Row]) -> str:
    said = []
    for setting, rows in (("published", published), ("minibatch", minibatch)):
        if {"rns", "bns", "bns, eCDF of 64"} <= rows.keys():
            exact, coarse = (float(rows[n]["gain"]) for n in ("bns", "bns, eCDF of 64"))
            said.append(
                f"* In the {setting} setting BNS improves on RNS by {exact:.3f} with the exact "
                f"eCDF, and by {coarse:.3f} with an eCDF of 64 items."
            )
    if "srns" in published:
        said.append("* SRNS uses the settings of its authors' code, which were not tuned here.")
    said.append(
        "* The text specifies N(0, 0.01) for the initial values. Interpreting 0.01 as the standard "
        "deviation reproduces the published RNS result."
    )
    return "\n".join(said)


def _on_graph(folder: Path) -> str:
    rows = by_method(folder / "lightgcn" / "table-4.2-minibatch.csv")
    if not rows:
        return ""
    cells = [
        [
            SAMPLERS[name], mean_of(row, NDCG, published=name != "bns, eCDF of 64"),
            signed(row["gain"]), p_value(row["p_seeds"]), p_value(row["p_users"]),
        ]
        for name, row in rows.items()
    ]  # fmt: skip
    return join(
        "### With LightGCN",
        "Minibatch setting. Each sampler has the same 8-point search as BPR with this encoder. "
        "AOBPR was not run. Published results are in brackets. p-values are from paired t-tests "
        "over seeds and over users against RNS, adjusted by Holm's method.",
        "```bash\n"
        "python -m experiments.reproduce table-4.2 --data ml-100k --seeds 5 --setting minibatch "
        "--encoders lightgcn \\\n"
        "  --methods rns pns dns srns bns 'bns, eCDF of 64'\n"
        "```",
        table(["sampler", "NDCG@20", "gain over RNS", "p, seeds", "p, users"], cells),
        picture(
            folder,
            "lightgcn/table-4.2-minibatch.png",
            "NDCG@20 of the samplers with LightGCN compared with the published results",
        ),
        f"All metrics: {files_of(folder, 'lightgcn/*.md')}.",
    )


def _drawn(folder: Path) -> str:
    rows = read_csv(folder / "figure-4.4.csv")
    if not rows:
        return ""
    last = max(int(row["epoch"]) for row in rows)
    end = {row["method"]: row for row in rows if int(row["epoch"]) == last}
    cells = [
        [SAMPLERS.get(n, n), f"{float(r['tnr']):.1%}", number(r["inf"], 3)] for n, r in end.items()
    ]
    return join(
        "### What the samplers draw",
        "Share of true negatives among the sampled negatives, and their informativeness, in epoch "
        f"{last} (`figure-4.4`). Held-out positives count as false negatives.",
        table(["sampler", "true negatives", "informativeness"], cells),
        "Neither metric predicts the ranking of the samplers. Sampling by the posterior alone "
        "yields the most true negatives, but they are almost uninformative. SRNS samples the most "
        "informative negatives, yet they improve the model little.",
        picture(folder, "figure-4.4.png", "True negatives and informativeness over the epochs"),
    )


def _variants(folder: Path) -> str:
    rows = by_method(folder / "table-4.3-published.csv")
    said = {
        "bns-1": "BNS-1: λ decreases during training",
        "bns-2": "BNS-2: ten warm-up epochs with RNS",
        "bns-3": "BNS-3: uninformative prior",
        "bns-4": "BNS-4: occupations in the prior",
    }
    if not rows:
        return ""
    cells = [
        [said.get(n, SAMPLERS.get(n, n)), mean_of(r, NDCG, published=True)] for n, r in rows.items()
    ]
    return join(
        "### Variants of BNS",
        "`table-4.3`, published setting, published results in brackets.",
        table(["variant", "NDCG@20"], cells),
        "The popularity prior matters. An improvement by occupations is not confirmed.",
    )


def _oracle(folder: Path) -> str:
    rows = by_method(folder / "table-4.5-published.csv")
    if not rows:
        return ""
    cells = [
        [n.replace("|", "\\|"), mean_of(r, NDCG), number(r[f"{NDCG}_published"])]
        for n, r in rows.items()
    ]
    return join(
        "### What a perfect prior is worth",
        "`table-4.5`, published setting. The prior uses the test data. The stated prior is 0.64 "
        "for false and 0.04 for true negatives; the sharp prior is 0.001 for true negatives. "
        "\\|M\\| is the number of candidates.",
        table(["prior", "NDCG@20", "published"], cells),
        "The stated prior does not reproduce the published results. The sharp prior is close to "
        "them.",
    )


def _other_losses(folder: Path) -> str:
    rows = by_method(folder / "table-4.4-published.csv")
    others = by_method(folder / "table-5.3-minibatch.csv")
    if not rows:
        return ""
    cells = [[n.replace("+", " with "), mean_of(r, NDCG, published=True)] for n, r in rows.items()]
    parts = [
        "### With other losses",
        "`table-4.4`, published setting, published results in brackets. InfoNCE has two negatives.",
        table(["loss and sampler", "NDCG@20"], cells),
        _gain_by_loss(rows),
    ]
    if others:
        cells = [[n, mean_of(r, NDCG, published=True)] for n, r in others.items()]
        parts += [
            "`table-5.3`, minibatch: a better sampler compared with a loss that corrects for false "
            "negatives.",
            table(["method", "NDCG@20"], cells),
        ]
    return join(*parts)


def _gain_by_loss(rows: dict[str, Row]) -> str:
    gains = {
        loss: float(rows[f"{loss}+bns"][NDCG]) - float(rows[f"{loss}+rns"][NDCG])
        for loss in LOSSES
        if {f"{loss}+bns", f"{loss}+rns"} <= rows.keys()
    }
    said = ", ".join(f"{LOSSES[loss]} {gain:+.3f}" for loss, gain in gains.items())
    return f"Improvement of BNS over RNS: {said}.".replace("-", "−")


def _two_numbers(folder: Path) -> str:
    rows = read_csv(folder / "figure-4.5.csv")
    if not rows:
        return ""
    scores: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        key = row["parameter"], float(row["value"])
        scores.setdefault(key, []).append(float(row[NDCG]))
    names = {"gain": "λ", "risk_lambda": "λ", "size": "candidates"}
    cells = [
        [names.get(name, name), f"{value:g}", number(sum(found) / len(found))]
        for (name, value), found in sorted(scores.items())
    ]
    return join(
        "### The two numbers of BNS",
        "`figure-4.5`, published setting, mean over 5 seeds. With one candidate BNS reduces to "
        "RNS.",
        table(["parameter", "value", "NDCG@20"], cells),
    )


def _bold(text: str, yes: bool) -> str:
    return f"**{text}**" if yes else text
