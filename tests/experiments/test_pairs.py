"""End-to-end tests of the image-text command, from flags to retrieval metrics."""

import io
import json
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro
from _helpers.bert import TINY, published
from _helpers.studies import (
    commands_of,
    files_of,
    finish,
    flags_of,
    kill,
    page_of,
    prepare,
    read,
    resume,
    said_of_runs,
    task_of,
)
from PIL import Image

import experiments.pairs
from crl_jax import models, tasks, train
from crl_jax.data import CaptionedImages, Tokens, load_captioned
from experiments._schema import to_json
from experiments._study import Run
from experiments._study_command import configure
from experiments.pairs import _evaluate as evaluation
from experiments.pairs import main
from experiments.pairs._config import SCHEMA
from experiments.pairs._embed import EmbedOptions, load_towers
from experiments.pairs._evaluate import (
    Found,
    chance,
    evaluate_classes,
    evaluate_pairs,
    evaluate_retrieval,
)
from experiments.pairs._problem import Part, draw_caption
from experiments.pairs._study import Pairs
from experiments.pairs.losses import LOSSES
from experiments.pairs.recipes import RECIPES

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles", "small_resnet")

SMALL = shlex.split(
    "--width 4 --text-vocab-size 60 --text-width 8 --text-n-layers 1 --text-heads 2 --dim 8 "
    "--batch-size 400 --epochs 2"
)
README = page_of(experiments.pairs)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run with a sweep and two seeds."""
    folder = tmp_path_factory.mktemp("pairs") / "run"
    flags = [*SMALL, "--loss", "bayesian", "--alpha-from", "labels", "--sweep", "beta=0.6,0.9"]
    return finish(main, folder, [*flags, "--seeds", "2"])


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Captioned images without known duplicates: two captions for most images, three for some."""
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "images").mkdir()
    lines, names = [], [f"{i}.png" for i in range(30)]
    for i, name in enumerate(names):
        file = io.BytesIO()
        Image.fromarray(np.full((8, 8, 3), 8 * i, np.uint8)).save(file, "png")
        (folder / "images" / name).write_bytes(file.getvalue())
        lines.append("\t".join([name, f"shade {i}", f"about {i}", *["a third"] * (i % 2)]))
    (folder / "captions.tsv").write_text("\n".join(lines))
    for part, own in (("train", names[:16]), ("dev", names[16:22]), ("test", names[22:])):
        (folder / f"{part}.txt").write_text("\n".join(own))
    return folder


settled = partial(prepare, Pairs())


def test_a_run_leaves_what_the_page_says(finished, capsys):
    assert files_of(finished) == said_of_runs(README)
    found, per_seed = read(finished, "metrics.json"), read(finished, "metrics_by_seed.json")
    name = "text_to_image_recall@10"
    assert found[name] == pytest.approx(np.mean([m[name] for m in per_seed]))
    assert found["chosen"]["point"]["beta"] in (0.6, 0.9)
    assert {"posterior_auc", "false_negative_weight", "alignment"} <= found.keys()
    assert found["false_negatives"] == pytest.approx(0.1, abs=0.02)
    lines = [json.loads(line) for line in (finished / "history.jsonl").read_text().splitlines()]
    assert all({"temperature", "alpha", "auc", "valid_recall@10"} <= line.keys() for line in lines)
    assert main(["--resume", str(finished)]) == 0
    assert "is finished" in capsys.readouterr().out


def np_recall(queries, answers, query_ids, answer_ids, k):
    best = np.argsort(-queries @ answers.T, axis=1)[:, :k]
    return np.mean((answer_ids[best] == query_ids[:, None]).any(axis=1))


def test_embeddings_are_those_that_were_judged(finished):
    judged = read(finished, "metrics_by_seed.json")[0]
    with np.load(finished / "embeddings.npz") as kept:
        images, texts, of_images = kept["images"], kept["texts"], kept["image_groups"]
        of_texts = of_images[kept["image_of_text"]]
        assert len(kept["captions"]) == len(texts) == len(images) == 359
    # Identical texts tie, and the library's recall ranks wrong answers first among ties.
    got = judged["text_to_image_recall@5"]
    assert np_recall(texts, images, of_texts, of_images, 5) == pytest.approx(got, abs=0.01)
    assert judged["chance_recall@10"] == pytest.approx(1 - 0.9**10, abs=0.02)


