"""Tests that examples in the README files run, and that public names are documented there."""

import ast
import csv
import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import crl_jax
from crl_jax import data, samplers

ROOT = Path(__file__).parents[1]
FRONT = ROOT / "README.md"
PACKAGES = ("models", "samplers", "stats", "tasks", "train")
PAGES = [FRONT, *(ROOT / f"{name}/README.md" for name in ("benchmarks/results", "experiments"))]
each_package = pytest.mark.parametrize("package", PACKAGES)

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def page_of(package):
    return Path(crl_jax.__file__).parent / package / "README.md"


def run(page: Path) -> dict[str, Any]:
    """Runs the examples of a page in order, in a shared namespace.

    Relative imports resolve as in a module of the page's package.
    """
    blocks = re.findall(r"^```(python|pycon)\n(.*?)^```$", page.read_text(), re.M | re.S)
    assert blocks
    names: dict[str, Any] = {"__name__": "__main__", "__package__": f"crl_jax.{page.parent.name}"}
    for kind, code in blocks:
        if kind == "python":
            exec(compile(code, str(page), "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(code, names, page.name, None, 0)
        assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
        names.update(test.globs)
    return names


def anchors(page):
    """Returns the anchors of a page: its headings, as GitHub converts them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_the_front_page_runs(tmp_path, monkeypatch, capsys):
    log = data.simulate(n_users=40, n_items=60, n_exposed=40, seed=3).interactions
    monkeypatch.chdir(tmp_path)
    with open("ratings.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "item"])
        rows.writerows((190 + u, i) for u, i in zip(log.users, log.items, strict=True))
    names = run(FRONT)
    assert np.isfinite(names["value"])
    assert np.isfinite(names["gradient"]).all()
    best = names["recommender"].recommend(196, k=10).items[0].tolist()
    had = names["split"].train
    own = had.items[had.indptr[had.user_index(196)] : had.indptr[had.user_index(196) + 1]]
    assert not set(best) & set(had.item_ids[own].tolist())
    assert "ndcg@20" in capsys.readouterr().out


@each_package
def test_examples_of_a_package_run(package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run(page_of(package))
    assert not list(tmp_path.iterdir())
    if package == "train":  # the custom task learns; a checkpoint is resumed
        assert names["fitted"].best_score[0] > 0.9
        np.testing.assert_array_equal(names["again"].run()["words"], names["first"].run()["words"])
    if package == "tasks":
        assert names["graph"].encoder.layer_weights == (0.25,) * 4
    if package == "samplers":
        taken = names["positives"].contains(names["users"], names["ids"])
        assert not taken.any()


@each_package
def test_a_page_names_everything_public(package):
    """Checks all public names except samplers, which the command line lists."""
    text = page_of(package).read_text()
    module = importlib.import_module(f"crl_jax.{package}")
    public = {
        n for n, thing in vars(module).items() if n[0] != "_" and not hasattr(thing, "__path__")
    }
    missing = {name for name in public if not re.search(rf"`{name}\b", text)}
    missing -= {s.__name__ for s in samplers.Sampler.__subclasses__()}
    assert not missing, f"{page_of(package)} names all but these"


def test_calls_in_the_table_of_samplers_are_right():
    """Checks that the arguments exist and that numbers are the defaults."""
    calls = re.findall(r"^\| `([\w.]+\(.*?\))`", page_of("samplers").read_text(), re.MULTILINE)
    assert len(calls) > 5
    for text in calls:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        taken = inspect.signature(eval(ast.unparse(call.func), vars(samplers))).parameters
        names = [place.id for place in call.args if isinstance(place, ast.Name)]
        assert names == list(taken)[: len(names)], text
        for argument in call.keywords:
            assert argument.arg in taken, text
            value = ast.literal_eval(argument.value)
            assert isinstance(value, str) or value == taken[argument.arg].default, text


def test_the_front_page_names_every_package():
    linked = set(re.findall(r"crl_jax/(\w+)/README.md", FRONT.read_text()))
    assert linked == {path.parent.name for path in ROOT.glob("crl_jax/*/__init__.py")}


@pytest.mark.parametrize(
    "page",
    [*PAGES, *map(page_of, ("data", "losses", *PACKAGES))],
    ids=lambda page: page.parent.name,
)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    links = [link for link in re.findall(r"\]\(\s*([^)\s]+)\s*\)", text) if "://" not in link]
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", [FRONT, *map(page_of, PACKAGES)], ids=lambda p: p.parent.name)
def test_every_row_has_all_cells(page):
    cells = 0
    for line in page.read_text().splitlines():
        count = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not cells or count in (0, cells), line
        cells = count
