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
    popularity_mixture,
)
from experiments.recommend.sampling import SAMPLERS, Context

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


class InterceptedFit(Exception):
    """Carries the arguments of an intercepted training call; nothing is trained."""


@pytest.fixture
def fit_arguments(ratings, tmp_path, monkeypatch):
    """Returns a function from flags to the training interactions and the training arguments.

    Omitted flags have the defaults of the dataclasses and entries, not those of `start`.
    """

    def intercept_fit(part, _, *, options, stopping, **arguments):
        raise InterceptedFit(part, {**vars(options), **vars(stopping), **arguments})

    def run(*flags):
        monkeypatch.setattr(FIT, intercept_fit)
        monkeypatch.setattr(Recommend, "start", lambda *_: Config())
        out = tempfile.mkdtemp(dir=tmp_path)
        with raises(InterceptedFit) as caught:
            main(["--data", str(ratings), "--out", out, *flags])
        return caught.value.args

    return run


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


def expected_settings(name):
    """Returns the expected settings from `LOSSES`, or the registry entry if there is no row."""
    if name in LOSSES:
        return LOSSES[name]
    spec = OBJECTIVES[name]
    hyperparams = {
        name: hyperparam.default
        for name, hyperparam in spec.hyperparams.items()
        if name != "temperature"
    }
    return spec.loss, hyperparams, spec.n_neg, spec.n_pos or 0, spec.n_group or 0


@pytest.mark.parametrize("name", [name for name, spec in OBJECTIVES.items() if not spec.candidates])
def test_loss_flag_sets_training_arguments(name, fit_arguments):
    loss, hyperparams, n_neg, n_pos, n_group = expected_settings(name)
    divided = {"temperature": 0.5} if "temperature" in OBJECTIVES[name].hyperparams else {}
    part, kwargs = fit_arguments("--loss", name, *(["--temperature", "0.5"] if divided else []))
    static = {name: value for name, value in hyperparams.items() if isinstance(value, str)}
    hyperparams = {name: value for name, value in hyperparams.items() if name not in static}
    assert kwargs["loss"] is loss or (kwargs["loss"].func, kwargs["loss"].keywords) == (
        loss,
        static,
    )
    if "tau_plus" in hyperparams:
        hyperparams = {**hyperparams, "tau_plus": len(part) / (part.n_users * part.n_items)}
    assert kwargs["hyperparams"] == {**divided, **hyperparams}
    assert (kwargs["n_neg"], kwargs["n_pos"], kwargs["n_group"]) == (n_neg, n_pos, n_group)
    entry = OBJECTIVES[name]
    assert kwargs["hyperparam_schedule"] is entry.schedule
    assert (kwargs["confidence"] is None) == (entry.confidence is None)
    assert trees_equal(kwargs["sampler"], entry.sampler(part) if entry.sampler else samplers.RNS())
    if name in LOSSES:
        assert (entry.schedule is None) == ("truncated" not in name)
        assert (entry.confidence is None) == (name != "bprac")
        assert entry.sampler is (popularity_mixture if name == "mpr" else None)


def test_hyperparams_and_sweeps_reach_training(fit_arguments):
    flags = ["--loss", "hard", "--beta", "0.3", "--n-neg", "7", "--n-pos", "3", "--lr", "0.02"]
    swept = ["--sweep", "tau-plus=0.1,0.2", "--sweep", "weight_decay=1,2,3"]
    _, kwargs = fit_arguments(*flags, *swept, "--batch-size", "9", "--patience", "4", "--seed", "6")
    fixed = {"temperature": 1, "beta": 0.3, "min_score": -5}
    assert fixed.items() <= kwargs["hyperparams"].items()
    assert kwargs["sweep"].keys() == {"task.hyperparams.tau_plus", "optimizer.weight_decay"}
    np.testing.assert_allclose(
        kwargs["sweep"]["task.hyperparams.tau_plus"], np.repeat([0.1, 0.2], 3)
    )
    np.testing.assert_allclose(kwargs["sweep"]["optimizer.weight_decay"], [1, 2, 3, 1, 2, 3])
    assert (kwargs["n_neg"], kwargs["n_pos"], kwargs["patience"]) == (7, 3, 4)
    assert (kwargs["optimizer"].learning_rate, kwargs["config"].batch_size) == (0.02, 9)
    assert np.asarray(kwargs["seeds"]).tolist() == [6] * 6


@pytest.mark.parametrize(
    ("flags", "distribution", "rule", "every"),
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
def test_confidence_flags_set_estimator(flags, distribution, rule, every, fit_arguments):
    part, kwargs = fit_arguments("--loss", "bprac", "--dim", "8", *flags.split())
    estimator = kwargs["confidence"]
    assert (estimator.rule, estimator.every) == (rule, every)
    assert trees_equal(estimator.distribution, distribution)
    np.testing.assert_array_equal(estimator.prior, weights.credibility_prior(part.item_counts))


# New samplers need no row: they are compared with their registry entry under default flags.
EXPECTED_SAMPLERS = {
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


def trees_equal(one, other) -> bool:
    """Whether two pytrees have the same structure, static fields and leaves."""
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other))
    )