def test_a_run_embeds_as_it_was_judged(finished, tmp_path):
    towers, out = load_towers(finished), tmp_path / "features.npz"
    with np.load(finished / "embeddings.npz") as kept:
        images, texts, captions = kept["images"], kept["texts"], kept["captions"].tolist()
    test = load_captioned("digits").test
    np.testing.assert_allclose(towers.images(test.images), images, atol=1e-5)
    lines = tmp_path / "texts.txt"
    lines.write_text("".join(f"{text}\n" for text in captions))
    assert main(["embed", "--run", str(finished), "--texts", str(lines), "--out", str(out)]) == 0
    with np.load(out) as stored:
        np.testing.assert_allclose(stored["features"], texts, atol=1e-5)
    assert main(["embed", "--run", str(finished), "--images", "digits", "--out", str(out)]) == 0
    with np.load(out) as stored:
        assert stored["features"].shape == (1797, 8)
        np.testing.assert_allclose(np.linalg.norm(stored["features"], axis=1), 1, atol=1e-5)
        assert {*stored["part"]} == {"train", "test"}
        # The split is ordered differently, but the images are the same.
        nearest = (stored["features"] @ images.T).max(axis=0)
        np.testing.assert_allclose(nearest, 1, atol=1e-5)
    for i, image in enumerate(test.images[:6, ..., 0]):
        path = tmp_path / "photos" / str(i % 2) / "of" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    flags = ["--images", str(tmp_path / "photos"), "--labels", "False", "--out", str(out)]
    assert main(["embed", "--run", str(finished), *flags]) == 0
    with np.load(out) as stored:
        place = [int(name[-5]) for name in stored["names"]]
        assert sorted(stored["names"]) == sorted(f"{i % 2}/of/{i}.png" for i in range(6))
        np.testing.assert_allclose(stored["features"], images[place], atol=1e-5)


