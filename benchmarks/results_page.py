"""Rewrites the tables of the documentation from the CSV files in ``benchmarks/results``.

A table is between two comments. The first one names the files and defines the columns:

    <!-- table: comparisons/*/table-5.2-minibatch.csv | where encoder = mf | loss: {method} |
    across {dataset}: {ndcg@20:published} -->
    <!-- end table -->

* ``HEADER: TEMPLATE`` defines a column by a format string over the columns of the files. The format
  ``p`` is that of p-values, ``std`` adds the standard deviation ``X_std``, and ``published`` also
  ``X_published`` and the relative difference from it, which is ``X_difference`` alone. Missing
  values, and differences of 0 in a format with sign, become empty.
* ``across HEADER: TEMPLATE`` adds a column for each value of the header, which is a template as
  well. Numbers of several rows that belong to one cell are averaged.
* ``where COLUMN = PATTERN`` keeps the rows whose value matches a regular expression.

A table of the items of a source, or of their numbers by state, is between

    <!-- sources: 4 -->
    <!-- end sources -->

with a key of :data:`experiments.reproduce.sources.SOURCES`, or ``counts``.

    python -m benchmarks.results_page
    python -m benchmarks.results_page --check
"""

import argparse
import math
import re
import string
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.reproduce import sources

from ._report import one_line_errors, read_csv

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end table -->)", re.DOTALL)
LEDGER = re.compile(r"(<!-- sources: (\w+) -->\n).*?(<!-- end sources -->)", re.DOTALL)
FILES = "https://github.com/crl-jax/crl_jax/blob/main/benchmarks/results"
FORMATS = {
    "std": "{X:.4f} ± {X_std:.4f}",
    "published": "{X:.4f} ± {X_std:.4f} ({X_published:.4f}, {X_difference:+.1%})",
}
NAMES = {
    "ml-100k": "MovieLens 100K", "ml-1m": "MovieLens 1M", "gowalla": "Gowalla",
    "yelp2018": "Yelp2018", "IMDBBINARY": "IMDB-BINARY", "flickr8k": "Flickr8k",
    "mf": "MF", "lightgcn": "LightGCN",
    "bpr": "BPR", "bce": "BCE", "gbce": "gBCE", "info_nce": "InfoNCE", "softmax": "full softmax",
    "dcl": "DCL", "hcl": "HCL", "dpl": "DPL",
    "bcl": "BCL", "debiased": "DCL", "hard": "HCL", "bayesian": "BCL", "bsl": "BSL",
    "bayesian_hard": "BCL, β = 0.9", "simclr": "InfoNCE", "clip": "InfoNCE (CLIP)",
    "siglip": "sigmoid (SigLIP)", "none": "fine-tuning alone",
    "none_longer": "fine-tuning alone, 11 epochs",
    "rns": "RNS", "pns": "PNS", "aobpr": "AOBPR, λ = 500", "dns": "DNS, m = 2", "srns": "SRNS",
    "bns": "BNS, exact eCDF", "bns, eCDF of 64": "BNS, eCDF of 64 items",
    "posterior only": "largest posterior (4.29)",
    "bns, eCDF of the batch": "BNS, eCDF of the batch",
    "bpr+rns": "BPR, RNS", "bpr+bns": "BPR, BNS", "bce+rns": "BCE, RNS", "bce+bns": "BCE, BNS",
    "info_nce+rns": "InfoNCE, RNS", "info_nce+bns": "InfoNCE, BNS",
    "dpl+hard": "DPL, hard negatives",
    "biased": "biased mean", "bcl_normalised": "BCL, weights normalised to average 1",
    "bcl_auc": "BCL with the AUC as α",
    "linear": "accuracy", "pu_auc": "AUC", "supcon": "SupCon, one class per unlabelled image",
    "supcon_negative": "SupCon, unlabelled images in one class", "punce": "puNCE, prior π",
    "punce_half": "puNCE, prior π / 2", "punce_more": "puNCE, prior 1.5 π",
    "inner": "inner products (BPR)", "cosine": "cosines (InfoNCE)", "torch": "PyTorch",
    "simulate": "write the shards", "load": "read Parquet", "load CSV": "read CSV",
    "train": "an epoch of Adam", "train SGD": "an epoch of SGD",
    "recommend": "recommend to all users",
    "samplers/table-4.2-published": "published setting",
    "samplers/batch/table-4.2-published": "published setting",
    "samplers/table-4.2-minibatch": "minibatch",
    "samplers/lightgcn/table-4.2-published": "LightGCN, published setting",
    "samplers/lightgcn/table-4.2-minibatch": "LightGCN, minibatch",
    "samplers/lightgcn/aobpr/table-4.2-minibatch": "LightGCN, minibatch",
    "bns-1": "BNS-1: λ decreases during training", "bns-2": "BNS-2: ten warm-up epochs with RNS",
    "bns-3": "BNS-3: uninformative prior", "bns-4": "BNS-4: occupations in the prior",
    "reweighted bpr": "DenoiseRec (reweighted BPR)", "gbpr": "GBPR", "bprac": "BPRAC",
    "tnews": "TNEWS", "bert": "BERT", "conbert-1": "ConBERT, 1 epoch",
    "conbert-3": "ConBERT, 3 epochs", "conbert-5": "ConBERT, 5 epochs",
    "representations/texts": "scratch", "representations/weights": "MiniLM",
    "xsimgcl": "BPR with XSimGCL",
    "gowalla-hard": "MF with HCL", "yelp2018-lightgcn-bsl": "LightGCN with BSL",
    "ChebyCF + gowalla-hard": "the sum", "BSPM + yelp2018-lightgcn-bsl": "the sum",
}  # fmt: skip
"""Display names of the values in the files."""
Row = dict[str, Any]


