"""Tests of the mapping from command-line flags to the arguments of `fit_ranking`."""

import tempfile
from dataclasses import replace

import jax
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax import losses, models, samplers, stats, tasks, weights
from experiments.recommend import main
from experiments.recommend._config import Config
from experiments.recommend._study import Recommend
from experiments.recommend.contrasts import LOSSES as CONTRAST_LOSSES
from experiments.recommend.encoders import ENCODERS, default_encoder
from experiments.recommend.objectives import (
    OBJECTIVES,
    group_bpr,
    likely_and_unpopular,
    popular_and_not,
)
from experiments.recommend.sampling import SAMPLERS, Context

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


class Asked(Exception):
    """Carries the arguments of an intercepted training call; nothing is trained."""


@pytest.fixture
def asked(ratings, tmp_path, monkeypatch):
    """Returns a function from flags to the training interactions and the training arguments.

    Omitted flags have the defaults of the dataclasses and entries, not those of `start`.
    """

    def refuse(part, _, *, options, stopping, **arguments):
        raise Asked(part, {**vars(options), **vars(stopping), **arguments})

    def ask(*flags):
        monkeypatch.setattr(FIT, refuse)
        monkeypatch.setattr(Recommend, "start", lambda *_: Config())
        out = tempfile.mkdtemp(dir=tmp_path)
        with raises(Asked) as told:
            main(["--data", str(ratings), "--out", out, *flags])
        return told.value.args

    return ask


FIT = "crl_jax.tasks.fit_ranking"
# The loss, its hyper-parameters, and its numbers of negatives, positives and users per group.
# `tau_plus` is the density of the training part. New losses need no row: they are compared with
# their registry entry.
LOSSES = {
    "bpr": (losses.bpr, {}, 1, 0, 0),
    "bce": (losses.bce, {}, 1, 0, 0),
    "info_nce": (losses.info_nce, {}, 5, 0, 0),
    "debiased": (losses.debiased_contrastive, {"tau_plus": None, "min_score": -5}, 5, 5, 0),
    "hard": (
        losses.hard_contrastive, {"tau_plus": None, "beta": 0.5, "min_score": -5}, 5, 5, 0
    ),
    "bayesian": (
        losses.bayesian_contrastive, {"tau_plus": None, "alpha": 0.9, "beta": 0.7}, 5, 0, 0
    ),
    "dpl": (losses.debiased_pairwise, {"tau_plus": None, "floor": 0.01}, 5, 5, 0),
    "bprac": (losses.bpr, {}, 1, 0, 0),
    "gbpr": (group_bpr, {"rho": 0.4}, 1, 0, 3),
    "mpr": (likely_and_unpopular, {"balance": 0.5}, 2, 2, 0),
    "truncated_bce": (losses.truncated_bce, {"drop_rate": 0.1}, 1, 0, 0),
    "truncated_bpr": (losses.truncated_bpr, {"drop_rate": 0.1}, 1, 0, 0),
    "reweighted_bce": (losses.reweighted_bce, {"exponent": 0.25}, 1, 0, 0),
    "reweighted_bpr": (losses.reweighted_bpr, {"exponent": 0.25}, 1, 0, 0),
}  # fmt: skip


def numbers_of(name):
    """Returns the expected values from `LOSSES`, or from the registry entry if there is no row."""
    if name in LOSSES:
        return LOSSES[name]
    of = OBJECTIVES[name]
    hyperparams = {
        name: hyperparam.default
        for name, hyperparam in of.hyperparams.items()
        if name != "temperature"
    }
    return of.loss, hyperparams, of.n_neg, of.n_pos or 0, of.n_group or 0


@pytest.mark.parametrize("name", [name for name, of in OBJECTIVES.items() if not of.candidates])
def test_a_loss_gets_its_numbers(name, asked):
    loss, hyperparams, n_neg, n_pos, n_group = numbers_of(name)
    divided = {"temperature": 0.5} if "temperature" in OBJECTIVES[name].hyperparams else {}
    part, given = asked("--loss", name, *(["--temperature", "0.5"] if divided else []))
    static = {name: value for name, value in hyperparams.items() if isinstance(value, str)}
    hyperparams = {name: value for name, value in hyperparams.items() if name not in static}
    assert given["loss"] is loss or (given["loss"].func, given["loss"].keywords) == (loss, static)
    if "tau_plus" in hyperparams:
        hyperparams = {**hyperparams, "tau_plus": len(part) / (part.n_users * part.n_items)}
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
    assert given["sweep"].keys() == {"task.hyperparams.tau_plus", "optimizer.weight_decay"}
    np.testing.assert_allclose(
        given["sweep"]["task.hyperparams.tau_plus"], np.repeat([0.1, 0.2], 3)
    )
    np.testing.assert_allclose(given["sweep"]["optimizer.weight_decay"], [1, 2, 3, 1, 2, 3])
    assert (given["n_neg"], given["n_pos"], given["patience"]) == (7, 3, 4)
    assert (given["optimizer"].learning_rate, given["config"].batch_size) == (0.02, 9)
    assert np.asarray(given["seeds"]).tolist() == [6] * 6