def test_images_of_other_channels_are_refused(finished, tmp_path, capsys):
    for i in range(4):
        path = tmp_path / f"class{i % 2}" / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), (60 * i, 0, 9), np.uint8)).save(path)
    assert main(["embed", "--run", str(finished), "--images", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"--images {tmp_path} has images of 3 channels" in said
    assert f"of {finished} takes 1" in said


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags = [*SMALL, "--loss", "siglip", "--checkpoint-seconds", "0"]
    assert main([*flags, "--out", str(whole)]) == 0
    arguments = [*flags, "--out", str(killed)]
    kill(main, arguments, monkeypatch, lambda checkpoint, loop: loop.epoch == 1)
    assert resume(main, killed, monkeypatch) == [2]
    with np.load(whole / "embeddings.npz") as a, np.load(killed / "embeddings.npz") as b:
        for half in ("images", "texts"):
            np.testing.assert_array_equal(a[half], b[half])
    assert read(killed, "metrics_by_seed.json") == read(whole, "metrics_by_seed.json")


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_gets_its_numbers(loss):
    config, problem = settled([*SMALL, "--loss", loss])
    task, entry = task_of(Pairs(), config, problem), LOSSES[loss]
    assert task.loss_fn is entry.loss
    assert {*task.hyperparams} == {*entry.hyperparams}  # temperature is learned
    assert task.hyperparams.get("tau_plus", 0.1) == pytest.approx(0.1, abs=0.001)  # ten digits
    learned = task.learned_hyperparams(task.init(jax.random.key(0))[0])
    start = {"temperature": 0.1, "bias": -10.0} if loss == "siglip" else {"temperature": 0.07}
    assert {name: pytest.approx(float(x)) for name, x in learned.items()} == start
    assert task.min_temperature == (0.0 if loss == "siglip" else 0.01)
    assert SCHEMA.from_json(to_json(config), Path("config.json")) == config


def test_flags_reach_the_task():
    flags = "--exclude-equal True --tile 32 --crop 0.5 --flip 0.25 --length 7 --loss siglip"
    config, problem = settled([*SMALL, *flags.split(), "--learn-temperature", "False"])
    task = task_of(Pairs(), config, problem, {"temperature": 0.2, "bias": -3.0})
    assert (task.exclude_equal, task.tile, task.bias) == (True, 32, -3.0)
    assert task.hyperparams == {"temperature": 0.2}
    assert (task.augment_first.scale, task.augment_first.flip_rate) == ((0.5, 1.0), 0.25)
    assert problem.train.tokens.ids.shape == (1258, 7)
    task = task_of(Pairs(), config, problem)
    assert (task.bias, task.hyperparams["temperature"]) == (-10.0, 0.1)


def test_tiles_change_no_loss():
    losses = []
    for flags in ([], ["--tile", "30"]):
        config, problem = settled([*SMALL, "--exclude-equal", "True", *flags])
        task = task_of(Pairs(), config, problem)
        some = jax.tree.map(
            lambda leaf: jnp.asarray(leaf[:100]), Pairs().batches(config, problem, "final").data
        )

        @jax.jit
        def loss(key, task=task, some=some):
            batch = task.batch(key, train.Batch(jnp.arange(100), some))
            where = jnp.arange(100) < 90
            ctx = train.StepContext(key, jnp.int32(0), jnp.float32(0), where, jnp.float32(90))
            return task.loss(*task.init(key), batch, ctx)[0]

        losses.append(float(loss(jax.random.key(0))))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_eight_devices_give_the_result_of_one(photographs, tmp_path):
    histories = []
    for flags in ([], ["--mesh", "data=8"]):
        own = [
            "--data",
            str(photographs),
            "--batch-size",
            "16",
            "--optimizer",
            "sgd",
            "--lr",
            "0.1",
        ]
        config, problem = settled([*SMALL, *own, *flags])
        history, folder = [], tmp_path / str(len(flags))
        folder.mkdir()
        Pairs().fit(config, problem, Run("final", 0, 1, 0, {}), folder, history.append)
        histories.append([entry["loss"][0] for entry in history])
    one, eight = histories
    assert one[0] != one[1]
    np.testing.assert_allclose(eight, one, rtol=1e-3)


def captioned(of_text, groups=None, n=3):
    texts = tuple(f"t{i}" for i in range(len(of_text)))
    pixels = np.zeros((n, 2, 2, 1), np.uint8)
    return CaptionedImages(
        pixels, texts, np.int32(of_text), None if groups is None else np.int32(groups)
    )


def test_a_caption_is_one_of_the_images_own():
    """Texts may be in any order, with a different number per image."""
    of_text = [1, 0, 2, 1, 1]
    ids = np.arange(5, dtype=np.int32)[:, None] * np.ones((1, 3), np.int32)
    part = Part(captioned(of_text), Tokens(ids, ids >= 0))
    captions = jax.tree.map(jnp.asarray, part.captions)
    drawn = [
        jax.vmap(draw_caption)(jax.random.split(jax.random.key(i), 3), captions).ids[:, 0]
        for i in range(40)
    ]
    seen = [set(np.array(drawn)[:, image].tolist()) for image in range(3)]
    assert seen == [{1}, {0, 3, 4}, {2}]


def test_recall_by_hand():
    """Two images are equal, so the text of either is relevant to both."""
    eye = np.eye(3)
    images = jnp.asarray([eye[0], eye[1], eye[2]])
    texts = jnp.asarray([eye[0] + 0.1 * eye[1], eye[0] + 0.5 * eye[2], eye[0]])
    test = captioned([0, 1, 2], [7, 7, 8])
    learned = SimpleNamespace()
    named, by_query = evaluate_retrieval(Found(learned, test, images, texts, SimpleNamespace()))  # pyright: ignore
    # Texts 0 and 1 are nearest to image 0, which is correct. So is text 2; images 2 and 1 tie.
    assert by_query[3:].tolist() == [1, 1, 1 / 3]
    # Image 0 ranks text 2 above its own; image 1 ranks the relevant text 0 first; image 2 ranks the
    # wrong text 1 first.
    assert by_query[:3].tolist() == [1 / 2, 1, 1 / 3]
    assert named["text_to_image_recall@1"] == pytest.approx(2 / 3)
    assert named["image_to_text_recall@1"] == pytest.approx(1 / 3)
    assert named["image_to_text_rank"] == 2
    assert named["chance_recall@1"] == pytest.approx(5 / 9)  # 2/3, 2/3 and 1/3
    assert named["chance_recall@10"] == 1


def test_chance_is_that_of_random_orders():
    rng = np.random.default_rng(0)
    query_ids, answer_ids = np.array([0, 1, 2, 9, -1]), np.array([0, 0, 0, 1, 2, 2, 3, -1, -1])
    drawn = np.array([rng.permutation(answer_ids)[:3] for _ in range(20_000)])
    want = np.mean([(drawn == query).any(axis=1).mean() for query in (0, 1, 2)])
    assert chance(query_ids, answer_ids, 3) == pytest.approx(want, abs=0.01)


def test_classes_are_told_by_the_texts_of_the_training_part(monkeypatch):
    """Repeated texts count once."""
    pixels = np.zeros((4, 2, 2, 1), np.uint8)
    of_text = np.arange(4, dtype=np.int32)
    told = CaptionedImages(pixels, ("a", "b", "b", "c"), of_text, np.int32([5, 5, 5, 6]))
    angles = np.array([0.0, 1.0, 1.0, -1.0])  # of the texts in the plane; class 5 is at 0.5 rad
    ids = np.arange(4, dtype=np.int32)[:, None]
    part = Part(told, Tokens(ids, ids >= 0))

    def embedded(learned, images, tokens):
        own = angles[tokens.ids[:, 0]]
        return None, jnp.stack([jnp.cos(own), jnp.sin(own)], axis=1)

    monkeypatch.setattr(evaluation, "_embedded", embedded)
    of_images = np.array([0.4, -0.2, -0.3, 0.0])  # decision boundary: -0.25
    images = jnp.stack([jnp.cos(of_images), jnp.sin(of_images)], axis=1)
    test = CaptionedImages(pixels, ("x",) * 4, of_text, np.int32([5, 5, 6, -1]))
    found = Found(SimpleNamespace(), test, images, images, SimpleNamespace())  # pyright: ignore
    assert evaluate_classes(found, part) == {"zero_shot": 1.0}
    unknown = replace(found, test=replace(test, groups=np.int32([5, 5, 4, -1])))
    assert evaluate_classes(unknown, part) == {}


def test_of_photographs_nobody_knows_which_are_equal(photographs):
    flags = [*SMALL, "--data", str(photographs), "--batch-size", "16", "--loss", "bayesian"]
    config, problem = settled([*flags, "--alpha-from", "views"])
    assert config.objective.tau_plus == 0.01
    assert not isinstance(Pairs().batches(config, problem, "final").data, tasks.LabelledExamples)
    images, texts = jnp.eye(8), jnp.eye(8)[problem.test.captioned.image_of_text]
    found = Found(SimpleNamespace(), problem.test.captioned, images, texts, problem.encoder)  # pyright: ignore
    named, by_query, _ = evaluate_pairs(found, problem, LOSSES["bayesian"])
    assert not {"false_negatives", "zero_shot"} & named.keys()
    assert named["chance_recall@1"] == pytest.approx(1 / 8)
    assert by_query.tolist() == [1] * (8 + len(texts))


@pytest.fixture
def weights(tmp_path):
    np.savez(tmp_path / "bert.npz", **published())
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"p{i}" for i in range(36))]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    return tmp_path / "bert.npz"


