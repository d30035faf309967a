"""End-to-end tests of the text-encoder command, from flags to metrics."""

import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro
from _helpers.bert import TINY, published
from _helpers.refusals import raises
from _helpers.studies import (
    commands_of,
    files_of,
    flags_of,
    history,
    kill,
    page_of,
    read,
    refused,
    resume,
    said_of_runs,
    task_of,
)
from scipy import stats
from sklearn.metrics import precision_recall_fscore_support

import experiments.text
from crl_jax import data, models, tasks
from experiments import _rundir as rundir
from experiments._encoder_file import save_encoder
from experiments._learned import Learned
from experiments._schema import to_json
from experiments._study import Run
from experiments._study_command import configure
from experiments._truth import some_of
from experiments.text import main
from experiments.text._config import SCHEMA
from experiments.text._embed import EmbedOptions, load_encoder
from experiments.text._evaluate import Stages, TextLearned, _scores, correlation, measure_dropout
from experiments.text._problem import Pairs, drawn
from experiments.text._study import FINE_TUNING, PRE_TRAINING, TextStudy, _start_of
from experiments.text.losses import LOSSES
from experiments.text.methods import METHODS
from experiments.text.recipes import RECIPES

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

README = page_of(experiments.text)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = ("fine good great", "dull bad poor", "odd new quaint")
SMALL = shlex.split(
    "--width 4 --n-layers 1 --heads 2 --vocab-size 60 --length 6 --head 3 --batch-size 16 "
    "--epochs 2 --fine-tune-epochs 3"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Texts of three classes with class-specific words, scored text pairs, and BERT weights."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for name, n in (("train", 60), ("test", 30)):
        rows = ["text\tlabel"]
        for i in range(n):
            own = WORDS[i % 3].split()
            rows.append(f"{own[rng.integers(3)]} {own[rng.integers(3)]} film {i % 7}\tclass{i % 3}")
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    pairs = ["fine film\tgreat film\t5", "dull film\tfine film\t1", "odd film\tnew film\t4",
             "good film\tbad one\t0.5"]  # fmt: skip
    (folder / "pairs.txt").write_text("".join(f"{pair}\n" for pair in pairs))
    weights = folder / "weights"
    weights.mkdir()
    np.savez(weights / "model.npz", **published(TINY))
    pieces = (*SPECIAL, "film", *(word for words in WORDS for word in words.split()))
    (weights / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return folder


def settled(files, *flags):
    """Returns the configuration with all defaults resolved, and the loaded texts."""
    study = TextStudy()
    config, _, _ = configure(study, [*SMALL, "--data", str(files), *flags])
    problem = study.load(config, lambda _: None)
    return study.prepare(config, problem), problem


@pytest.fixture(scope="module")
def finished(files, tmp_path_factory):
    """A finished run with a sweep and two seeds."""
    folder = tmp_path_factory.mktemp("text") / "run"
    flags = ["--loss", "bayesian", "--alpha-from", "labels", "--sweep", "fine_tune_lr=1e-9,0.05"]
    flags += ["--data", str(files), "--pairs", str(files / "pairs.txt"), "--seeds", "2"]
    with jax.numpy_dtype_promotion("standard"):
        assert main([*SMALL, *flags, "--out", str(folder)]) == 0
    return folder


def test_negatives_count_alike_unless_told_otherwise(files):
    """Checks the default of `beta` in the configuration, the task and the printed description."""
    for flags, beta in (([], 0.5), (["--beta", "0.9"], 0.9)):
        config, problem = settled(files, "--loss", "bayesian", *flags)
        assert config.objective.beta == beta
        assert f"beta={beta}" in TextStudy().describe_training(config)
        task = task_of(TextStudy(), config, problem)
        assert task.hyperparams["beta"] == beta


def test_a_run_leaves_what_the_page_says(finished, capsys):
    assert files_of(finished) == said_of_runs(README)
    lines = history(finished)
    assert [(line["phase"], line["run"], line["stage"], line["epoch"]) for line in lines] == [
        (phase, run, stage, 1 + epoch)
        for phase in ("search", "final") for run in (0, 1)
        for stage, epochs in ((PRE_TRAINING, 2), (FINE_TUNING, 3)) for epoch in range(epochs)
    ]  # fmt: skip
    scores = [
        np.mean([x["valid_accuracy"] for x in lines if x["run"] == run and "valid_accuracy" in x])
        for run in (0, 1)
    ]
    found, per_seed = read(finished, "metrics.json"), read(finished, "metrics_by_seed.json")
    chosen = found["chosen"]
    assert chosen["valid_accuracy"] == pytest.approx(max(scores))
    assert chosen["point"]["fine_tune_lr"] == (1e-9, 0.05)[int(np.argmax(scores))]
    _, *points = (finished / "sweep.csv").read_text().splitlines()
    assert [line.split(",")[2] for line in points] == ["3", "3"]  # epochs of the selecting stage
    assert found["accuracy"] == pytest.approx(np.mean([m["accuracy"] for m in per_seed]))
    assert {"spearman", "posterior_auc", "false_negatives", "alignment"} <= found.keys()
    assert main(["--resume", str(finished)]) == 0
    assert "is finished" in capsys.readouterr().out


def test_a_text_is_judged_by_its_class(files, tmp_path):
    """Also checks the stored features: without fine-tuning, both stages have the same ones."""
    config, problem = settled(files, "--fine-tune-epochs", "0")
    study, run = TextStudy(), Run("final", 0, 1, 0, {})
    learned = study.trained(
        config, problem, run, study.fit(config, problem, run, tmp_path, lambda _: None)
    )
    found = study.evaluate(config, problem, learned, 0, lambda _: None)
    predicted = np.asarray(learned.predicted(0))
    labels = np.arange(30) % 3
    want = precision_recall_fscore_support(labels, predicted, average="macro", zero_division=0)
    got = [found.metrics[name] for name in ("precision", "recall", "f1")]
    np.testing.assert_allclose(got, want[:3], rtol=1e-6)
    np.testing.assert_array_equal(found.cases, predicted == labels)
    assert found.metrics["accuracy"] == pytest.approx(np.mean(predicted == labels))
    study.save(learned, tmp_path)
    with np.load(tmp_path / "features.npz") as stored:
        np.testing.assert_array_equal(stored["features"], stored["before"])
        np.testing.assert_array_equal(stored["labels"], labels)
        assert stored["classes"].tolist() == ["class0", "class1", "class2"]
    rundir.create(tmp_path, config, SCHEMA.command)
    encoder = load_encoder(tmp_path)  # the pre-trained encoder
    np.testing.assert_allclose(encoder.features(texts_of(files)), learned.features, atol=1e-5)


def texts_of(files, part="test"):
    """Returns the texts of one part."""
    return [line.split("\t")[0] for line in (files / f"{part}.tsv").read_text().splitlines()[1:]]


def test_the_vocabulary_is_kept_in_the_usual_form(finished, files):
    _, problem = settled(files)
    words = data.WordPiece.read(finished / "vocab.txt")
    assert words == problem.encoder.words


def test_a_kept_encoder_needs_no_published_weights(files, tmp_path):
    study, own = (
        TextStudy(),
        ["--heads", "3", "--pooling", "cls", *SMALL[SMALL.index("--length") :]],
    )
    shutil.copytree(files / "weights", tmp_path / "weights")
    own += ["--weights", str(tmp_path / "weights"), "--data", str(files), "--method", "none"]
    config, _, _ = configure(study, own)
    problem = study.load(config, lambda _: None)
    config = study.prepare(config, problem)
    learned = TextLearned.of(problem, Stages(None, _start_of(config, problem, 0, None), None, []))
    want = learned.before.features(problem.test.places)
    rundir.create(tmp_path, config, SCHEMA.command)
    study.save(learned, tmp_path)
    shutil.rmtree(tmp_path / "weights")
    np.testing.assert_allclose(load_encoder(tmp_path).features(texts_of(files)), want, atol=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a film\n\nanother", "texts.txt:2: expected a text, got an empty line"),
        (b"", "texts.txt:1: expected a text, got an empty line"),
        (b"a film\nan \xff", "texts.txt:2: expected UTF-8, got other bytes"),
        (None, "expected a file with a text in each line, got none"),
    ],
)
def test_broken_lines_are_told(content, message, finished, tmp_path, capsys):
    path, out = tmp_path / "texts.txt", tmp_path / "features.npz"
    if content is not None:
        path.write_bytes(content)
    assert main(["embed", "--run", str(finished), "--texts", str(path), "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_runs_without_an_encoder_are_told(finished, tmp_path, capsys):
    def said():
        assert main(["embed", "--run", str(tmp_path)]) == 2
        return capsys.readouterr().err

    assert "holds no run" in said()
    shutil.copy(finished / "config.json", tmp_path)
    assert "its training is not finished" in said()
    shutil.copy(finished / "encoder.npz", tmp_path)
    assert "has no vocab.txt" in said()
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *map(str, range(99))]))
    assert "pieces of" in said()
    (tmp_path / "encoder.npz").write_bytes(b"PK")
    assert "expected a complete checkpoint" in said()
    (tmp_path / "encoder.npz").unlink()
    (tmp_path / "metrics.json").write_text("{}")
    assert "before encoders were kept" in said()
    save_encoder(tmp_path, {}, {})
    assert "expected the settings of a BERT, got {}" in said()


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    """An uninterrupted run, and its flags."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    flags = [*SMALL, "--data", str(files), "--method", "dropout", "--checkpoint-seconds", "0"]
    with jax.numpy_dtype_promotion("standard"):
        assert main([*flags, "--out", str(folder)]) == 0
    return folder, flags


def test_features_of_a_run_are_those_that_were_kept(whole, files, tmp_path):
    """Embeds texts from a file with one text per line, and the dataset of the run."""
    run, _ = whole
    with np.load(run / "features.npz") as stored:
        want = stored["features"]
        assert not np.allclose(want, stored["before"], atol=1e-4)  # fine-tuning changed them
    lines, out = tmp_path / "texts.txt", tmp_path / "features.npz"
    lines.write_text("\n".join(texts_of(files)))
    assert main(["embed", "--run", str(run), "--texts", str(lines), "--out", str(out)]) == 0
    with np.load(out) as stored:
        np.testing.assert_allclose(stored["features"], want, atol=1e-5)
    for source in ([], ["--data", str(files)]):
        assert main(["embed", "--run", str(run), *source, "--out", str(out)]) == 0
        with np.load(out) as stored:
            assert stored["part"].tolist() == ["train"] * 60 + ["test"] * 30
            np.testing.assert_allclose(stored["features"][60:], want, atol=1e-5)
            np.testing.assert_array_equal(stored["labels"], np.arange(90) % 3)
            assert stored["classes"].tolist() == ["class0", "class1", "class2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features.npz", "texts.txt"]


@pytest.mark.parametrize("stage", [PRE_TRAINING, FINE_TUNING])
def test_a_killed_run_goes_on_to_the_same_bits(stage, whole, tmp_path, monkeypatch):
    (whole, flags), killed = whole, tmp_path / "killed"
    arguments = [*flags, "--out", str(killed)]
    kill(main, arguments, monkeypatch, lambda checkpoint, loop: stage in str(checkpoint._path))
    rest = {PRE_TRAINING: [2, 1, 2, 3], FINE_TUNING: [2, 3]}[stage]
    assert resume(main, killed, monkeypatch) == rest
    assert history(killed) == history(whole)
    with np.load(whole / "features.npz") as a, np.load(killed / "features.npz") as b:
        np.testing.assert_array_equal(a["features"], b["features"])
        np.testing.assert_array_equal(a["before"], b["before"])
    assert read(killed, "metrics_by_seed.json") == read(whole, "metrics_by_seed.json")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("method", ["triplets", "dropout"])
def test_every_loss_gets_its_numbers(method, loss, files):
    config, problem = settled(files, "--method", method, "--loss", loss)
    task = task_of(TextStudy(), config, problem)
    assert task.loss_fn is LOSSES[loss].loss
    assert {*task.hyperparams} == {"temperature", *LOSSES[loss].hyperparams}
    assert task.hyperparams["temperature"] == {"triplets": 0.07, "dropout": 0.05}[method]
    assert task.hyperparams.get("tau_plus", 1 / 3) == pytest.approx(1 / 3)  # three balanced classes
    assert SCHEMA.from_json(to_json(config), Path("config.json")) == config


def test_all_methods_start_from_the_same_encoder(files):
    """Both random and published initial parameters equal those at the start of pre-training."""
    for flags in ([], ["--weights", str(files / "weights")]):
        own = SMALL[6:] if flags else SMALL  # omits the encoder's size flags
        own = [*(["--heads", "3", *own[own.index("--length") :]] if flags else own), *flags]
        study, starts = TextStudy(), []
        for method in METHODS:
            config, _, _ = configure(study, [*own, "--data", str(files), "--method", method])
            problem = study.load(config, lambda _: None)
            config = study.prepare(config, problem)
            if method == "none":
                starts.append(_start_of(config, problem, 3, None)[0])
            else:
                begun = task_of(TextStudy(), config, problem).init(jax.random.key(3))[0]
                starts.append(begun["backbone"])
        for other in starts[1:]:
            jax.tree.map(np.testing.assert_array_equal, starts[0], other)
        if flags:
            given = models.load_bert(files / "weights" / "model.npz", n_heads=3).params
            jax.tree.map(np.testing.assert_array_equal, starts[0], given)
            assert config.training.fine_tune_lr == 5e-5


def test_what_was_pre_trained_is_fine_tuned(files, tmp_path, monkeypatch):
    seen = []
    classification = tasks.Classification

    def look(*args, **kwargs):
        seen.append(args[2])
        return classification(*args, **kwargs)

    monkeypatch.setattr(tasks, "Classification", look)
    config, problem = settled(files)
    config = replace(config, training=replace(config.training, fine_tune_lr=1e-9))
    trained = TextStudy().fit(config, problem, Run("final", 0, 1, 0, {}), tmp_path, lambda _: None)
    ((params, _),) = seen
    assert trained.contrast is not None
    jax.tree.map(np.testing.assert_array_equal, params, trained.contrast.params["backbone"])
    begun = task_of(TextStudy(), config, problem).init(jax.random.key(0))[0]["backbone"]
    assert not np.array_equal(params["token_embedding"], begun["token_embedding"])
    learned = TextLearned.of(problem, trained)  # fine-tuned with a negligible learning rate
    np.testing.assert_allclose(learned.features, learned.features_before, atol=1e-5)


class Given(tasks.SimCLR):
    """Stub encoder that looks up features by the index of a text."""

    def represent(self, params, model_state, examples, *, block_size):
        return params[examples]


jax.tree_util.register_dataclass(Given)


def test_pairs_are_ranked_by_their_cosines():
    features = jnp.array([[1.0, 0], [2, 0], [0, 3], [1, 1], [-1, 0.5]])
    pairs = Pairs(np.array([0, 0, 0, 2]), np.array([1, 3, 2, 4]), np.array([4.0, 5, 1, 2]))
    # The cosines are 1, 0.71, 0 and 0.45, with ranks 4, 3, 1, 2; the scores have ranks 3, 4, 1, 2.
    encoder = Learned(Given(models.Network(TINY), lambda key, x: x), features, {})
    assert float(correlation(encoder, pairs)) == pytest.approx(1 - 6 * 2 / (4 * 15))
    cosines = [1, 0.5**0.5, 0, 0.5 / 1.25**0.5]
    assert float(correlation(encoder, pairs)) == pytest.approx(
        stats.spearmanr(cosines, pairs.scores).statistic
    )


def test_weights_are_judged_as_pre_training_scores(files):
    """Checks which negatives are true: a triplet's own negative is, its positive is not."""
    config, problem = settled(files, "--loss", "hard")
    task = task_of(TextStudy(), config, problem)
    test = problem.test.take(some_of(len(problem.test)))
    task = replace(task, pool=tasks.ClassPool.from_labels(test.data))
    given = task.init(jax.random.key(0))
    scores, is_true = _scores(task, *given, jax.random.key(1), test.data.examples, test.data.labels)
    assert scores.neg.shape == is_true.shape == (30, 60)
    own = np.eye(30, dtype=bool)
    assert not np.any(np.asarray(scores.where)[:, :30][own])
    assert not np.any(np.asarray(is_true)[:, :30][own])  # the positive has the same class
    assert np.all(np.asarray(is_true)[:, 30:][own])  # the anchor's own negative has another
    views = task_of(TextStudy(), settled(files, "--method", "dropout")[0], problem)
    scores, is_true = _scores(
        views,
        *views.init(jax.random.key(0)),
        jax.random.key(1),
        test.data.examples,
        test.data.labels,
    )
    labels = np.tile(test.labels, 2)
    np.testing.assert_array_equal(is_true, labels[:, None] != labels)
    assert np.max(np.asarray(scores.pos)) < 1  # dropout makes the two views differ


