"""Tests of the calibration benchmark: exact posteriors are calibrated, wrong ones are not."""

import csv
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.commands import one_line
from _helpers.files import write

from experiments.calibration import main
from experiments.calibration._measure import measure
from experiments.calibration._options import Config
from experiments.calibration._posteriors import METHODS
from experiments.calibration._scores import Scores, isotonic_oracle
from experiments.calibration._truths import available, planted, planted_priors

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")
CONFIG = Config(anchors=150, n_neg=200)
"""One shape for all problems: another would compile all methods again."""


def noise(p):
    """Expected calibration error of exact probabilities in 15 bins of equal mass."""
    p = np.sort(np.ravel(p).astype(np.float64))
    variances = [(part * (1 - part)).mean() / len(part) for part in np.array_split(p, 15)]
    return np.mean(np.sqrt(2 / np.pi * np.array(variances)))


def errors(scores, prior="known"):
    return {name: float(metrics["ece"]) for name, metrics in measure(scores).methods[prior].items()}


def test_bcl_posterior_is_calibrated_on_model_densities():
    scores = planted(CONFIG, 0, alpha=0.9)
    result = errors(scores)
    assert result["oracle"] < 2 * noise(scores.oracle)
    # α is estimated: its standard error adds to the noise.
    assert result["bcl_model"] < 2 * noise(scores.oracle) + 0.005
    for wrong in ("bcl_hard", "hcl", "bns"):
        assert result[wrong] > 2 * result["bcl_model"]
    assert result["constant"] < 1e-3  # calibrated, and useless
    np.testing.assert_allclose(measure(scores).methods["known"]["constant"]["auc"], 0.5)


def test_dpl_is_calibrated_with_representative_positives():
    scores = planted(CONFIG, 1, alpha=1.0)
    result = errors(scores)
    assert result["dpl"] < 0.02
    shifted = scores._replace(pos=scores.pos + 0.3)  # as scores of training positives are
    assert errors(shifted)["dpl"] > 2 * result["dpl"]


def test_bns_with_item_priors_is_miscalibrated_but_ranks_better():
    scores = planted_priors(CONFIG, 0)
    result = measure(scores)
    assert result.methods["known"]["oracle"]["ece"] < 2 * noise(scores.oracle)
    # The empirical CDF is that of unlabelled scores, most of which are the lower of two draws.
    assert 0.04 < result.methods["known"]["bns_items"]["ece"] < 0.1
    assert result.methods["known"]["bns_items"]["auc"] > result.methods["known"]["bns"]["auc"]


def test_tau_plus_estimate_respects_overlap_bound():
    # At α = 0.9, true negatives overlap even the highest scores: the density ratio is at least 1/9.
    result = measure(planted(CONFIG, 0, alpha=0.9)).tau_plus
    assert result["truth"] == pytest.approx(0.1, abs=0.01)
    assert 0.1 + 0.9 / 9 - 0.03 < result["held_out"] <= result["held_out_upper"]
    assert np.isnan(result["density"])


def test_measures_use_only_labelled_samples():
    scores = planted(CONFIG, 0, alpha=0.9)
    labelled = jnp.arange(200) < 100
    flipped = scores._replace(
        labelled=jnp.broadcast_to(labelled, scores.neg.shape),
        is_false=jnp.where(labelled, scores.is_false, ~scores.is_false),
    )
    got = measure(flipped)
    share = np.asarray(scores.is_false)[:, :100].mean()
    assert got.tau_plus["truth"] == pytest.approx(share, rel=1e-5)
    assert got.methods["known"]["oracle"]["ece"] < 2 * noise(scores.oracle[:, :100])


@pytest.mark.parametrize("name", METHODS)
def test_posteriors_ignore_masked_samples(name):
    scores = planted_priors(CONFIG, 0)  # has the optional inputs of all methods
    where, where_pos = jnp.arange(200) % 3 > 0, jnp.arange(scores.pos.shape[1]) > 3
    every = jnp.broadcast_to(where, scores.neg.shape)
    masked = scores._replace(
        neg=jnp.where(where, scores.neg, 7.0),
        prior=jnp.where(where, scores.prior, 0.9),
        where=every,
        labelled=every,
        pos=jnp.where(where_pos, scores.pos, 7.0),
        where_pos=jnp.broadcast_to(where_pos, scores.pos.shape),
    )
    fields = ("neg", "where", "is_false", "labelled", "oracle", "prior")
    compact = scores._replace(
        **{field: getattr(scores, field)[:, where] for field in fields},
        pos=scores.pos[:, where_pos],
        where_pos=scores.where_pos[:, where_pos],
    )
    method, (tau_plus, auc) = METHODS[name], jnp.float32([0.1, 0.8])
    assert method.needs is None or getattr(scores, method.needs) is not None
    got = method.posterior(masked, tau_plus, auc)[:, where]
    want = method.posterior(compact, tau_plus, auc)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    everything = method.posterior(scores, tau_plus, auc)[:, where]
    if name not in ("constant", "oracle"):  # all others depend on the unlabelled samples
        assert np.abs(everything - want).max() > 1e-3


