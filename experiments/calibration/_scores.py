"""Scores of anchors, their labels, and the estimates that no label enters."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from sklearn.isotonic import IsotonicRegression

from crl_jax import stats

_FITTED = 200_000
"""Maximum number of samples that the oracle is fitted to."""


class Scores(NamedTuple):
    """Scores of anchors with positives and unlabelled samples, and what is true of the latter.

    Attributes:
      neg: Scores of unlabelled samples.
      where: Mask of the unlabelled samples.
      is_false: Labels: whether an unlabelled sample is a false negative.
      labelled: Mask of the unlabelled samples whose label is known; a subset of ``where``.
      pos: Scores of positives that training has.
      where_pos: Mask of ``pos``.
      held_out: Scores of positives that training does not have.
      where_held_out: Mask of ``held_out``.
      oracle: The exact probability of a false negative or, where it is unknown, the best estimate
        from the rank of a score: the frequency of false negatives among other anchors.
      temperature: Divisor of the scores in a softmax loss.
      density: Share of the pairs that are positives in training; NaN without a fixed set of items.
      prior: Probability of a false negative by item, for BNS; None without items.
    """

    neg: Float[Array, "anchors n"]
    where: Bool[Array, "anchors n"]
    is_false: Bool[Array, "anchors n"]
    labelled: Bool[Array, "anchors n"]
    pos: Float[Array, "anchors n_pos"]
    where_pos: Bool[Array, "anchors n_pos"]
    held_out: Float[Array, "anchors n_held_out"]
    where_held_out: Bool[Array, "anchors n_held_out"]
    oracle: Float[Array, "anchors n"]
    temperature: float = 1.0
    density: float = float("nan")
    prior: Float[Array, "anchors n"] | None = None


def ranks_among_unlabelled(
    scores: Scores, values: Float[Array, "anchors k"]
) -> Float[Array, "anchors k"]:
    """Ranks of other scores among the unlabelled samples of the same anchor, in [0, 1]."""
    ordered = jnp.sort(jnp.where(scores.where, scores.neg, jnp.nan))  # NaN last
    rank = jax.vmap(partial(jnp.searchsorted, side="right"))(ordered, values)
    return rank / jnp.maximum(jnp.sum(scores.where, axis=-1, keepdims=True), 1)


def isotonic_oracle(
    neg: Float[np.ndarray, "anchors n"],
    is_false: Bool[np.ndarray, "anchors n"],
    labelled: Bool[np.ndarray, "anchors n"],
    where: Bool[np.ndarray, "anchors n"],
) -> Float[np.ndarray, "anchors n"]:
    """Frequency of false negatives at the rank of a score, by isotonic regression.

    Even anchors have the regression of odd ones, and vice versa, so that the labels of an anchor do
    not enter its own probabilities.
    """
    rank = np.asarray(stats.ecdf(jnp.asarray(neg), where=jnp.asarray(where)))
    oracle = np.empty(rank.shape, np.float32)
    for half in (0, 1):
        x, y = (each[1 - half :: 2][labelled[1 - half :: 2]] for each in (rank, is_false))
        step = -(-len(x) // _FITTED)
        fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
        fitted.fit(x[::step], y[::step])
        oracle[half::2] = fitted.predict(rank[half::2].ravel()).reshape(rank[half::2].shape)
    return oracle
