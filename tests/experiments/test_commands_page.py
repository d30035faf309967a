"""Tests of the commands and the code examples on the documentation page on commands."""

import dataclasses
import importlib
import importlib.util
import json
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import tyro
from _helpers.commands import forget_own
from _helpers.pages import DOCS

from crl_jax import data, models
from crl_jax.data import Interactions, simulate
from experiments._ranges import is_within
from experiments._registry import flag_ranges, resolve_flags, sweepable, with_flags
from experiments._schema import to_json
from experiments._study_command import configure
from experiments.calibration import _options as calibration_options
from experiments.numerical import _options as numerical_options
from experiments.recommend._config import SCHEMA, Config
from experiments.recommend._study import Recommend
from experiments.recommend._topk import TopK
from experiments.recommend.objectives import OBJECTIVES
from experiments.recommend.sampling import SAMPLERS, Context
from experiments.reproduce import command as reproduce
from experiments.reproduce.command import TARGETS
from experiments.reproduce.targets import Options


@dataclass(frozen=True)
class KindOptions:
    """Options of a stub component."""

    kind: str = field(default="margin", metadata={"help": "The kind."})


PAGE = "".join((DOCS / f"{name}.md").read_text() for name in ("commands", "scale"))
# `sh` blocks pass commands to job schedulers, whose own flags come first.
COMMANDS = [
    shlex.split(command)
    for block in re.findall(r"```(?:bash|sh)\n(.*?)```", PAGE, re.DOTALL)
    for command in re.findall(r"python -m (experiments[^\n\"]*)", block)
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_documented_commands_parse(command, monkeypatch, tmp_path):
    name, *arguments = command
    own = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert own is not None
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "mine.toml").write_text(own[1])
    (tmp_path / "runs" / "mine" / "config.json").write_text(json.dumps(to_json(Config())))
    (tmp_path / "mine.py").write_text(block("# mine.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    if arguments[:1] in (["--help"], ["--list"]):
        assert importlib.util.find_spec(name) is not None
        return
    match name.removeprefix("experiments."), arguments:
        case "recommend", ["topk", *rest]:
            options = tyro.cli(TopK, args=rest, config=(tyro.conf.FlagCreatePairsOff,))
            assert options.run == Path("runs/mine")
        case "recommend", ["--resume", folder]:
            assert any(folder in given for given in COMMANDS if "--resume" not in given)
        case "recommend", _:
            configure(Recommend(), arguments)
            forget_own(OBJECTIVES)
        case "numerical", _:
            numerical_options.parse(arguments)
        case "calibration", _:
            calibration_options.parse(arguments)
        case "reproduce", _:
            assert reproduce.parse(arguments).target == arguments[0]
        case _:
            raise AssertionError(command)


def test_documented_flags_exist():
    known = {*SCHEMA.flags.values(), "--recipe", "--config", "--help", "--include-test-items",
             "--list", "--loss", "--margin"}  # fmt: skip
    own = {f"--{name.replace('_', '-')}" for name in Options.__dataclass_fields__}
    topk = {f"--{name.replace('_', '-')}" for name in TopK.__dataclass_fields__}
    config_flags = {
        f"--{name.replace('_', '-')}"
        for options_module in (numerical_options, calibration_options)
        for name in options_module.Config.__dataclass_fields__
    }
    page = re.sub(r"```sh\n.*?```", "", PAGE, flags=re.DOTALL)
    assert set(re.findall(r"--[a-z][a-z0-9-]*", page)) <= known | own | topk | config_flags


def block(start: str) -> str:
    """Returns the Python code block that begins with ``start``."""
    code = re.search(rf"```python\n({re.escape(start)}.*?)```", PAGE, re.DOTALL)
    assert code is not None, start
    return code[1]


def entry(module: str, name: str):
    """Executes the page's code for ``module`` or a file in it and returns its object ``name``."""
    path_pattern = rf"`experiments/{module}(?:/\w+)?\.py`"
    code = re.search(rf"{path_pattern}:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None, module
    namespace = dict(vars(importlib.import_module("experiments." + module.replace("/", "."))))
    exec(code[1], namespace)
    return namespace[name]


def test_custom_loss_example_works():
    entries = {**OBJECTIVES, "margin": entry("recommend/objectives", "MARGIN")}
    made = with_flags(KindOptions, "kind", entries)
    options = tyro.cli(made, args=["--kind", "margin"])
    values = resolve_flags("kind", options, entries)
    assert values == {"n_neg": 1, "temperature": 1.0, "margin": 0.5}
    assert "margin" in sweepable(entries)
    assert not is_within(flag_ranges(entries, "margin")["margin"], -0.1)
    pos, neg = jnp.array([2.0]), jnp.array([[1.8]])
    loss = entries["margin"].loss(pos, neg, margin=0.5, temperature=2.0)
    assert float(loss) == pytest.approx(0.5 - 0.1)


def test_custom_sampler_example_works():
    popular = entry("recommend/sampling", "POPULAR")
    entries = {**SAMPLERS, "popular": popular}
    made = with_flags(KindOptions, "kind", {"margin": popular, **entries})
    options = tyro.cli(made, args=["--kind", "popular", "--popularity-power", "2"])
    log = Interactions.from_arrays([0, 1, 2, 0], [0, 0, 0, 1])
    sampler = popular.make(Context(log, "", 1), **resolve_flags("kind", options, entries))
    weights = np.asarray(sampler.weights)
    assert weights[0] / weights[1] == pytest.approx(9)
    assert "popularity_power" not in sweepable(entries)


def test_custom_encoder_example_works():
    narrow = entry("recommend/encoders", "NARROW")
    values = resolve_flags(
        "kind", with_flags(KindOptions, "kind", {"margin": narrow})(), {"margin": narrow}
    )
    log = Interactions.from_arrays([0, 1, 2, 0], [0, 0, 0, 1])
    made = narrow.make(log, dim=8, similarity="cosine", **values)
    assert made == models.MatrixFactorization(3, 2, 4, similarity="cosine")


def test_custom_contrast_example_works():
    damped = entry("recommend/contrasts", "DAMPED")
    values = resolve_flags(
        "kind", with_flags(KindOptions, "kind", {"margin": damped})(), {"margin": damped}
    )
    assert values == {"contrast_weight": 0.2, "contrast_temperature": 0.2, "damping": 0.5}
    log = Interactions.from_arrays([0, 1, 2, 0], [0, 0, 0, 1])
    encoder = models.LightGCN.from_interactions(log, 4, 2)
    made, term = damped.make(log, encoder, {"weight": 0.3}, damping=0.5)
    assert made is encoder
    assert (term.weight, term.second.layer_weights) == (0.3, (1, 0.5, 0.25))


def pairs(log):
    users, items = log.user_ids[log.users], log.item_ids[log.items]
    return set(zip(users.tolist(), items.tolist(), strict=True))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The dataset folder that the page's code writes from ratings."""
    made = simulate(n_users=20, n_items=40, n_exposed=30, seed=3).interactions
    rated = dataclasses.replace(made, ratings=np.full(len(made), 4, np.float32))
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(data, "load", {"movielens:100k": rated}.__getitem__)
        exec(block("from pathlib import Path"), {})
    loaded = data.load(tmp_path / "ml-100k", merge=True)
    assert pairs(loaded) == pairs(rated)
    assert loaded.ratings is not None
    return tmp_path / "ml-100k"


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
@pytest.mark.usefixtures("standard_promotion", "quick_compiles")
def test_custom_target_example_writes_table_and_figure(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(TARGETS, "figure-9.9", entry("reproduce", "FIGURE"))
    flags = ["--data", str(folder), "--out", str(tmp_path), "--seeds", "2", "--epochs", "1"]
    assert reproduce.main(["figure-9.9", *flags]) == 0
    header, *rows = (tmp_path / "figure-9.9.csv").read_text().split()
    assert header == "tau_plus,seed,ndcg@20"
    assert [row.split(",")[:2] for row in rows] == [
        [tau, seed] for tau in ("0.0", "0.05", "0.1") for seed in "01"
    ]
    assert (tmp_path / "figure-9.9.png").is_file()


@pytest.mark.usefixtures("standard_promotion", "quick_compiles")
def test_custom_command_example_trains_and_resumes(tmp_path, monkeypatch):
    path, out = tmp_path / "vectors.py", tmp_path / "run"
    path.write_text(block('"""Representations of vectors'))
    spec = importlib.util.spec_from_file_location("experiments.vectors", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)  # resolves its type hints
    spec.loader.exec_module(module)
    flags = ["--epochs", "2", "--sweep", "noise=0.1,0.3", "--loss", "debiased", "--out", str(out)]
    assert module.main(flags) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["knn"] > 0.8
    assert metrics["chosen"]["point"]["noise"] in (0.1, 0.3)
    assert {"curves.png", "parameters.npz", "sweep.csv"} <= {path.name for path in out.iterdir()}
    assert module.main(["--resume", str(out)]) == 0


def test_target_example_loads_simulated_data():
    namespace = {"__package__": "experiments.reproduce"}
    exec(block("from crl_jax import data\n\nfrom .methods"), namespace)
    (problem,) = namespace["load_simulated"](None, None)
    assert len(problem.train) > len(problem.test) > 0
