"""How true the weights of a loss are: what they say of negatives, and what labels say."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from crl_jax import losses, weights

from ._learned import Learned
from .view_losses import LossEntry

_EXAMPLES = 256
"""Examples whose views are compared with one another."""


NAMES = {
    "false_negatives": "share of false negatives",
    "false_negative_weight": "their share of the weight",
    "posterior_error": "error of the posterior (ECE)",
    "posterior_auc": "AUC of the posterior",
}
"""The metrics of weights in words."""


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


def judge_weights(
    entry: LossEntry, learned: Learned, examples: Any, labels: np.ndarray, seed: int
) -> Truth:
    """Judges the weights of a loss on two views of some examples.

    Args:
      entry: The loss, which weighs.
      learned: What was learned with it.
      examples: Examples with labels, ``[n, ...]``.
      labels: Their classes, ``[n]``.
      seed: Of the views.
    """
    some = some_of(len(labels))
    scores = losses.view_scores(*learned.two_views(examples[some], seed))
    both = jnp.tile(jnp.asarray(labels[some]), 2)
    is_true = both[:, None] != both[None, :]
    return judge_scores(entry, hyperparams_of(learned), scores, is_true)


def some_of(n: int) -> slice:
    """Which of ``n`` examples are compared with one another."""
    step = max(1, n // _EXAMPLES)
    return slice(0, _EXAMPLES * step, step)


def hyperparams_of(learned: Learned) -> dict[str, Any]:
    """The hyper-parameters of the loss at the end, α among them where it was measured."""
    measured = {} if learned.alpha is None else {"alpha": learned.alpha}
    return {**learned.task.hyperparams, **measured}


def judge_scores(
    entry: LossEntry, hyperparams: dict[str, Any], scores: losses.BatchScores, is_true: Any
) -> Truth:
    """Judges the weights that a loss gives to these scores.

    Args:
      entry: The loss. Of one that does not weigh, the false negatives are counted alone.
      hyperparams: Its hyper-parameters.
      scores: ``neg [anchors, keys]``, and which of them are negatives.
      is_true: Whether a negative is a true one, ``[anchors, keys]``.
    """
    where = scores.where
    found: dict[str, Any] = {"false_negatives": jnp.mean(~is_true, where=where)}
    if entry.weigh is not None:
        own = entry.weigh(scores.neg, hyperparams, where)
        share = weights.false_negative_share(own, is_true, where=where)
        found["false_negative_weight"] = share
    calibration = None
    if "alpha" in hyperparams:
        posterior = weights.true_negative_posterior(
            scores.neg, tau_plus=hyperparams["tau_plus"], alpha=hyperparams["alpha"], where=where
        )
        calibration = weights.posterior_calibration(posterior, is_true, where=where)
        found["posterior_error"] = calibration.error
        found["posterior_auc"] = weights.weights_auc(posterior, is_true, where=where)
    return Truth({name: float(value) for name, value in found.items()}, calibration)