def test_oracle_ignores_labels_of_own_anchor():
    rng = np.random.default_rng(0)
    neg = rng.normal(size=(40, 50)).astype(np.float32)
    is_false = rng.random(neg.shape) < 1 / (1 + np.exp(3 - 2 * neg))
    everything = np.ones(neg.shape, bool)
    before = isotonic_oracle(neg, is_false, everything, everything)
    changed = is_false.copy()
    changed[::2] = ~changed[::2]
    after = isotonic_oracle(neg, changed, everything, everything)
    np.testing.assert_array_equal(before[::2], after[::2])
    assert np.abs(before[1::2] - after[1::2]).max() > 0.1
    assert (np.diff(before[0][np.argsort(neg[0])]) > -1e-6).all()


def test_cifar_and_exposed_truths_require_user_data():
    assert not {"cifar10-pixels", "exposed"} & available(CONFIG).keys()
    assert Scores._fields[0] == "neg"


def test_command_writes_tables_and_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--truths", "planted-0.9", "planted-priors", "--anchors", "20", "--n-neg", "50"]
    assert main([*flags, "--seeds", "2"]) == 0
    (out,) = Path("runs").iterdir()
    with (out / "posteriors.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert {row["truth"] for row in rows} == {"planted-0.9", "planted-priors"}
    assert all(0 <= float(row["ece"]) <= 1 and row["seeds"] == "2" for row in rows)
    own = {row["method"] for row in rows if row["truth"] == "planted-0.9"}
    assert own == METHODS.keys() - {"bns_items"}
    assert {path.name for path in out.iterdir()} >= {
        "calibration.csv", "calibration.png", "config.json", "tau_plus.csv",
    }  # fmt: skip
    config = json.loads((out / "config.json").read_text())
    assert (config["seeds"], config["out"]) == (2, str(out))
    printed = capsys.readouterr().out
    assert "planted-0.9, seed 1\n" in printed
    assert "calibration error" in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--truths", "planted"], "planted-0.9"),
        (["--truths", "planted-0.9", "--data", "nowhere"], "nowhere"),
        (["--images", "nowhere"], "nowhere"),
        (["--test-rating", "3"], "--test-rating requires --data"),
        (["--rating-col", "stars"], "--rating-col requires --data"),
        (["--images", ""], "--images must not be an empty text"),
        (["--data", "rated.csv"], "rated.csv has no test part of randomly exposed items"),
        (["--data", "unrated.csv"], "name their column by --rating-col"),
        (["--examples", "100"], "--examples must be a whole number in [500, "),
    ],
)
def test_rejects_invalid_flags_before_first_problem(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    out, pairs = tmp_path / "other", [f"{u},{i}" for u in range(9) for i in range(9) if u != i]
    write(tmp_path / "unrated.csv", "\n".join(["user,item", *pairs]))
    rated = [f"{pair},{4 + n % 2}" for n, pair in enumerate(pairs)]
    write(tmp_path / "rated.csv", "\n".join(["user,item,rating", *rated]))
    assert main([*flags, "--out", str(out)]) == 2
    assert message in one_line(capsys.readouterr().err)
    assert not out.exists()


def test_random_exposure_labels_rated_test_items(tmp_path):
    """Items of a test part with ratings are labelled, all others are not."""
    rng = np.random.default_rng(0)
    pairs = np.stack(np.nonzero(rng.random((30, 40)) < 0.5), axis=1)
    rng.shuffle(pairs)
    for name, part in (("train", pairs[:400]), ("test", pairs[400:])):
        rows = [f"{u},{i},{rng.integers(1, 6)}" for u, i in part]
        (tmp_path / f"{name}.csv").write_text("\n".join(["user,item,rating", *rows]))
    config = Config(data=tmp_path / "train.csv", test_data=tmp_path / "test.csv", min_rating=1.0)
    scores = available(config)["exposed"](config, 0)
    assert 0 < scores.labelled.sum() <= len(pairs) - 400
    assert not (scores.labelled & ~scores.where).any()
    assert not (scores.where & scores.where_pos).any()
    liked = float(jnp.mean(scores.is_false, where=scores.labelled))
    assert 0.2 < liked < 0.6  # ratings 4 and 5 of five