@pytest.mark.parametrize(
    ("flags", "law", "rule", "every"),
    [
        ("", stats.SmoothedEmpirical(), "posterior", 10),
        (
            "--score-distribution smoothed --confidence-rule prior --confidence-every 2",
            stats.SmoothedEmpirical(), "prior", 2,
        ),
        ("--distribution-scale 0.2", stats.VarianceGamma(8, 0.2), "posterior", 10),
        (
            "--score-distribution variance-gamma --confidence-rule density --init-scale 0.5",
            # Geometric mean of the Xavier variances of 50 users and 56 items.
            stats.VarianceGamma(8, 0.25 * (2 / 58 * 2 / 64) ** 0.5), "density", 10,
        ),
    ],
)  # fmt: skip
def test_the_confidence_takes_its_flags(flags, law, rule, every, asked):
    part, given = asked("--loss", "bprac", "--dim", "8", *flags.split())
    found = given["confidence"]
    assert (found.rule, found.every) == (rule, every)
    assert same(found.distribution, law)
    np.testing.assert_array_equal(found.prior, weights.credibility_prior(part.item_counts))


# New samplers need no row: they are compared with their registry entry under default flags.
SAMPLERS_MADE = {
    "in-batch": (
        ["--batch-mask", "self", "--log-q", "0.5"],
        lambda log: samplers.InBatch.from_interactions(log, "self", 0.5),
    ),
    "shared": (
        ["--pool-mask", "none", "--pool-anchors", "8"],
        lambda log: samplers.SharedRNS("none", 8),
    ),
    "rns": ([], lambda log: samplers.RNS()),
    "pns": ([], samplers.PNS.from_interactions),
    "aobpr": (["--rank-scale", "20"], lambda log: samplers.AOBPR(20.0)),
    "dns": (["--candidates", "3"], lambda log: samplers.DNS(3)),
    "srns": (["--candidates", "4"], lambda log: samplers.SRNS(memory=4, variance_weight=5.0)),
    "bns": (
        ["--ecdf-samples", "32", "--prior", "uniform", "--rns-epochs", "1"],
        lambda log: samplers.StagedSampler(
            samplers.RNS(), samplers.BNS(samplers.uniform_prior(log.n_items), ecdf_samples=32), 1
        ),
    ),
    "bns-posterior": (
        ["--candidates", "3", "--ecdf", "batch"],
        lambda log: samplers.BNS(
            samplers.popularity_prior(log), candidates=3, criterion="posterior", ecdf="batch"
        ),
    ),
}


def same(one, other) -> bool:
    """Whether two pytrees have the same structure, static fields and leaves."""
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
    flags = ["--risk-lambda-slope", "0.1", "--risk-lambda-min", "2"]
    _, given = asked("--sampler", "bns", *flags, "--sweep", "risk_lambda=1,5")
    numbers = [float(getattr(given["sampler"], name)) for name in LAMBDA]
    assert numbers == [5, 0.1, 2]
    assert given["sweep"].keys() == {"task.sampler.risk_lambda"}
    np.testing.assert_array_equal(given["sweep"]["task.sampler.risk_lambda"], [1, 5])


LAMBDA = ("risk_lambda", "risk_lambda_slope", "risk_lambda_min")


def test_an_encoder_gets_its_numbers(asked):
    part, given = asked("--dim", "6", "--l2-target", "rows")
    assert given["encoder"] == models.MatrixFactorization(part.n_users, part.n_items, 6)
    assert (given["serve_similarity"], given["l2_target"]) == (None, "rows")
    part, given = asked("--dim", "6", "--dropout", "0.1")
    want = models.MatrixFactorization(part.n_users, part.n_items, 6, dropout=0.1)
    assert given["encoder"] == want
    flags = ["--layers", "2", "--edge-dropout", "0.1", "--similarity", "cosine"]
    part, given = asked(
        "--encoder", "lightgcn", "--dim", "6", *flags, "--serve-similarity", "inner"
    )
    want = models.LightGCN.from_interactions(part, 6, 2, edge_dropout=0.1, similarity="cosine")
    assert same(given["encoder"], want)
    assert (given["serve_similarity"], given["l2_target"]) == ("inner", "tables")


@pytest.mark.parametrize("name", sorted({*ENCODERS} - {"features"}))  # which needs files
def test_an_encoder_has_a_vector_for_each_user_and_item(name, asked):
    part, given = asked("--encoder", name, "--dim", "6")
    encoder = given["encoder"]
    assert same(encoder, default_encoder(name, part, 6))
    tables = jax.eval_shape(
        lambda key: encoder.serving_tables(encoder.init(key)), jax.random.key(0)
    )
    assert (len(tables.users), len(tables.items)) == (part.n_users, part.n_items)