OWN = ["--width", "4", "--text-heads", "3"]


def test_a_network_of_texts_may_start_from_published_weights(weights):
    config, problem = settled([*OWN, "--length", "6", "--weights", str(weights)])
    params, _ = task_of(Pairs(), config, problem).init(jax.random.key(0))
    loaded = models.load_bert(weights, n_heads=3)
    jax.tree.map(np.testing.assert_array_equal, params["second"]["backbone"], loaded.params)
    assert problem.encoder.settings == replace(TINY, dropout=0.1)
    assert SCHEMA.from_json(to_json(config), Path("config.json")) == config


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--length", "11"], "--length must be at most 10, the places of"),
        (["--text-width", "8"], "--weights bring their own --text-width"),
        ([], "expected the 40 pieces of"),
    ],
)
def test_weights_that_do_not_go_are_said(flags, message, weights, capsys):
    vocabulary = weights.parent / "vocab.txt"
    if not flags:
        vocabulary.write_text(vocabulary.read_text() + "\none more")
    assert main([*OWN, *flags, "--weights", str(weights)]) == 2
    assert message in capsys.readouterr().err
    vocabulary.unlink()
    assert main([*OWN, "--weights", str(weights)]) == 2
    assert "vocab.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tau-plus", "0.1"], "--loss clip has no --tau-plus"),
        (["--loss", "siglip", "--alpha", "0.9"], "--loss siglip has no --alpha"),
        (["--batch-size", "4000"], "--batch-size must be at most the 1258 images"),
        (["--text-heads", "3"], "--text-heads must divide --text-width, 64, got 3"),
        (["--temperature", "0.005"], "--temperature must start from --least-temperature 0.01 or"),
        (["--least-temperature", "0.2"], "--temperature must start from --least-temperature 0.2"),
        (["--least-temperature", "0", "--learn-temperature", "False"], "is for one that is"),
        (["--length", "2"], "--length must be a whole number in [3, 4096], got 2"),
        (["--column", "label_zh"], "--column requires a folder of pictograms"),
        (["--valid", "0.6", "--test", "0.6"], "--valid + --test must be less than 1"),
        (["--data", "nowhere"], "nowhere"),
        (["--weights", "nowhere"], "nowhere"),
        (["--sweep", "epochs=1,2"], "--sweep takes one of"),
        (["--recipe", "coco"], "--recipe takes one of flickr8k-small-clip"),
        (["--resume", "runs", "--lr", "1"], "--resume goes on with the run's own configuration"),
        (["embed", "--run", "nowhere", "--images", "digits"], "nowhere holds no run"),
        (["embed", "--run", "nowhere"], "--images and --texts name what is embedded; give one"),
    ],
)  # fmt: skip
def test_what_does_not_go_is_said(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "flags", [["--exclude-equal", "True"], ["--loss", "bayesian", "--alpha-from", "labels"]]
)
def test_what_nobody_knows_is_not_asked_for(flags, photographs, capsys):
    data = ["--data", str(photographs), "--batch-size", "16"]
    assert main([*SMALL, *data, *flags]) == 2
    assert f"{' '.join(flags[-2:])} needs to know which images are equal" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