def test_draws_have_every_class_and_only_those_have_labels(files):
    labels = np.array([0] * 90 + [1] * 9 + [2])
    places = drawn("n_train", labels, 10, np.random.default_rng(0))
    assert len({*places}) == 10
    assert {*labels[places]} == {0, 1, 2}
    config, problem = settled(files, "--n-train", "40", "--n-labels", "8", "--batch-size", "4")
    assert (len(problem.train), len(problem.train.labelled)) == (40, 8)
    pool = task_of(TextStudy(), config, problem).pool
    assert {*np.asarray(pool.data)} == {*problem.train.labelled.places}
    learned = {*problem.learn.places} | {*problem.valid.places}
    assert learned == {*problem.train.places}
    assert not learned & {*problem.test.places}
    settled(files, "--n-labels", "2", "--batch-size", "2")  # no search: no held-out labels
    study = TextStudy()
    assert study.count(config, problem, "final", PRE_TRAINING) == 8
    views, _ = settled(files, "--n-train", "40", "--n-labels", "8", "--method", "dropout")
    assert study.count(views, problem, "final", PRE_TRAINING) == 40
    more, _ = settled(files, "--draws", "100")
    assert study.count(more, problem, "final", PRE_TRAINING) == 100
    assert study.count(more, problem, "final", FINE_TUNING) == 8


