"""Trainings whose batches come from host memory or from disk."""

import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.studies import history, kill, prepare, read, resume, task_of
from PIL import Image

from crl_jax import data, tasks, train
from experiments import _learned, graphs, images, pairs, text
from experiments.graphs._study import GraphStudy
from experiments.text._study import TextStudy

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles", "small_resnet")

IMAGES = shlex.split(
    "--train-images 120 --test-images 60 --width 4 --head 16 8 --batch-size 50 --epochs 3 "
    "--neighbours 5 --batches host --checkpoint-seconds 0"
)
PAIRS = shlex.split(
    "--width 4 --text-vocab-size 60 --text-width 8 --text-n-layers 1 --text-heads 2 --dim 8 "
    "--batch-size 400 --epochs 2 --batches host --checkpoint-seconds 0"
)
TEXT = shlex.split(
    "--width 4 --n-layers 1 --heads 2 --vocab-size 60 --length 6 --head 3 --batch-size 50 "
    "--n-train 120 --epochs 3 --fine-tune-epochs 1 --batches host --checkpoint-seconds 0"
)
GRAPHS = shlex.split(
    "--width 4 --n-layers 2 --head 8 --folds 3 --batch-size 150 --epochs 3 --batches host "
    "--checkpoint-seconds 0"
)


@pytest.mark.parametrize(
    ("command", "flags"),
    [(images, IMAGES), (pairs, PAIRS), (text, TEXT), (graphs, GRAPHS)],
    ids=["images", "pairs", "text", "graphs"],
)
def test_a_killed_run_resumes_to_the_same_bits(command, flags, tmp_path, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert command.main([*flags, "--out", str(whole)]) == 0
    arguments = [*flags, "--out", str(killed)]
    kill(command.main, arguments, monkeypatch, lambda checkpoint, loop: loop.epoch == 1)
    assert resume(command.main, killed, monkeypatch)[0] == 2
    assert history(killed) == history(whole)
    assert read(killed, "metrics_by_seed.json") == read(whole, "metrics_by_seed.json")
    losses = [entry["loss"] for entry in history(whole) if "loss" in entry]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def loss_of_a_batch(study, flags):
    """Returns the loss of a batch of eight examples, and its gradient."""
    config, problem = prepare(study, flags)
    task, part = task_of(study, config, problem), study.batches(config, problem, "final").data
    index = np.array([5, 1, 17, 8, 30, 2, 11, 3], np.int32)
    examples = jax.tree.map(jnp.asarray, jax.tree.map(lambda leaf: leaf[index], part))
    params, state = task.init(jax.random.key(0))
    ctx = train.StepContext(
        jax.random.key(2), jnp.int32(0), jnp.float32(0), jnp.ones(8, bool), jnp.float32(8)
    )

    @jax.jit
    def loss(params, examples):
        batch = task.batch(jax.random.key(1), train.Batch(jnp.asarray(index), examples))
        return task.loss(params, state, batch, ctx)[0]

    return jax.value_and_grad(loss)(params, examples)


@pytest.mark.parametrize(
    ("study", "flags"),
    [
        (GraphStudy(), [*GRAPHS, "--kinds", "drop_nodes", "subgraph", "perturb_edges"]),
        (TextStudy(), [*TEXT, "--method", "dropout"]),
    ],
    ids=["graphs", "text"],
)
def test_host_and_device_forms_of_a_batch_agree(study, flags):
    device, host = (loss_of_a_batch(study, [*flags, "--batches", b]) for b in ("device", "host"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), device, host)


def test_triplets_of_the_host_are_of_the_classes():
    """The positive is another text of the class; all are sampled with their frequencies."""
    labels = np.array([0, 1, 0, 2, 1, 0, 1, 0], np.int32)
    rows = text._host.TripletRows(tasks.LabelledExamples(np.arange(8)[:, None], labels), None)
    seen = []
    for draw in range(300):
        index = np.roll(np.arange(8), draw)
        index = np.random.default_rng(draw).permutation(index)
        query, pos, neg, own = rows[index]
        assert query[:, 0].tolist() == index.tolist()
        assert (own == labels[np.concatenate([query, pos, neg], axis=1)]).all()
        assert (own[:, 0] == own[:, 1]).all()
        assert (own[:, 0] != own[:, 2]).all()
        assert ((pos != query)[own[:, 0] != 2]).all()
        seen += zip(*(x[query[:, 0] == 0, 0].tolist() for x in (pos, neg)))
    pos, neg = map(np.array, zip(*seen))
    counts = np.bincount(pos, minlength=8), np.bincount(neg, minlength=8)
    np.testing.assert_allclose(counts[0] / 300, [0, 0, 1 / 3, 0, 0, 1 / 3, 0, 1 / 3], atol=0.1)
    np.testing.assert_allclose(counts[1] / 300, [0, 0.25, 0, 0.25, 0.25, 0, 0.25, 0], atol=0.1)


def put_images(folder, captions):
    """Writes images of two classes, brighter and darker ones, with captions if asked for."""
    rng, lines = np.random.default_rng(0), []
    for i in range(120):
        path = folder / "images" / ("dark", "bright")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 128, (8, 8, 3), np.uint8) + np.uint8(100 * (i % 2))
        Image.fromarray(pixels).save(path)
        lines.append(f"{path.name}\t{path.parent.name} picture {i % 7}\n")
    if captions:
        (folder / "captions.tsv").write_text("".join(lines))
        return folder
    return folder / "images"


