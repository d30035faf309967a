"""Simulated implicit feedback whose truth is known for every pair."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from .._checks import check_range
from ._interactions import Interactions


@dataclass(frozen=True, eq=False)
class SimulatedInteractions:
    """Interactions and the truth behind them.

    Attributes:
      interactions: What a recommender would see.
      likes: The true label of every pair, bool ``[n_users, n_items]``.
      exposed: Whether the user was shown the item, bool ``[n_users, n_items]``.
      tau_plus: The share of liked items among all pairs that are not interactions: the
        prior probability that an unlabelled sample is a false negative.
    """

    interactions: Interactions
    likes: Bool[np.ndarray, "n_users n_items"]
    exposed: Bool[np.ndarray, "n_users n_items"]
    tau_plus: float


def simulate(
    *,
    n_users: int = 600,
    n_items: int = 800,
    seed: int = 0,
    rank: int = 6,
    like_rate: float = 0.15,
    n_exposed: int | float = 400,
    popularity_skew: int | float = 0.5,
    false_positive_rate: float = 0.1,
) -> SimulatedInteractions:
    r"""Simulates users who take what they like among what they are shown, and some of the rest.

    * Preference: :math:`w_u, h_i \sim N(0, I_r)`; user u likes the ``like_rate`` of the
      items with the highest :math:`w_u^\top h_i`: ``round(like_rate * n_items)`` of them.
    * Exposure: u is shown i with probability :math:`e_i = \min(1, c\,\rho_i^{-s})`,
      independently of everything else, where :math:`\rho_i` is i's place in a random order
      of the items, s is ``popularity_skew``, and c makes the :math:`e_i` add up to
      ``n_exposed``.
    * Interaction: every pair that is exposed and liked, and besides, drawn uniformly among
      the pairs that are exposed but not liked, as many as make false positives the share
      ``false_positive_rate`` of all interactions (to the nearest whole number).

    They are drawn in this order from ``numpy.random.default_rng(seed)``: exposure leaves
    likes unchanged, and ``false_positive_rate`` both.

    Args:
      n_users: Number of users.
      n_items: Number of items.
      seed: Of the random generator.
      rank: The r of the preferences.
      like_rate: Share of items that each user likes, in (0, 1).
      n_exposed: Expected number of items shown to each user, in (0, n_items].
      popularity_skew: 0 shows all items alike; the larger, the fewer get the attention.
      false_positive_rate: Share of interactions with items not liked, in [0, 1).

    Raises:
      ValueError: If an argument leaves its range, or if there are too few exposed pairs to
        supply the false positives, or no interaction comes out.

    >>> made = simulate(n_users=50, n_items=40, n_exposed=20, seed=1)
    >>> data = made.interactions
    >>> print(f"{1 - made.likes[data.users, data.items].mean():.2f} of them not liked")
    0.10 of them not liked
    """
    for name, size in (("n_users", n_users), ("n_items", n_items), ("rank", rank)):
        check_range(name, size, 1, np.inf)
    check_range("like_rate", like_rate, 0, 1, low_open=True, high_open=True)
    check_range("n_exposed", n_exposed, 0, n_items, low_open=True)
    check_range("popularity_skew", popularity_skew, 0, np.inf, high_open=True)
    check_range("false_positive_rate", false_positive_rate, 0, 1, high_open=True)
    rng = np.random.default_rng(seed)

    users, items = rng.standard_normal((n_users, rank)), rng.standard_normal((n_items, rank))
    likes = _largest(users @ items.T, round(like_rate * n_items))
    attention = (1.0 + rng.permutation(n_items)) ** -popularity_skew
    shown = rng.random((n_users, n_items)) < _scale(attention, n_exposed) * attention

    taken = shown & likes
    n_false = round(taken.sum() * false_positive_rate / (1 - false_positive_rate))
    others = np.flatnonzero(shown & ~likes)
    if n_false > len(others):
        raise ValueError(
            f"`false_positive_rate` = {false_positive_rate} needs {n_false} exposed pairs that "
            f"are not liked, got {len(others)}."
        )
    taken.flat[rng.choice(others, n_false, replace=False)] = True
    if not taken.any():
        raise ValueError("No interaction came out: raise `n_exposed` or `like_rate`.")

    user_index, item_index = np.nonzero(taken)
    interactions = Interactions.from_arrays(
        user_index, item_index, user_ids=np.arange(n_users), item_ids=np.arange(n_items)
    )
    likes.setflags(write=False)
    shown.setflags(write=False)
    return SimulatedInteractions(interactions, likes, shown, float(likes[~taken].mean()))


def _largest(values: Float[np.ndarray, "rows n"], count: int) -> Bool[np.ndarray, "rows n"]:
    """The ``count`` largest of each row; of equal ones, the first."""
    places = np.argsort(-values, axis=1, kind="stable")[:, :count]
    mask = np.zeros(values.shape, bool)
    np.put_along_axis(mask, places, True, axis=1)
    return mask


def _scale(weights: Float[np.ndarray, " n"], total: int | float) -> float:
    """The c for which the min(1, c * weights) add up to ``total`` <= n."""
    # With the k largest at 1, c = (total - k) / (sum of the others); the right k is the
    # first for which the next one stays below 1.
    largest_first = np.sort(weights)[::-1]
    rest = np.cumsum(largest_first[::-1])[::-1]
    n_full = np.arange(len(weights))
    scale = (total - n_full) / rest
    fits = scale * largest_first <= 1
    return float(scale[np.argmax(fits)]) if fits.any() else np.inf
