"""Checks the examples, commands, links and tables of the documentation."""

import ast
import importlib
import importlib.util
import inspect
import re
import shlex
from pathlib import Path
from typing import get_args
from unittest import mock

import jax
import numpy as np
import pytest
import tyro
from _helpers.commands import forget_own
from _helpers.modalities import MODALITIES
from _helpers.pages import (
    DOCS,
    FRONT,
    ROOT,
    anchors,
    blocks,
    is_notebook,
    known_items,
    pages,
    run,
    without_code,
)

from crl_jax import data, metrics, samplers, serving, train
from crl_jax.data import _splits
from crl_jax.data._readers import Format
from crl_jax.metrics import _evaluate, _ranking
from experiments._study_command import configure
from experiments.calibration import _options as calibration_options
from experiments.numerical import _options as numerical_options
from experiments.recommend._study import Recommend
from experiments.recommend._topk import TopK
from experiments.recommend.objectives import OBJECTIVES
from experiments.reproduce import command as reproduce

PACKAGES = sorted(path.parent.name for path in ROOT.glob("crl_jax/*/__init__.py"))
GUIDE = {name: DOCS / "guide" / f"{name}.md" for name in PACKAGES}
EXAMPLES = [name for name in PACKAGES if name != "kernels"]
TABLES = ("augment", "losses", "weights")  # the first cells of their tables name functions
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
STUBS = [*ROOT.glob("crl_jax/*/README.md"), *ROOT.glob("experiments/**/README.md")]
# The tests of the commands run the code and parse the commands of these pages.
TESTED_ELSEWHERE = ("commands", "scale", "modalities/images", "modalities/graphs",
                    "modalities/text", "modalities/pairs", "modalities/sequences")  # fmt: skip
PAGES = pages()
OTHERS = {
    name: page
    for name, page in PAGES.items()
    if name not in TESTED_ELSEWHERE and page not in GUIDE.values() and not is_notebook(page)
}
WITH_EXAMPLES = {name: page for name, page in OTHERS.items() if blocks(page, "python", "pycon")}
each_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
each_package = pytest.mark.parametrize("package", EXAMPLES)

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


@pytest.mark.parametrize("page", WITH_EXAMPLES.values(), ids=WITH_EXAMPLES)
def test_page_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(data.DATASETS), mock.patch.dict(data.IMAGE_SETS):
        run(page)