def test_a_vocabulary_is_learned_from_training_texts_alone(files):
    _, problem = settled(files, "--pairs", str(files / "pairs.txt"))
    assert "film" in problem.encoder.words.pieces
    assert not any("one" in piece for piece in problem.encoder.words.pieces)  # only in a pair
    assert problem.pairs is not None
    ids = problem.table.plain(problem.pairs.second[3]).ids
    want = problem.encoder.words.encode(["bad one"], 6).ids[0]
    np.testing.assert_array_equal(ids, want)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_taken(name):
    config, _, _ = configure(TextStudy(), ["--recipe", name])
    assert config == RECIPES[name]
    if name == "conbert":
        assert config.method.draws == 140_000
        other, _, _ = configure(TextStudy(), ["--recipe", name, "--epochs", "3"])
        assert other.training.epochs == 3


@pytest.fixture(scope="module")
def plain(files):
    """The training texts as a plain file with one sentence per line."""
    rows = (files / "train.tsv").read_text().splitlines()[1:]
    path = files / "sentences.txt"
    path.write_text("".join(row.split("\t")[0] + "\n" for row in rows))
    return path


WITHOUT_LABELS = ["--method", "dropout", "--fine-tune-epochs", "0"]


def test_texts_without_labels(plain, tmp_path, capsys):
    folder, pairs = tmp_path / "run", str(plain.parent / "pairs.txt")
    flags = [*SMALL, *WITHOUT_LABELS, "--data", str(plain), "--pairs", pairs, "--loss", "hard"]
    assert main([*flags, "--out", str(folder)]) == 0
    assert "48 training and 12 test texts, no labels" in capsys.readouterr().out
    found = read(folder, "metrics.json")
    measured = {"dropout_alignment", "uniformity", "spearman"}
    assert found.keys() == {*measured, "chosen", "seconds"}
    assert read(folder, "config.json")["objective"]["tau_plus"] == 0.01
    assert files_of(folder) == said_of_runs(README) - {"sweep.csv"}
    for line in history(folder):
        assert {"train_dropout_alignment", "train_uniformity"} < line.keys()
        assert not {"auc", "false_negatives", "train_knn"} & line.keys()
    with np.load(folder / "features.npz") as stored:
        assert stored["features"].shape == (12, 4)
        assert {*stored["labels"]} == {-1}
        assert not len(stored["classes"])


