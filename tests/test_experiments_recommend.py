"""The command, as a user runs it: right flags, wrong flags, killed and resumed."""

import contextlib
import csv
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import polars
import pytest

from crl_jax import losses, models, samplers, stats, tasks, weights
from crl_jax.data import simulate
from crl_jax.serving import Recommender
from crl_jax.train import load_checkpoint
from experiments._locks import hold
from experiments.contrasts import CONTRASTS
from experiments.contrasts import LOSSES as CONTRAST_LOSSES
from experiments.encoders import ENCODERS, default_encoder
from experiments.objectives import OBJECTIVES
from experiments.objectives.pairwise import group_bpr, likely_and_unpopular, popular_and_not
from experiments.recommend import main
from experiments.sampling import SAMPLERS, Context

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

ROOT = Path(__file__).parents[1]
SHORT = ["--epochs", "3", "--batch-size", "256", "--dim", "8"]
QUICK = [*SHORT, "--lr", "0.01"]


def one_line(printed: str) -> str:
    """What was printed, without the line breaks that the width of the terminal brings."""
    return " ".join(printed.split())


@pytest.fixture(scope="module")
def ratings(tmp_path_factory) -> Path:
    """A small file with ids of its own: users u0, u1, …, items i0, i1, …."""
    data = simulate(n_users=50, n_items=60, n_exposed=40, seed=3).interactions
    path = tmp_path_factory.mktemp("ratings") / "log.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item"])
        writer.writerows((f"u{u}", f"i{i}") for u, i in zip(data.users, data.items, strict=True))
    return path


@pytest.fixture(scope="module")
def first_run(ratings, tmp_path_factory, quick_compiles) -> Path:
    """The run directory of a finished run, and in screen.txt what it printed; not to be changed."""
    out = tmp_path_factory.mktemp("first") / "run"
    with (
        contextlib.redirect_stdout(io.StringIO()) as screen,
        jax.numpy_dtype_promotion("standard"),
    ):
        assert main(["--data", str(ratings), *QUICK, "--out", str(out)]) == 0
    (out / "screen.txt").write_text(screen.getvalue())
    return out


@pytest.fixture
def finished(first_run, tmp_path) -> Path:
    """A copy of it."""
    return shutil.copytree(first_run, tmp_path / "run")


def test_what_a_run_leaves_recommends_in_python_as_topk_does(finished, tmp_path):
    out = tmp_path / "top.csv"
    assert main(["topk", "--run", str(finished), "--all", "--k", "4", "--out", str(out)]) == 0
    rows = [line.split(",") for line in out.read_text().splitlines()[1:]]
    model = Recommender.load(finished)
    user = model.known.user_ids[3]
    found = model.recommend(user, k=4)
    assert [row[2] for row in rows if row[0] == str(user)] == [str(i) for i in found.items[0]]