NOT_TRAINED = {  # tasks that the guide builds but does not train, with their data
    **dict.fromkeys(["queued", "noisy", "byol", "pcl"], "samples"),
    **dict.fromkeys(["supervised", "oracle"], "labelled"),
    **dict.fromkeys(["siglip", "debiased"], "pairs"),
    "punce": "partly_labelled",
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
def test_package_examples_run(package, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(data.DATASETS), mock.patch.dict(data.IMAGE_SETS):
        names = run(GUIDE[package])
    written = sorted(path.name for path in tmp_path.iterdir())
    match package:
        case "train":  # the custom task learns; a checkpoint is resumed
            assert names["fitted"].best_score[0] > 0.9
            words = [names[name].get_params()["words"] for name in ("first", "again")]
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
            assert len(capsys.readouterr().out.splitlines()) == 3
            assert len(names["lists"]) == names["log"].n_users
            assert set(names["few"].items[0].tolist()) <= {*range(100, 120), -1}
            assert not {7, 8} & set(names["filtered"].items.ravel().tolist())
            assert not {*known_items(names["log"], 17)} & {*names["best"].items[0].tolist()}
            assert names["several"].users.tolist() == ["ann", "bob"]
    assert package == "serving" or not written


@each_package
def test_guide_names_all_public_names(package):
    """Checks all public names except samplers, which the command line lists."""
    text = GUIDE[package].read_text()
    module = importlib.import_module(f"crl_jax.{package}")
    public = {
        name
        for name, thing in vars(module).items()
        if name[0] != "_" and not hasattr(thing, "__path__")
    }
    missing = {name for name in public if not re.search(rf"[`.]{name}\b", text)}
    missing -= {sampler.__name__ for sampler in samplers.Sampler.__subclasses__()}
    assert not missing, f"{GUIDE[package]} names all but these"


@pytest.mark.parametrize("package", TABLES)
def test_tables_list_public_functions_once(package):
    module = importlib.import_module(f"crl_jax.{package}")
    public = {name for name, thing in vars(module).items() if name[0] != "_" and callable(thing)}
    first_cells = re.findall(r"^\| ([^|]+) \|", GUIDE[package].read_text(), re.MULTILINE)
    named = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
    assert len(named) == len(set(named)), "a name is listed twice"
    assert set(named) <= public, f"the tables of {package}.md name what is not exported"
    assert len(named) > 0.8 * len(public), "the tables give an overview"


def test_sampler_table_matches_signatures():
    """Checks that arguments exist and that numbers equal the defaults."""
    calls = re.findall(r"^\| `([\w.]+\(.*?\))`", GUIDE["samplers"].read_text(), re.MULTILINE)
    assert len(calls) > 5
    for text in calls:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        params = inspect.signature(eval(ast.unparse(call.func), vars(samplers))).parameters
        names = [place.id for place in call.args if isinstance(place, ast.Name)]
        assert names == list(params)[: len(names)], text
        for argument in call.keywords:
            assert argument.arg in params, text
            value = ast.literal_eval(argument.value)
            assert isinstance(value, str) or value == params[argument.arg].default, text


def test_metrics_table_lists_every_metric_and_its_function():
    text = GUIDE["metrics"].read_text()
    rows = re.findall(r"^\| `(\w+)(?:@k)?` \| (?:`(\w+)` )?\|", text, re.MULTILINE)
    functions = dict(rows)
    for name, function in _evaluate._METRICS.items():
        assert functions.pop(name) == function.__name__
    assert functions == {"coverage": "", "auc": "auc"}
    public = {n for n, f in vars(_ranking).items() if inspect.isfunction(f) and n[0] != "_"}
    assert public - {"at_least_float32", "check_shape"} == {f for _, f in rows if f}
    assert public <= {*vars(metrics), "at_least_float32", "check_shape"}


def test_data_guide_covers_datasets_formats_splits_and_images():
    text = GUIDE["data"].read_text()
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


def test_api_reference_has_heading_for_each_module():
    """A missing heading fails the site build, whose extension needs Sphinx to be imported."""
    module = ast.parse((DOCS / "_extensions" / "api_reference.py").read_text())
    (groups,) = (
        ast.literal_eval(node.value)
        for node in module.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "GROUPS" and node.value
    )
    for package, headings in groups.items():
        known = {name for modules in headings.values() for name in modules.split()}
        init = (ROOT / package.replace(".", "/") / "__init__.py").read_text()
        assert {*re.findall(r"^from \.+(_\w+)", init, re.M)} <= known, package


def test_every_package_has_guide_and_api_reference():
    reference = [name.partition(".")[0] for name in PACKAGES]
    for name in reference:
        assert f"```{{api}} crl_jax.{name}\n```" in (DOCS / "api" / f"{name}.md").read_text()
    for folder in ("guide", "api"):
        assert set(reference) <= {path.stem for path in (DOCS / folder).glob("*.md")}


def parse(name: str, arguments: list[str]) -> None:
    """Parses the flags of a command with its own parser."""
    if "--help" in arguments or "--list" in arguments:
        assert importlib.util.find_spec(f"experiments.{name}") is not None
    elif arguments[:1] == ["--resume"]:
        assert len(arguments) >= 2
    elif name in MODALITIES and arguments[:1] == ["embed"]:
        tyro.cli(MODALITIES[name].of("_embed").EmbedOptions, args=arguments[1:])
    elif name == "recommend" and arguments[:1] == ["topk"]:
        tyro.cli(TopK, args=arguments[1:], config=(tyro.conf.FlagCreatePairsOff,))
    elif name == "recommend" or name in MODALITIES:
        study = Recommend() if name == "recommend" else MODALITIES[name].new_study
        study.check(configure(study, arguments)[0])
        forget_own(OBJECTIVES)
    elif name == "numerical":
        numerical_options.parse(arguments)
    elif name == "calibration":
        calibration_options.parse(arguments)
    else:
        assert name == "reproduce"
        reproduce.parse(arguments)


COMMANDS = [
    (page, line)
    for page in OTHERS.values()
    for block in blocks(page, "bash")
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip() and not line.startswith("#")
]


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[line for _, line in COMMANDS])
def test_documented_commands_parse(page, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for code in blocks(page, "python"):
        if name := re.match(r"# (\w+\.py)\b", code):
            Path(name[1]).write_text(code)
    words = shlex.split(line, comments=True)
    while re.match(r"[A-Z_]+=", words[0]):
        del words[0]
    match words:
        case ["crl-jax", name, *arguments]:
            parse(name, arguments)
        case ["python", "-m", module, *arguments]:
            package, _, name = module.partition(".")
            if package == "experiments":
                parse(name, arguments)
            else:
                external = ("build", "jupyter", "sphinx", "twine", "venv")
                assert module in external or importlib.util.find_spec(module) is not None
        case ["python", file, *_]:
            assert Path(file).exists() or (ROOT / file).exists()
        case [program, *_]:
            known = "cd git pip pre-commit pyright pytest ruff sphinx-build uv .ci/run bash"
            assert program in known.split()


def link_target(link: str, page: Path) -> tuple[Path, str] | None:
    """Returns the file and the anchor of a link; None outside the project."""
    path, _, anchor = link.partition("#")
    for start, folder, end in (
        (r"https://github\.com/crl-jax/crl_jax/(?:blob|tree|raw)/main/", ROOT, ""),
        (r"https://colab\.research\.google\.com/github/crl-jax/crl_jax/blob/main/", ROOT, ""),
        (r"https://crl-jax\.github\.io/crl_jax/(?=.)", DOCS, ".html"),
    ):
        if found := re.match(start, path):
            name = path[found.end() :]
            return folder / (name.removesuffix(".html") + ".md" if end else name), anchor
    if "://" in link or link.startswith("mailto:"):
        return None
    return page.parent / path if path else page, anchor


@pytest.mark.parametrize(
    "page", [*PAGES.values(), FRONT, *STUBS], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_resolve(page):
    text = without_code(page)
    links = re.findall(r"\]\(\s*<?([^)\s>]+)>?\s*\)", text)
    links += re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
    links += re.findall(r"(?<![(<])https://crl-jax\.github\.io/crl_jax/[\w/.#-]+\w", text)
    for link in links:
        if (found := link_target(link, page)) is None:
            continue
        target, anchor = found
        assert target.exists(), link
        is_page = target.suffix == ".md" and "api" not in target.parts
        assert not anchor or not is_page or anchor in anchors(target), link


@pytest.mark.parametrize("page", [*PAGES.values(), FRONT, CONTRIBUTING], ids=lambda page: page.stem)
def test_referenced_files_exist(page):
    """Ignores files that the reader creates: their content follows a colon."""
    text = without_code(page)
    named = re.findall(r"`((?:crl_jax|experiments|benchmarks|tests|docs)/[\w/.-]+)`(?!:\n)", text)
    for path in named:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", STUBS, ids=lambda page: page.parent.name)
def test_folder_readme_links_to_documentation(page):
    text = page.read_text()
    assert text.count("\n") <= 6
    assert "https://crl-jax.github.io/crl_jax/" in text


@each_page
def test_table_rows_have_equal_number_of_cells(page):
    cells = 0
    for line in without_code(page).splitlines():
        count = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not cells or count in (0, cells), line
        cells = count
