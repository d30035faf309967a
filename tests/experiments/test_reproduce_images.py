"""Tests of the image tables: training, comparison, stored outcomes and output files."""

import csv
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from crl_jax import models, train
from experiments.images._config import ViewOptions
from experiments.images._problem import load_problem
from experiments.images._study import Images
from experiments.images.encoders import ENCODERS
from experiments.reproduce import main
from experiments.studies import image_cost, image_targets
from experiments.studies.published import published

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


@pytest.fixture
def sets(tmp_path, monkeypatch):
    """A folder with a small image dataset named cifar10, and a small setting."""
    rng = np.random.default_rng(0)
    for part, n in (("train", 12), ("test", 6)):
        for name, colour in (("blue", 200), ("red", 40)):
            folder = tmp_path / "sets" / "cifar10" / part / name
            folder.mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 60, (8, 8, 3)) + [colour, 40, 120]
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
    of = image_targets.small

    def tiny(data, loss):
        config = of(data, loss)
        return replace(
            config,
            source=replace(config.source, train_images=None, valid=0.2),
            views=ViewOptions(),
            encoding=replace(config.encoding, width=2),
            training=replace(config.training, head=(4, 4), batch_size=8, eval_every=1),
        )

    monkeypatch.setattr(image_targets, "small", tiny)
    entry = replace(ENCODERS["resnet10"], make=partial(models.ResNet, (1, 1)))
    monkeypatch.setitem(ENCODERS, "resnet10", entry)
    return tmp_path / "sets"


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_compares_seeds_and_images_and_keeps_its_trainings(sets, tmp_path, monkeypatch):
    out = tmp_path / "out"
    flags = ["--data", str(sets), "--scale", "small", "--epochs", "2", "--out", str(out)]
    two = [*flags, "--seeds", "2", "--methods", "simclr", "bcl"]
    assert main(["table-6.4", *two]) == 0
    first, second = rows_of(out / "table-6.4-small.csv")
    kept = {}
    for path in (out / "runs").glob("images-*.json"):
        outcome = json.loads(path.read_text())
        kept[outcome["label"]] = outcome
    assert [first["method"], second["method"]] == ["simclr", "bcl"]
    for row in (first, second):
        linear = [of["linear"] for of in kept[row["method"]]["per_seed"]]
        assert float(row["linear"]) == pytest.approx(np.mean(linear))
        assert np.mean(kept[row["method"]]["per_user"]) == pytest.approx(np.mean(linear))
    assert (first["linear_published"], second["linear_published"]) == ("0.911", "0.925")
    pair = [kept[label]["per_user"] for label in ("bcl", "simclr")]
    if np.ptp(np.subtract(*pair)):
        p = stats.ttest_rel(*pair).pvalue
        assert float(second["p_images"]) == pytest.approx(p)
    assert (out / "table-6.4-small.png").stat().st_size > 5000
    assert "p (images)" in (out / "table-6.4-small.md").read_text()

    def never(*_, **__):
        raise AssertionError("it was trained before")

    monkeypatch.setattr(train, "fit", never)
    assert main(["table-6.8", *two]) == 0  # uses the same trainings
    for row in rows_of(out / "table-6.8-small.csv"):
        assert float(row["seconds_per_epoch"]) > 0
        assert row["seconds_per_epoch_published"] == "82.0"


def test_the_estimate_is_steps_times_what_was_measured(sets, tmp_path, monkeypatch, capsys):
    """The 24 images form three batches per epoch."""
    timed = []

    def measure(config, problem):
        timed.append((config.objective.loss, len(problem.train)))
        return 7.0, 2.0

    monkeypatch.setattr(image_cost, "measure", measure)
    out = tmp_path / "out"
    flags = ["--data", str(sets), "--scale", "small", "--epochs", "4000", "--seeds", "2"]
    assert main(["table-6.4", *flags, "--estimate", "--out", str(out)]) == 0
    assert timed == [(loss, 24) for loss in ("info_nce", "debiased", "hard", "bayesian")]
    said = capsys.readouterr().out
    assert "time at least" in said
    assert said.count("13:20:07") == 4  # 7 + 2 seeds · 4,000 epochs · 3 steps · 2 s
    assert "2 days, 5:20:28" in said
    assert "results" not in said
    assert not (out / "runs").exists()


def test_steps_of_a_training_are_timed(sets, monkeypatch):
    clock = iter([7.0, 7.9, 8.5, 9.3])  # epochs of 0.9, 0.6 and 0.8 s after the first
    fit = Images.fit

    def timed(*args):
        *others, log = args
        return fit(*others, lambda entry: log({**entry, "seconds": next(clock)}))

    monkeypatch.setattr(Images, "fit", timed)
    config = image_targets.small("cifar10", "simclr")
    config = replace(config, source=replace(config.source, data=str(sets / "cifar10")))
    problem = load_problem(config.source, lambda _: None)
    config = Images().prepare(config, problem)
    batch = config.training.batch_size
    steps = -(-min(len(problem.train), 2 * batch) // batch)
    start, step = image_cost.measure(config, problem)
    np.testing.assert_allclose((start, step), (7.0 - 0.6, 0.6 / steps))
    assert next(clock, None) is None


@pytest.mark.parametrize("target", ["table-6.5", "table-6.6", "table-6.7", "table-6.8"])
def test_rows_have_the_names_of_the_published_ones(target):
    made = image_targets.__dict__[target.upper().replace("-", "_").replace(".", "_")]
    for dataset in made.datasets:
        known = published(made.number, dataset, "resnet50")
        groups = made.groups(lambda loss, data=dataset: image_targets.published(data, loss))
        lines = [line for _, lines in groups for line in lines]
        assert {line.published for line in lines} == known.keys()
        for line in lines:
            for name, value in [of.split("=") for of in line.published.split("|")[1:]]:
                config = line.config
                got = {"N": 2 * config.training.batch_size - 2, **vars(config.objective)}[name]
                assert got == float(value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--datasets", "stl11"], "--datasets takes some of cifar10, stl10"),
        (["--methods", "BPR"], "--methods takes some of"),
        (["--encoders", "mf"], "--encoders is for"),
        (["--setting", "minibatch"], "leave out --setting minibatch"),
    ],
)
def test_what_does_not_go_is_said(flags, message, sets, tmp_path, capsys):
    said = ["table-6.4", "--data", str(sets), "--scale", "small", "--out", str(tmp_path / "o")]
    assert main([*said, *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_sets_is_told(tmp_path, capsys):
    assert main(["table-6.4", "--data", str(tmp_path), "--out", str(tmp_path / "o")]) == 2
    assert "has none of the folders cifar10" in capsys.readouterr().err
