"""Tests of flags that override a recipe or a configuration file."""

import importlib
import json
import pkgutil
import re
from dataclasses import replace
from pathlib import Path

import pytest
from _helpers.refusals import raises

from experiments import configs
from experiments._schema import to_json
from experiments._study_command import configure
from experiments.images import _study as images
from experiments.pairs import _study as pairs
from experiments.recommend import _options as options
from experiments.recommend._config import Config
from experiments.recommend._study import Recommend
from experiments.recommend.recipes import RECIPES
from experiments.text import _study as text

SEARCH = ["--recipe", "ml-100k-bpr-search"]
OWN = RECIPES["ml-100k-bpr-search"].protocol.sweep


def others(name: str) -> tuple[str, ...]:
    return tuple(spec for spec in OWN if not spec.startswith(f"{name}="))


@pytest.mark.parametrize(
    ("flags", "sweep"),
    [
        ([], OWN),
        (["--sweep", "lr=5e-4,1e-2"], (*others("lr"), "lr=5e-4,1e-2")),
        (["--sweep=decay=0.1,0.3"], (*OWN, "decay=0.1,0.3")),
        (["--weight-decay", "0"], others("weight_decay")),
        (["--weight_decay=0"], others("weight_decay")),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_flags_override_recipe_sweep(flags, sweep, first):
    config, _, _ = configure(Recommend(), [*SEARCH, *flags] if first else [*flags, *SEARCH])
    assert config.protocol.sweep == sweep
    if "--weight-decay" in flags:
        assert config.training.weight_decay == 0


def test_every_named_configuration_belongs_to_one_command():
    names = [name for of in (RECIPES, images.RECIPES, pairs.RECIPES, text.RECIPES) for name in of]
    modules = [
        importlib.import_module(f"{configs.__name__}.{module.name}")
        for module in pkgutil.iter_modules(configs.__path__)
    ]
    assert sorted(names) == sorted(name for module in modules for name in module.CONFIGS)
    for module in modules:
        docstring = str(module.__doc__)
        (named, *_) = re.findall("--recipe ([a-zA-Z0-9-]+)", docstring)
        pattern = re.sub("[A-Z]+", ".+", named)
        assert any(re.fullmatch(pattern, name) for name in module.CONFIGS)
        path = re.search(r"benchmarks/results/[\w/.-]+", docstring)
        assert "not run here" in docstring if path is None else Path(path[0]).is_file()


def test_image_recipes_have_published_alpha():
    """Section 6.6.3.2: measured on CIFAR-10, fixed on the others, where measuring is an option."""
    fixed = {"cifar10": None, "stl10": 0.75, "cifar100": 0.7, "tiny-imagenet": 0.8}
    for dataset, alpha in fixed.items():
        flags = ["--recipe", f"{dataset}-resnet50-bcl"]
        loss = configure(images.Images(), flags)[0].objective
        assert (loss.alpha, loss.alpha_from) == (alpha, None if alpha else "labels")
        if alpha is not None:
            flags[1] += "-measured"
            measured = configure(images.Images(), flags)[0].objective
            assert measured == replace(loss, alpha=None, alpha_from="labels")


def test_flags_override_recipe():
    name, recipe = next(iter(RECIPES.items()))
    config, _, resumed = configure(Recommend(), ["--recipe", name, "--epochs", "3", "--seeds", "1"])
    assert not resumed
    assert config.objective == recipe.objective
    assert (config.training.epochs, config.protocol.seeds) == (3, 1)
    assert config.training.lr == recipe.training.lr


def write_config(folder, name, content):
    path = folder / name
    path.write_text(content)
    return ["--config", str(path)]


TOML = """
[objective]
loss = "dpl"
tau_plus = 0.05
[training]
lr = 1e-2
[protocol]
sweep = ["decay=0.1,1"]
"""
YAML = """
objective: {loss: dpl, tau_plus: 0.05}
training:
  lr: 1e-2
protocol: {sweep: ["decay=0.1,1"]}
"""


@pytest.mark.parametrize(("name", "content"), [("a.toml", TOML), ("a.yaml", YAML)])
def test_reads_config_file(name, content, tmp_path):
    flags = write_config(tmp_path, name, content)
    config, _, resumed = configure(Recommend(), [*flags, "--epochs", "3"])
    assert not resumed
    assert (config.objective.loss, config.objective.tau_plus) == ("dpl", 0.05)
    assert (config.training.lr, config.training.epochs) == (0.01, 3)
    assert config.protocol.sweep == ("decay=0.1,1",)
    assert configure(Recommend(), [*flags, "--decay", "0.3"])[0].protocol.sweep == ()
    assert config.sampling == Config().sampling


def test_stored_config_starts_new_run(tmp_path):
    first = replace(
        Config(), output=options.OutputOptions(out=tmp_path / "first", log="tensorboard")
    )
    stored = {**to_json(first), "environment": {"jax": "0.10"}}
    config, folder, _ = configure(
        Recommend(), write_config(tmp_path, "config.json", json.dumps(stored))
    )
    assert folder != tmp_path / "first"
    assert config == replace(first, output=options.OutputOptions(log="tensorboard"))


BROKEN = {
    "a.ini": [("", "--config takes a file .json, .toml or .yaml, got")],
    "a.json": [
        ("{", "a.json:1: expected JSON"),
        (
            '{"environment": {"command": "images"}}',
            "is a configuration of images, not of recommend",
        ),
    ],
    "a.yaml": [
        ("training: [", "a.yaml: "),
        ("training: 3", "a.yaml: training: expected {…}, got 3"),
    ],
    "a.toml": [
        ("[training]\nlr = -1", "a.toml: training.lr: expected a number above 0, got -1"),
        ("lr = 1", "a.toml: expected source, objective"),
        ("[training", "a.toml: "),
        ('[objective]\nloss = "bprr"', "a.toml: objective.loss: expected one of bpr"),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "message"), [(n, *case) for n, cases in BROKEN.items() for case in cases]
)
def test_rejects_invalid_config_files(name, content, message, tmp_path):
    with raises(ValueError, match=re.escape(message)):
        configure(Recommend(), write_config(tmp_path, name, content))


def test_rejects_missing_config_file_and_config_with_recipe(tmp_path):
    with raises(ValueError, match="there is no such file"):
        configure(Recommend(), ["--config", str(tmp_path / "none.toml")])
    with raises(ValueError, match="give one of them"):
        configure(Recommend(), [*SEARCH, *write_config(tmp_path, "a.toml", TOML)])
