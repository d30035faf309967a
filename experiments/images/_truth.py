"""How true the weights of a loss are: what they say of negatives, and what labels say."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from crl_jax import data, losses, weights

from ._judge import Learned, two_views
from ._problem import labelled
from .losses import LossEntry

_IMAGES = 256
"""Test images whose views are compared with one another."""


class Truth(NamedTuple):
    """What labels say of the weights.

    Attributes:
      metrics: ``false_negative_weight``, the share of all weight that false negatives have, and
        ``false_negatives``, their share in number; of a posterior its ``posterior_error`` (ECE) and
        ``posterior_auc``.
      calibration: Of the posterior that a negative is a true one; None without one.
    """

    metrics: dict[str, float]
    calibration: weights.Calibration | None


def judge_weights(entry: LossEntry, learned: Learned, test: data.Images, seed: int) -> Truth:
    """Judges the weights of a loss on two views of some test images.

    Args:
      entry: The loss, which weighs.
      learned: What was learned with it.
      test: The test images.
      seed: Of the views.
    """
    known = labelled(test)
    some = known.take(slice(None, None, max(1, len(known) // _IMAGES))).take(slice(_IMAGES))
    hyperparams: dict[str, Any] = dict(learned.task.hyperparams)
    if learned.alpha is not None:
        hyperparams["alpha"] = learned.alpha
    first, second = two_views(
        learned.task, learned.params, learned.extra, jnp.asarray(some.images), seed
    )
    scores = losses.view_scores(first, second)
    labels = jnp.tile(jnp.asarray(some.labels), 2)
    is_true = labels[:, None] != labels[None, :]
    return _judged(entry, hyperparams, scores, is_true)


def _judged(
    entry: LossEntry, hyperparams: dict[str, Any], scores: losses.BatchScores, is_true: Any
) -> Truth:
    assert entry.weigh is not None
    where = scores.where
    own = entry.weigh(scores.neg, hyperparams, where)
    found: dict[str, Any] = {
        "false_negatives": jnp.mean(~is_true, where=where),
        "false_negative_weight": weights.false_negative_share(own, is_true, where=where),
    }
    calibration = None
    if "alpha" in hyperparams:
        posterior = weights.true_negative_posterior(
            scores.neg, tau_plus=hyperparams["tau_plus"], alpha=hyperparams["alpha"], where=where
        )
        calibration = weights.posterior_calibration(posterior, is_true, where=where)
        found["posterior_error"] = calibration.error
        found["posterior_auc"] = weights.weights_auc(posterior, is_true, where=where)
    return Truth({name: float(value) for name, value in found.items()}, calibration)