@pytest.mark.parametrize(("rate", "size"), [("0", 5), ("0.3", 5), ("0.3", 600)])
def test_two_dropouts_of_a_text_are_compared(rate, size, plain):
    """Alignment is 0 without dropout; uniformity is computed on features without dropout."""
    config, problem = settled(plain.parent, "--dropout", rate)
    task = task_of(TextStudy(), config, problem)
    places = jnp.arange(size, dtype=jnp.int32) % 20
    given = task.init(jax.random.key(0))
    alignment, uniformity = measure_dropout(task, *given, places)
    assert (float(alignment) < 1e-6) == (rate == "0")
    z = np.asarray(Learned(task, *given).features(places), np.float64)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    square = np.sum((z[:, None] - z) ** 2, axis=-1)[~np.eye(size, dtype=bool)]
    assert float(uniformity) == pytest.approx(np.log(np.mean(np.exp(-2 * square))), abs=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--method triplets needs labels, and the texts of"),
        (["--method", "none"], "--method none needs labels"),
        (WITHOUT_LABELS[:2], "--fine-tune-epochs 3 needs labels"),
        ([*WITHOUT_LABELS, "--n-labels", "9"], "--n-labels needs labels"),
        ([*WITHOUT_LABELS, "--valid", "0.2"], "--valid needs labels"),
        ([*WITHOUT_LABELS, "--neighbours", "3"], "--neighbours needs labels"),
        ([*WITHOUT_LABELS, "--sweep", "lr=1e-3,1e-2"], "--sweep needs labels"),
        ([*WITHOUT_LABELS, "--loss", "bayesian", "--alpha-from", "labels"],
         "--alpha-from labels needs labels"),
    ],
)  # fmt: skip
def test_what_needs_labels_is_said(flags, message, plain, tmp_path, capsys):
    out = tmp_path / "run"
    given = [*SMALL, "--data", str(plain), "--out", str(out), *flags]
    assert message in refused(main, given, capsys)
    assert not out.exists()