class _Cell(string.Formatter):
    """Formats the values of a row; ``has_value`` is whether any value is present."""

    has_value = False

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Any) -> Any:
        """Returns a value, an empty string if it is missing."""
        name = str(key)
        if name.endswith("_difference"):
            base = name.removesuffix("_difference")
            published = kwargs.get(f"{base}_published")
            return float(kwargs[base]) / float(published) - 1 if published else ""
        return kwargs.get(name, "")

    def format_field(self, value: Any, format_spec: str) -> str:
        """Formats a number, or replaces a text by its display name."""
        if not format_spec:
            text = NAMES.get(value, str(value))
        elif value in ("", None) or math.isnan(number := float(value)):
            text = ""
        elif format_spec == "p":
            text = "< 0.001" if number < 0.001 else f"{number:.3f}"
        else:
            is_zero = "+" in format_spec and number == 0
            text = "" if is_zero else format(number, format_spec).replace("-", "−")
        self.has_value |= bool(text)
        return text


def cell(template: str, row: Row) -> str:
    """Returns a cell without the punctuation around missing values."""
    formatter = _Cell()
    text = formatter.vformat(template, (), row)
    if not formatter.has_value and "{" in template:
        return ""
    text = re.sub(r" ± (?= \(|$)", "", text)  # of a single seed
    return re.sub(r" ?\([,; ]*\)", "", re.sub(r"[,;] \)", ")", text)).strip(",; ")


def mean(rows: Sequence[Row]) -> Row:
    """Averages the numeric columns of rows; the others are those of the first row."""
    if len(rows) == 1:
        return rows[0]
    averaged = dict(rows[0])
    for name in averaged:
        try:
            averaged[name] = math.fsum(float(row[name]) for row in rows) / len(rows)
        except ValueError:
            continue
    return averaged


