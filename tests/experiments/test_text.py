"""Text encoders: initial weights, samples, evaluation and vocabulary; see also test_studies."""

import shlex
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.bert import TINY
from _helpers.modalities import SPECIAL, TEXT_FLAGS, texts_of
from _helpers.refusals import raises
from _helpers.studies import prepare, task_of
from scipy import stats
from sklearn.metrics import precision_recall_fscore_support

from crl_jax import models, tasks
from experiments import _rundir as rundir
from experiments._study import Run
from experiments._study_command import configure
from experiments._trained_model import TrainedModel
from experiments._truth import evaluation_subset
from experiments.text._config import SCHEMA
from experiments.text._embed import load_encoder
from experiments.text._evaluate import (
    Stages,
    TrainedTextModel,
    _scores,
    correlation,
    measure_dropout,
)
from experiments.text._problem import Pairs, sample_indices
from experiments.text._study import FINE_TUNING, PRE_TRAINING, TextStudy, _initial_encoder
from experiments.text.methods import METHODS

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")
SMALL = TEXT_FLAGS.split()
WEIGHTS_FLAGS = ["--heads", "3", *SMALL[SMALL.index("--length") :]]  # without the encoder's sizes
DROPOUT = ["--method", "dropout", "--fine-tune-epochs", "0"]


def prepare_texts(texts, *flags):
    """Returns the configuration with all defaults resolved, and the loaded texts."""
    return prepare(TextStudy(), [*SMALL, "--data", str(texts), *flags])


def test_bayesian_beta_defaults_to_half(texts):
    """Checks the default of `beta` in the configuration, the task and the printed description."""
    for flags, beta in (([], 0.5), (["--beta", "0.9"], 0.9)):
        config, problem = prepare_texts(texts, "--loss", "bayesian", *flags)
        assert config.objective.beta == beta
        assert f"beta={beta}" in TextStudy().describe_training(config)
        task = task_of(TextStudy(), config, problem)
        assert task.hyperparams["beta"] == beta


@pytest.mark.slow
def test_text_metrics_match_scikit_learn_with_published_weights(texts, tmp_path):
    """The saved encoder does not need the published weights."""
    weights = shutil.copytree(texts / "weights", tmp_path / "weights")
    flags = [*WEIGHTS_FLAGS, "--pooling", "cls", "--weights", str(weights), "--data", str(texts)]
    study = TextStudy()
    config, problem = prepare(study, [*flags, *DROPOUT])
    learned = TrainedTextModel.from_stages(
        problem, Stages(None, _initial_encoder(config, problem, 0, None), None, [])
    )
    found = study.evaluate(config, problem, learned, 0, lambda _: None)
    predicted, labels = np.asarray(learned.predicted(0)), np.arange(30) % 3
    want = precision_recall_fscore_support(labels, predicted, average="macro", zero_division=0)
    got = [found.metrics[name] for name in ("precision", "recall", "f1")]
    np.testing.assert_allclose(got, want[:3], rtol=1e-6)
    np.testing.assert_array_equal(found.cases, predicted == labels)
    assert found.metrics["accuracy"] == pytest.approx(np.mean(predicted == labels))
    study.save(learned, tmp_path)
    with np.load(tmp_path / "features.npz") as stored:
        np.testing.assert_array_equal(stored["features"], stored["before"])
    rundir.create(tmp_path, config, SCHEMA.command)
    shutil.rmtree(weights)
    features = load_encoder(tmp_path).features(texts_of(texts))
    np.testing.assert_allclose(features, learned.features, atol=1e-5)


def test_all_methods_start_from_the_same_encoder(texts):
    """Both random and published initial parameters equal those at the start of pre-training."""
    for own in (SMALL, [*WEIGHTS_FLAGS, "--weights", str(texts / "weights")]):
        study, starts = TextStudy(), []
        for method in METHODS:
            flags = [*own, "--data", str(texts), "--method", method]
            if method == "none":
                flags = shlex.split(shlex.join(flags).replace("--epochs 2 ", ""))
            config, problem = prepare(study, flags)
            if method == "none":
                starts.append(_initial_encoder(config, problem, 3, None)[0])
            else:
                initial = task_of(study, config, problem).init(jax.random.key(3))[0]
                starts.append(initial["backbone"])
        for other in starts[1:]:
            jax.tree.map(np.testing.assert_array_equal, starts[0], other)
    given = models.load_bert(texts / "weights" / "model.npz", n_heads=3).params
    jax.tree.map(np.testing.assert_array_equal, starts[0], given)
    assert config.training.fine_tune_lr == 5e-5


