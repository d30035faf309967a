"""Tests of the image tables: training, comparison, stored outcomes and output files."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from _helpers.reproduction import read_csv, stored
from PIL import Image
from scipy import stats

from crl_jax import models
from experiments._study import Evaluation
from experiments.backbones import IMAGE_ENCODERS as ENCODERS
from experiments.images._config import ViewOptions
from experiments.images._problem import load_problem
from experiments.images._study import Images
from experiments.reproduce import images, main, training
from experiments.reproduce.tables import published
from experiments.reproduce.targets import Options

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
    of = images.small

    def tiny(data, loss):
        config = of(data, loss)
        return replace(
            config,
            source=replace(config.source, train_images=None, valid_fraction=0.2),
            views=ViewOptions(),
            encoding=replace(config.encoding, width=2),
            training=replace(config.training, head=(4, 4), batch_size=8, eval_every=1),
        )

    monkeypatch.setattr(images, "small", tiny)
    entry = replace(ENCODERS["resnet10"], make=partial(models.ResNet, (1,)))
    monkeypatch.setitem(ENCODERS, "resnet10", entry)
    return tmp_path / "sets"


def test_table_compares_losses_over_seeds_and_images(sets, tmp_path, monkeypatch):
    """Pretends to train and evaluate; each entry takes as many seconds as its epoch's number."""

    trained = []

    def learn(study, config, problem, point, index, checkpoints, on_entry):
        trained.append((config.objective.loss, index))
        (checkpoints / f"final-{index}.npz").write_text("half")
        for epoch in (1, 2):
            entry = {"epoch": epoch, "loss": [1.0], "seconds": 3.0 * epoch}
            on_entry(images.Run("final", index, 2, index, {}), entry)

    rng = np.random.default_rng(0)

    def evaluate(*_):
        correct = rng.random(12) < 0.5
        return Evaluation({"linear": float(correct.mean()), "knn": 0.5}, correct)

    monkeypatch.setattr(training, "learn", learn)
    monkeypatch.setattr(Images, "evaluate", evaluate)
    out = tmp_path / "out"
    flags = ["--data", str(sets), "--scale", "small", "--epochs", "2", "--out", str(out)]
    two = [*flags, "--seeds", "2", "--methods", "simclr", "bcl"]
    monkeypatch.setattr(images, "measure", lambda *_: (7.0, 2.0))
    assert main(["table-6.4", *two, "--datasets", "cifar10", "cifar10"]) == 0
    assert len(trained) == len({*trained}) == 4
    first, second = read_csv(out / "table-6.4-small.csv")
    assert [first["method"], second["method"]] == ["simclr", "bcl"]
    outcomes = stored(out)
    for row in (first, second):
        linear = [of["linear"] for of in outcomes[row["method"]]["per_seed"]]
        assert float(row["linear"]) == pytest.approx(np.mean(linear))
        assert np.mean(outcomes[row["method"]]["per_user"]) == pytest.approx(np.mean(linear))
    assert (first["linear_published"], second["linear_published"]) == ("0.911", "0.925")
    pair = [outcomes[label]["per_user"] for label in ("bcl", "simclr")]
    assert float(second["p_images"]) == pytest.approx(stats.ttest_rel(*pair).pvalue)
    assert (out / "table-6.4-small.png").stat().st_size > 5000
    assert "p (images)" in (out / "table-6.4-small.md").read_text()
    assert {path.suffix for path in (out / "runs").iterdir()} == {".json"}


def test_published_protocol_is_compared_with_published_results(sets, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "published", images.small)
    monkeypatch.setattr(images, "measure", lambda *_: (7.0, 2.0))
    entry = {"epoch": 1, "loss": [1.0], "seconds": 3.0}
    monkeypatch.setattr(
        training, "learn", lambda *given: given[-1](images.Run("final", 0, 1, 0, {}), entry)
    )
    own = {"linear": 0.75, "linear_augmented": 0.5, "knn": 0.25}
    evaluation = Evaluation(own, np.arange(12) < 6)
    monkeypatch.setattr(Images, "evaluate", lambda *_: evaluation)
    out = tmp_path / "out"
    flags = ["--data", str(sets), "--seeds", "1", "--methods", "simclr", "--out", str(out)]
    assert main(["table-6.4", *flags]) == 0
    (row,) = read_csv(out / "table-6.4-published.csv")
    assert {name: float(row[name]) for name in own} == own
    assert (row["linear_augmented_published"], row["linear_published"]) == ("0.911", "")
    reported = images.TARGETS["table-6.7"].make._reported(Options("table-6.7", sets))
    assert reported.metrics[:2] == ("linear_augmented", "linear_augmented_top5")
    assert reported.main == "linear_augmented"


