"""Losses for noisy positives, i.e. interactions with items that the user did not like."""

import math
from typing import Any

from crl_jax import data, losses, stats, tasks, weights

from .._options import TrainOptions
from .._ranges import POSITIVE
from .._registry import Hyperparam, count, declared, words
from ._objective import Objective


def ramp(progress: Any, hyperparams: dict[str, Any]) -> dict[str, Any]:
    """Increases the drop rate linearly during the first fifth of the training."""
    rate = weights.ramp_drop_rate(progress, drop_rate=hyperparams["drop_rate"], until=0.2)
    return {**hyperparams, "drop_rate": rate}


def _choose_distribution(values: dict[str, Any], swept: tuple[str, ...]) -> dict[str, Any]:
    """Resolves the score distribution: a scale implies the one that is parameterised by it.

    Without a scale, variance-gamma uses the variance of the initial values.
    """
    scale = values["distribution_scale"]
    distribution = values["score_distribution"] or (
        "smoothed" if scale is None else "variance-gamma"
    )
    if distribution == "smoothed" and scale is not None:
        raise ValueError(
            "--score-distribution smoothed has no --distribution-scale: it is estimated from the "
            "scores."
        )
    if distribution == "variance-gamma" and scale is None and "init_scale" in swept:
        raise ValueError(
            "--score-distribution variance-gamma needs --distribution-scale if init_scale is swept."
        )
    return {**values, "score_distribution": distribution}


def _confidence(
    log: data.Interactions, training: TrainOptions, values: dict[str, Any]
) -> tasks.ConfidenceEM:
    distribution: stats.Distribution = stats.SmoothedEmpirical()
    if values["score_distribution"] == "variance-gamma":
        scale = values["distribution_scale"]
        of_initial = _initial_variance(log, training)
        distribution = stats.VarianceGamma(training.dim, of_initial if scale is None else scale)
    prior = weights.credibility_prior(log.item_counts)
    return tasks.ConfidenceEM(
        prior, distribution, rule=values["confidence_rule"], every=values["confidence_every"]
    )


def _initial_variance(log: data.Interactions, training: TrainOptions) -> float:
    """Returns the λ for which products of N(0, λ) match those of the initial values.

    Xavier initialisation has the variance 2 / (rows + width), which differs between users and
    items; λ is the geometric mean of the two.
    """
    of_tables = (2 / (n + training.dim) for n in (log.n_users, log.n_items))
    return training.init_scale**2 * math.sqrt(math.prod(of_tables))


BPRAC = Objective(
    help="BPR with each interaction weighted by its confidence, by EM",
    loss=losses.bpr,
    n_neg=1,
    settings={
        "score_distribution": words(
            None,
            "Distribution of the scores: estimated from them (smoothed, the default) or in closed "
            "form",
            ("variance-gamma", "smoothed"),
        ),
        "distribution_scale": Hyperparam(
            None,
            "Variance of the embeddings' coordinates that the closed form assumes; by default that "
            "of the initial values",
            POSITIVE,
        ),
        **declared(tasks.ConfidenceEM, "rule", flags={"rule": "confidence_rule"}),
        "confidence_every": count(
            int(tasks.ConfidenceEM.every), "Epochs between expectation steps"
        ),
    },
    confidence=_confidence,
    resolve_values=_choose_distribution,
)
TRUNCATED_BCE = Objective(loss=losses.truncated_bce, n_neg=1, schedule=ramp)
TRUNCATED_BPR = Objective(loss=losses.truncated_bpr, n_neg=1, schedule=ramp)
REWEIGHTED_BCE = Objective(loss=losses.reweighted_bce, n_neg=1)
REWEIGHTED_BPR = Objective(loss=losses.reweighted_bpr, n_neg=1)
