"""Image-text pairs: task, captions, retrieval metrics and weights; see also test_studies."""

from dataclasses import replace
from functools import partial
from math import comb
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.bert import TINY
from _helpers.modalities import MODALITIES, write_images, write_texts
from _helpers.studies import prepare, task_of

from crl_jax import models, tasks
from crl_jax.data import CaptionedImages, Tokens
from experiments._schema import to_json
from experiments.pairs import _evaluate as evaluation
from experiments.pairs import main
from experiments.pairs._config import SCHEMA
from experiments.pairs._evaluate import (
    EmbeddedTestPart,
    chance,
    evaluate_classes,
    evaluate_pairs,
    evaluate_retrieval,
)
from experiments.pairs._problem import Part, draw_caption
from experiments.pairs._study import Pairs
from experiments.view_losses import PAIR_LOSSES as LOSSES

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles", "pixel_encoder")
SMALL = MODALITIES["pairs"].flags("")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Captioned images without known duplicates: two captions for most images, three for some."""
    folder, names = tmp_path_factory.mktemp("photographs"), [f"{i}.png" for i in range(30)]
    shades = 8 * np.arange(30, dtype=np.uint8)
    write_images(
        folder / "images", np.tile(shades[:, None, None, None], (8, 8, 3)), "{}.png".format
    )
    lines = (
        "\t".join([name, f"shade {i}", f"about {i}", *["a third"] * (i % 2)])
        for i, name in enumerate(names)
    )
    (folder / "captions.tsv").write_text("\n".join(lines))
    for part, own in (("train", names[:16]), ("dev", names[16:22]), ("test", names[22:])):
        (folder / f"{part}.txt").write_text("\n".join(own))
    return folder


prepare_pairs = partial(prepare, Pairs())


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_gets_its_hyperparams(loss):
    config, problem = prepare_pairs([*SMALL, "--loss", loss])
    task, entry = task_of(Pairs(), config, problem), LOSSES[loss]
    assert task.loss_fn is entry.loss
    assert {*task.hyperparams} == {*entry.hyperparams}  # temperature is learned
    assert task.hyperparams.get("tau_plus", 0.1) == pytest.approx(0.1, abs=0.001)  # ten digits
    start = (0.1, 0.0, -10.0) if loss == "siglip" else (0.07, 0.01, None)
    assert (task.temperature, task.min_temperature, task.bias) == start
    assert SCHEMA.from_json(to_json(config), Path("config.json")) == config


def test_flags_reach_task():
    flags = "--exclude-equal True --tile 32 --crop 0.5 --flip 0.25 --length 7 --loss siglip"
    config, problem = prepare_pairs([*SMALL, *flags.split(), "--learn-temperature", "False"])
    task = task_of(Pairs(), config, problem, {"temperature": 0.2, "bias": -3.0})
    assert (task.exclude_equal, task.tile, task.bias) == (True, 32, -3.0)
    assert task.hyperparams == {"temperature": 0.2}
    assert (task.augment_first.scale, task.augment_first.flip_rate) == ((0.5, 1.0), 0.25)
    assert problem.train.tokens.ids.shape == (1258, 7)
    task = task_of(Pairs(), config, problem)
    assert (task.bias, task.hyperparams["temperature"]) == (-10.0, 0.1)


def test_sogclip_task_takes_flags_and_number_of_pairs():
    flags = "--loss sogclip --gamma 0.5 --false-negative-share 0.02 --warm-up-epochs 3"
    config, problem = prepare_pairs([*SMALL, *flags.split(), "--learn-temperature", "False"])
    task = task_of(Pairs(), config, problem)
    assert isinstance(task, tasks.SogCLIP)
    assert (task.gamma, task.false_negative_share, task.warm_up) == (0.5, 0.02, 3)
    assert task.n_examples == len(problem.train.captioned.images)
    assert task.hyperparams == {"temperature": 0.07}


def captioned(of_text, groups=None, n=3):
    texts = tuple(f"t{i}" for i in range(len(of_text)))
    pixels = np.zeros((n, 2, 2, 1), np.uint8)
    return CaptionedImages(
        pixels, texts, np.int32(of_text), None if groups is None else np.int32(groups)
    )


def test_draw_caption_covers_exactly_own_captions():
    """Texts may be in any order, with a different number per image."""
    of_text = [1, 0, 2, 1, 1]
    ids = np.arange(5, dtype=np.int32)[:, None] * np.ones((1, 3), np.int32)
    part = Part(captioned(of_text), Tokens(ids, ids >= 0))
    captions = jax.tree.map(jnp.asarray, part.captions)
    samples = [
        jax.vmap(draw_caption)(jax.random.split(jax.random.key(i), 3), captions).ids[:, 0]
        for i in range(40)
    ]
    seen = [set(np.array(samples)[:, image].tolist()) for image in range(3)]
    assert seen == [{1}, {0, 3, 4}, {2}]


def test_retrieval_metrics_match_hand_computed_values():
    """Two images are equal, so the text of either is relevant to both."""
    eye = np.eye(3)
    images = jnp.asarray([eye[0], eye[1], eye[2]])
    texts = jnp.asarray([eye[0] + 0.1 * eye[1], eye[0] + 0.5 * eye[2], eye[0]])
    test = captioned([0, 1, 2], [7, 7, 8])
    learned = SimpleNamespace()
    metrics, by_query = evaluate_retrieval(
        EmbeddedTestPart(learned, test, images, texts, SimpleNamespace())
    )  # pyright: ignore
    # Texts 0 and 1 are nearest to image 0, which is correct. So is text 2; images 2 and 1 tie.
    assert by_query[3:].tolist() == [1, 1, 1 / 3]
    # Image 0 ranks text 2 above its own; image 1 ranks the relevant text 0 first; image 2 ranks the
    # wrong text 1 first.
    assert by_query[:3].tolist() == [1 / 2, 1, 1 / 3]
    assert metrics["text_to_image_recall@1"] == pytest.approx(2 / 3)
    assert metrics["image_to_text_recall@1"] == pytest.approx(1 / 3)
    assert metrics["image_to_text_rank"] == 2
    assert metrics["chance_recall@1"] == pytest.approx(5 / 9)  # 2/3, 2/3 and 1/3
    assert metrics["chance_recall@10"] == 1


def test_chance_recall_matches_hypergeometric_probability():
    """Three of nine answers, of which three, one and two are relevant to the queries 0, 1 and 2."""
    query_ids, answer_ids = np.array([0, 1, 2, 9, -1]), np.array([0, 0, 0, 1, 2, 2, 3, -1, -1])
    want = np.mean([1 - comb(9 - relevant, 3) / comb(9, 3) for relevant in (3, 1, 2)])
    assert chance(query_ids, answer_ids, 3) == pytest.approx(want, rel=1e-6)


def test_zero_shot_classes_use_distinct_training_texts(monkeypatch):
    """Repeated texts count once."""
    pixels = np.zeros((4, 2, 2, 1), np.uint8)
    of_text = np.arange(4, dtype=np.int32)
    train_images = CaptionedImages(pixels, ("a", "b", "b", "c"), of_text, np.int32([5, 5, 5, 6]))
    angles = np.array([0.0, 1.0, 1.0, -1.0])  # text angles in the plane; class 5 is at 0.5 rad
    ids = np.arange(4, dtype=np.int32)[:, None]
    part = Part(train_images, Tokens(ids, ids >= 0))

    def embedded(learned, images, tokens):
        own = angles[tokens.ids[:, 0]]
        return None, jnp.stack([jnp.cos(own), jnp.sin(own)], axis=1)

    monkeypatch.setattr(evaluation, "_embedded", embedded)
    of_images = np.array([0.4, -0.2, -0.3, 0.0])  # decision boundary: -0.25
    images = jnp.stack([jnp.cos(of_images), jnp.sin(of_images)], axis=1)
    test = CaptionedImages(pixels, ("x",) * 4, of_text, np.int32([5, 5, 6, -1]))
    found = EmbeddedTestPart(SimpleNamespace(), test, images, images, SimpleNamespace())  # pyright: ignore
    assert evaluate_classes(found, part) == {"zero_shot": 1.0}
    unknown = replace(found, test=replace(test, groups=np.int32([5, 5, 4, -1])))
    assert evaluate_classes(unknown, part) == {}


def test_ungrouped_images_omit_false_negatives_and_zero_shot(photographs):
    flags = [*SMALL, "--data", str(photographs), "--batch-size", "16", "--loss", "bayesian"]
    config, problem = prepare_pairs([*flags, "--alpha-from", "views"])
    assert config.objective.tau_plus == 0.01
    assert not isinstance(Pairs().batches(config, problem, "final").data, tasks.LabelledExamples)
    images, texts = jnp.eye(8), jnp.eye(8)[problem.test.captioned.image_of_text]
    found = EmbeddedTestPart(
        SimpleNamespace(), problem.test.captioned, images, texts, problem.encoder
    )  # pyright: ignore
    metrics, by_query, _ = evaluate_pairs(found, problem, LOSSES["bayesian"])
    assert not {"false_negatives", "zero_shot"} & metrics.keys()
    assert metrics["chance_recall@1"] == pytest.approx(1 / 8)
    assert by_query.tolist() == [1] * (8 + len(texts))


@pytest.fixture
def weights(tmp_path):
    (tmp_path / "texts").mkdir()
    folder = write_texts(tmp_path / "texts") / "weights"
    vocabulary = folder / "vocab.txt"
    pieces = [*vocabulary.read_text().split(), *(f"p{i}" for i in range(26))]
    vocabulary.write_text("\n".join(pieces))
    return folder / "model.npz"


OWN = ["--width", "4", "--text-heads", "3"]


def test_text_encoder_loads_published_weights(weights):
    config, problem = prepare_pairs([*OWN, "--length", "6", "--weights", str(weights)])
    params, _ = jax.jit(task_of(Pairs(), config, problem).init)(jax.random.key(0))
    loaded = models.load_bert(weights, n_heads=3)
    jax.tree.map(np.testing.assert_array_equal, params["second"]["backbone"], loaded.params)
    assert problem.encoder.settings == replace(TINY, dropout=0.1)
    assert SCHEMA.from_json(to_json(config), Path("config.json")) == config


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--length", "11"], "--length must be at most 10, the number of positions of"),
        (["--text-width", "8"], "--weights bring their own --text-width"),
        ([], "expected the 40 pieces of"),
    ],
)
def test_rejects_incompatible_weights(flags, message, weights, capsys):
    vocabulary = weights.parent / "vocab.txt"
    if not flags:
        vocabulary.write_text(vocabulary.read_text() + "\none more")
    assert main([*OWN, *flags, "--weights", str(weights)]) == 2
    assert message in capsys.readouterr().err
    vocabulary.unlink()
    assert main([*OWN, "--weights", str(weights)]) == 2
    assert "vocab.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [["--exclude-equal", "True"], ["--loss", "bayesian", "--alpha-from", "labels"]]
)
def test_rejects_flags_that_need_image_groups(flags, photographs, capsys):
    data = ["--data", str(photographs), "--batch-size", "16"]
    assert main([*SMALL, *data, *flags]) == 2
    assert f"{' '.join(flags[-2:])} requires groups of equal images" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
def test_rejects_folder_without_validation_part(photographs, capsys):
    (photographs / "dev.txt").rename(photographs / "away")
    try:
        assert main(["--data", str(photographs)]) == 2
    finally:
        (photographs / "away").rename(photographs / "dev.txt")
    assert "has no part for validation: a file dev.txt" in capsys.readouterr().err


def test_view_is_plain_image_and_batches_are_labelled():
    config, problem = prepare_pairs(SMALL)
    task = task_of(Pairs(), config, problem)
    image = problem.train.captioned.images[0]
    view = jax.jit(task.augment_first)(jax.random.key(0), image)
    np.testing.assert_allclose(view, task.augment_first.plain(image), atol=1e-5)
    assert isinstance(Pairs().batches(config, problem, "final").data, tasks.LabelledExamples)
