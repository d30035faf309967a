"""Generates the results pages from the files in ``benchmarks/results``.

Every number in ``benchmarks/results/README.md``, and in the table of the front page, comes from a
file next to that page. Missing results are omitted.

    python -m benchmarks.results_page
    python -m benchmarks.results_page --check
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from ._results_comparisons import comparisons
from ._results_estimators import estimators
from ._results_images import images
from ._results_positives import positives
from ._results_published import published
from ._results_punce import punce
from ._results_quality import LOSSES, NDCG, graph, loss_rows, losses, samplers
from ._results_representations import representations
from ._results_speed import speed
from ._results_speed_scale import at_scale
from ._results_speed_training import training_ratios
from ._results_standard import standard
from ._results_tables import by_method, join, mean_of, number, table

ROOT = Path(__file__).parents[1]
FRONT = re.compile(r"(<!-- results -->\n).*?(<!-- end results -->)", re.DOTALL)
INTRODUCTION = """# Results

`python -m benchmarks.results_page` generates this page from the files in this folder. Do not edit.

"Published" results are from the dissertation *Contrastive Learning for Personalized
Recommendation* (Huazhong University of Science and Technology). Results of
crl_jax are mean ± standard deviation. The tables include no results on GPU or TPU."""


def page(results: Path) -> str:
    """Returns the page for a folder of results."""
    sections = [
        write(results)
        for write in (
            published,
            losses,
            graph,
            standard,
            comparisons,
            images,
            representations,
            samplers,
            positives,
            estimators,
            punce,
            speed,
        )
    ]
    return join(INTRODUCTION, *sections) + "\n"


def front(results: Path) -> str:
    """Returns the table of the front page and its statement about speed."""
    on_graph = {row["loss"]: row for row in loss_rows(results, "lightgcn.json")}
    cells = [
        [LOSSES[row["loss"]], *_scored(row), *_scored(on_graph.get(row["loss"]))]
        for row in loss_rows(results)
    ]
    sampler = by_method(results / "samplers" / "table-4.2-minibatch.csv").get("bns, eCDF of 64")
    if sampler:
        cells.append(
            ["BPR with Bayesian negative sampling (BNS)", mean_of(sampler, NDCG), "", "", ""]
        )
    times = [
        f"{loss.upper()} {ours:.1f} ms (PyTorch: {eager:.1f} times as long in eager mode, "
        f"{compiled:.1f} times compiled)"
        for loss, ours, eager, compiled in training_ratios(results)
    ]
    said = (
        f"An epoch of MovieLens 100K on two CPU cores takes: {'; '.join(times)}." if times else ""
    )
    heads = ["trained with", "matrix factorisation", "published", "LightGCN", "published"]
    return join(table(heads, cells) if cells else "", said, at_scale(results))


def _scored(row: dict[str, Any] | None) -> list[str]:
    """Returns our number and the published one; empty strings if there is no run."""
    if row is None:
        return ["", ""]
    return [f"{number(row[NDCG])} ± {number(row['std'])}", number(row["published"])]


def write_front(readme: str, results: Path) -> str:
    """Returns the front page with an updated table.

    Raises:
      ValueError: If the page has no markers for the table.
    """
    if not FRONT.search(readme):
        raise ValueError("README.md must have <!-- results --> and <!-- end results -->.")
    return FRONT.sub(lambda m: f"{m[1]}{front(results)}\n{m[2]}", readme)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Writes the pages, or with ``--check`` returns 1 if they are not up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    check = parser.parse_args(arguments).check
    results, readme = root / "benchmarks" / "results", root / "README.md"
    wanted = {results / "README.md": page(results)}
    wanted[readme] = write_front(readme.read_text(encoding="utf-8"), results)
    stale = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        if check:
            print(f"{path.relative_to(root)} is not up to date: python -m benchmarks.results_page")
        else:
            path.write_text(wanted[path], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
