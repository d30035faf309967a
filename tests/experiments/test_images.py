"""Representations of images by the command line, from flags to features."""

import importlib
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tyro
from _helpers.studies import (
    commands_of,
    files_of,
    finish,
    flags_of,
    history,
    kill,
    page_of,
    prepare,
    read,
    refused,
    resume,
    said_of_runs,
    task_of,
)

import experiments.images
from crl_jax import tasks
from experiments._registry import filled, settle
from experiments._schema import to_json
from experiments._study import learn
from experiments._study_command import configure
from experiments.images import main
from experiments.images._config import SCHEMA, Config
from experiments.images._embed import EmbedOptions, load_encoder
from experiments.images._problem import evenly, load_problem
from experiments.images._study import Images
from experiments.images.methods import METHODS
from experiments.images.recipes import RECIPES
from experiments.view_losses import LOSSES

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles", "small_resnet")

SMALL = shlex.split(
    "--train-images 120 --test-images 60 --width 4 --head 16 8 --batch-size 40 --epochs 2 "
    "--neighbours 5"
)
README = page_of(experiments.images)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with a sweep and two seeds."""
    folder = tmp_path_factory.mktemp("images") / "run"
    flags = [*SMALL, "--loss", "bayesian", "--alpha-from", "labels", "--sweep", "beta=0.6,0.9"]
    return finish(main, folder, [*flags, "--seeds", "2"])


def test_a_run_leaves_what_the_page_says(finished, capsys):
    assert files_of(finished) == said_of_runs(README)
    lines = history(finished)
    assert [(line["phase"], line["run"], line["epoch"]) for line in lines] == [
        (phase, run, epoch) for phase in ("search", "final") for run in (0, 1) for epoch in (1, 2)
    ]
    assert all({"loss", "alpha", "auc", "false_negatives"} <= line.keys() for line in lines)
    metrics, per_seed = read(finished, "metrics.json"), read(finished, "metrics_by_seed.json")
    assert metrics["linear"] == pytest.approx(np.mean([m["linear"] for m in per_seed]))
    assert metrics["knn_std"] == pytest.approx(np.std([m["knn"] for m in per_seed], ddof=1))
    assert all(0.2 < m["linear"] <= 1 for m in per_seed)  # a tenth by chance
    table = [line.split(",") for line in (finished / "sweep.csv").read_text().splitlines()]
    assert table[0] == ["beta", "valid_knn", "best_epoch", "chosen"]
    scores = {row[0]: float(row[1]) for row in table[1:]}
    (chosen,) = (row[0] for row in table[1:] if row[3] == "1")
    assert scores[chosen] == max(scores.values())
    assert metrics["chosen"] == {
        "point": {"beta": float(chosen)}, "valid_knn": pytest.approx(scores[chosen])
    }  # fmt: skip
    for line in lines[:4:2]:  # the score is the mean of the last reports
        values = [
            x["valid_knn"] for x in lines if (x["phase"], x["run"]) == ("search", line["run"])
        ]
        assert scores[line["label"].split("=")[1].split()[0]] == pytest.approx(np.mean(values))
    assert main(["--resume", str(finished)]) == 0
    assert "is finished" in capsys.readouterr().out


def test_features_of_a_run_are_those_that_were_judged(finished, tmp_path):
    encoder = load_encoder(finished)
    config = encoder.config
    problem = load_problem(config.source, lambda _: None)
    point = read(finished, "metrics.json")["chosen"]["point"]
    checkpoints = finished / "checkpoint"
    learned = learn(Images(), config, problem, point, 0, checkpoints, lambda *_: None)
    images = problem.test.images
    np.testing.assert_allclose(encoder.features(images), learned.features(images), atol=1e-5)
    out = tmp_path / "features.npz"
    assert main(["embed", "--run", str(finished), "--out", str(out)]) == 0
    with np.load(out) as stored:
        assert stored["features"].shape == (1797, 8)
        assert {*stored["part"]} == {"train", "test"}
        assert len(stored["labels"]) == 1797
        assert stored["classes"].tolist() == [str(i) for i in range(10)]
    colours = tmp_path / "photos"
    for i in range(4):
        folder = colours / f"class{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        _write_png(
            folder / f"{i}.png", np.full((8, 8, 3), 60 * i, np.uint8) + np.arange(3, dtype=np.uint8)
        )
    assert main(["embed", "--run", str(finished), "--data", str(colours), "--out", str(out)]) == 2
    assert main(["embed", "--run", str(tmp_path)]) == 2


def _write_png(path, pixels):
    from PIL import Image

    Image.fromarray(pixels).save(path)


def test_a_run_from_before_labels_could_be_left_unread_is_opened():
    stored = to_json(Config())
    del stored["source"]["labels"]
    assert SCHEMA.from_json(stored, Path("config.json")) == Config()


@pytest.mark.parametrize("command", ["text", "graphs", "recommend"])
def test_a_run_of_another_command_is_told(command, finished, capsys):
    other = importlib.import_module(f"experiments.{command}")
    assert other.main(["--resume", str(finished)]) == 2
    said = f"{finished} holds a run of python -m experiments.images, not of "
    assert f"{said}python -m experiments.{command}." in capsys.readouterr().err


@pytest.fixture
def photos(tmp_path):
    """Images in no folder of a class."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), np.uint8)):
        _write_png(folder / f"{i:02}.png", pixels)
    return folder