@pytest.mark.parametrize(
    ("loss", "said"),
    [("directau", "no negatives"), ("mpr", "its own negatives"), ("bpr", "rns")],
)
def test_the_screen_says_what_a_loss_compares_with(loss, said, asked, capsys):
    asked("--loss", loss)
    assert f", {said}, mf on " in capsys.readouterr().out


def test_directau_brings_its_term_and_cosines(asked):
    _, given = asked("--loss", "directau", "--gamma", "0.3")
    assert given["loss"] is tasks.align_positives
    assert given["auxiliary_loss"] == tasks.Uniformity(0.3)
    assert (given["encoder"].similarity, given["serve_similarity"]) == ("cosine", "inner")
    _, given = asked("--loss", "directau", "--serve-similarity", "cosine", "--sweep", "gamma=1,2")
    assert given["serve_similarity"] == "cosine"
    assert given["sweep"].keys() == {"task.auxiliary_loss.weight"}
    np.testing.assert_array_equal(given["sweep"]["task.auxiliary_loss.weight"], [1, 2])


def of_loss(weight=0.1, temperature=0.2, loss=losses.info_nce, **hyperparams):
    """Returns the arguments of an auxiliary contrastive loss other than its views."""
    hyperparams["temperature"] = temperature
    return {"weight": weight, "loss_fn": loss, "hyperparams": hyperparams}


def views_of_sgl(log, **dropped):
    view = models.LightGCN.from_interactions(log, 6, 2, renormalize=True, **dropped)
    if "edge_dropout" in dropped:
        plain = replace(view, edge_dropout=0.0, walk=False, renormalize=False)
    else:
        plain = models.LightGCN.from_interactions(log, 6, 2)
    return plain, tasks.GraphContrast(first=view, second=view, **of_loss())


def views_of_simgcl(log):
    plain = models.LightGCN.from_interactions(log, 6, 2, layer_weights=(0, 0.5, 0.5))
    view = replace(plain, noise=0.1)
    return plain, tasks.GraphContrast(first=view, second=view, **of_loss(0.5))


def views_of_xsimgcl(log, noise=0.2, **settings):
    encoder = models.LightGCN.from_interactions(log, 6, 2, layer_weights=(0, 0.5, 0.5), noise=noise)
    return encoder, tasks.LayerContrast(**{**of_loss(0.2, 0.15), **settings})


# New contrasts need no row: they are trained below.
CONTRASTS_MADE = {
    "none": ([], lambda log: (models.LightGCN.from_interactions(log, 6, 2), None)),
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
            models.LightGCN.from_interactions(log, 6, 2),
            tasks.SpectralContrast.from_interactions(log, 3, **of_loss(0.4, 0.3))
        ),
    ),
    "ncl": (
        ["--clusters", "7", "--prototype-weight", "0.3", "--contrast-warm-up", "2",
         "--contrast-layer", "1"],
        lambda log: (
            models.LightGCN.from_interactions(log, 6, 2),
            tasks.NeighborContrast(
                clusters=7, prototype_weight=0.3, warm_up=2, layer=1, **of_loss(0.004, 0.05)
            ),
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
    assert same(given["auxiliary_loss"], contrast)


@pytest.mark.parametrize("name", CONTRAST_LOSSES)
def test_a_contrast_takes_each_loss(name, asked):
    flags = ["--encoder", "lightgcn", "--contrast", "xsimgcl", "--contrast-loss", name]
    _, given = asked(*flags)
    entry = CONTRAST_LOSSES[name]
    numbers = {flag.removeprefix("contrast_"): of.default for flag, of in entry.flags.items()}
    assert given["auxiliary_loss"].loss_fn is entry.loss
    assert given["auxiliary_loss"].hyperparams == {"temperature": 0.15, **numbers}


def test_numbers_of_a_contrast_are_swept(asked):
    flags = ["--encoder", "lightgcn", "--contrast", "simgcl", "--contrast-loss", "hard"]
    swept = ["--sweep", "contrast_weight=0.1,0.2", "--sweep", "contrast-beta=0.3"]
    _, given = asked(*flags, *swept, "--sweep", "contrast_temperature=0.5")
    assert given["sweep"].keys() == {
        "task.auxiliary_loss.weight",
        "task.auxiliary_loss.hyperparams.beta",
        "task.auxiliary_loss.hyperparams.temperature",
    }
    np.testing.assert_allclose(given["sweep"]["task.auxiliary_loss.weight"], [0.1, 0.2])
    np.testing.assert_allclose(given["sweep"]["task.auxiliary_loss.hyperparams.beta"], [0.3, 0.3])
    assert {*given["auxiliary_loss"].hyperparams} == {
        "temperature",
        "tau_plus",
        "beta",
        "min_score",
    }
