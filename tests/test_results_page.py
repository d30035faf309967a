"""The page of results says what the files beside it say, and is up to date."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import results_page

ROOT = Path(__file__).parents[1]


def table_of(text, heading):
    """The cells of the first table after a heading."""
    lines = text.partition(heading)[2].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "benchmarks" / "results")
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def test_the_pages_are_up_to_date():
    assert results_page.main(["--check"]) == 0


def test_another_number_in_a_file_shows(copy, capsys):
    assert results_page.main([], copy) == 0
    assert results_page.main(["--check"], copy) == 0
    path = copy / "benchmarks/results/quality/quality.json"
    content = json.loads(path.read_text())
    row = next(row for row in content["rows"] if row["loss"] == "info_nce")
    row["ndcg@20"], row["std"] = 0.98765, 0.00012
    path.write_text(json.dumps(content))
    assert results_page.main(["--check"], copy) == 1
    assert "README.md is not up to date" in capsys.readouterr().out
    assert results_page.main([], copy) == 0
    for page, heading in (
        ("README.md", "## Results"),
        ("benchmarks/results/README.md", "## Losses"),
    ):
        cells = table_of((copy / page).read_text(), heading)
        assert any("0.9877 ± 0.0001" in cell for row in cells for cell in row), page
    assert results_page.main(["--check"], copy) == 0


def test_what_is_missing_is_left_out(copy):
    shutil.rmtree(copy / "benchmarks/results/samplers")
    (copy / "benchmarks/results/training.json").unlink()
    assert results_page.main([], copy) == 0
    text = (copy / "benchmarks/results/README.md").read_text()
    assert "## Negative samplers" not in text
    assert "## Losses" in text
    assert "An epoch of training" not in text
    assert (
        "BNS"
        not in (copy / "README.md").read_text().partition("## Results")[2].partition("<!-- end")[0]
    )


def test_nothing_but_an_introduction_comes_of_nothing(tmp_path):
    assert results_page.page(tmp_path).strip() == results_page.INTRODUCTION.strip()
    assert results_page.front(tmp_path) == ""


def test_a_front_page_without_a_place_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"README.md must have <!-- results -->"):
        results_page.write_front("# crl_jax\n", tmp_path)