WITHOUT_LABELS = shlex.split("--width 4 --head 16 8 --batch-size 20 --epochs 2")


@pytest.mark.filterwarnings("default:.*are in no class folder")
def test_images_without_labels(photos, tmp_path, capsys):
    folder, out = tmp_path / "run", tmp_path / "features.npz"
    flags = [*WITHOUT_LABELS, "--data", str(photos), "--loss", "hard", "--out", str(folder)]
    assert main(flags) == 0
    said = capsys.readouterr()
    assert "60 images are in no class folder" in said.err
    assert "48 training and 12 test images, 8 × 8 × 3, no labels" in said.out
    found = read(folder, "metrics.json")
    assert found.keys() == {"alignment", "uniformity", "chosen", "seconds"}
    config = read(folder, "config.json")
    assert (config["objective"]["tau_plus"], config["source"]["labels"]) == (0.01, False)
    assert files_of(folder) == said_of_runs(README) - {"sweep.csv", "posterior.png"}
    for line in history(folder):
        assert {"loss", "train_alignment", "train_uniformity"} < line.keys()
        assert not {"auc", "false_negatives", "train_knn"} & line.keys()
    assert main(["embed", "--run", str(folder), "--out", str(out)]) == 0
    assert not capsys.readouterr().err
    with np.load(out) as stored:
        assert stored["classes"].dtype.kind == "U"
        assert sorted(stored["names"]) == [f"{i:02}.png" for i in range(60)]
        assert stored["features"].shape == (60, 8)
        assert {*stored["labels"]} == {-1}
        assert {*stored["part"]} == {"train", "test"}


@pytest.mark.parametrize("method", [name for name, of in METHODS.items() if not of.needs_labels])
def test_a_method_that_needs_no_labels_learns_without(method, photos):
    flags = [*WITHOUT_LABELS, "--data", str(photos), "--labels", "False", "--method", method]
    own = {"directclr": ["--first-features", "4"], "protonce": ["--clusters", "5"]}
    config, _, _ = configure(Images(), [*flags, *own.get(method, [])])
    problem = load_problem(config.source, lambda _: None)
    assert Images().prepare(config, problem).source.valid is None
    assert (len(problem.train), len(problem.learn), len(problem.valid)) == (48, 48, 0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--method", "supcon"], "--method supcon needs labels, and the images of"),
        (["--loss", "bayesian", "--alpha-from", "labels"], "--alpha-from labels needs labels"),
        (["--sweep", "lr=1e-3,1e-2"], "--sweep needs labels"),
        (["--valid", "0.1"], "--valid needs labels"),
        (["--neighbours", "9"], "--neighbours needs labels"),
        (["--probe-epochs", "9"], "--probe-epochs needs labels"),
    ],
)
def test_what_needs_labels_is_said(flags, message, photos, tmp_path, capsys):
    out = tmp_path / "run"
    given = [*WITHOUT_LABELS, "--data", str(photos), "--labels", "False", "--out", str(out)]
    assert message in refused(main, [*given, *flags], capsys)
    assert not out.exists()


def test_without_labels_all_but_the_test_part_is_learned_from(photos):
    for part in ("train/a", "unlabelled", "test/b"):
        (photos / part).mkdir(parents=True)
    for i, part in enumerate(["train/a", "unlabelled", "test/b"] * 20):
        (photos / f"{i:02}.png").rename(photos / part / f"{i:02}.png")
    flags = [*WITHOUT_LABELS, "--batch-size", "10", "--data", str(photos), "--labels", "False"]
    config, _, _ = configure(Images(), flags)
    problem = load_problem(config.source, lambda _: None)
    assert (len(problem.train), problem.train.classes) == (40, ())


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags = [*SMALL, "--checkpoint-seconds", "0", "--method", "moco", "--queue", "80"]
    assert main([*flags, "--out", str(whole)]) == 0
    arguments = [*flags, "--out", str(killed)]
    kill(main, arguments, monkeypatch, lambda checkpoint, loop: loop.epoch == 1)
    assert not (killed / "metrics.json").exists()
    assert resume(main, killed, monkeypatch) == [2]
    assert history(killed) == history(whole)
    with np.load(whole / "encoder.npz") as a, np.load(killed / "encoder.npz") as b:
        assert all(np.array_equal(a[name], b[name]) for name in a.files if name != "header")
    assert read(killed, "metrics_by_seed.json") == read(whole, "metrics_by_seed.json")