def test_labels_may_be_left_unread(files):
    config, problem = settled(files, *WITHOUT_LABELS, "--label-col", "", "--loss", "debiased")
    assert (len(problem.train), problem.train.classes, len(problem.test.evaluated)) == (60, (), 30)
    assert config.objective.tau_plus == 0.01
    config, problem = settled(files, *WITHOUT_LABELS, "--loss", "debiased")
    assert config.objective.tau_plus == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tau-plus", "0.1"], "--loss info_nce has no --tau-plus"),
        (["--method", "dropout", "--draws", "9"], "--method dropout has no --draws"),
        (["--method", "none", "--temperature", "1"], "--method none has no --temperature"),
        (["--method", "none", "--loss", "hard"], "--method none has no loss"),
        (["--method", "none", "--lr", "1"], "--method none has no --lr"),
        (["--fine-tune-epochs", "0", "--sweep", "fine_tune_lr=1"], "has no --fine-tune-lr"),
        (["--method", "none", "--fine-tune-epochs", "0"], "trains nothing"),
        (["--batch-size", "4000"], "--batch-size must be at most the 60 texts to learn from"),
        (["--n-train", "99"], "--n-train must be at most 60, got 99"),
        (["--n-train", "9", "--n-labels", "10"], "--n-labels must be at most 9, got 10"),
        (["--heads", "3"], "--heads must divide --width, 4, got 3"),
        (["--test", "0.5"], "--test requires texts without a test part"),
        (["--valid", "0.001", "--sweep", "lr=1"], "--valid leaves nothing to decide a --sweep on"),
        (["--data", "nowhere"], "nowhere"),
        (["--pairs", "nowhere"], "nowhere"),
        (["--weights", "nowhere", "--width", "9"], "--weights bring their own --width"),
        (["--text-col", "body"], "expected a column 'body'"),
        (["--resume", "runs", "--lr", "1"], "--resume goes on with the run's own configuration"),
        (["embed", "--run", "nowhere"], "nowhere holds no run"),
        (["embed", "--run", "nowhere", "--texts", "a", "--data", "b"], "give one of them"),
        (["embed", "--run", "nowhere", "--text-col", "1"], "--text-col 1 is a column of --data"),
    ],
)  # fmt: skip
def test_what_does_not_go_is_said(flags, message, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = [] if {"--resume", "--run"} & {*flags} else [*SMALL, "--data", str(files)]
    assert message in refused(main, [*given, *flags], capsys)
    assert not (tmp_path / "runs").exists()


def test_broken_weights_are_told(files, tmp_path):
    def load(*flags):
        study = TextStudy()
        config, _, _ = configure(study, ["--data", str(files), "--weights", *flags])
        return study.load(config, lambda _: None)

    def said(*flags):
        with raises((ValueError, OSError)) as caught:
            load(*flags)
        return str(caught.value)

    own = files / "weights"
    assert "`n_heads` must be given" in said(str(own))
    assert "--length" not in said(str(own), "--heads", "5")
    assert "must be at most 10, the places of" in said(str(own), "--heads", "3", "--length", "11")
    assert "expected a model.safetensors, got none" in said(str(tmp_path))
    (tmp_path / "model.npz").write_bytes((own / "model.npz").read_bytes())
    assert "vocab.txt" in said(str(tmp_path), "--heads", "3")
    more = (*SPECIAL, *map(str, range(40)))
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in more))
    assert "expected the 40 pieces of" in said(str(tmp_path), "--heads", "3", "--length", "9")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    (tmp_path / "vocab.txt").write_text((own / "vocab.txt").read_text())
    problem = load(str(tmp_path), "--heads", "3", "--length", "9")
    assert not problem.encoder.words.lowercase


