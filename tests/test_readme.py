"""Examples in the README files run, and the tables there name what is public."""

import ast
import csv
import doctest
import importlib
import inspect
import json
import re
import shlex
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import jax
import numpy as np
import pytest

from crl_jax import data, metrics, samplers, serving, train
from crl_jax.data import _splits
from crl_jax.data._readers import Format
from crl_jax.metrics import _evaluate, _ranking
from experiments._recommend import Recommend
from experiments._study_command import configure
from experiments.recommend import main as recommend

ROOT = Path(__file__).parents[1]
FRONT = ROOT / "README.md"
PAGES = {path.parent.name: path for path in sorted(ROOT.glob("crl_jax/*/README.md"))}
EXAMPLES = {name: path for name, path in PAGES.items() if name != "kernels"}
TABLES = ("augment", "losses", "weights")  # name functions in the first cells of their tables
ALL = {
    "front": FRONT,
    **PAGES,
    **{name: ROOT / name / "README.md" for name in ("benchmarks/results", "experiments")},
}
each_page = pytest.mark.parametrize("page", ALL.values(), ids=ALL)
each_package = pytest.mark.parametrize("package", EXAMPLES)

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def run(page: Path) -> dict[str, Any]:
    """Runs the examples of a page in order, in a shared namespace.

    Relative imports resolve as in a module of the page's package.
    """
    blocks = re.findall(r"^```(?:python|pycon)\n(.*?)^```$", page.read_text(), re.M | re.S)
    assert blocks
    names: dict[str, Any] = {"__name__": "__main__", "__package__": f"crl_jax.{page.parent.name}"}
    for code in blocks:
        if not code.startswith(">>>"):
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


# The front page's training in Python, as flags.
OF_FRONT = """--data ratings.csv --valid-fraction 0.1 --loss dpl --tau-plus 0.05 --n-neg 5 --n-pos 5
--dim 32 --lr 1e-3 --weight-decay 1e-5 --l2-target tables --schedule step --decay 0.1 --epochs 200
--patience 50 --batch-size 1024 --tune 0 --baselines none --out runs/mine"""


def test_the_front_page_runs(tmp_path, monkeypatch, capsys):
    """Its Python code scores as the command with the same settings does."""
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
    assert not set(best) & set(known_items(names["split"].train, 196))
    found = dict(re.findall(r"'([\w@]+)': ([\d.e-]+)", capsys.readouterr().out))
    command = re.search(r"python -m experiments\.recommend (--data .*)", FRONT.read_text())
    assert command is not None
    study = Recommend()
    study.check(configure(study, shlex.split(command[1], comments=True))[0])
    assert recommend(OF_FRONT.split()) == 0
    metrics = json.loads(Path("runs/mine/metrics.json").read_text())
    shared = found.keys() & metrics.keys()
    assert {"ndcg@20", "recall@5", "auc"} <= shared
    for name in shared:
        assert float(found[name]) == pytest.approx(metrics[name], rel=1e-4), name


def known_items(log, user):
    place = log.user_index(user)
    return log.item_ids[log.items[log.indptr[place] : log.indptr[place + 1]]].tolist()


NOT_TRAINED = {  # tasks that the page on tasks builds without training, and their data there
    **dict.fromkeys(["queued", "noisy", "byol", "pcl"], "samples"),
    **dict.fromkeys(["supervised", "oracle"], "labelled"),
    **dict.fromkeys(["siglip", "debiased"], "pairs"),
    "punce": "some",
    "simcse": "texts",
    "triplets": "queries",
}


def trace_epoch(task, source, optimizer, config):
    """Traces an epoch of training without compiling it."""
    batches = source if hasattr(source, "epoch") else train.ArrayBatches(source)

    def epoch(seed):
        state = train.initial_state(task, optimizer, seed=seed)
        steps = batches.epoch(state.key, config)
        return train.run_steps(task, optimizer, state, steps, config=config, data=batches.data)

    jax.eval_shape(epoch, 0)