@pytest.mark.slow
def test_fine_tuning_starts_from_pre_trained_encoder(texts, tmp_path, monkeypatch):
    seen = []
    classification = tasks.Classification

    def look(*args, **kwargs):
        seen.append(args[2])
        return classification(*args, **kwargs)

    monkeypatch.setattr(tasks, "Classification", look)
    config, problem = prepare_texts(texts, "--loss", "bayesian", "--alpha-from", "labels")
    config = replace(config, training=replace(config.training, fine_tune_lr=1e-9))
    trained = TextStudy().fit(config, problem, Run("final", 0, 1, 0, {}), tmp_path, lambda _: None)
    ((params, _),) = seen
    assert trained.contrast is not None
    jax.tree.map(np.testing.assert_array_equal, params, trained.contrast.params["backbone"])
    initial = task_of(TextStudy(), config, problem).init(jax.random.key(0))[0]["backbone"]
    assert not np.array_equal(params["token_embedding"], initial["token_embedding"])
    # Fine-tuned with a negligible learning rate.
    learned = TrainedTextModel.from_stages(problem, trained)
    np.testing.assert_allclose(learned.features, learned.features_before, atol=1e-5)


class LookupEncoder(tasks.SimCLR):
    """Stub encoder that looks up features by the index of a text."""

    def represent(self, params, model_state, examples, *, block_size):
        return params[examples]


jax.tree_util.register_dataclass(LookupEncoder)


def test_correlation_matches_scipy_spearman():
    features = jnp.array([[1.0, 0], [2, 0], [0, 3], [1, 1], [-1, 0.5]])
    pairs = Pairs(np.array([0, 0, 0, 2]), np.array([1, 3, 2, 4]), np.array([4.0, 5, 1, 2]))
    # The cosines are 1, 0.71, 0 and 0.45, with ranks 4, 3, 1, 2; the scores have ranks 3, 4, 1, 2.
    encoder = TrainedModel(LookupEncoder(models.Network(TINY), lambda key, x: x), features, {})
    assert float(correlation(encoder, pairs)) == pytest.approx(1 - 6 * 2 / (4 * 15))
    cosines = [1, 0.5**0.5, 0, 0.5 / 1.25**0.5]
    assert float(correlation(encoder, pairs)) == pytest.approx(
        stats.spearmanr(cosines, pairs.scores).statistic
    )


def test_scores_mark_true_negatives_by_class(texts):
    """Checks which negatives are true: a triplet's own negative is, its positive is not."""
    config, problem = prepare_texts(texts, "--loss", "hard")
    task = task_of(TextStudy(), config, problem)
    test = problem.test.take(evaluation_subset(len(problem.test)))
    task = replace(task, pool=tasks.ClassPool.from_labels(test.data))
    given = task.init(jax.random.key(0))
    scores, is_true = _scores(task, *given, jax.random.key(1), test.data.examples, test.data.labels)
    assert scores.neg.shape == is_true.shape == (30, 60)
    own = np.eye(30, dtype=bool)
    assert not np.any(np.asarray(scores.where)[:, :30][own])
    assert not np.any(np.asarray(is_true)[:, :30][own])  # the positive has the same class
    assert np.all(np.asarray(is_true)[:, 30:][own])  # the anchor's own negative has another
    views = task_of(TextStudy(), prepare_texts(texts, "--method", "dropout")[0], problem)
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


def test_n_train_and_n_labels_limit_texts_and_labels(texts):
    labels = np.array([0] * 90 + [1] * 9 + [2])
    places = sample_indices("n_train", labels, 10, np.random.default_rng(0))
    assert len({*places}) == 10
    assert {*labels[places]} == {0, 1, 2}
    config, problem = prepare_texts(
        texts, "--n-train", "40", "--n-labels", "8", "--batch-size", "4"
    )
    assert (len(problem.train), len(problem.train.labelled)) == (40, 8)
    pool = task_of(TextStudy(), config, problem).pool
    assert {*np.asarray(pool.data)} == {*problem.train.labelled.inputs}
    learned = {*problem.learn.inputs} | {*problem.valid.inputs}
    assert learned == {*problem.train.inputs}
    assert not learned & {*problem.test.inputs}
    prepare_texts(texts, "--n-labels", "2", "--batch-size", "2")  # no search: no held-out labels
    study = TextStudy()
    assert study.count(config, problem, "final", PRE_TRAINING) == 8
    views, _ = prepare_texts(texts, "--n-train", "40", "--n-labels", "8", "--method", "dropout")
    assert study.count(views, problem, "final", PRE_TRAINING) == 40
    more, _ = prepare_texts(texts, "--draws", "100")
    assert study.count(more, problem, "final", PRE_TRAINING) == 100
    assert study.count(more, problem, "final", FINE_TUNING) == 8