def test_the_package_that_cuts_texts_may_be_missing(files, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert main([*SMALL, "--data", str(files), "--out", str(tmp_path / "run")]) == 2
    assert "pip install 'crl_jax[text]'" in capsys.readouterr().err


def test_a_part_for_validation_decides(tmp_path, files):
    for name in ("train", "test"):
        (tmp_path / f"{name}.tsv").write_text((files / f"{name}.tsv").read_text())
    (tmp_path / "dev.tsv").write_text((files / "test.tsv").read_text())
    _, problem = settled(tmp_path)
    assert (len(problem.valid), len(problem.learn), len(problem.train)) == (30, 60, 60)
    with raises(ValueError, match="has a part for validation"):
        settled(tmp_path, "--valid", "0.2")


@pytest.mark.parametrize("command", commands_of(README, "text"), ids=" ".join)
def test_commands_of_the_page_are_taken(command):
    if command[:1] == ["embed"]:
        assert tyro.cli(EmbedOptions, args=command[1:]).run == Path("runs/trec")
    elif command[:1] != ["--resume"]:
        configure(TextStudy(), command)


def test_flags_of_the_page_are_all_of_them():
    own = {f"--{name.replace('_', '-')}" for name in EmbedOptions.__dataclass_fields__}
    assert flags_of(README) == {*SCHEMA.flags.values(), "--help", "--recipe", "--config"} | own