@pytest.mark.parametrize(
    ("command", "flags"),
    [(images, [*IMAGES[4:], "--probe", "published", "--probe-epochs", "1"]), (pairs, PAIRS)],
    ids=["images", "pairs"],
)
def test_images_on_disk_train_as_those_in_memory(command, flags, tmp_path, monkeypatch):
    """Selecting the images of a part reads none; batches and evaluation read some at a time."""
    monkeypatch.setenv("CRL_JAX_CACHE", str(tmp_path / "cache"))
    source = str(put_images(tmp_path / "set", command is pairs))
    read_rows = data.DiskArray.__getitem__
    sizes = []

    def count(self, index):
        rows = read_rows(self, index)
        sizes.append(len(rows))
        return rows

    monkeypatch.setattr(data.DiskArray, "__getitem__", count)
    flags = [*flags, "--data", source, "--batch-size", "30"]
    for batches in ("host", "disk"):
        out = str(tmp_path / batches)
        assert command.main([*flags, "--batches", batches, "--out", out]) == 0
        assert bool(sizes) == (batches == "disk")
    for name in ("metrics.json", "metrics_by_seed.json"):
        found, expected = (read(tmp_path / b, name) for b in ("disk", "host"))
        if name == "metrics.json":
            found.pop("seconds"), expected.pop("seconds")
        assert found == expected
    assert history(tmp_path / "disk") == history(tmp_path / "host")
    assert sizes.count(30) >= 6


def test_features_are_computed_in_parts(monkeypatch, tmp_path):
    """The evaluation never holds all images on the device; parts give the same features."""
    flags = [*IMAGES, "--probe", "both", "--probe-epochs", "1"]
    assert images.main([*flags, "--out", str(tmp_path / "whole")]) == 0
    monkeypatch.setattr(_learned, "_ON_DEVICE", 50)
    assert images.main([*flags, "--out", str(tmp_path / "parts")]) == 0
    whole, parts = (read(tmp_path / name, "metrics.json") for name in ("whole", "parts"))
    assert whole["linear"] == parts["linear"]
    assert whole["knn"] == parts["knn"]


def test_clusters_need_all_images_on_the_device(capsys):
    assert images.main([*IMAGES, "--method", "protonce", "--queue", "80"]) == 2
    assert "--method protonce clusters all images" in capsys.readouterr().err


def test_images_that_are_in_no_file_cannot_remain_on_disk(capsys):
    assert images.main([*IMAGES, "--batches", "disk"]) == 2
    assert "--batches needs images in files, got digits" in capsys.readouterr().err
