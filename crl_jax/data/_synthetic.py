"""Simulated implicit feedback with known ground truth for every pair."""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from jaxtyping import Bool, Float

from .._checks import check_range
from .._hyperparams import Range, check_arguments
from ._features import FeatureTable
from ._interactions import Interactions


@dataclass(frozen=True, eq=False)
class SimulatedInteractions:
    """Simulated interactions and their ground truth.

    Attributes:
      interactions: Observed interactions.
      likes: True label of every pair, bool ``[n_users, n_items]``.
      exposed: Whether the user was exposed to the item, bool ``[n_users, n_items]``.
      tau_plus: Fraction of liked items among the pairs without an interaction: the prior
        probability that an unlabelled sample is a false negative.
      user_factors: Preferences :math:`w_u`, float64 ``[n_users, rank]``.
      item_factors: Attributes :math:`h_i`, float64 ``[n_items, rank]``; :func:`simulate_features`
        derives side features from them.
    """

    interactions: Interactions
    likes: Bool[np.ndarray, "n_users n_items"]
    exposed: Bool[np.ndarray, "n_users n_items"]
    tau_plus: float
    user_factors: Float[np.ndarray, "n_users rank"]
    item_factors: Float[np.ndarray, "n_items rank"]


@check_arguments
def simulate(
    *,
    n_users: Annotated[int, Range(1)] = 600,
    n_items: Annotated[int, Range(1)] = 800,
    seed: int = 0,
    rank: Annotated[int, Range(1)] = 6,
    like_rate: Annotated[float, Range(0, 1, low_open=True, high_open=True)] = 0.15,
    n_exposed: int | float = 400,
    popularity_skew: Annotated[int | float, Range(0, np.inf, high_open=True)] = 0.5,
    false_positive_rate: Annotated[float, Range(0, 1, high_open=True)] = 0.1,
) -> SimulatedInteractions:
    r"""Simulates implicit feedback from planted preferences, exposure and false positives.

    * Preference: :math:`w_u, h_i \sim N(0, I_r)`; user u likes the
      ``round(like_rate * n_items)`` items with the highest :math:`w_u^\top h_i`.
    * Exposure: u is exposed to i with probability :math:`e_i = \min(1, c\,\rho_i^{-s})`,
      independently, where :math:`\rho_i` is the rank of i in a random order of the items, s is
      ``popularity_skew``, and c is chosen so that :math:`\sum_i e_i` is ``n_exposed``.
    * Interaction: every exposed and liked pair, and pairs sampled uniformly among the exposed
      pairs that are not liked, so that they are the fraction ``false_positive_rate`` of all
      interactions (up to rounding).

    The random numbers of ``numpy.random.default_rng(seed)`` are used in this order: changing the
    exposure leaves likes unchanged, and ``false_positive_rate`` changes neither.

    Args:
      n_users: Number of users, at least 1.
      n_items: Number of items, at least 1.
      seed: Seed of the random generator.
      rank: Dimension r of the preferences, at least 1.
      like_rate: Fraction of items that each user likes, in (0, 1).
      n_exposed: Expected number of items that each user is exposed to, in (0, n_items].
      popularity_skew: Exponent s >= 0 of the exposure; 0 is uniform.
      false_positive_rate: Fraction of interactions with items that are not liked, in [0, 1).

    Raises:
      ValueError: If an argument is out of range, there are too few exposed pairs for the false
        positives, or no interaction results.

    >>> simulated = simulate(n_users=50, n_items=40, n_exposed=20, seed=1)
    >>> data = simulated.interactions
    >>> print(f"{1 - simulated.likes[data.users, data.items].mean():.2f} false positives")
    0.10 false positives
    """
    check_range("n_exposed", n_exposed, 0, n_items, low_open=True)
    rng = np.random.default_rng(seed)

    users, items = rng.standard_normal((n_users, rank)), rng.standard_normal((n_items, rank))
    likes = _top_mask(users @ items.T, round(like_rate * n_items))
    attention = (1.0 + rng.permutation(n_items)) ** -popularity_skew
    exposed = rng.random((n_users, n_items)) < _scale(attention, n_exposed) * attention

    observed = exposed & likes
    n_false = round(observed.sum() * false_positive_rate / (1 - false_positive_rate))
    candidates = np.flatnonzero(exposed & ~likes)
    if n_false > len(candidates):
        raise ValueError(
            f"`false_positive_rate` = {false_positive_rate} requires {n_false} exposed pairs that "
            f"are not liked, got {len(candidates)}."
        )
    observed.flat[rng.choice(candidates, n_false, replace=False)] = True
    if not observed.any():
        raise ValueError("No interaction resulted; increase `n_exposed` or `like_rate`.")

    user_index, item_index = np.nonzero(observed)
    interactions = Interactions.from_arrays(
        user_index, item_index, user_ids=np.arange(n_users), item_ids=np.arange(n_items)
    )
    for array in (likes, exposed, users, items):
        array.setflags(write=False)
    tau_plus = float(likes[~observed].mean())
    return SimulatedInteractions(interactions, likes, exposed, tau_plus, users, items)


@check_arguments
def simulate_features(
    factors: Float[np.ndarray, "n rank"],
    *,
    noise: Annotated[float, Range(0, np.inf, high_open=True)] = 0.5,
    n_tags: Annotated[int, Range(0)] = 8,
    seed: int = 0,
) -> FeatureTable:
    """Simulates side features of users or items from their planted factors.

    The numbers ``x0``, ``x1``, … are the factors plus normal noise. A row has the tag ``t`` if its
    noisy projection on a random direction is among the quarter of rows with the largest ones.

    Args:
      factors: ``user_factors`` or ``item_factors`` of :func:`simulate`, ``[n, rank]``.
      noise: Standard deviation of the noise, >= 0; that of the factors is 1.
      n_tags: Number of tags, >= 0.
      seed: Seed of the random generator.

    Returns:
      Features of the ids 0 to n - 1.

    Raises:
      ValueError: If an argument is out of range.
    """
    rng = np.random.default_rng(seed)
    n, rank = factors.shape
    numbers = factors + noise * rng.standard_normal((n, rank))
    columns: dict[str, Any] = {f"x{index}": numbers[:, index] for index in range(rank)}
    if n_tags:
        directions = rng.standard_normal((rank, n_tags))
        directions /= np.linalg.norm(directions, axis=0)
        values = factors @ directions + noise * rng.standard_normal((n, n_tags))
        tagged = values > np.quantile(values, 0.75, axis=0)
        columns["tags"] = [[f"t{tag}" for tag in np.flatnonzero(row)] for row in tagged]
    return FeatureTable.from_columns(np.arange(n), columns, origin="simulated features")


def _top_mask(values: Float[np.ndarray, "rows n"], count: int) -> Bool[np.ndarray, "rows n"]:
    """Marks the ``count`` largest values of each row; among equal ones, the first."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    mask = np.zeros(values.shape, bool)
    np.put_along_axis(mask, order, True, axis=1)
    return mask


def _scale(weights: Float[np.ndarray, " n"], total: int | float) -> float:
    """Solves sum(min(1, c * weights)) = total for c, with ``total`` <= n."""
    # With the k largest at 1, c = (total - k) / (sum of the others); the solution is the first k
    # for which the next term is at most 1.
    largest_first = np.sort(weights)[::-1]
    tail_sums = np.cumsum(largest_first[::-1])[::-1]
    n_full = np.arange(len(weights))
    scale = (total - n_full) / tail_sums
    fits = scale * largest_first <= 1
    return float(scale[np.argmax(fits)]) if fits.any() else np.inf
