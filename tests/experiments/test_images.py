"""Tests of methods, samples and configurations of the image command; see also test_studies."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from _helpers.modalities import MODALITIES
from _helpers.studies import prepare, task_of

from crl_jax import tasks
from experiments._schema import to_json
from experiments._study_command import configure
from experiments.images._config import SCHEMA, Config
from experiments.images._problem import balanced_indices, load_problem
from experiments.images._views import make_views
from experiments.images.methods import METHODS
from experiments.view_losses import default_beta

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles", "pixel_encoder")
STUDY = MODALITIES["images"].new_study
SMALL = [
    "--width", "4", "--head", "16", "8", "--batch-size", "20", "--train-images", "100",
    "--test-images", "20",
]  # fmt: skip
OWN = {
    "moco": ["--queue", "80"],
    "protonce": ["--queue", "80", "--clusters", "5"],
    "directclr": ["--first-features", "8"],
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_accepts_unlabelled_images_unless_supervised(method, photos):
    flags = [*SMALL, "--method", method, *OWN.get(method, [])]
    config, problem = prepare(STUDY, flags)
    assert isinstance(task_of(STUDY, config, problem), tasks.TwoViewTask)
    if not METHODS[method].needs_labels:
        start = SMALL.index("--train-images")
        flags = [*SMALL[:start], *flags[len(SMALL) :], "--data", str(photos), "--labels", "False"]
        config, problem = prepare(STUDY, flags)
        assert problem.valid is None or not len(problem.valid)
        assert (len(problem.train), len(problem.learn)) == (48, 48)
        assert config.source.valid_fraction is None


def test_unlabelled_training_uses_all_but_test_part(photos):
    parts = ("train/a", "unlabelled", "test/b")
    for part in parts:
        (photos / part).mkdir(parents=True)
    for i, part in enumerate(parts * 20):
        (photos / f"{i:02}.png").rename(photos / part / f"{i:02}.png")
    config, _, _ = configure(STUDY, ["--data", str(photos), "--labels", "False"])
    problem = load_problem(config.source, lambda _: None)
    assert (len(problem.train), problem.train.classes) == (40, ())


def test_subsamples_are_balanced_across_classes():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2, -1], [50, 30, 3, 20])
    indices = balanced_indices(labels, 23, rng)
    assert len({*indices}) == 23
    assert np.bincount(labels[indices]).tolist() == [10, 10, 3]
    assert len(balanced_indices(labels, 103, rng)) == 103  # all images, including unlabelled ones
    problem = load_problem(replace(Config().source, train_images=200), lambda _: None)
    assert (len(problem.train), len(problem.valid)) == (200, 20)
    assert np.bincount(problem.valid.labels).tolist() == [2] * 10
    learn, valid, train = (
        {image.tobytes() for image in part.images}
        for part in (problem.learn, problem.valid, problem.train)
    )
    assert learn | valid == train


def test_reads_config_without_labels_flag():
    stored = to_json(Config())
    del stored["source"]["labels"]
    assert SCHEMA.from_json(stored, Path("config.json")) == Config()


def test_flags_enable_rotation_cutout_and_noise():
    config, problem = prepare(STUDY, SMALL)
    views = make_views(config.views)
    assert (views.rotation_rate, views.cutout_rate, views.noise_rate) == (None, None, None)
    view_flags = [
        "--rotation", "20", "--rotation-p", "0.3", "--cutout-p", "0.4", "--noise", "0.2",
        "--noise-p", "1",
    ]  # fmt: skip
    views = task_of(STUDY, prepare(STUDY, [*SMALL, *view_flags])[0], problem).augment
    assert (views.rotation, views.rotation_rate) == ((-20, 20), 0.3)
    assert (views.cutout_size, views.cutout_rate) == (0.5, 0.4)
    assert (views.noise_std, views.noise_rate) == ((0.0, 0.2), 1)


def test_default_beta_depends_on_number_of_classes(photos):
    """Follows the published rule 1 - 1/C: 0.9 for the ten digits."""
    assert [default_beta(n) for n in (100, 4, 2, 1)] == [0.99, 0.75, 0.5, 0.5]
    flags = [*SMALL, "--loss", "bayesian"]
    for own, beta in ([], 0.9), (["--beta", "0.7"], 0.7):
        config, problem = prepare(STUDY, [*flags, *own])
        assert config.objective.beta == beta
        assert task_of(STUDY, config, problem).hyperparams["beta"] == beta
    start = flags.index("--train-images")
    flags = [*flags[:start], *flags[start + 4 :], "--data", str(photos), "--labels", "False"]
    assert prepare(STUDY, flags)[0].objective.beta == 0.9
