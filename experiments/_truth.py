"""Evaluation of the weights of a loss: comparison of the weighted negatives with labels."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import losses, weights

from ._trained_model import TrainedModel, evenly_spaced
from .view_losses import LossEntry, Weigh

_EXAMPLES = 256
"""Maximum number of examples whose views are compared with one another."""


NAMES = {
    "false_negatives": "share of false negatives",
    "false_negative_weight": "their share of the weight",
    "posterior_error": "error of the posterior (ECE)",
    "posterior_auc": "AUC of the posterior",
}
"""Display names of the metrics of weights."""


class Truth(NamedTuple):
    """Evaluation of the weights of a loss against labels.

    Attributes:
      metrics: ``false_negative_weight``, the share of the total weight on false negatives, and
        ``false_negatives``, their share of all negatives; for a loss with a posterior its
        ``posterior_error`` (ECE) and ``posterior_auc``.
      calibration: Calibration of the posterior probability that a negative is a true negative; None
        for losses without a posterior.
    """

    metrics: dict[str, float]
    calibration: weights.Calibration | None


def evaluate_weights(
    entry: LossEntry, learned: TrainedModel, examples: Any, labels: np.ndarray, seed: int
) -> Truth:
    """Evaluates the weights of a loss on two views of a subset of examples.

    Args:
      entry: The loss, which weights negatives.
      learned: Model trained with the loss.
      examples: Labelled examples, ``[n, ...]``.
      labels: Their classes, ``[n]``.
      seed: Random seed of the views.
    """
    subset = evaluation_subset(len(labels))
    scores = losses.view_scores(*learned.two_views(examples[subset], seed))
    view_labels = jnp.tile(jnp.asarray(labels[subset]), 2)
    is_true = view_labels[:, None] != view_labels[None, :]
    return evaluate_scores(entry, final_hyperparams(learned), scores, is_true)


def evaluation_subset(n: int) -> slice:
    """Returns an evenly spaced subset of ``n`` examples, whose views are compared."""
    return evenly_spaced(n, _EXAMPLES)


def final_hyperparams(learned: TrainedModel) -> dict[str, Any]:
    """Returns the hyper-parameters of the loss after training, including an estimated α."""
    estimated = {} if learned.alpha is None else {"alpha": learned.alpha}
    return {**learned.task.hyperparams, **estimated}


def evaluate_scores(
    entry: LossEntry, hyperparams: dict[str, Any], scores: losses.BatchScores, is_true: Any
) -> Truth:
    """Evaluates the weights that a loss assigns to scores.

    Args:
      entry: The loss. For a loss without weights, only the false negatives are counted.
      hyperparams: Its hyper-parameters.
      scores: Scores ``neg [anchors, keys]`` with the mask of negatives.
      is_true: Whether a negative is a true negative, ``[anchors, keys]``.
    """
    metrics, calibration = _evaluate(entry.weigh, hyperparams, scores, is_true)
    return Truth({name: float(metrics[name]) for name in NAMES if name in metrics}, calibration)


@partial(jax.jit, static_argnums=0)  # operation by operation, it is some 60 programs
def _evaluate(
    weigh: Weigh | None, hyperparams: dict[str, Any], scores: losses.BatchScores, is_true: Any
) -> tuple[dict[str, Any], weights.Calibration | None]:
    where = scores.where
    metrics: dict[str, Any] = {"false_negatives": jnp.mean(~is_true, where=where)}
    if weigh is not None:
        negative_weights = weigh(scores.neg, hyperparams, where)
        share = weights.false_negative_share(negative_weights, is_true, where=where)
        metrics["false_negative_weight"] = share
    calibration = None
    if "alpha" in hyperparams:
        posterior = weights.true_negative_posterior(
            scores.neg, tau_plus=hyperparams["tau_plus"], alpha=hyperparams["alpha"], where=where
        )
        calibration = weights.posterior_calibration(posterior, is_true, where=where)
        metrics["posterior_error"] = calibration.error
        metrics["posterior_auc"] = weights.weights_auc(posterior, is_true, where=where)
    return metrics, calibration
