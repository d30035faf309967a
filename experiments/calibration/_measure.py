"""Calibration, discrimination and estimates of τ⁺ of all methods on one problem."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from crl_jax import metrics, weights

from ._posteriors import METHODS, debiased_auc
from ._scores import Scores, ranks_among_unlabelled

MEASURES = {"ece": "ECE", "brier": "Brier score", "auc": "AUC", "mean": "mean probability"}
"""Measures of a method, with their display names."""
PRIORS = {"known": "τ⁺ known", "estimated": "τ⁺ estimated"}
ESTIMATES = {
    "density": "density of the training data",
    "held_out": "held-out positives",
    "held_out_upper": "its upper bound",
    "training": "training positives",
}
"""Estimates of τ⁺, with their display names."""


class Measurement(NamedTuple):
    """Results on one problem and seed.

    Attributes:
      methods: By τ⁺, ``known`` or ``estimated``, and by method the :data:`MEASURES`.
      tables: By method the reliability table, with τ⁺ known.
      tau_plus: The true τ⁺, and the :data:`ESTIMATES`.
      auc: AUC of the scores as a classifier of false negatives.
    """

    methods: dict[str, dict[str, dict[str, Array]]]
    tables: dict[str, weights.Calibration]
    tau_plus: dict[str, Array]
    auc: Array


def measure(scores: Scores) -> Measurement:
    """Evaluates all methods with the true τ⁺ and with its estimate from held-out positives."""
    truth = jnp.mean(scores.is_false, where=scores.labelled)
    estimates = _estimate(scores, truth)
    tau_plus_by_prior = {"known": truth, "estimated": jnp.minimum(estimates["held_out"], 0.999)}
    methods: dict[str, dict[str, dict[str, Array]]] = {}
    tables: dict[str, weights.Calibration] = {}
    for prior, tau_plus in tau_plus_by_prior.items():
        auc = debiased_auc(scores, tau_plus)
        methods[prior] = {}
        for name, method in METHODS.items():
            if method.needs is not None and getattr(scores, method.needs) is None:
                continue
            p = method.posterior(scores, tau_plus, auc)
            methods[prior][name], table = _evaluate(p, scores.is_false, scores.labelled)
            tables.setdefault(name, table)
    score_auc = weights.weights_auc(scores.neg, scores.is_false, where=scores.labelled)
    return Measurement(methods, tables, {"truth": truth, **estimates}, score_auc)


@jax.jit  # once for all methods
def _evaluate(
    p: Float[Array, "anchors n"],
    is_false: Bool[Array, "anchors n"],
    labelled: Bool[Array, "anchors n"],
) -> tuple[dict[str, Array], weights.Calibration]:
    table = metrics.equal_mass_calibration(p, is_false, where=labelled)
    measures = {
        "ece": table.error,
        "brier": metrics.brier_score(p, is_false, where=labelled),
        "auc": weights.weights_auc(p, is_false, where=labelled),
        "mean": jnp.mean(p, where=labelled),
    }
    return measures, table


@jax.jit
def _estimate(scores: Scores, truth: Float[Array, ""]) -> dict[str, Array]:
    """Estimates τ⁺ without labels, from the ranks of positives among the unlabelled samples."""
    unlabelled = ranks_among_unlabelled(scores, scores.neg).ravel()
    common = dict(where_unlabelled=scores.where.ravel())
    held_out, training = (
        weights.estimate_tau_plus(
            ranks_among_unlabelled(scores, pos).ravel(),
            unlabelled,
            where_pos=where.ravel(),
            **common,
        )
        for pos, where in (
            (scores.held_out, scores.where_held_out),
            (scores.pos, scores.where_pos),
        )
    )
    return {
        "density": jnp.asarray(scores.density, truth.dtype),
        "held_out": held_out.tau_plus,
        "held_out_upper": held_out.upper,
        "training": training.tau_plus,
    }


def on_host(measurement: Measurement) -> Measurement:
    """Returns the results as NumPy numbers."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64), measurement)