def test_a_run_leaves_what_it_promises(finished, ratings):
    config = json.loads((finished / "config.json").read_text())
    assert config["source"]["data"] == str(ratings)
    assert config["training"]["lr"] == 0.01
    assert config["output"]["out"].endswith("/run")
    used = {name for name, value in config["objective"].items() if value is not None}
    assert used == {"loss", "n_neg", "temperature"}
    assert (config["objective"]["n_neg"], config["objective"]["temperature"]) == (1, 1.0)
    lines = [json.loads(line) for line in (finished / "history.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["phase"] == "search"] == [1, 2, 3]
    assert all(np.isfinite(line["loss"][0]) for line in lines)
    metrics = json.loads((finished / "metrics.json").read_text())
    for name in ("ndcg", "recall", "precision", "f1", "map", "mrr", "hit_rate", "coverage"):
        for k in (5, 10, 20):
            assert 0 <= metrics[f"{name}@{k}"] <= 1
    assert 0 <= metrics["auc"] <= 1
    chosen = metrics["chosen"]
    assert chosen["point"] == {}
    assert chosen["epochs"] == [line["phase"] for line in lines].count("final")
    assert 0 < chosen["valid_ndcg@20"] <= 1
    last = {line["phase"]: line["seconds"] for line in lines}
    assert metrics["seconds"] == pytest.approx(last["search"] + last["final"])
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (finished / "checkpoint").is_dir()
    assert not list(finished.rglob("*.partial"))
    screen = (finished / "screen.txt").read_text()
    assert f"{metrics['ndcg@20']:.4f}" in screen
    chosen = f"{chosen['epochs']} epochs, NDCG@20 {chosen['valid_ndcg@20']:.4f} (mean with the val"
    assert f"chosen on validation data: {chosen}" in screen
    stages = [f"reading {ratings.parent.name}/log.csv", "splitting",
              "search: compiling", "search 1/3  loss",
              "search 3/3  loss", "final: compiling", "planning evaluation",
              "scoring the test set"]  # fmt: skip
    places = [screen.index(f"\n{stage}") if stage != stages[0] else 0 for stage in stages]
    assert places == sorted(places)
    assert screen.startswith(stages[0])
    assert "\x1b" not in screen


class Asked(Exception):
    """What the library is asked to train; nothing is trained."""


@pytest.fixture
def asked(ratings, tmp_path, monkeypatch):
    """What the command asks the library to train with some flags, and on which interactions."""

    def refuse(part, _, **arguments):
        raise Asked(part, arguments)

    def ask(*flags):
        monkeypatch.setattr(FIT, refuse)
        out = tempfile.mkdtemp(dir=tmp_path)
        with pytest.raises(Asked) as told:
            main(["--data", str(ratings), "--out", out, *flags])
        return told.value.args

    return ask


FIT = "crl_jax.tasks.fit_ranking"
# The loss, its hyper-parameters, and how many negatives, positives and users of a group it gets. A
# further loss need not stand here: it is held to what its entry says.
LOSSES = {
    "bpr": (losses.bpr, {}, 1, 0, 0),
    "bce": (losses.bce, {}, 1, 0, 0),
    "info_nce": (losses.info_nce, {}, 5, 0, 0),
    "debiased": (losses.debiased_contrastive, {"tau_plus": 0.05, "min_score": -5}, 5, 5, 0),
    "hard": (
        losses.hard_contrastive, {"tau_plus": 0.05, "beta": 0.5, "min_score": -5}, 5, 5, 0
    ),
    "bayesian": (
        losses.bayesian_contrastive, {"tau_plus": 0.05, "alpha": 0.9, "beta": 0.7}, 5, 0, 0
    ),
    "dpl": (losses.debiased_pairwise, {"tau_plus": 0.05, "floor": 0.01}, 5, 5, 0),
    "bprac": (losses.bpr, {}, 1, 0, 0),
    "gbpr": (group_bpr, {"rho": 0.4}, 1, 0, 3),
    "mpr": (likely_and_unpopular, {"balance": 0.5}, 2, 2, 0),
    "truncated_bce": (losses.truncated_bce, {"drop_rate": 0.1}, 1, 0, 0),
    "truncated_bpr": (losses.truncated_bpr, {"drop_rate": 0.1}, 1, 0, 0),
    "reweighted_bce": (losses.reweighted_bce, {"exponent": 0.25}, 1, 0, 0),
    "reweighted_bpr": (losses.reweighted_bpr, {"exponent": 0.25}, 1, 0, 0),
}  # fmt: skip


def numbers_of(name):
    """As written down, or else by the entry."""
    if name in LOSSES:
        return LOSSES[name]
    of = OBJECTIVES[name]
    hyperparams = {name: hyperparam.default for name, hyperparam in of.hyperparams.items()}
    return of.loss, hyperparams, of.n_neg, of.n_pos or 0, of.n_group or 0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_loss_gets_its_numbers(name, asked):
    loss, hyperparams, n_neg, n_pos, n_group = numbers_of(name)
    divided = {"temperature": 0.5} if OBJECTIVES[name].has_temperature else {}
    part, given = asked("--loss", name, *(["--temperature", "0.5"] if divided else []))
    assert given["loss"] is loss
    assert given["hyperparams"] == {**divided, **hyperparams}
    assert (given["n_neg"], given["n_pos"], given["n_group"]) == (n_neg, n_pos, n_group)
    entry = OBJECTIVES[name]
    assert given["hyperparam_schedule"] is entry.schedule
    assert (given["confidence"] is None) == (entry.confidence is None)
    assert same(given["sampler"], entry.sampler(part) if entry.sampler else samplers.RNS())
    if name in LOSSES:
        assert (entry.schedule is None) == ("truncated" not in name)
        assert (entry.confidence is None) == (name != "bprac")
        assert entry.sampler is (popular_and_not if name == "mpr" else None)


def test_numbers_and_sweeps_reach_the_training(asked):
    flags = ["--loss", "hard", "--beta", "0.3", "--n-neg", "7", "--n-pos", "3", "--lr", "0.02"]
    swept = ["--sweep", "tau-plus=0.1,0.2", "--sweep", "weight_decay=1,2,3"]
    _, given = asked(*flags, *swept, "--batch-size", "9", "--patience", "4", "--seed", "6")
    fixed = {"temperature": 1, "beta": 0.3, "min_score": -5}
    assert fixed.items() <= given["hyperparams"].items()
    assert given["sweep"].keys() == {"loss.tau_plus", "weight_decay"}
    np.testing.assert_allclose(given["sweep"]["loss.tau_plus"], np.repeat([0.1, 0.2], 3))
    np.testing.assert_allclose(given["sweep"]["weight_decay"], [1, 2, 3, 1, 2, 3])
    assert (given["n_neg"], given["n_pos"], given["patience"]) == (7, 3, 4)
    assert (given["optimizer"].learning_rate, given["plan"].batch_size) == (0.02, 9)
    assert np.asarray(given["seeds"]).tolist() == [6] * 6


@pytest.mark.parametrize(
    ("flags", "law", "rule", "every"),
    [
        ([], stats.Smoothed(), "posterior", 10),
        (["--law", "smoothed", "--rule", "prior", "--every", "2"], stats.Smoothed(), "prior", 2),
        (["--law-scale", "0.2"], stats.VarianceGamma(8, 0.2), "posterior", 10),
        (
            ["--law", "variance-gamma", "--rule", "density", "--init-scale", "0.5"],
            # Xavier's variances of 50 users and 56 items, their geometric mean.
            stats.VarianceGamma(8, 0.25 * (2 / 58 * 2 / 64) ** 0.5),
            "density",
            10,
        ),
    ],
)
def test_the_confidence_takes_its_flags(flags, law, rule, every, asked):
    part, given = asked("--loss", "bprac", "--dim", "8", *flags)
    found = given["confidence"]
    assert (found.rule, found.every) == (rule, every)
    assert same(found.law, law)
    np.testing.assert_array_equal(found.prior, weights.credibility_prior(part))


# A further sampler need not stand here: it is held to what its entry makes of the defaults.
SAMPLERS_MADE = {
    "in-batch": (
        ["--batch-mask", "self", "--log-q", "0.5"],
        lambda log: samplers.InBatch.of(log, "self", 0.5),
    ),
    "shared": (["--pool-mask", "none"], lambda log: samplers.SharedRNS("none")),
    "rns": ([], lambda log: samplers.RNS()),
    "pns": ([], samplers.PNS.of),
    "aobpr": (["--rank-scale", "20"], lambda log: samplers.AOBPR(20.0)),
    "dns": (["--candidates", "3"], lambda log: samplers.DNS(3)),
    "srns": (["--candidates", "4"], lambda log: samplers.SRNS(memory=4, variance_weight=5.0)),
    "bns": (
        ["--ecdf-samples", "32", "--prior", "uniform", "--rns-epochs", "1"],
        lambda log: samplers.Staged(
            samplers.RNS(), samplers.BNS(samplers.uniform_prior(log.n_items), ecdf_samples=32), 1
        ),
    ),
    "bns-posterior": (
        ["--candidates", "3"],
        lambda log: samplers.BNS(
            samplers.popularity_prior(log), candidates=3, criterion="posterior"
        ),
    ),
}


def same(one, other) -> bool:
    """Whether two pytrees have the same structure, switches and numbers."""
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other))
    )