@pytest.mark.slow
@each_package
def test_examples_of_a_package_run(package, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(data.DATASETS), mock.patch.dict(data.IMAGE_SETS):
        names = run(PAGES[package])
    written = sorted(path.name for path in tmp_path.iterdir())
    match package:
        case "train":  # the custom task learns; a checkpoint is resumed
            assert names["fitted"].best_score[0] > 0.9
            words = [names[name].run()["words"] for name in ("first", "again")]
            np.testing.assert_array_equal(*words)
        case "tasks":
            for name, source in NOT_TRAINED.items():
                trace_epoch(names[name], names[source], names["optimizer"], names["config"])
        case "samplers":
            assert not names["positives"].contains(names["users"], names["ids"]).any()
        case "serving":
            vectors = ["vectors.npz", "vectors.parquet", "vectors.safetensors"]
            assert written == ["ease.npz", "runs", *vectors]
            assert isinstance(names["baseline"], serving.BaselineRecommender)
            assert len(capsys.readouterr().out.splitlines()) == 2
            assert len(names["everyone"]) == names["log"].n_users
            assert set(names["few"].items[0].tolist()) <= {*range(100, 120), -1}
            assert not {7, 8} & set(names["some"].items.ravel().tolist())
            assert not {*known_items(names["log"], 17)} & {*names["best"].items[0].tolist()}
            assert names["several"].users.tolist() == ["ann", "bob"]
    assert package == "serving" or not written


@each_package
def test_a_page_names_everything_public(package):
    """Checks all public names except samplers, which the command line lists."""
    text = PAGES[package].read_text()
    module = importlib.import_module(f"crl_jax.{package}")
    public = {
        name
        for name, thing in vars(module).items()
        if name[0] != "_" and not hasattr(thing, "__path__")
    }
    missing = {name for name in public if not re.search(rf"[`.]{name}\b", text)}
    missing -= {sampler.__name__ for sampler in samplers.Sampler.__subclasses__()}
    assert not missing, f"{PAGES[package]} names all but these"


@pytest.mark.parametrize("package", TABLES)
def test_tables_name_public_functions_once(package):
    module = importlib.import_module(f"crl_jax.{package}")
    public = {name for name, thing in vars(module).items() if name[0] != "_" and callable(thing)}
    first_cells = re.findall(r"^\| ([^|]+) \|", PAGES[package].read_text(), re.MULTILINE)
    named = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert len(named) == len(set(named)), "a name is listed twice"
    assert set(named) <= public, f"the tables of {package}/README.md name what is not exported"
    assert len(named) > 0.8 * len(public), "the tables give an overview"


def test_calls_in_the_table_of_samplers_are_right():
    """Checks that the arguments exist and that numbers are the defaults."""
    calls = re.findall(r"^\| `([\w.]+\(.*?\))`", PAGES["samplers"].read_text(), re.MULTILINE)
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


def test_the_table_of_metrics_has_every_one_with_its_function():
    text = PAGES["metrics"].read_text()
    rows = re.findall(r"^\| `(\w+)(?:@k)?` \| (?:`(\w+)` )?\|", text, re.MULTILINE)
    told = dict(rows)
    for name, function in _evaluate._METRICS.items():
        assert told.pop(name) == function.__name__
    assert told == {"coverage": "", "auc": "auc"}
    public = {n for n, f in vars(_ranking).items() if inspect.isfunction(f) and n[0] != "_"}
    assert public - {"at_least_float32", "check_shape"} == {f for _, f in rows if f}
    assert public <= {*vars(metrics), "at_least_float32", "check_shape"}


def test_the_page_on_data_names_every_dataset_format_option_and_split():
    text = PAGES["data"].read_text()
    for name in data.DATASETS:
        assert all(part in text for part in name.split(":")), name
    for name in get_args(Format):
        assert name in text.lower(), name
    for name, rule in vars(_splits).items():
        if inspect.isfunction(rule) and rule.__module__ == _splits.__name__ and name[0] != "_":
            assert f"`{name}`" in text, name
    section = text[text.index("\n## Images\n") :]
    named = (*data.IMAGE_SETS, "digits", "tfds:NAME", "ImageSplit", "unlabelled", "size", "keep")
    for name in named:
        assert re.search(rf"`[^`\n]*{name}[^`\n]*`", section), name


def test_the_front_page_names_every_package():
    linked = set(re.findall(r"crl_jax/(\w+)/README.md", FRONT.read_text()))
    assert linked == {path.parent.name for path in ROOT.glob("crl_jax/*/__init__.py")}


@each_page
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    links = [link for link in re.findall(r"\]\(\s*([^)\s]+)\s*\)", text) if "://" not in link]
    for link in links:
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@each_page
def test_every_row_has_all_cells(page):
    cells = 0
    for line in page.read_text().splitlines():
        count = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not cells or count in (0, cells), line
        cells = count