@pytest.mark.slow
def test_trains_and_evaluates_simclr(sets, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "measure", lambda *_: (7.0, 2.0))
    flags = ["--data", str(sets), "--scale", "small", "--epochs", "2", "--seeds", "1"]
    out = tmp_path / "out"
    assert main(["table-6.4", *flags, "--methods", "simclr", "--out", str(out)]) == 0
    (row,) = read_csv(out / "table-6.4-small.csv")
    outcome = stored(out)["simclr"]
    assert [entry["epoch"] for entry in outcome["history"]] == [1, 2]
    assert float(row["linear"]) == pytest.approx(np.mean(outcome["per_user"]))


def test_estimate_is_steps_times_measured_time(sets, tmp_path, monkeypatch, capsys):
    """The 24 images form three batches per epoch."""
    timed = []

    def measure(config, problem):
        timed.append((config.objective.loss, len(problem.train)))
        return 7.0, 2.0

    monkeypatch.setattr(images, "measure", measure)
    out = tmp_path / "out"
    flags = ["--data", str(sets), "--scale", "small", "--epochs", "4000", "--seeds", "2"]
    assert main(["table-6.4", *flags, "--estimate", "--out", str(out)]) == 0
    assert timed == [(loss, 24) for loss in ("info_nce", "debiased", "hard", "bayesian")]
    printed = capsys.readouterr().out
    assert "time at least" in printed
    assert printed.count("13:20:07") == 4  # 7 + 2 seeds · 4,000 epochs · 3 steps · 2 s
    assert "2 days, 5:20:28" in printed
    assert "results" not in printed
    assert not (out / "runs").exists()


def test_epoch_times_are_measured_alternately_without_training(sets, tmp_path, monkeypatch):
    """The 24 images form three batches per epoch."""
    timed = []

    def measure(config, problem):
        timed.append(config.objective.loss)
        return 7.0, float(len(timed))

    monkeypatch.setattr(images, "measure", measure)
    monkeypatch.setattr(training, "learn", None)
    out = tmp_path / "out"
    flags = ["--data", str(sets), "--scale", "small", "--seeds", "2", "--out", str(out)]
    assert main(["table-6.8", *flags]) == 0
    assert timed == 2 * ["info_nce", "bayesian"]
    rows = read_csv(out / "table-6.8-small.csv")
    assert [float(row["seconds_per_epoch"]) for row in rows] == [3 * (1 + 3) / 2, 3 * (2 + 4) / 2]
    assert rows[0]["seconds_per_epoch_published"] == "82.0"
    assert not (out / "runs").exists()


def test_measure_separates_startup_from_step_time(sets, monkeypatch):
    clock = iter([7.0, 7.9, 8.5, 9.3])  # epochs of 0.9, 0.6 and 0.8 s after the first

    def fit(self, config, problem, run, folder, log):
        assert (config.training.epochs, len(problem.train)) == (4, 4)
        assert {*problem.train.labels.tolist()} == {0, 1}  # although the images are in their order
        for seconds in clock:
            log({"seconds": seconds})

    monkeypatch.setattr(Images, "fit", fit)
    config = images.small("cifar10", "simclr")
    config = replace(
        config,
        source=replace(config.source, data=str(sets / "cifar10")),
        training=replace(config.training, batch_size=2),
    )
    problem = load_problem(config.source, lambda _: None)
    start, step = images.measure(config, problem)
    np.testing.assert_allclose((start, step), (7.0 - 0.6, 0.6 / 2))


@pytest.mark.parametrize("target", images.TARGETS)
def test_row_names_match_published_rows(target):
    table = images.TARGETS[target].make
    for dataset in table.datasets:
        known = published(target.removeprefix("table-"), dataset, "resnet50")
        lines = [line for lines in table.groups.values() for line in lines]
        assert {line.published for line in lines} == known.keys()
        for line in lines:
            config = line.configure(images.published(dataset, line.loss))
            for name, value in [of.split("=") for of in line.published.split("|")[1:]]:
                got = {"N": 2 * config.training.batch_size - 2, **vars(config.objective)}[name]
                assert got == float(value)


def test_rejects_methods_of_other_tables(sets, tmp_path, capsys):
    flags = ["--data", str(sets), "--scale", "small", "--out", str(tmp_path / "o")]
    assert main(["table-6.4", *flags, "--methods", "simclr", "BPR"]) == 2
    assert (
        '--methods takes some of "simclr", "dcl", "hcl", "bcl", got "BPR"'
        in capsys.readouterr().err
    )