def table(definition: str, results: Path) -> str:
    """Returns a Markdown table.

    Raises:
      ValueError: If no file or row matches, or a template has an unknown column.
    """
    for name, expansion in FORMATS.items():
        definition = re.sub(
            rf"{{([^{{}}:]+):{name}}}",
            lambda m, expansion=expansion: expansion.replace("X", m[1]),
            definition,
        )
    file_patterns, *lines = re.split(r" \| ", " ".join(definition.split()))
    paths = [path for pattern in file_patterns.split() for path in sorted(results.glob(pattern))]
    rows = [
        {"file": path.relative_to(results).with_suffix("").as_posix(), **row}
        for path in paths
        for row in read_csv(path)
    ]
    columns = [line.partition(": ")[::2] for line in lines if not line.startswith("where ")]
    for line in lines:
        if line.startswith("where "):
            name, _, pattern = line.removeprefix("where ").partition(" = ")
            rows = [row for row in rows if re.fullmatch(pattern, row.get(name, ""))]
    if not rows:
        raise ValueError(f"no rows for the table of {file_patterns}")
    known_columns = set().union(*rows)
    for _, name, _, _ in string.Formatter().parse("".join(map("".join, columns))):
        if name and name.removesuffix("_difference") not in known_columns:
            raise ValueError(f"{file_patterns} has no column {name}")
    fixed_columns = [pair for pair in columns if not pair[0].startswith("across ")]
    across_columns = [(h.removeprefix("across "), t) for h, t in columns if h.startswith("across ")]
    groups: dict[tuple[str, ...], dict[tuple[str, str], list[Row]]] = {}
    for row in rows:
        group = groups.setdefault(tuple(cell(template, row) for _, template in fixed_columns), {})
        for header, template in across_columns:
            group.setdefault((cell(header, row), template), []).append(row)
    heads = list(dict.fromkeys(head for group in groups.values() for head in group))
    cells = [[header for header, _ in fixed_columns] + [header for header, _ in heads]]
    cells.append(["---"] * len(cells[0]))
    for key, group in groups.items():
        values = (cell(head[1], mean(group[head])) if head in group else "" for head in heads)
        cells.append([*key, *values])
    return _markdown(cells)


def _markdown(cells: Sequence[Sequence[str]]) -> str:
    return "".join(
        "|" + "|".join(f" {x} ".replace("|", "\\|") if x else " " for x in line) + "|\n"
        for line in cells
    )


def ledger(key: str, results: Path) -> str:
    """Returns a Markdown table of the items of a source, or with ``counts`` of their numbers.

    Raises:
      ValueError: If there is no such source, or no file for a pattern of results.
    """
    states = sources.STATES
    if key == "counts":
        cells = [["source", "items", *states], ["---", *["--:"] * (1 + len(states))]]
        for source, title in sources.SOURCES.items():
            item_states = [item.state for item in sources.select([source])]
            cells.append(
                [
                    title,
                    str(len(item_states)),
                    *(str(item_states.count(state) or "") for state in states),
                ]
            )
        return _markdown(cells)
    cells = [["place", "item", "state", "where"], ["---"] * 4]
    for item in sources.select([key]):
        where = [f"`{name}`" for name in item.code]
        where += [f"`{item.command}`"] if item.command else []
        where += [_link(path, results) for path in sources.files(item, results)]
        state = f"**{item.state}**" if item.state != "reproduced" else item.state
        note = f": {item.note}" if item.note else ""
        cells.append([item.place, item.item, state + note, ", ".join(where)])
    return _markdown(cells)


def _link(path: Path, results: Path) -> str:
    """Returns a link to the figure of a result file, to its table, or to itself."""
    target = next(
        (p for suffix in (".md", ".png") if (p := path.with_suffix(suffix)).exists()), path
    )
    return f"[{path.stem}]({FILES}/{target.relative_to(results).as_posix()})"


def rewrite(page: str, results: Path) -> str:
    """Returns a page with updated tables."""
    page = LEDGER.sub(lambda m: f"{m[1]}{ledger(m[2], results)}{m[3]}", page)
    return TABLE.sub(lambda m: f"{m[1]}{table(m[2], results)}{m[3]}", page)


@one_line_errors
def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Writes the pages, or with ``--check`` returns 1 if they are not up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    check = parser.parse_args(arguments).check
    results, stale = root / "benchmarks" / "results", 0
    for path in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        if (new := rewrite(text, results)) == text:
            continue
        stale += 1
        if check:
            print(f"{path.relative_to(root)} is not up to date: python -m benchmarks.results_page")
        else:
            path.write_text(new, encoding="utf-8")
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