def sampler_by_default(name, log):
    entry = SAMPLERS[name]
    values = {flag: hyperparam.default for flag, hyperparam in entry.flags.items()}
    return entry.make(Context(log, "", 1), **entry.complete(values, ()))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_gets_its_numbers(name, asked):
    flags, make = SAMPLERS_MADE.get(name, ([], lambda log: sampler_by_default(name, log)))
    part, given = asked("--sampler", name, *flags)
    assert same(given["sampler"], make(part))
    assert given["sweep"] == {}


def test_lambda_of_the_risk_falls_as_told(asked):
    flags = ["--risk-lambda-slope", "0.1", "--risk-lambda-least", "2"]
    _, given = asked("--sampler", "bns", *flags, "--sweep", "risk_lambda=1,5")
    numbers = [float(getattr(given["sampler"], name)) for name in LAMBDA]
    assert numbers == [5, 0.1, 2]
    assert given["sweep"].keys() == {"sampler.risk_lambda"}
    np.testing.assert_array_equal(given["sweep"]["sampler.risk_lambda"], [1, 5])


LAMBDA = ("risk_lambda", "risk_lambda_slope", "risk_lambda_least")


def test_an_encoder_gets_its_numbers(asked):
    part, given = asked("--dim", "6", "--l2-on", "rows")
    assert given["encoder"] == models.MatrixFactorization(part.n_users, part.n_items, 6)
    assert (given["serve_similarity"], given["l2_on"]) == (None, "rows")
    part, given = asked("--dim", "6", "--dropout", "0.1")
    want = models.MatrixFactorization(part.n_users, part.n_items, 6, dropout=0.1)
    assert given["encoder"] == want
    flags = ["--layers", "2", "--edge-dropout", "0.1", "--similarity", "cosine"]
    part, given = asked(
        "--encoder", "lightgcn", "--dim", "6", *flags, "--serve-similarity", "inner"
    )
    want = models.LightGCN.of(part, 6, 2, edge_dropout=0.1, similarity="cosine")
    assert same(given["encoder"], want)
    assert (given["serve_similarity"], given["l2_on"]) == ("inner", "tables")


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_has_a_vector_for_each_user_and_item(name, asked):
    part, given = asked("--encoder", name, "--dim", "6")
    encoder = given["encoder"]
    assert same(encoder, default_encoder(name, part, 6))
    tables = jax.eval_shape(lambda key: encoder.serve(encoder.init(key)), jax.random.key(0))
    assert (len(tables.users), len(tables.items)) == (part.n_users, part.n_items)


def test_directau_brings_its_term_and_cosines(asked):
    _, given = asked("--loss", "directau", "--gamma", "0.3")
    assert given["loss"] is tasks.align_positives
    assert given["contrast"] == tasks.Uniformity(0.3)
    assert (given["encoder"].similarity, given["serve_similarity"]) == ("cosine", "inner")
    _, given = asked("--loss", "directau", "--serve-similarity", "cosine", "--sweep", "gamma=1,2")
    assert given["serve_similarity"] == "cosine"
    assert given["sweep"].keys() == {"contrast.weight"}
    np.testing.assert_array_equal(given["sweep"]["contrast.weight"], [1, 2])


def of_loss(weight=0.1, temperature=0.2, loss=losses.info_nce, **hyperparams):
    """What a contrast has besides its views."""
    hyperparams["temperature"] = temperature
    return {"weight": weight, "loss_fn": loss, "hyperparams": hyperparams}


def views_of_sgl(log, **dropped):
    view = models.LightGCN.of(log, 6, 2, renormalize=True, **dropped)
    if "edge_dropout" in dropped:
        plain = replace(view, edge_dropout=0.0, walk=False, renormalize=False)
    else:
        plain = models.LightGCN.of(log, 6, 2)
    return plain, tasks.GraphViews(first=view, second=view, **of_loss())