def default_sampler(name, log):
    entry = SAMPLERS[name]
    values = {flag: hyperparam.default for flag, hyperparam in entry.flags.items()}
    return entry.make(Context(log, "", 1), **entry.complete(values, ()))


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampler_flags_set_sampler(name, fit_arguments):
    flags, make = EXPECTED_SAMPLERS.get(name, ([], lambda log: default_sampler(name, log)))
    part, kwargs = fit_arguments("--sampler", name, *flags)
    assert trees_equal(kwargs["sampler"], make(part))
    assert kwargs["sweep"] == {}


def test_risk_lambda_flags_set_sampler_schedule(fit_arguments):
    flags = ["--risk-lambda-slope", "0.1", "--risk-lambda-min", "2"]
    _, kwargs = fit_arguments("--sampler", "bns", *flags, "--sweep", "risk_lambda=1,5")
    numbers = [float(getattr(kwargs["sampler"], name)) for name in LAMBDA]
    assert numbers == [5, 0.1, 2]
    assert kwargs["sweep"].keys() == {"task.sampler.risk_lambda"}
    np.testing.assert_array_equal(kwargs["sweep"]["task.sampler.risk_lambda"], [1, 5])


LAMBDA = ("risk_lambda", "risk_lambda_slope", "risk_lambda_min")


def test_encoder_flags_set_encoder(fit_arguments):
    part, kwargs = fit_arguments("--dim", "6", "--l2-target", "rows")
    assert kwargs["encoder"] == models.MatrixFactorization(part.n_users, part.n_items, 6)
    assert (kwargs["serve_similarity"], kwargs["l2_target"]) == (None, "rows")
    part, kwargs = fit_arguments("--dim", "6", "--dropout", "0.1")
    want = models.MatrixFactorization(part.n_users, part.n_items, 6, dropout=0.1)
    assert kwargs["encoder"] == want
    flags = ["--layers", "2", "--edge-dropout", "0.1", "--similarity", "cosine"]
    part, kwargs = fit_arguments(
        "--encoder", "lightgcn", "--dim", "6", *flags, "--serve-similarity", "inner"
    )
    want = models.LightGCN.from_interactions(part, 6, 2, edge_dropout=0.1, similarity="cosine")
    assert trees_equal(kwargs["encoder"], want)
    assert (kwargs["serve_similarity"], kwargs["l2_target"]) == ("inner", "tables")


@pytest.mark.parametrize("name", sorted({*ENCODERS} - {"features"}))  # `features` needs files
def test_default_encoder_covers_all_users_and_items(name, fit_arguments):
    part, kwargs = fit_arguments("--encoder", name, "--dim", "6")
    encoder = kwargs["encoder"]
    assert trees_equal(encoder, default_encoder(name, part, 6))
    tables = jax.eval_shape(
        lambda key: encoder.serving_tables(encoder.init(key)), jax.random.key(0)
    )
    assert (len(tables.users), len(tables.items)) == (part.n_users, part.n_items)


@pytest.mark.parametrize(
    ("loss", "message"),
    [("directau", "no negatives"), ("mpr", "its own negatives"), ("bpr", "rns")],
)
def test_prints_source_of_negatives(loss, message, fit_arguments, capsys):
    fit_arguments("--loss", loss)
    assert f", {message}, mf on " in capsys.readouterr().out


def test_directau_sets_uniformity_and_cosine_similarity(fit_arguments):
    _, kwargs = fit_arguments("--loss", "directau", "--gamma", "0.3")
    assert kwargs["loss"] is tasks.align_positives
    assert kwargs["auxiliary_loss"] == tasks.Uniformity(0.3)
    assert (kwargs["encoder"].similarity, kwargs["serve_similarity"]) == ("cosine", "inner")
    _, kwargs = fit_arguments(
        "--loss", "directau", "--serve-similarity", "cosine", "--sweep", "gamma=1,2"
    )
    assert kwargs["serve_similarity"] == "cosine"
    assert kwargs["sweep"].keys() == {"task.auxiliary_loss.weight"}
    np.testing.assert_array_equal(kwargs["sweep"]["task.auxiliary_loss.weight"], [1, 2])


def loss_arguments(weight=0.1, temperature=0.2, loss=losses.info_nce, **hyperparams):
    """Returns the arguments of an auxiliary contrastive loss, except its views."""
    hyperparams["temperature"] = temperature
    return {"weight": weight, "loss_fn": loss, "hyperparams": hyperparams}


