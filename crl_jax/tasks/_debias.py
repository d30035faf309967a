"""Estimators of the hyper-parameters of debiased losses during training."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._floats import at_least_float32
from .._reduce import masked_mean

# With alpha = 1, negatives of the highest rank have a weight of 0, and beta = 1 is undefined.
_MAX_ALPHA = 0.99


def alpha_from_batch(
    pos: Float[Array, "batch 1"],
    neg: Float[Array, "batch n_neg"],
    where: Bool[Array, "batch n_neg"],
    hyperparams: dict[str, Any],
) -> dict[str, Array]:
    r"""Estimates the encoder quality :math:`\alpha` of BCL from the scores of a step.

    .. math::
        \alpha = \frac{1}{\tau^-} \Bigl[ \frac{1}{B} \sum_x \frac{1}{N} \sum_j
            \mathbb{1}[s^+_x > s_{xj}] - \frac{\tau^+}{2} \Bigr]

    It is the AUC of the anchors against true negatives, see :func:`crl_jax.metrics.debiased_auc`, a
    mean over the batch, clipped to [0.5, 0.99]. An untrained encoder has 0.5, for which BCL does
    not weigh negatives. The cost is that of one comparison per score.

    **Bias.** The anchors are training interactions, whose scores exceed those of unseen positives:
    the estimate is too high for an encoder that overfits.

    Args:
      pos: Scores of the anchors.
      neg: Scores of their unlabelled items.
      where: Mask of the unlabelled items. Anchors without any are ignored.
      hyperparams: Hyper-parameters of the loss, with a scalar ``tau_plus`` in [0, 1).

    Returns:
      ``alpha``, a scalar, at least float32; 0.5 without any anchor.

    Raises:
      ValueError: If ``tau_plus`` is missing.

    >>> pos, neg = jnp.array([[2.0], [0.5]]), jnp.array([[1.0, 0.0], [1.0, 0.0]])
    >>> where = jnp.ones((2, 2), bool)
    >>> print(alpha_from_batch(pos, neg, where, {"tau_plus": 0.0})["alpha"])
    0.75
    """
    if "tau_plus" not in hyperparams:
        raise ValueError(
            "`hyperparams` must hold tau_plus, which `alpha_from_batch` reads, got "
            f"{sorted(hyperparams)}."
        )
    pos, neg = at_least_float32(pos, neg)
    tau_plus = jnp.asarray(hyperparams["tau_plus"], pos.dtype)
    # With one positive per anchor, comparisons are cheaper than the sort of a rank statistic.
    wins = (pos > neg).astype(pos.dtype) + 0.5 * (pos == neg).astype(pos.dtype)
    n = jnp.maximum(jnp.sum(where, axis=-1), 1).astype(pos.dtype)
    lead = jnp.sum(wins - 0.5, axis=-1, where=where) / n
    lead = masked_mean(lead, where=jnp.any(where, axis=-1)) / (1 - tau_plus)
    return {"alpha": jnp.clip(0.5 + lead, 0.5, _MAX_ALPHA)}