def views_of_simgcl(log):
    plain = models.LightGCN.of(log, 6, 2, layer_weights=(0, 0.5, 0.5))
    view = replace(plain, noise=0.1)
    return plain, tasks.GraphViews(first=view, second=view, **of_loss(0.5))


def views_of_xsimgcl(log, noise=0.2, **settings):
    encoder = models.LightGCN.of(log, 6, 2, layer_weights=(0, 0.5, 0.5), noise=noise)
    return encoder, tasks.LayerViews(**{**of_loss(0.2, 0.15), **settings})


# A further contrast need not stand here: it is trained below.
CONTRASTS_MADE = {
    "none": ([], lambda log: (models.LightGCN.of(log, 6, 2), None)),
    "sgl": ([], lambda log: views_of_sgl(log, edge_dropout=0.1)),
    "sgl nodes": (
        ["--augmentation", "node-dropout", "--augmentation-rate", "0.3"],
        lambda log: views_of_sgl(log, node_dropout=0.3),
    ),
    "sgl walk": (
        ["--augmentation", "random-walk"],
        lambda log: views_of_sgl(log, edge_dropout=0.1, walk=True),
    ),
    "simgcl": ([], views_of_simgcl),
    "xsimgcl": ([], views_of_xsimgcl),
    "xsimgcl otherwise": (
        ["--contrast-layer", "2", "--noise", "0.3", "--contrast-loss", "bayesian",
         "--contrast-alpha", "0.8"],
        lambda log: views_of_xsimgcl(
            log, 0.3, layer=2,
            **of_loss(0.2, 0.15, losses.bayesian_contrastive, tau_plus=0.01, alpha=0.8, beta=0.7),
        ),
    ),
    "lightgcl": (
        ["--rank", "3", "--contrast-weight", "0.4", "--contrast-temperature", "0.3"],
        lambda log: (
            models.LightGCN.of(log, 6, 2), tasks.SpectralViews.of(log, 3, **of_loss(0.4, 0.3))
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRASTS_MADE)
def test_a_contrast_gets_its_numbers(name, asked):
    flags, make = CONTRASTS_MADE[name]
    chosen = ["--encoder", "lightgcn", "--dim", "6", "--layers", "2"]
    part, given = asked(*chosen, "--contrast", name.partition(" ")[0], *flags)
    encoder, contrast = make(part)
    assert same(given["encoder"], encoder)
    assert same(given["contrast"], contrast)


@pytest.mark.parametrize("name", CONTRAST_LOSSES)
def test_a_contrast_takes_each_loss(name, asked):
    flags = ["--encoder", "lightgcn", "--contrast", "xsimgcl", "--contrast-loss", name]
    _, given = asked(*flags)
    entry = CONTRAST_LOSSES[name]
    numbers = {flag.removeprefix("contrast_"): of.default for flag, of in entry.flags.items()}
    assert given["contrast"].loss_fn is entry.loss
    assert given["contrast"].hyperparams == {"temperature": 0.15, **numbers}


def test_numbers_of_a_contrast_are_swept(asked):
    flags = ["--encoder", "lightgcn", "--contrast", "simgcl", "--contrast-loss", "hard"]
    swept = ["--sweep", "contrast_weight=0.1,0.2", "--sweep", "contrast-beta=0.3"]
    _, given = asked(*flags, *swept, "--sweep", "contrast_temperature=0.5")
    assert given["sweep"].keys() == {f"contrast.{n}" for n in ("weight", "beta", "temperature")}
    np.testing.assert_allclose(given["sweep"]["contrast.weight"], [0.1, 0.2])
    np.testing.assert_allclose(given["sweep"]["contrast.beta"], [0.3, 0.3])
    assert {*given["contrast"].hyperparams} == {"temperature", "tau_plus", "beta", "min_score"}


TOGETHER = {
    "confidence": ["--loss", "bprac", "--every", "2", "--seeds", "2"],
    "group": ["--loss", "gbpr", "--sampler", "bns", "--ecdf-samples", "32", "--rns-epochs", "1"],
    "schedule": ["--loss", "truncated_bpr", "--sampler", "srns", "--candidates", "4",
                 "--sweep", "variance_weight=0,5"],
    "own negatives": ["--loss", "mpr"],
    "graph": ["--encoder", "lightgcn", "--similarity", "cosine", "--temperature", "0.2",
              "--edge-dropout", "0.1"],
    "contrast": ["--encoder", "lightgcn", "--contrast", "xsimgcl", "--contrast-loss", "bayesian",
                 "--sweep", "contrast_weight=0.1,0.3", "--sweep", "contrast_beta=0.6"],
    "positives alone": ["--loss", "directau", "--sweep", "gamma=0.5,1"],
    **{
        name: ["--encoder", "lightgcn", "--contrast", name]
        for name in CONTRASTS if name not in ("none", "xsimgcl")
    },
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The law of")
@pytest.mark.parametrize("name", TOGETHER)
def test_what_training_knows_besides_losses_works_together(name, ratings, tmp_path):
    out = tmp_path / "run"
    arguments = ["--data", str(ratings), *QUICK, "--refit", "none", "--out", str(out)]
    assert main([*arguments, *TOGETHER[name]]) == 0
    assert np.isfinite(json.loads((out / "metrics.json").read_text())["ndcg@20"])
    history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert {entry["phase"] for entry in history} == {"search"}
    for entry in history:  # how true and how informative the negatives are
        assert all(0 <= rate <= 1 for rate in entry["tnr"])
        assert all(-1 <= rate <= 1 for rate in entry["inf"])


def test_seeds_give_mean_and_deviation_of_the_searched_models_without_refit(
    ratings, tmp_path, capsys
):
    out = tmp_path / "run"
    arguments = ["--data", str(ratings), *QUICK, "--refit", "none", "--seeds", "3"]
    assert main([*arguments, "--out", str(out)]) == 0
    per_seed = json.loads((out / "metrics_by_seed.json").read_text())
    metrics = json.loads((out / "metrics.json").read_text())
    values = [one["recall@10"] for one in per_seed]
    assert len(set(values)) == 3
    assert metrics["recall@10"] == pytest.approx(np.mean(values))
    assert metrics["recall@10_std"] == pytest.approx(np.std(values, ddof=1))
    assert "mean ± standard deviation of 3 seeds" in capsys.readouterr().out
    lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert {line["phase"] for line in lines} == {"search"}


def test_a_loss_with_no_number_but_a_swept_one_is_shown_without_brackets(ratings, tmp_path, capsys):
    arguments = ["--data", str(ratings), "--epochs", "1", "--dim", "2", "--refit", "none"]
    assert main([*arguments, "--sweep", "temperature=1", "--out", str(tmp_path / "run")]) == 0
    assert "\nbpr, rns, mf on " in capsys.readouterr().out


def test_a_sweep_is_decided_on_validation_and_written_whole(ratings, tmp_path, capsys):
    out = tmp_path / "run"
    sweep = ["--sweep", "lr=1e-6,1e-2", "--sweep", "tau_plus=0.0,0.1,0.2"]
    arguments = ["--data", str(ratings), "--loss", "dpl", *SHORT, *sweep, "--seeds", "2"]
    assert main([*arguments, "--out", str(out)]) == 0
    with (out / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert {(float(r["lr"]), float(r["tau_plus"])) for r in rows} == {
        (lr, tau) for lr in (1e-6, 1e-2) for tau in (0.0, 0.1, 0.2)
    }
    chosen = [r for r in rows if r["chosen"] == "1"]
    assert len(chosen) == 1
    assert float(chosen[0]["valid_ndcg@20"]) == max(float(r["valid_ndcg@20"]) for r in rows)
    found = json.loads((out / "metrics.json").read_text())["chosen"]
    assert found["point"] == {name: float(chosen[0][name]) for name in ("lr", "tau_plus")}
    assert (found["epochs"], found["valid_ndcg@20"]) == (
        int(chosen[0]["best_epoch"]), float(chosen[0]["valid_ndcg@20"])
    )  # fmt: skip
    objective = json.loads((out / "config.json").read_text())["objective"]
    assert (objective["tau_plus"], objective["floor"]) == (None, 0.01)  # the sweep sets the first
    final = [
        json.loads(line)
        for line in (out / "history.jsonl").read_text().splitlines()
        if json.loads(line)["phase"] == "final"
    ]
    assert len(final) == int(chosen[0]["best_epoch"])
    assert len(final[0]["loss"]) == 2
    assert "Grid, decided on validation data" in capsys.readouterr().out


def test_topk_speaks_the_ids_of_the_file(finished, ratings, tmp_path, capsys):
    capsys.readouterr()
    assert main(["topk", "--run", str(finished), "--user", "u7", "--k", "5"]) == 0
    screen = capsys.readouterr().out
    with ratings.open() as file:
        rows = list(csv.DictReader(file))
    printed = re.findall(r"\bi\d+\b", screen)
    assert len(printed) == 5
    assert {*printed} <= {row["item"] for row in rows}

    out = tmp_path / "recs.parquet"
    assert main(["topk", "--run", str(finished), "--all", "--k", "5", "--out", str(out)]) == 0
    table = polars.read_parquet(out)
    assert table.columns == ["user", "rank", "item", "score"]
    assert set(table["user"]) == {row["user"] for row in rows}
    mine = table.filter(polars.col("user") == "u7")
    assert mine["item"].to_list() == printed
    assert mine["rank"].to_list() == [1, 2, 3, 4, 5]
    assert mine["score"].is_sorted(descending=True)
    assert main(["topk", "--run", str(finished), "--all", "--k", "5", "--out",
                 str(tmp_path / "recs.csv")]) == 0  # fmt: skip
    with (tmp_path / "recs.csv").open() as file:
        as_csv = [(r["user"], r["item"]) for r in csv.DictReader(file)]
    assert as_csv == list(zip(table["user"], table["item"], strict=True))


def test_the_history_is_logged_where_it_is_asked_for(ratings, tmp_path, monkeypatch):
    out, logged = tmp_path / "run", []

    @contextlib.contextmanager
    def board(folder):
        assert folder == out / "tensorboard"
        yield logged.append
        logged.append("closed")

    monkeypatch.setitem(sys.modules, "tensorboardX", object())
    monkeypatch.setattr("experiments._loggers.TensorBoard", board)
    arguments = ["--data", str(ratings), *QUICK, "--log", "tensorboard", "--out", str(out)]
    assert main(arguments) == 0
    lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert logged == [*lines, "closed"]


def test_a_logger_that_is_not_installed_is_told_before_training(asked_and_refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert "needs the package wandb" in asked_and_refused("--log", "wandb")


@pytest.fixture
def asked_and_refused(ratings, tmp_path, capsys):
    """What the command says of flags that it refuses, leaving nothing behind."""

    def ask(*flags):
        assert main(["--data", str(ratings), "--out", str(tmp_path / "run"), *flags]) == 2
        assert not (tmp_path / "run").exists()
        return one_line(capsys.readouterr().err)

    return ask


WRONG = {
    "no such file": (["--data", "nowhere.csv"], "nowhere.csv"),
    "no such column": (["--user-col", "who"], "'who' (--user-col)"),
    "no rate": (["--lr", "0"], "--lr must be a number above 0, got 0.0"),
    "no epochs": (["--epochs", "0"], "--epochs must be a whole number in [1,"),
    "no ranks": (["--sampler", "aobpr", "--rank-scale", "0"], "--rank-scale must be a number"),
    "no memory": (["--sampler", "srns", "--candidates", "0"], "--candidates must be a whole"),
    "no times": (["--split", "time"], "--split time needs timestamps; --data"),
    "a knob the loss has not": (
        ["--tau-plus", "0.1"],
        "--loss bpr has no --tau-plus; it takes --n-neg, --temperature",
    ),
    "a sweep of nothing": (["--sweep", "dim=8,16"], "--sweep takes one of lr"),
    "a sweep without numbers": (["--sweep", "lr=fast"], "--sweep must be NAME=NUMBER"),
    "a sweep twice": (["--sweep", "lr=1", "--sweep", "lr=2"], "twice"),
    "seeds of no search": (["--search-seeds", "2"], "what --sweep tries"),
    "no seeds of a search": (
        ["--sweep", "lr=1,2", "--search-seeds", "0"],
        "--search-seeds must be a whole number in [1, 10000], got 0",
    ),
    "a sweep of what is fixed": (["--lr", "1", "--sweep", "lr=2"], "--lr fixes what --sweep lr"),
    "a swept knob the loss has not": (["--sweep", "alpha=0.6"], "--loss bpr has no --alpha"),
    "a law for bpr": (["--law", "smoothed"], "--loss bpr has no --law; it takes"),
    "a scale for no law": (
        ["--loss", "bprac", "--law", "smoothed", "--law-scale", "1"],
        "--law smoothed has no --law-scale",
    ),
    "a group for bpr": (["--n-group", "2"], "--loss bpr has no --n-group"),
    "an empty group": (
        ["--loss", "gbpr", "--n-group", "0"],
        "--n-group must be a whole number in [1,",
    ),
    "other items for mpr": (
        ["--loss", "mpr", "--n-neg", "3"],
        "--n-neg must be a whole number in [2, 2], got 3",
    ),
    "other negatives for mpr": (
        ["--loss", "mpr", "--sampler", "dns"],
        "this loss draws negatives of its own",
    ),
    "other negatives for directau": (
        ["--loss", "directau", "--sampler", "dns"],
        "has no use for any",
    ),
    "inner products for directau": (
        ["--loss", "directau", "--similarity", "inner"],
        "--similarity inner: this loss is of --similarity cosine",
    ),
    "a temperature for directau": (
        ["--loss", "directau", "--temperature", "2"],
        "--loss directau has no --temperature; it takes --n-neg, --gamma",
    ),
    "two terms": (
        ["--loss", "directau", "--encoder", "lightgcn", "--contrast", "sgl"],
        "--contrast sgl: --loss directau brings a term of its own",
    ),
    "a contrast without a graph": (
        ["--contrast", "sgl"],
        "--contrast sgl needs --encoder lightgcn, got mf",
    ),
    "a weight of no contrast": (
        ["--encoder", "lightgcn", "--contrast-weight", "1"],
        "--contrast none has no --contrast-weight; it takes no numbers",
    ),
    "a loss of no contrast": (
        ["--encoder", "lightgcn", "--contrast-loss", "hard"],
        "--contrast-loss hard needs a --contrast",
    ),
    "a number that the contrast's loss has not": (
        ["--encoder", "lightgcn", "--contrast", "sgl", "--contrast-tau-plus", "0.1"],
        "--contrast-loss info_nce has no --contrast-tau-plus; it takes no numbers",
    ),
    "a number out of the range of the contrast's loss": (
        [
            "--encoder",
            "lightgcn",
            "--contrast",
            "sgl",
            "--contrast-loss",
            "bayesian",
            "--sweep",
            "contrast_beta=0.3",
        ],
        "--sweep contrast_beta must be a number in [0.5, 1], got 0.3",
    ),
    "a flag of another contrast": (
        ["--encoder", "lightgcn", "--contrast", "sgl", "--noise", "0.1"],
        "--contrast sgl has no --noise; it takes --contrast-weight, --contrast-temperature, --aug",
    ),
    "a sweep of what the encoder is": (["--sweep", "noise=0.1"], "--sweep takes one of lr"),
    "a layer too deep": (
        ["--encoder", "lightgcn", "--contrast", "xsimgcl", "--contrast-layer", "4"],
        "--contrast-layer must be one of the 3 layers, got 4",
    ),
    "too many vectors": (
        ["--encoder", "lightgcn", "--contrast", "lightgcl", "--rank", "50"],
        "--rank must be less than 50, got 50",
    ),
    "a drop rate out of range": (["--loss", "truncated_bpr", "--drop-rate", "2"], "--drop-rate"),
    "extra positives for bpr": (["--n-pos", "2"], "--loss bpr has no --n-pos; it takes"),
    "a knob out of range": (["--loss", "dpl", "--tau-plus", "1.5"], "--tau-plus"),
    "no cut-off": (["--k"], "--k must be one or more, each a whole number in [1, 65536], got none"),
    "a sweep out of range": (
        ["--sweep", "lr=-1,1e-3"],
        "--sweep lr must be a number above 0, got -1",
    ),
    "a sweep of half epochs": (["--sweep", "epochs=1.5"], "--sweep epochs must be a whole number"),
    "too few in memory": (
        ["--sampler", "srns", "--candidates", "2", "--loss", "info_nce"],
        "--candidates must be at least the 5 negatives of --n-neg, got 2",
    ),
    "columns of simulated data": (["--data", "simulated", "--user-col", "u"], "--user-col"),
    "no recipe": (["--recipe", "ml-100k-bprr"], "got 'ml-100k-bprr'. Did you mean ml-100k-bpr?"),
    "no dataset": (["--data", "simulate"], "got 'simulate'. Did you mean simulated?"),
    "no tpu here": (["--device", "tpu"], "--device tpu: JAX found only"),
    "resume what is no run": (["--resume", "nowhere"], "nowhere holds no run"),
    "a share out of range": (["--valid", "1.5"], "--valid must be a number in (0, 1), got 1.5"),
    "a flag the sampler has not": (
        ["--candidates", "9"],
        "--sampler rns has no --candidates; it takes no numbers. --candidates is for dns, srns,",
    ),
    "a sweep the sampler has not": (
        ["--sampler", "dns", "--sweep", "risk_lambda=1,5"],
        "--sampler dns has no --risk-lambda; it takes --candidates",
    ),
    "a sampler's number out of range": (
        ["--sampler", "bns", "--risk-lambda", "-1"],
        "--risk-lambda must be a number of at least 0, got -1",
    ),
    "no occupations": (["--sampler", "bns", "--prior", "occupation"], "u.user"),
    "no such rating": (["--min-rating", "4"], "--min-rating is given"),
}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--sampler", "pns", "--candidates", "3"], "--sampler pns has no --candidates"),
        (["--loss", "mpr", "--sampler", "dns"], "this loss draws negatives of its own"),
        (["--layers", "2"], "--encoder mf has no --layers"),
        (["--out", "{run}"], "{run} holds a run already: go on with it by --resume {run}"),
    ],
)
def test_what_data_cannot_mend_is_refused_before_they_are_read(
    flags, message, ratings, first_run, monkeypatch, capsys
):
    monkeypatch.setattr("experiments._recommend.load_problem", lambda *_: pytest.fail("read"))
    flags = [flag.format(run=first_run) for flag in flags]
    assert main(["--data", str(ratings), *flags]) == 2
    assert message.format(run=first_run) in one_line(capsys.readouterr().err)


def test_a_loss_that_masks_nothing_is_refused_with_the_batch_as_negatives(
    asked_and_refused, monkeypatch
):
    def plain(pos, neg, *, temperature, reduce_fn=None):
        return losses.bpr(pos, neg, temperature=temperature, reduce_fn=reduce_fn)

    monkeypatch.setitem(OBJECTIVES, "bpr", replace(OBJECTIVES["bpr"], loss=plain))
    said = asked_and_refused("--sampler", "in-batch")
    assert said == (
        "error: --sampler in-batch needs a loss that takes `where`; --loss bpr does not."
    )


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_one_clear_line(name, ratings, tmp_path, capsys):
    arguments, message = WRONG[name]
    if not {"--data", "--resume"} & set(arguments):
        arguments = ["--data", str(ratings), *arguments]
    if "--resume" not in arguments:
        arguments = [*arguments, "--out", str(tmp_path / "run")]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error:")
    assert message in one_line(error)
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_the_model_is_kept_whatever_happens_to_its_scores(ratings, tmp_path, monkeypatch):
    out = tmp_path / "run"

    def fail(*_, **__):
        raise ValueError("no scores today")

    with monkeypatch.context() as patch:
        patch.setattr("experiments._pipeline.score", fail)
        assert main(["--data", str(ratings), *QUICK, "--out", str(out)]) == 2
    assert main(["topk", "--run", str(out), "--user", "u7"]) == 0
    assert main(["--resume", str(out)]) == 0
    assert (out / "metrics.json").exists()


@pytest.mark.parametrize("arguments", [["--loss", "magic"], ["--lr", "fast"], ["--nonsense"]])
def test_wrong_flags_leave_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2


TOPK_WRONG = {
    "unknown user": (["--user", "nobody"], "nobody"),
    "user and all": (["--user", "u1", "--all"], "one of --user ID and --all"),
    "neither": ([], "one of --user ID and --all"),
    "all without a file": (["--all"], "--all needs --out"),
    "no such format": (["--all", "--out", "recs.xlsx"], "must end in .parquet or .csv"),
    "no items": (["--user", "u1", "--k", "0"], "--k must be at least 1"),
    "no such seed": (["--user", "u1", "--seed-index", "1"], "--seed-index must lie in"),
}


@pytest.mark.parametrize("name", TOPK_WRONG)
def test_topk_says_what_is_wrong(name, finished, capsys):
    arguments, message = TOPK_WRONG[name]
    assert main(["topk", "--run", str(finished), *arguments]) == 2
    assert message in one_line(capsys.readouterr().err)


def test_topk_needs_a_finished_run(tmp_path, capsys):
    assert main(["topk", "--run", str(tmp_path), "--user", "u1"]) == 2
    assert "has no trained model" in one_line(capsys.readouterr().err)


def test_a_run_is_not_overwritten_and_a_finished_one_not_scored_again(finished, ratings, capsys):
    before = (finished / "metrics.json").read_bytes()
    assert main(["--data", str(ratings), *QUICK, "--out", str(finished)]) == 2
    assert "holds a run already" in one_line(capsys.readouterr().err)
    assert main(["--resume", str(finished)]) == 0
    assert "is finished" in one_line(capsys.readouterr().out)
    assert (finished / "metrics.json").read_bytes() == before
    assert main(["--resume", str(finished), "--lr", "1"]) == 2
    assert "leave out other flags" in one_line(capsys.readouterr().err)


def test_a_run_directory_is_of_one_process_at_a_time(finished, ratings, capsys):
    (finished / "metrics.json").unlink()
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with hold(finished / ".lock", busy="free"):
        assert main(["--resume", str(finished)]) == 2
        assert main(["--data", str(ratings), *QUICK, "--out", str(finished)]) == 2
    said = one_line(capsys.readouterr().err)
    assert said.count("another process is at work in") == 2
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert main(["--resume", str(finished)]) == 0


def test_a_damaged_config_is_named(finished, capsys):
    (finished / "metrics.json").unlink()
    (finished / "config.json").write_text("{\n  broken")
    assert main(["--resume", str(finished)]) == 2
    assert "config.json:2" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize(
    ("section", "changed", "message"),
    [
        ("training", {"dim": 0}, "training.dim: expected a whole number in [1, 65536], got 0"),
        ("protocol", {"refit": None}, "protocol.refit: expected one of none, valid, all, got null"),
        ("protocol", {"sweep": ["lr=-1"]}, "--sweep lr must be a number above 0"),
        ("objective", {"alpha": 0.9}, "--loss bpr has no --alpha"),
    ],
)
def test_an_edited_config_is_checked_as_flags_are(section, changed, message, finished, capsys):
    (finished / "metrics.json").unlink()
    path = finished / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {section: config[section] | changed}))
    assert main(["--resume", str(finished)]) == 2
    error = "".join(capsys.readouterr().err.split())
    assert error.startswith(f"error:{path}:")
    assert "".join(message.split()) in error


def test_a_run_does_not_resume_on_other_data(finished, ratings, capsys):
    (finished / "metrics.json").unlink()
    original = ratings.read_text()
    try:
        ratings.write_text("\n".join(original.splitlines()[:-3]) + "\n")
        assert main(["--resume", str(finished)]) == 2
    finally:
        ratings.write_text(original)
    assert "belongs to another training" in one_line(capsys.readouterr().err)


def run_until(arguments: list[str], history: Path, lines: int, how: signal.Signals) -> str | None:
    """Runs the command in a process of its own and ends it once the history has ``lines``.

    Returns what it said then, None if it was done before.
    """
    command = [sys.executable, "-m", "experiments.recommend", *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 300
        sent = False
        while process.poll() is None and time.monotonic() < deadline and not sent:
            if history.exists() and history.read_text().count("\n") >= lines:
                process.send_signal(how)
                sent = True
            time.sleep(0.002)
        _, error = process.communicate(timeout=60)
    if process.returncode == 0:
        return None
    assert sent, error.decode()
    assert process.returncode == (-9 if how == signal.SIGKILL else 128 + how)
    return error.decode()


def test_a_killed_run_ends_as_one_never_killed(ratings, tmp_path):
    options = ["--data", str(ratings), "--epochs", "25", "--batch-size", "32", "--dim", "8",
               "--lr", "0.01", "--patience", "25", "--seeds", "2",
               "--checkpoint-seconds", "0"]  # fmt: skip
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main([*options, "--out", str(whole)]) == 0
    n_lines = (whole / "history.jsonl").read_text().count("\n")
    history = killed / "history.jsonl"
    # In the search, then close to its end or in the final training.
    said = run_until([*options, "--out", str(killed)], history, 3, signal.SIGTERM)
    assert said == (f"Terminated. Go on with: python -m experiments.recommend --resume {killed}\n")
    again = ["--resume", str(killed)]
    ended = run_until(again, history, n_lines - 2, signal.SIGKILL)
    assert not (killed / "metrics.json").exists() or ended is None
    assert main(again) == 0
    want, _ = load_checkpoint(whole / "checkpoint" / "model.npz")
    got, _ = load_checkpoint(killed / "checkpoint" / "model.npz")
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])
    scores = [json.loads((folder / "metrics.json").read_text()) for folder in (killed, whole)]
    assert scores[0] | {"seconds": 0} == scores[1] | {"seconds": 0}

    def history(folder):
        lines = map(json.loads, (folder / "history.jsonl").read_text().splitlines())
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    assert history(killed) == history(whole)
