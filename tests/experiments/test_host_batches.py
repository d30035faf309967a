"""Tests of training with batches from host memory or from disk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.modalities import MODALITIES, write_images
from _helpers.studies import finish, history, kill, prepare, read, resume, task_of

from crl_jax import data, tasks, train
from experiments import _trained_model, images
from experiments.images import _evaluate as images_evaluation
from experiments.pairs import _evaluate as pairs_evaluation
from experiments.text import _host as text_host

pytestmark = pytest.mark.usefixtures(
    "standard_promotion", "quick_compiles", "pixel_encoder", "first_features"
)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Folder of 120 images of two classes, darker and brighter ones, with captions."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    pixels = rng.integers(0, 128, (120, 8, 8, 3), np.uint8)
    pixels[1::2] += 100
    classes = [("dark", "bright")[i % 2] for i in range(120)]
    write_images(folder / "images", pixels, lambda i: f"{classes[i]}/{i}.png")
    lines = (f"{i}.png\t{name} picture {i % 7}\n" for i, name in enumerate(classes))
    (folder / "captions.tsv").write_text("".join(lines))
    return folder


@pytest.fixture
def read_sizes(monkeypatch):
    """Records the number of images of each read from disk."""
    read_rows, lengths = data.DiskArray.__getitem__, []

    def count(self, index):
        rows = read_rows(self, index)
        lengths.append(len(rows))
        return rows

    monkeypatch.setattr(data.DiskArray, "__getitem__", count)
    return lengths


PICTURES = {
    "images": "--width 4 --head 16 8 --neighbours 5 --probe both --probe-epochs 1 --data {}/images",
    "pairs": "--width 4 --text-vocab-size 60 --text-width 8 --text-n-layers 1 --text-heads 2 "
    "--dim 8 --data {}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODALITIES)
def test_resumed_run_matches_uninterrupted_run(
    name, texts, pictures, read_sizes, tmp_path, monkeypatch
):  # fmt: skip
    """Includes runs that read images from disk and evaluate few examples at a time."""
    modality, on_disk = MODALITIES[name], name in PICTURES
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    monkeypatch.setenv("CRL_JAX_CACHE", str(tmp_path / "cache"))
    flags = modality.flags(texts)
    if on_disk:
        flags = [flag.format(pictures) for flag in PICTURES[name].split()] + ["--batch-size", "30"]
    flags += ["--epochs", "3", "--checkpoint-seconds", "0", "--batches"]
    finish(modality.module.main, whole, [*flags, "host"])
    assert not read_sizes
    for module in (_trained_model, images_evaluation, pairs_evaluation):
        monkeypatch.setattr(module, "ON_DEVICE", 20)
    arguments = [*flags, "disk" if on_disk else "host", "--out", str(killed)]
    kill(modality.module.main, arguments, monkeypatch, lambda checkpoint, loop: loop.epoch == 1)
    assert resume(modality.module.main, killed, monkeypatch)[0] == 2
    assert history(killed) == history(whole)
    (got,), (want,) = (read(folder, "metrics_by_seed.json") for folder in (killed, whole))
    assert got == pytest.approx(want, rel=1e-5)
    losses = [entry["loss"] for entry in history(whole) if "loss" in entry]
    assert losses[-1] < losses[0]
    assert read_sizes.count(30) >= 6 * on_disk


def batch_loss_and_gradient(study, flags):
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "own"),
    [("graphs", "--kinds drop_nodes subgraph perturb_edges"), ("text", "--method dropout")],
)
def test_host_and_device_batches_agree(name, own, texts):
    study, flags = MODALITIES[name].new_study, [*MODALITIES[name].flags(texts), *own.split()]
    device, host = (
        batch_loss_and_gradient(study, [*flags, "--batches", b]) for b in ("device", "host")
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), device, host)


def test_host_triplets_respect_classes_and_frequencies():
    """The positive is uniform among other texts of the class, the negative among other classes."""
    labels = np.array([0, 1, 0, 2, 1, 0, 1, 0], np.int32)
    rows = text_host.TripletRows(tasks.LabelledExamples(np.arange(8)[:, None], labels), None)
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


def test_rejects_clustering_with_host_batches(capsys):
    assert images.main(["--batches", "host", "--method", "protonce", "--queue", "80"]) == 2
    assert "--method protonce clusters all images" in capsys.readouterr().err


def test_rejects_disk_batches_without_image_files(capsys):
    assert images.main(["--batches", "disk"]) == 2
    assert "--batches needs images in files, got digits" in capsys.readouterr().err
