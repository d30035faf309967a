"""Tests shared by the commands of representation learning: runs, resumption, features, errors."""

import math
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
import tyro
from _helpers.modalities import (
    MODALITIES,
    SPECIAL,
    TEXT_FLAGS,
    Modality,
    texts_of,
    write_images,
)
from _helpers.refusals import raises
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

from crl_jax import data, metrics, models, tasks
from experiments._bert import read_lines
from experiments._encoder_file import save_encoder
from experiments._program import flag
from experiments._schema import to_json
from experiments._study_command import configure
from experiments._task_study import with_remat
from experiments.graphs._config import DataOptions as GraphOptions
from experiments.graphs._study import load_problem as load_graph_problem
from experiments.recommend import main as recommend
from experiments.view_losses import LOSSES

pytestmark = pytest.mark.usefixtures(
    "standard_promotion", "quick_compiles", "pixel_encoder", "first_features"
)
images, graphs, text, pairs = (of.module for of in MODALITIES.values())
# The commands share their code: the run of one of them takes part in every test run.
each_modality = pytest.mark.parametrize(
    "of",
    [
        pytest.param(of, marks=[] if name == "images" else pytest.mark.slow, id=name)
        for name, of in MODALITIES.items()
    ],
)


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its flags, its directory, and the number of training programs compiled."""

    flags: list[str]
    folder: Path
    n_programs: int


@pytest.fixture(scope="module")
def finished(texts, pixel_encoder, first_features, tmp_path_factory):
    """Returns a function to a run of a command, with a sweep and two seeds."""
    compiled, listening = [], True

    def listen(event, duration, fun_name="", **more):
        if listening and "jaxpr_to_mlir_module" in event and "run_epochs" in str(fun_name):
            compiled.append(fun_name)

    @cache
    def run(of: Modality) -> FinishedRun:
        compiled.clear()
        name, low, high = of.sweep
        flags = [*of.flags(texts), "--sweep", f"{name}={low},{high}", "--seeds", "2", "--loss"]
        flags += ["bayesian", "--alpha-from", "labels", "--checkpoint-seconds", "0"]
        folder = finish(of.module.main, tmp_path_factory.mktemp(of.name) / "run", flags)
        return FinishedRun(flags, folder, len(compiled))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield run
    listening = False


@each_modality
def test_run_writes_documented_files(of, finished, capsys):
    run = finished(of).folder
    assert files_of(run) == said_of_runs(page_of(of.module))
    lines = history(run)
    assert [(line["phase"], line["run"], line.get("stage"), line["epoch"]) for line in lines] == [
        (phase, i, stage, 1 + epoch) for phase in ("search", "final") for i in (0, 1)
        for stage, epochs in of.stages.items() for epoch in range(epochs)
    ]  # fmt: skip
    assert all(of.columns <= line.keys() for line in lines)
    found, per_seed = read(run, "metrics.json"), read(run, "metrics_by_seed.json")
    assert of.metrics < found.keys()
    values = [seed[of.metric] for seed in per_seed]
    assert found[of.metric] == pytest.approx(np.mean(values))
    assert found[f"{of.metric}_std"] == pytest.approx(np.std(values, ddof=1))
    # The score of a point is the mean of the last three reports of the deciding stage.
    scores = [
        np.mean([x[of.score] for x in lines if (x["phase"], x["run"]) == ("search", i)
                 and of.score in x])
        for i in (0, 1)
    ]  # fmt: skip
    (name, *points), best = of.sweep, int(np.argmax(scores))
    assert found["chosen"] == {"point": {name: points[best]}, of.score: pytest.approx(scores[best])}
    header, *rows = [line.split(",") for line in (run / "sweep.csv").read_text().splitlines()]
    assert header == [name, of.score, "best_epoch", "chosen"]
    (*_, epochs) = of.stages.values()
    assert [[float(row[0]), int(row[2]), int(row[3])] for row in rows] == [
        [point, epochs, i == best] for i, point in enumerate(points)
    ]
    assert [float(row[1]) for row in rows] == pytest.approx(scores, rel=1e-4)
    assert main_of(of, "--resume", run) == 0
    assert "is finished" in capsys.readouterr().out


def main_of(of, *arguments):
    return of.module.main([str(argument) for argument in arguments])


@each_modality
def test_points_and_seeds_share_compiled_programs(of, finished):
    """Search and final training compile each stage once; for pairs, both have the same data."""
    assert finished(of).n_programs == (1 if of.name == "pairs" else 2 * len(of.stages))


@pytest.mark.parametrize(
    ("of", "stage", "rest"),
    [
        pytest.param(MODALITIES[name], stage, rest, marks=marks, id=id)
        for name, stage, rest, marks, id in (
            ("images", "final-0", [2, 1, 2], [], "images"),
            ("graphs", "final-0", [2, 1, 2], pytest.mark.slow, "graphs"),
            ("pairs", "final-0", [2, 1, 2], pytest.mark.slow, "pairs"),
            ("text", "final-0-pre", [2, 1, 2, 3, 1, 2, 1, 2, 3], pytest.mark.slow, "pre-training"),
            ("text", "final-0-fine", [2, 3, 1, 2, 1, 2, 3], pytest.mark.slow, "fine-tuning"),
        )
    ],
)
def test_killed_run_resumes_bit_identically(of, stage, rest, finished, tmp_path, monkeypatch):
    """The run is killed after the first epoch of a stage of its first final training."""
    whole, killed = finished(of), tmp_path / "killed"
    arguments = [*whole.flags, "--out", str(killed)]
    kill(
        of.module.main, arguments, monkeypatch,
        lambda checkpoint, loop: checkpoint._path.name.startswith(stage),
    )  # fmt: skip
    assert not (killed / "metrics.json").exists()
    assert resume(of.module.main, killed, monkeypatch) == rest
    assert history(killed) == history(whole.folder)
    assert read(killed, "metrics_by_seed.json") == read(whole.folder, "metrics_by_seed.json")
    file, *names = of.saved
    with np.load(whole.folder / file) as a, np.load(killed / file) as b:
        for name in names or {*a.files} - {"header"}:
            np.testing.assert_array_equal(a[name], b[name])


@each_modality
def test_bfloat16_with_remat_approximates_float32(of, texts, tmp_path, monkeypatch):
    """A resumed run keeps both flags, and its parameters are in float32."""
    flags = [*of.flags(texts), "--checkpoint-seconds", "0"]
    plain, other = finish(of.module.main, tmp_path / "plain", flags), tmp_path / "other"
    saving = ["--compute-dtype", "bfloat16", "--remat", "full", "--out", str(other)]
    kill(of.module.main, [*flags, *saving], monkeypatch, lambda *_: True)
    assert resume(of.module.main, other, monkeypatch)
    training = read(other, "config.json")["training"]
    assert (training["compute_dtype"], training["remat"]) == ("bfloat16", "full")
    got, want = (
        [
            line[name]
            for line in history(folder)
            for name in ("loss", "fine_tune_loss")
            if name in line
        ]
        for folder in (other, plain)
    )
    assert got != want
    np.testing.assert_allclose(got, want, rtol=0.03)
    with np.load(other / "encoder.npz") as a, np.load(plain / "encoder.npz") as b:
        assert {name: a[name].dtype for name in a.files} == {
            name: b[name].dtype for name in b.files
        }
        assert np.dtype(np.float32) in {a[name].dtype for name in a.files}


def test_remat_rejects_network_without_blocks():
    task = tasks.SimCLR(models.Network(models.Projection((3,), n_in=4)), lambda key, x: x)
    assert with_remat(task, "none") is task
    with raises(ValueError, match="--remat full: the network has no blocks to rematerialise"):
        with_remat(task, "full")


# Runs without labels


PHOTO_FLAGS = shlex.split("--width 4 --head 16 8 --batch-size 20 --epochs 2")
LINE_FLAGS = [*TEXT_FLAGS.split(), "--method", "dropout", "--fine-tune-epochs", "0"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default:.*are in no class folder")
def test_image_run_without_labels(photos, tmp_path, capsys):
    folder, out = tmp_path / "run", tmp_path / "features.npz"
    flags = [*PHOTO_FLAGS, "--data", str(photos), "--loss", "hard", "--out", str(folder)]
    assert images.main(flags) == 0
    report = capsys.readouterr()
    assert "60 images are in no class folder" in report.err
    assert "48 training and 12 test images, 8 × 8 × 3, no labels" in report.out
    config = read(folder, "config.json")
    assert (config["objective"]["tau_plus"], config["source"]["labels"]) == (0.01, False)
    check_unlabelled(images, folder, {"alignment", "uniformity"}, {"sweep.csv", "posterior.png"})
    assert images.main(["embed", "--run", str(folder), "--out", str(out)]) == 0
    assert not capsys.readouterr().err
    with np.load(out) as stored:
        assert sorted(stored["names"]) == [f"{i:02}.png" for i in range(60)]
        assert stored["features"].shape == (60, 8)
        check_unlabelled_file(stored)
        assert {*stored["part"]} == {"train", "test"}


def check_unlabelled(module, folder, measured, absent):
    assert read(folder, "metrics.json").keys() == {*measured, "chosen", "seconds"}
    assert files_of(folder) == said_of_runs(page_of(module)) - absent
    reported = {f"train_{name}" for name in measured - {"spearman"}}
    for line in history(folder):
        assert {"loss", *reported} < line.keys()
        assert not {"auc", "false_negatives", "train_knn"} & line.keys()


def check_unlabelled_file(stored):
    assert {*stored["labels"]} == {-1}
    assert stored["classes"].dtype.kind == "U"
    assert not len(stored["classes"])


@pytest.mark.slow
def test_text_run_without_labels(texts, tmp_path, capsys):
    folder = tmp_path / "run"
    files = ["--data", str(texts / "sentences.txt"), "--pairs", str(texts / "pairs.txt")]
    assert text.main([*LINE_FLAGS, *files, "--loss", "hard", "--out", str(folder)]) == 0
    assert "48 training and 12 test texts, no labels" in capsys.readouterr().out
    assert read(folder, "config.json")["objective"]["tau_plus"] == 0.01
    check_unlabelled(text, folder, {"dropout_alignment", "uniformity", "spearman"}, {"sweep.csv"})
    with np.load(folder / "features.npz") as stored:
        assert stored["features"].shape == (12, 4)
        check_unlabelled_file(stored)


# Features


def embed(of, run, out, *flags):
    """Runs ``embed`` and returns the arrays that it writes."""
    assert main_of(of, "embed", "--run", run, "--out", out, *flags) == 0
    with np.load(out) as stored:
        return dict(stored)


def vote(features, labels, queries, k, temperature):
    """Returns the classes of queries by their k nearest neighbours, weighted by similarity."""
    cosines = unit(queries) @ unit(features).T
    nearest = np.argsort(-cosines, axis=1)[:, :k]
    weights = np.exp(np.take_along_axis(cosines, nearest, 1) / temperature)
    votes = [np.bincount(labels[i], w, labels.max() + 1) for i, w in zip(nearest, weights)]
    return np.argmax(votes, axis=1)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_image_embeddings_match_evaluation(finished, tmp_path, capsys):
    of, out = MODALITIES["images"], tmp_path / "features.npz"
    run = finished(of).folder
    stored = embed(of, run, out)
    assert stored["features"].shape == (1797, 8)
    assert stored["classes"].tolist() == [str(i) for i in range(10)]
    split = data.load_images("digits")
    every = np.concatenate([split.train.images, split.test.images])
    rows = {image.tobytes(): i for i, image in enumerate(every)}
    _, problem = prepare(of.new_study, finished(of).flags)
    parts = [
        [rows[image.tobytes()] for image in part.images] for part in (problem.train, problem.test)
    ]
    features, labels = ([stored[x][part] for part in parts] for x in ("features", "labels"))
    right = vote(features[0], labels[0], features[1], k=5, temperature=0.1) == labels[1]
    evaluated = read(run, "metrics_by_seed.json")[0]["knn"]
    assert np.mean(right) == pytest.approx(evaluated, abs=2.1 / len(right))
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    photos = write_images(tmp_path / "photos", pixels, lambda i: f"class{i % 2}/{i}.png")
    assert main_of(of, "embed", "--run", run, "--data", photos, "--out", out) == 2
    report = f"--data {photos} has images of 3 channels: the encoder of {run} takes 1."
    assert report in capsys.readouterr().err


@pytest.mark.slow
def test_graph_embeddings_match_evaluation(finished, tmp_path, capsys):
    of, out = MODALITIES["graphs"], tmp_path / "features.npz"
    run, labels = finished(of).folder, data.load_graphs("simulated").labels
    stored = embed(of, run, out)
    with np.load(run / "features.npz") as kept:
        features = kept["features"]
    np.testing.assert_allclose(stored["features"], features, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(stored["labels"], labels)
    assert (features.shape, len(stored["classes"])) == ((400, 8), 3)
    # After a sweep, the graphs that selected its point are excluded.
    left = np.sort(np.random.default_rng(0).permutation(400)[40:])
    want = metrics.cross_validated_svm(features[left], labels[left], folds=3, seed=0)
    assert read(run, "metrics_by_seed.json")[0]["svm"] == pytest.approx(want.accuracy)
    gin = tmp_path / "few"
    gin.mkdir()
    (gin / "few.txt").write_text("2\n2 0\n0 1 1\n1 1 0\n2 1\n0 1 1\n0 1 0\n")
    assert main_of(of, "embed", "--run", run, "--data", gin, "--out", out) == 2
    report = f"--data {gin} has nodes of 2 features: the encoder of {run} takes 4."
    assert report in capsys.readouterr().err
    shutil.copy(run / "config.json", tmp_path)
    save_encoder(tmp_path, {}, {})
    assert main_of(of, "embed", "--run", tmp_path) == 2
    assert "expected the number of features of a node, got None" in capsys.readouterr().err


@pytest.mark.slow
def test_text_embeddings_match_evaluation(finished, texts, tmp_path):
    of, out, lines = MODALITIES["text"], tmp_path / "features.npz", tmp_path / "texts.txt"
    run = finished(of).folder
    with np.load(run / "features.npz") as kept:
        want = kept["features"]
        assert not np.allclose(want, kept["before"], atol=1e-4)  # fine-tuning changed them
        np.testing.assert_array_equal(kept["labels"], np.arange(30) % 3)
        assert kept["classes"].tolist() == ["class0", "class1", "class2"]
    lines.write_text("\n".join(texts_of(texts)))
    stored = embed(of, run, out, "--texts", lines)
    assert stored.keys() == {"features"}
    np.testing.assert_allclose(stored["features"], want, atol=1e-5)
    for source in ([], ["--data", texts]):
        stored = embed(of, run, out, *source)
        assert stored["part"].tolist() == ["train"] * 60 + ["test"] * 30
        np.testing.assert_allclose(stored["features"][60:], want, atol=1e-5)
        np.testing.assert_array_equal(stored["labels"], np.arange(90) % 3)
        assert stored["classes"].tolist() == ["class0", "class1", "class2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features.npz", "texts.txt"]
    words = data.WordPiece.read(run / "vocab.txt")
    learned = data.WordPiece.learn(texts_of(texts, "train"), 60)
    assert words == learned


@pytest.mark.slow
def test_pair_embeddings_match_evaluation(finished, tmp_path, capsys):
    of, out, lines = MODALITIES["pairs"], tmp_path / "features.npz", tmp_path / "texts.txt"
    run = finished(of).folder
    with np.load(run / "embeddings.npz") as kept:
        pictures, words, groups = kept["images"], kept["texts"], kept["image_groups"]
        of_texts, captions = groups[kept["image_of_text"]], kept["captions"].tolist()
    assert len(captions) == len(words) == len(pictures) == 359
    lines.write_text("".join(f"{caption}\n" for caption in captions))
    np.testing.assert_allclose(embed(of, run, out, "--texts", lines)["features"], words, atol=1e-5)
    stored = embed(of, run, out, "--images", "digits")
    assert stored["features"].shape == (1797, 8)
    np.testing.assert_allclose(np.linalg.norm(stored["features"], axis=1), 1, atol=1e-5)
    assert {*stored["part"]} == {"train", "test"}
    # The split is ordered differently, but the images are the same.
    nearest = (stored["features"] @ pictures.T).max(axis=0)
    np.testing.assert_allclose(nearest, 1, atol=1e-5)
    pixels = data.load_captioned("digits").test.images[:6, ..., 0]
    photos = write_images(tmp_path / "photos", pixels, lambda i: f"{i % 2}/of/{i}.png")
    stored = embed(of, run, out, "--images", photos, "--labels", "False")
    assert sorted(stored["names"]) == sorted(f"{i % 2}/of/{i}.png" for i in range(6))
    place = [int(name[-5]) for name in stored["names"]]
    np.testing.assert_allclose(stored["features"], pictures[place], atol=1e-5)
    # Identical texts tie, and the library's recall ranks wrong answers first among ties.
    found, best = read(run, "metrics_by_seed.json")[0], np.argsort(-words @ pictures.T)[:, :5]
    recall = np.mean((groups[best] == of_texts[:, None]).any(axis=1))
    assert recall == pytest.approx(found["text_to_image_recall@5"], abs=0.01)
    assert found["chance_recall@10"] == pytest.approx(1 - 0.9**10, abs=0.02)
    assert found["false_negatives"] == pytest.approx(0.1, abs=0.02)
    coloured = write_images(
        tmp_path / "coloured", np.zeros((4, 8, 8, 3), np.uint8), lambda i: f"class{i % 2}/{i}.png"
    )
    assert main_of(of, "embed", "--run", run, "--images", coloured) == 2
    report = f"--images {coloured} has images of 3 channels: the encoder of {run} takes 1."
    assert report in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a film\n\nanother", "texts.txt:2: expected a text, got an empty line"),
        (b"", "texts.txt:1: expected a text, got an empty line"),
        (b"a film\nan \xff", "texts.txt:2: expected UTF-8, got other bytes"),
        (None, "expected a file with a text in each line, got none"),
    ],
)
def test_embed_reports_invalid_text_lines(content, message, finished, tmp_path, capsys):
    path, out = tmp_path / "texts.txt", tmp_path / "features.npz"
    if content is not None:
        path.write_bytes(content)
    run = finished(MODALITIES["text"]).folder
    assert text.main(["embed", "--run", str(run), "--texts", str(path), "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_reads_lines_from_pipe():
    reader, writer = os.pipe()
    os.write(writer, b"a film\nanother \n")
    os.close(writer)
    try:
        assert read_lines(Path(f"/dev/fd/{reader}")) == ["a film", "another"]
    finally:
        os.close(reader)


@pytest.mark.slow
def test_embed_reports_incomplete_runs(finished, tmp_path, capsys):
    run = finished(MODALITIES["text"]).folder

    def report():
        assert text.main(["embed", "--run", str(tmp_path)]) == 2
        return capsys.readouterr().err

    assert "holds no run" in report()
    shutil.copy(run / "config.json", tmp_path)
    assert "its training is not finished" in report()
    shutil.copy(run / "encoder.npz", tmp_path)
    assert "has no vocab.txt" in report()
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *map(str, range(99))]))
    assert "pieces of" in report()
    (tmp_path / "encoder.npz").write_bytes(b"PK")
    assert "expected a complete checkpoint" in report()
    (tmp_path / "encoder.npz").unlink()
    (tmp_path / "metrics.json").write_text("{}")
    assert "before encoders were kept" in report()
    save_encoder(tmp_path, {}, {})
    assert "expected the settings of a BERT, got {}" in report()


# Flags


@pytest.mark.parametrize("other", ["experiments.text", "experiments.graphs"])
def test_resume_rejects_run_of_another_command(other, finished, capsys):
    run = finished(MODALITIES["images"]).folder
    of = MODALITIES[other.removeprefix("experiments.")]
    assert main_of(of, "--resume", run) == 2
    report = f"{run} holds a run of python -m experiments.images, not of python -m {other}."
    assert report in capsys.readouterr().err
    assert recommend(["--resume", str(run)]) == 2
    assert "not of python -m experiments.recommend." in capsys.readouterr().err


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("name", "flags", "temperature"),
    [
        ("images", ["--temperature", "0.3"], 0.3),
        ("graphs", [], 0.2),
        ("text", ["--method", "triplets"], 0.07),
        ("text", ["--method", "dropout"], 0.05),
    ],
)
def test_every_loss_gets_its_hyperparams(name, flags, temperature, loss, texts):
    of = MODALITIES[name]
    study = of.new_study
    config, problem = prepare(study, [*of.flags(texts), *flags, "--loss", loss])
    task, entry = task_of(study, config, problem), LOSSES[loss]
    assert task.loss_fn is entry.loss
    assert {*task.hyperparams} == {"temperature", *entry.hyperparams}
    assert task.hyperparams["temperature"] == temperature
    share = 1 / of.n_classes
    assert task.hyperparams.get("tau_plus", share) == pytest.approx(share)
    assert study.schema.from_json(to_json(config), Path("config.json")) == config


def test_few_graphs_need_no_validation_part_without_search(tmp_path):
    path = tmp_path / "FOUR.txt"
    path.write_text("4\n" + "".join(f"2 {i % 2}\n0 1 1\n0 1 0\n" for i in range(4)))
    options = GraphOptions(data=str(path))
    problem = load_graph_problem(options, has_search=False, on_stage=print)
    assert problem.all.tolist() == [0, 1, 2, 3]
    with raises(ValueError, match=r"^--valid-fraction 0\.1 of 4 graphs leaves no"):
        load_graph_problem(options, has_search=True, on_stage=print)


def test_flags_and_sweeps_reach_graph_views(texts):
    of = MODALITIES["graphs"]
    flags = [*of.flags(texts), "--kinds", "perturb_edges", "--add", "True"]
    config, problem = prepare(of.new_study, flags)
    views = task_of(of.new_study, config, problem, {"ratio": 0.4}).augment
    assert (views.kinds, views.ratio, views.add) == (("perturb_edges",), 0.4, True)


INVALID_FLAGS = {
    "images": [
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
        (["--recipe", "cifar10"], "--recipe takes one of"),
        (["--stem", "imagenet"], "--view-size must be at least 32, got 8"),
    ],
    "graphs": [
        (["--tau-plus", "0.1"], "--loss decoupled has no --tau-plus"),
        (["--ratio", "0"], "--ratio must be a number in (0, 1), got 0"),
        (["--add", "True"], "--add is for --kinds with perturb_edges"),
        (["--batch-size", "4000"], "--batch-size must be at most the 400 training graphs"),
        (["--given-folds", "True"], "--given-folds: simulated brings no folds"),
        (["--folds", "9999"], "--folds must be at most"),
        (["--given-folds", "True", "--folds", "5"], "--given-folds: the data have their own"),
        (
            ["--valid-fraction", "0.0001", "--sweep", "lr=0.1,0.2"],
            "leaves no training or no validation part",
        ),
        (["--features", "degrees"], "--features of simulated graphs must be tags, got 'degrees'"),
    ],
    "text": [
        (["--tau-plus", "0.1"], "--loss info_nce has no --tau-plus"),
        (["--method", "dropout", "--draws", "9"], "--method dropout has no --draws"),
        (["--method", "none", "--loss", "hard"], "--method none has no loss"),
        (["--method", "none", "--lr", "1"], "--method none has no --lr"),
        (["--method", "none"], "--method none has no --epochs"),
        (["--fine-tune-epochs", "0", "--sweep", "fine_tune_lr=1"], "has no --fine-tune-lr"),
        (["--fine-tune-epochs", "0", "--fine-tune-hidden", "8"], "has no --fine-tune-hidden"),
        (["--method", "none", "--fine-tune-epochs", "0"], "trains nothing"),
        (["--batch-size", "4000"], "--batch-size must be at most the 60 training texts"),
        (["--n-train", "99"], "--n-train must be at most 60, got 99"),
        (["--n-train", "9", "--n-labels", "10"], "--n-labels must be at most 9, got 10"),
        (["--heads", "3"], "--heads must divide --width, 4, got 3"),
        (["--test-fraction", "0.5"], "--test-fraction requires texts without a test part"),
        (
            ["--valid-fraction", "0.001", "--sweep", "lr=1"],
            "--valid-fraction leaves no validation part for a --sweep",
        ),
        (["--pairs", "nowhere"], "nowhere"),
        (["--weights", "nowhere", "--width", "9"], "--weights bring their own --width"),
        (["--text-col", "body"], "expected a column 'body'"),
        (["embed", "--run", "nowhere", "--texts", "a", "--data", "b"], "give one of them"),
        (["embed", "--run", "", "--texts", "a"], "--run must not be an empty text"),
        (["embed", "--run", "nowhere", "--text-col", "1"], "--text-col 1 is a column of --data"),
    ],
    "pairs": [
        (["--tau-plus", "0.1"], "--loss clip has no --tau-plus"),
        (["--loss", "siglip", "--alpha", "0.9"], "--loss siglip has no --alpha"),
        (["--batch-size", "4000"], "--batch-size must be at most the 1258 training images"),
        (["--stem", "imagenet"], "--view-size must be at least 32, got 8"),
        (["--text-heads", "3"], "--text-heads must divide --text-width, 64, got 3"),
        (["--temperature", "0.005"], "--temperature must start from --least-temperature 0.01 or"),
        (["--least-temperature", "0.2"], "--temperature must start from --least-temperature 0.2"),
        (["--least-temperature", "0", "--learn-temperature", "False"], "is for one that is"),
        (["--length", "2"], "--length must be a whole number in [3, 4096], got 2"),
        (["--column", "label_zh"], "--column requires a folder of pictograms"),
        (
            ["--valid-fraction", "0.6", "--test-fraction", "0.6"],
            "--valid-fraction + --test-fraction must be less than 1",
        ),
        (["--weights", "nowhere"], "nowhere"),
        (["--sweep", "epochs=1,2"], "--sweep takes one of"),
        (["--recipe", "coco"], "--recipe takes one of flickr8k-small-clip"),
        (["embed", "--run", "nowhere"], "--images and --texts name what is embedded; give one"),
    ],
}
INVALID_IN_ALL = [
    (["--data", "nowhere"], "nowhere"),
    (["embed", "--run", "nowhere"], "nowhere holds no run"),
]


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        *((name, *row) for name, rows in INVALID_FLAGS.items() for row in rows),
        *((name, *row) for name in ("images", "graphs", "text") for row in INVALID_IN_ALL),
        ("pairs", *INVALID_IN_ALL[0]),
        ("pairs", ["embed", "--run", "nowhere", "--images", "digits"], "nowhere holds no run"),
    ],
)
def test_invalid_flags_give_one_line_error(
    name, flags, message, texts, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    small = [*TEXT_FLAGS.split(), "--data", str(texts)] if name == "text" else []
    if {"embed", "--resume"} & {*flags}:
        small = []
    assert message in refused(MODALITIES[name].module.main, [*small, *flags], capsys)
    assert not (tmp_path / "runs").exists()


NEED_LABELS = {
    "images": [
        (["--method", "supcon"], "--method supcon needs labels, and the images of"),
        (["--probe-epochs", "9"], "--probe-epochs needs labels"),
    ],
    "text": [
        (["--method", "triplets"], "--method triplets needs labels, and the texts of"),
        (["--method", "none", "--fine-tune-epochs", "1"], "--method none needs labels"),
        (["--fine-tune-epochs", "3"], "--fine-tune-epochs 3 needs labels"),
        (["--n-labels", "9"], "--n-labels needs labels"),
    ],
}
NEED_LABELS_IN_BOTH = [
    (["--loss", "bayesian", "--alpha-from", "labels"], "--alpha-from labels needs labels"),
    (["--sweep", "lr=1e-3,1e-2"], "--sweep needs labels"),
    (["--valid-fraction", "0.1"], "--valid-fraction needs labels"),
    (["--neighbours", "9"], "--neighbours needs labels"),
]


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [(name, *row) for name, rows in NEED_LABELS.items() for row in [*rows, *NEED_LABELS_IN_BOTH]],
)
def test_rejects_flags_that_need_labels(
    name, flags, message, photos, texts, tmp_path, capsys
):  # fmt: skip
    given = {
        "images": [*PHOTO_FLAGS, "--data", str(photos), "--labels", "False"],
        "text": [*LINE_FLAGS, "--data", str(texts / "sentences.txt")],
    }[name]
    if "none" in flags:  # has no epochs of pre-training
        del given[given.index("--epochs") : given.index("--epochs") + 2]
    out = tmp_path / "run"
    main = MODALITIES[name].module.main
    assert message in refused(main, [*given, "--out", str(out), *flags], capsys)
    assert not out.exists()


@pytest.mark.parametrize("name", MODALITIES)
def test_help_states_the_range_of_every_number(name, capsys):
    of = MODALITIES[name]
    with raises(SystemExit):
        of.module.main(["--help"])
    report = " ".join(re.sub("│", " ", capsys.readouterr().out).split())
    helps = {block.split()[0]: block for block in re.split(r" (?=--[a-z-]+ [A-Z{\[])", report)[1:]}
    for field, limits in of.new_study.schema.field_ranges().items():
        if limits.low > -math.inf:
            low = re.escape(f"{limits.low:g}" if limits.low < 1e6 else str(limits.low))
            assert re.search(rf"(above|at least|in [(\[]) ?{low}\b", helps[flag(field)], re.I), (
                field
            )


@pytest.mark.parametrize("name", ["text", "pairs"])
def test_missing_tokenizer_reports_install_command(name, texts, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    of = MODALITIES[name]
    assert of.module.main([*of.flags(texts), "--out", str(tmp_path / "run")]) == 2
    assert "pip install 'crl_jax[text]'" in capsys.readouterr().err


COMMANDS = [(of, c) for of in MODALITIES.values() for c in commands_of(page_of(of.module), of.name)]


@pytest.mark.parametrize(
    ("of", "command"), COMMANDS, ids=[f"{of.name} {' '.join(c)}" for of, c in COMMANDS]
)
def test_documented_commands_are_accepted(of, command):
    if command[:1] == ["embed"]:
        options = tyro.cli(of.of("_embed").EmbedOptions, args=command[1:])
        assert options.run.parent == Path("runs")
    elif command[:1] != ["--resume"]:
        study = of.new_study
        config, _, _ = configure(study, command)
        study.check(config)


@each_modality
def test_page_documents_all_flags(of):
    """The page of images omits some flags of single entries, which --help lists."""
    known = {*of.new_study.schema.flags.values(), "--config", "--help"}
    known |= {flag(name) for name in of.of("_embed").EmbedOptions.__dataclass_fields__}
    known |= {"--recipe"} if of.new_study.recipes else set()
    undocumented = {
        "--queue", "--momentum", "--clusters", "--warm-up-epochs", "--first-features",
        "--min-score", "--config", "--mu", "--sigma", "--inclusion", "--repulsion", "--gamma",
        "--positive-views", "--pos-scale", "--neg-scale", "--false-negative-share",
        "--threshold-rate",
    }  # fmt: skip
    found = flags_of(page_of(of.module))
    assert found <= known
    assert known - found <= (undocumented if of.name == "images" else set())


@pytest.mark.parametrize("name", ["images", "text", "pairs"])
def test_recipes_are_accepted(name):
    study = MODALITIES[name].new_study
    for recipe, want in study.recipes.items():
        config, _, _ = configure(study, ["--recipe", recipe])
        assert config == want
        study.check(config)
        other, _, _ = configure(study, ["--recipe", recipe, "--batch-size", "3"])
        assert other.training.batch_size == 3
        assert study.schema.from_json(to_json(config), Path("config.json")) == config