def test_a_folder_without_a_validation_part_is_refused(photographs, capsys):
    (photographs / "dev.txt").rename(photographs / "away")
    try:
        assert main(["--data", str(photographs)]) == 2
    finally:
        (photographs / "away").rename(photographs / "dev.txt")
    assert "has no part for validation: a file dev.txt" in capsys.readouterr().err


def test_a_missing_package_is_named_with_its_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert main([]) == 2
    assert "pip install 'crl_jax[text]'" in capsys.readouterr().err


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_configurations(name, monkeypatch):
    recipe = RECIPES[name]
    assert SCHEMA.from_json(to_json(recipe), Path("config.json")) == recipe
    Pairs().check(recipe)
    assert name.endswith(recipe.objective.loss)


def test_views_are_of_the_library():
    config, problem = settled(SMALL)
    task = task_of(Pairs(), config, problem)
    image = problem.train.captioned.images[0]
    view = task.augment_first(jax.random.key(0), image)
    np.testing.assert_allclose(view, task.augment_first.plain(image), atol=1e-5)
    assert isinstance(Pairs().batches(config, problem, "final").data, tasks.LabelledExamples)


@pytest.mark.parametrize("command", commands_of(README, "pairs"), ids=" ".join)
def test_commands_of_the_page_are_taken(command):
    if command[:1] == ["embed"]:
        assert tyro.cli(EmbedOptions, args=command[1:]).run == Path("runs/flickr8k")
    elif command[:1] != ["--resume"]:
        study = Pairs()
        config, _, _ = configure(study, command)
        study.check(config)


def test_flags_of_the_page_are_all_of_them():
    own = {f"--{name}" for name in EmbedOptions.__dataclass_fields__}
    assert flags_of(README) == {*SCHEMA.flags.values(), "--help", "--recipe", "--config"} | own