def make_sgl(log, **dropped):
    view = models.LightGCN.from_interactions(log, 6, 2, renormalize=True, **dropped)
    if "edge_dropout" in dropped:
        plain = replace(view, edge_dropout=0.0, walk=False, renormalize=False)
    else:
        plain = models.LightGCN.from_interactions(log, 6, 2)
    return plain, tasks.GraphContrast(first=view, second=view, **loss_arguments())


def make_simgcl(log):
    plain = models.LightGCN.from_interactions(log, 6, 2, layer_weights=(0, 0.5, 0.5))
    view = replace(plain, noise=0.1)
    return plain, tasks.GraphContrast(first=view, second=view, **loss_arguments(0.5))


def make_xsimgcl(log, noise=0.2, **settings):
    encoder = models.LightGCN.from_interactions(log, 6, 2, layer_weights=(0, 0.5, 0.5), noise=noise)
    return encoder, tasks.LayerContrast(**{**loss_arguments(0.2, 0.15), **settings})


# New contrasts need no row: test_recommend trains them all.
EXPECTED_CONTRASTS = {
    "none": ([], lambda log: (models.LightGCN.from_interactions(log, 6, 2), None)),
    "sgl": ([], lambda log: make_sgl(log, edge_dropout=0.1)),
    "sgl nodes": (
        ["--augmentation", "node-dropout", "--augmentation-rate", "0.3"],
        lambda log: make_sgl(log, node_dropout=0.3),
    ),
    "sgl walk": (
        ["--augmentation", "random-walk"],
        lambda log: make_sgl(log, edge_dropout=0.1, walk=True),
    ),
    "simgcl": ([], make_simgcl),
    "xsimgcl": ([], make_xsimgcl),
    "xsimgcl otherwise": (
        ["--contrast-layer", "2", "--noise", "0.3", "--contrast-loss", "bayesian",
         "--contrast-alpha", "0.8"],
        lambda log: make_xsimgcl(
            log, 0.3, layer=2,
            **loss_arguments(
                0.2, 0.15, losses.bayesian_contrastive, tau_plus=0.01, alpha=0.8, beta=0.7
            ),
        ),
    ),
    "lightgcl": (
        ["--rank", "3", "--contrast-weight", "0.4", "--contrast-temperature", "0.3"],
        lambda log: (
            models.LightGCN.from_interactions(log, 6, 2),
            tasks.SpectralContrast.from_interactions(log, 3, **loss_arguments(0.4, 0.3))
        ),
    ),
    "ncl": (
        ["--clusters", "7", "--prototype-weight", "0.3", "--contrast-warm-up", "2",
         "--contrast-layer", "1"],
        lambda log: (
            models.LightGCN.from_interactions(log, 6, 2),
            tasks.NeighborContrast(
                clusters=7, prototype_weight=0.3, warm_up=2, layer=1, **loss_arguments(0.004, 0.05)
            ),
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED_CONTRASTS)
def test_contrast_flags_set_encoder_and_auxiliary_loss(name, fit_arguments):
    flags, make = EXPECTED_CONTRASTS[name]
    chosen = ["--encoder", "lightgcn", "--dim", "6", "--layers", "2"]
    part, kwargs = fit_arguments(*chosen, "--contrast", name.partition(" ")[0], *flags)
    encoder, contrast = make(part)
    assert trees_equal(kwargs["encoder"], encoder)
    assert trees_equal(kwargs["auxiliary_loss"], contrast)


@pytest.mark.parametrize("name", CONTRAST_LOSSES)
def test_contrast_accepts_each_loss(name, fit_arguments):
    flags = ["--encoder", "lightgcn", "--contrast", "xsimgcl", "--contrast-loss", name]
    _, kwargs = fit_arguments(*flags)
    entry = CONTRAST_LOSSES[name]
    numbers = {flag.removeprefix("contrast_"): spec.default for flag, spec in entry.flags.items()}
    assert kwargs["auxiliary_loss"].loss_fn is entry.loss
    assert kwargs["auxiliary_loss"].hyperparams == {"temperature": 0.15, **numbers}


def test_sweeps_contrast_hyperparams(fit_arguments):
    flags = ["--encoder", "lightgcn", "--contrast", "simgcl", "--contrast-loss", "hard"]
    swept = ["--sweep", "contrast_weight=0.1,0.2", "--sweep", "contrast-beta=0.3"]
    _, kwargs = fit_arguments(*flags, *swept, "--sweep", "contrast_temperature=0.5")
    assert kwargs["sweep"].keys() == {
        "task.auxiliary_loss.weight",
        "task.auxiliary_loss.hyperparams.beta",
        "task.auxiliary_loss.hyperparams.temperature",
    }
    np.testing.assert_allclose(kwargs["sweep"]["task.auxiliary_loss.weight"], [0.1, 0.2])
    np.testing.assert_allclose(kwargs["sweep"]["task.auxiliary_loss.hyperparams.beta"], [0.3, 0.3])
    assert {*kwargs["auxiliary_loss"].hyperparams} == {
        "temperature",
        "tau_plus",
        "beta",
        "min_score",
    }
