"""Tests that the tables of the results pages agree with the result files."""

import csv
import itertools
import re
import shutil
import statistics
from pathlib import Path

import pytest
from _helpers.refusals import raises

from benchmarks import results_page

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?")
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
TABLES = [
    (page, *match.groups())
    for page in PAGES
    for match in re.finditer(r"<!-- table: (.*?) -->\n(.*?)<!-- end", page.read_text(), re.DOTALL)
]


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(RESULTS, tmp_path / "benchmarks" / "results")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("_*"))
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def test_the_pages_are_up_to_date():
    assert results_page.main(["--check"]) == 0


def values_in(definition):
    """Returns all numbers of the files of a table, and differences from published numbers."""
    found = set()
    for path in itertools.chain.from_iterable(
        RESULTS.glob(name) for name in definition.partition(" | ")[0].split()
    ):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            numbers = {k: float(v) for k, v in row.items() if NUMBER.fullmatch(v)}
            found.update(numbers.values())
            found.update(
                value / numbers[f"{name}_published"] - 1
                for name, value in numbers.items()
                if f"{name}_published" in numbers
            )
        if path.name == "fold_in.csv":
            groups = {}
            for row in rows:
                groups.setdefault((row["similarity"], row["method"]), []).append(row["ndcg@20"])
            found.update(statistics.mean(map(float, group)) for group in groups.values())
    return found


@pytest.mark.parametrize(
    ("page", "definition", "table"), TABLES, ids=[" ".join(t[1].split())[:60] for t in TABLES]
)
def test_every_number_of_a_table_is_in_its_files(page, definition, table):
    values, checked = values_in(definition), 0
    for line in table.splitlines()[2:]:
        cells = line.replace("< 0.001", "").strip("| ").split(" | ")
        for text in re.findall(r"[+−]?\d[\d,]*\.?\d*%?", " ".join(cells[1:])):
            number = re.sub(r"[+,%]", "", text).replace("−", "-").rstrip(".")
            scale, digits = 100 if "%" in text else 1, len(number.partition(".")[2])
            error = max(0.51 * 10**-digits, 1e-7 * abs(float(number))) / scale
            assert any(abs(float(number) / scale - v) <= error for v in values), (line, text)
            checked += 1
    assert checked


def test_changed_result_updates_pages(copy, capsys):
    path = copy / "benchmarks/results/quality/losses.csv"
    text = path.read_text()
    (row,) = (
        row
        for row in csv.DictReader(text.splitlines())
        if (row["encoder"], row["loss"]) == ("mf", "info_nce")
    )
    assert text.count(row["ndcg@20"]) == 1
    path.write_text(text.replace(row["ndcg@20"], "0.9876543"))
    assert results_page.main(["--check"], copy) == 1
    assert capsys.readouterr().out.count("is not up to date") >= 2
    assert results_page.main([], copy) == 0
    for page in ("README.md", "docs/benchmarks.md"):
        shown = f"| InfoNCE | 0.9877 ± {float(row['ndcg@20_std']):.4f} (0.4118"
        assert shown in (copy / page).read_text()
    assert results_page.main(["--check"], copy) == 0


LOG = """\
dataset,method,seed,x,x_std,x_published,gain,p
ml-100k,bpr,0,0.25,0.001,0.2,0.0,nan
ml-100k,bpr,1,0.75,0.001,0.2,0.0,nan
ml-1m,bpr,0,0.5,0.001,,0.0,nan
ml-1m,dpl,0,0.4,0.003,0.5,-0.1,0.0001
ml-1m,hcl,2,0.4,nan,0.5,0.0,nan
ml-1m,bcl,2,0.4,nan,,0.0,nan
"""


@pytest.mark.parametrize(
    ("definition", "lines"),
    [
        ("where seed = 0 | of: {dataset}, {method} | x: {x:published} | gain: {gain:+.1f} ({p:p})",
         ["| of | x | gain |",
          "| MovieLens 100K, BPR | 0.2500 ± 0.0010 (0.2000, +25.0%) | |",
          "| MovieLens 1M, BPR | 0.5000 ± 0.0010 | |",
          "| MovieLens 1M, DPL | 0.4000 ± 0.0030 (0.5000, −20.0%) | −0.1 (< 0.001) |"]),
        ("where seed = 2 | of: {method} | x: {x:published}",
         ["| of | x |", "| HCL | 0.4000 (0.5000, −20.0%) |", "| BCL | 0.4000 |"]),
        ("where method = bpr|dpl | method: {method} | across {dataset}: {x:.2f}",
         ["| method | MovieLens 100K | MovieLens 1M |",
          "| BPR | 0.50 | 0.50 |",
          "| DPL | | 0.40 |"]),
    ],
)  # fmt: skip
def test_table_renders_definition(definition, lines, tmp_path):
    (tmp_path / "log.csv").write_text(LOG)
    head, *rows = results_page.table(f"log.csv | {definition}", tmp_path).splitlines()
    assert [head, *rows[1:]] == lines


@pytest.mark.parametrize(
    ("definition", "message"),
    [("y: {y}", "log.csv has no column y"), ("where seed = 7 | x: {x}", "no rows for the table")],
)
def test_rejects_table_without_column_or_rows(definition, message, tmp_path):
    (tmp_path / "log.csv").write_text(LOG)
    with raises(ValueError, match=message):
        results_page.table(f"log.csv | {definition}", tmp_path)