settled = partial(prepare, Images())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_trained(method):
    own = {"moco": ["--queue", "80"], "protonce": ["--queue", "80", "--clusters", "5"]}
    own["directclr"] = ["--first-features", "8"]
    config, problem = settled([*SMALL, "--method", method, *own.get(method, [])])
    assert isinstance(task_of(Images(), config, problem), tasks.TwoViewTask)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_gets_its_numbers(loss):
    config, problem = settled([*SMALL, "--loss", loss, "--temperature", "0.2"])
    task = task_of(Images(), config, problem)
    assert task.loss_fn is LOSSES[loss].loss
    assert task.hyperparams["temperature"] == 0.2
    assert {*task.hyperparams} == {"temperature", *LOSSES[loss].hyperparams}
    assert task.hyperparams.get("tau_plus", 0.1) == pytest.approx(0.1)  # of ten classes
    assert SCHEMA.from_json(to_json(config), Path("config.json")) == config


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_taken(name):
    config, _, _ = configure(Images(), ["--recipe", name])
    assert config == RECIPES[name]
    values = settle("loss", config.objective, LOSSES)
    assert values.get("tau_plus", 1) is not None
    filled(config.objective, values)
    if "resnet50" in name:
        assert (config.training.batch_size, config.training.epochs) == (256, 400)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tau-plus", "0.1"], "--loss info_nce has no --tau-plus"),
        (["--method", "byol", "--loss", "hard"], "--method byol has its own loss"),
        (["--method", "byol", "--temperature", "0.2"], "--method byol has no --temperature"),
        (["--queue", "80"], "--method simclr has no --queue"),
        (["--loss", "bayesian", "--alpha", "0.8", "--alpha-from", "labels"], "--alpha-from labels"),
        (["--sweep", "batch_size=1,2"], "--sweep takes one of"),
        (["--search-seeds", "2"], "--search-seeds 2 averages over what --sweep tries"),
        (["--batch-size", "1"], "--batch-size must be a whole number"),
        (["--batch-size", "4000"], "--batch-size must be at most"),
        (["--train-images", "5000"], "--train-images must be at most 1438, got 5000"),
        (["--crop", "0"], "--crop must be a number in (0, 1]"),
        (["--method", "directclr", "--first-features", "999"], "--first-features must be"),
        (["--method", "moco", "--queue", "8"], "--queue must be at least the batch size"),
        (["--data", "nowhere"], "nowhere"),
        (["--recipe", "cifar10"], "--recipe takes one of"),
        (["--device", "tpu"], "--device tpu: JAX found only cpu here"),
        (["--mesh", "data=64"], "--mesh data=64 asks for 64 devices"),
        (["--resume", "runs", "--lr", "1"], "--resume goes on with the run's own configuration"),
        (["embed", "--run", "nowhere"], "nowhere holds no run"),
    ],
)  # fmt: skip
def test_what_does_not_go_is_said_in_a_line(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert message in refused(main, flags, capsys)
    assert not (tmp_path / "runs").exists()


def test_draws_are_even_and_in_every_class():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2, -1], [50, 30, 3, 20])
    places = evenly(labels, 23, rng)
    assert len({*places}) == 23
    assert np.bincount(labels[places]).tolist() == [10, 10, 3]
    assert len(evenly(labels, 103, rng)) == 103  # all, and those without a label
    problem = load_problem(replace(Config().source, train_images=200), lambda _: None)
    assert len(problem.train) == 200
    assert len(problem.valid) == 20
    assert np.bincount(problem.valid.labels).tolist() == [2] * 10
    both = {image.tobytes() for image in problem.learn.images} | {
        image.tobytes() for image in problem.valid.images
    }
    assert both == {image.tobytes() for image in problem.train.images}


@pytest.mark.parametrize("command", commands_of(README, "images"), ids=" ".join)
def test_commands_of_the_page_are_taken(command):
    if command[:1] == ["embed"]:
        assert tyro.cli(EmbedOptions, args=command[1:]).run == Path("runs/photos")
    elif command[:1] != ["--resume"]:
        configure(Images(), command)


def test_flags_of_the_page_are_there():
    own = {f"--{name}" for name in EmbedOptions.__dataclass_fields__}
    known = {*SCHEMA.flags.values(), "--recipe", "--config", "--help"} | own
    assert flags_of(README) <= known
    assert {*SCHEMA.flags.values()} - flags_of(README) <= {
        # Numbers of single entries, which --help lists.
        "--queue", "--momentum", "--clusters", "--warm-up-epochs", "--first-features",
        "--min-score", "--config",
    }  # fmt: skip