def test_vocabulary_is_learned_from_training_texts_only(texts):
    _, problem = prepare_texts(texts, "--pairs", str(texts / "pairs.txt"))
    assert "film" in problem.encoder.tokenizer.pieces
    assert not any("one" in piece for piece in problem.encoder.tokenizer.pieces)  # only in a pair
    assert problem.pairs is not None
    ids = problem.table.plain(problem.pairs.second[3]).ids
    want = problem.encoder.tokenizer.encode(["bad one"], 6).ids[0]
    np.testing.assert_array_equal(ids, want)


@pytest.mark.parametrize(("rate", "size"), [("0", 5), ("0.3", 600)])
def test_measure_dropout_matches_reference_uniformity(rate, size, texts):
    """Alignment is 0 without dropout; uniformity is computed on features without dropout."""
    config, problem = prepare_texts(texts, "--dropout", rate)
    task = task_of(TextStudy(), config, problem)
    places = jnp.arange(size, dtype=jnp.int32) % 20
    given = task.init(jax.random.key(0))
    alignment, uniformity = jax.jit(measure_dropout)(task, *given, places)
    assert (float(alignment) < 1e-6) == (rate == "0")
    z = np.asarray(TrainedModel(task, *given).features(places), np.float64)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    square = np.sum((z[:, None] - z) ** 2, axis=-1)[~np.eye(size, dtype=bool)]
    assert float(uniformity) == pytest.approx(np.log(np.mean(np.exp(-2 * square))), abs=1e-5)


def test_empty_label_col_ignores_labels(texts):
    config, problem = prepare_texts(texts, *DROPOUT, "--label-col", "", "--loss", "debiased")
    assert (len(problem.train), problem.train.classes, len(problem.test.evaluated)) == (60, (), 30)
    assert config.objective.tau_plus == 0.01
    config, problem = prepare_texts(texts, *DROPOUT, "--loss", "debiased")
    assert config.objective.tau_plus == pytest.approx(1 / 3)


def test_reports_invalid_weights(texts, tmp_path):
    def load(*flags):
        config, _, _ = configure(TextStudy(), ["--data", str(texts), "--weights", *flags])
        return TextStudy().load(config, lambda _: None)

    def error_of(*flags):
        with raises((ValueError, OSError)) as caught:
            load(*flags)
        return str(caught.value)

    own = texts / "weights"
    assert "`n_heads` must be given" in error_of(str(own))
    assert "--length" not in error_of(str(own), "--heads", "5")
    assert "must be at most 10, the number of positions of" in error_of(
        str(own), "--heads", "3", "--length", "11"
    )
    assert "expected a model.safetensors, got none" in error_of(str(tmp_path))
    (tmp_path / "model.npz").write_bytes((own / "model.npz").read_bytes())
    assert "vocab.txt" in error_of(str(tmp_path), "--heads", "3")
    more = (*SPECIAL, *map(str, range(40)))
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in more))
    assert "expected the 40 pieces of" in error_of(str(tmp_path), "--heads", "3", "--length", "9")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    (tmp_path / "vocab.txt").write_text((own / "vocab.txt").read_text())
    problem = load(str(tmp_path), "--heads", "3", "--length", "9")
    assert not problem.encoder.tokenizer.lowercase


def test_given_validation_part_is_used(tmp_path, texts):
    for name in ("train", "test"):
        (tmp_path / f"{name}.tsv").write_text((texts / f"{name}.tsv").read_text())
    (tmp_path / "dev.tsv").write_text((texts / "test.tsv").read_text())
    _, problem = prepare_texts(tmp_path)
    assert (len(problem.valid), len(problem.learn), len(problem.train)) == (30, 60, 60)
    with raises(ValueError, match="has a part for validation"):
        prepare_texts(tmp_path, "--valid-fraction", "0.2")
