"""Tests that the results page agrees with its result files and is up to date."""

import json
import shutil
from pathlib import Path

import pytest
from _helpers.refusals import raises

from benchmarks import results_page

ROOT = Path(__file__).parents[2]


def table_of(text, heading):
    """Returns the cells of the first table after a heading."""
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
    with raises(ValueError, match=r"README.md must have <!-- results -->"):
        results_page.write_front("# crl_jax\n", tmp_path)


def test_losses_on_several_datasets_stand_beside_their_published_numbers(copy):
    folder = copy / "benchmarks/results/comparisons"
    shutil.rmtree(folder, ignore_errors=True)
    head = "dataset,encoder,method,ndcg@20,ndcg@20_std,ndcg@20_published,gain,p_seeds,p_users"
    lines = [
        "ml-100k,mf,bpr,0.41,0.001,0.4,0.0,nan,nan",
        "ml-100k,mf,dpl,0.4345,0.002,0.44,0.0245,0.0001,0.04",
        "ml-1m,lightgcn,bpr,0.3,0.001,,0.0,nan,nan",
        "ml-1m,lightgcn,dcl,0.2,0.001,0.25,-0.1,0.2,nan",
    ]
    for dataset, name in (("ml-1m", "ml-1m-lightgcn"), ("ml-100k", "ml-100k")):
        (folder / name).mkdir(parents=True)
        own = [line for line in lines if line.startswith(dataset)]
        (folder / name / "table-5.2-minibatch.csv").write_text("\n".join([head, *own, ""]))
        (folder / name / "table-5.2-minibatch.png").touch()
    assert results_page.main([], copy) == 0
    text = (copy / "benchmarks/results/README.md").read_text()
    for name, said in (("ml-100k", "100K, MF,"), ("ml-1m-lightgcn", "1M, LightGCN,")):
        assert (
            f"![NDCG@20 on MovieLens {said} beside the published numbers]"
            f"(comparisons/{name}/table-5.2-minibatch.png)"
        ) in text
    assert table_of(text, "### Table 5.2")[2:] == [
        ["MovieLens 100K", "MF", "BPR", "0.4100 ± 0.0010 (0.4000)", "", "", ""],
        ["MovieLens 100K", "MF", "DPL", "0.4345 ± 0.0020 (0.4400)", "+0.0245", "< 0.001", "0.040"],
        ["MovieLens 1M", "LightGCN", "BPR", "0.3000 ± 0.0010", "", "", ""],
        [
            "MovieLens 1M",
            "LightGCN",
            "DCL",
            "0.2000 ± 0.0010 (0.2500)",
            "−0.1000",
            "0.200",
            "",
        ],
    ]
    below = text.partition("## Every method")[2].partition("\n## ")[0]
    assert "* MovieLens 100K, MF: DPL. Here too the random split" in below
    assert "* MovieLens 1M, LightGCN: DCL. The searches ended at the edge" in below
    assert "Table 6.3" not in text


def test_what_falls_short_of_its_published_figure_has_a_reason_or_none_was_found(copy):
    path = copy / "benchmarks/results/quality/quality.json"
    content = json.loads(path.read_text())
    bpr, dpl = (next(r for r in content["rows"] if r["loss"] == name) for name in ("bpr", "dpl"))
    bpr["ndcg@20"] = 0.9 * bpr["published"]
    dpl["ndcg@20"] = 0.995 * dpl["published"]
    path.write_text(json.dumps(content))
    assert results_page.main([], copy) == 0
    text = (copy / "benchmarks/results/README.md").read_text()
    section = text.partition("## Every method beside")[2].partition("\n## ")[0]
    rows = {tuple(row[:2]): row[-1] for row in table_of(section, "figure")}
    assert rows["BPR", "MovieLens 100K, MF, its split, searched"] == "−10.0%"
    assert rows["debiased pairwise (DPL)", "MovieLens 100K, MF, its split, searched"] == "−0.5%"
    (line,) = [x for x in section.splitlines() if "The reason was not found" in x]
    assert "MovieLens 100K, MF: BPR" in line
    assert "DPL" not in line
    assert "SRNS. It has the settings of its authors' code." in section
