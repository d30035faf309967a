"""Simulated interactions of any number, written in shards."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Shaped

from .._checks import check_range
from .._files import whole
from ._polars import import_polars

# Users that are drawn together; a part of what a seed means.
_BLOCK = 4096
_RANK = 8
# Draws of a generator are told apart by these, and users by their blocks.
_ITEMS, _USERS = 0, 1


def simulate_shards(
    folder: str | Path,
    *,
    n_users: int,
    n_items: int,
    n_interactions: int,
    n_shards: int = 8,
    shards: Iterable[int] | None = None,
    seed: int = 0,
    like_rate: float = 0.15,
    popularity_skew: int | float = 0.5,
    activity_spread: int | float = 1.0,
    false_positive_rate: float = 0.1,
) -> list[Path]:
    r"""Writes simulated interactions of any number as Parquet files, with the truth about each.

    It is the law of :func:`simulate` with draws that cost as much as the interactions, not as all
    pairs:

    * Preference: :math:`w_u, h_i` are uniform on the unit sphere of 8 dimensions; user u likes i
      where :math:`w_u^\top h_i` exceeds the ``1 - like_rate`` quantile of its law. So each user
      likes the share ``like_rate`` of items, and each item is liked by that share of users.
    * Exposure: u is shown i with probability :math:`1 - \exp(-c\,a_u\,\rho_i^{-s})`,
      independently of everything else, where :math:`\rho_i` is i's place in a random order of the
      items, s is ``popularity_skew``, and the activity :math:`a_u` is log-normal with mean 1 and
      ``activity_spread`` as the deviation of its logarithm.
    * Interaction: every pair that is exposed and liked, and each that is exposed and not liked
      with the probability for which false positives are the share ``false_positive_rate`` of all
      interactions. The c makes them as many as ``n_interactions``.

    All shares and counts hold in expectation. What is drawn depends on ``seed`` and the sizes of
    the data, and not on ``n_shards``. It takes the memory of one shard.

    Args:
      folder: Where files ``interactions-00000-of-00008.parquet`` and so on are written; it is
        made. Each has the columns ``user``, ``item`` (from 0) and ``liked``: whether it is a true
        positive. A user's interactions stand in one shard.
      n_users: Number of users, at least ``n_shards``.
      n_items: Number of items.
      n_interactions: Expected number of interactions, at most half of those that there would be if
        all items were shown to all users.
      n_shards: Number of files that make the whole, at most 100,000.
      shards: Which of them are written, so that several processes share the work; all by default.
      seed: Of the random generators.
      like_rate: Share of items that each user likes, in (0, 1).
      popularity_skew: 0 shows all items alike; the larger, the fewer get the attention.
      activity_spread: 0 makes all users alike.
      false_positive_rate: Share of interactions with items not liked, in [0, 1 - like_rate]: at
        most, all that is shown is taken.

    Returns:
      The paths that were written. A file appears under its name when it is complete.

    Raises:
      ValueError: If an argument leaves its range.
      ImportError: If polars is not installed.
    """
    from scipy import special  # takes long to import

    pl = import_polars("Writing Parquet")
    check_range("n_users", n_users, 1, np.inf)
    check_range("n_items", n_items, 1, np.inf)
    check_range("n_shards", n_shards, 1, min(n_users, 100_000))
    check_range("like_rate", like_rate, 0, 1, low_open=True, high_open=True)
    check_range("popularity_skew", popularity_skew, 0, np.inf, high_open=True)
    check_range("activity_spread", activity_spread, 0, np.inf, high_open=True)
    check_range("false_positive_rate", false_positive_rate, 0, 1 - like_rate)
    per_exposure = like_rate / (1 - false_positive_rate)
    check_range("n_interactions", n_interactions, 1, 0.5 * per_exposure * n_users * n_items)
    wanted = range(n_shards) if shards is None else list(shards)
    for shard in wanted:
        check_range("shards", shard, 0, n_shards - 1)

    rng = np.random.default_rng((seed, _ITEMS))
    directions = _directions(rng, n_items)
    attention = (1.0 + rng.permutation(n_items)) ** -popularity_skew
    attention *= _intensity(attention, activity_spread, n_interactions / per_exposure / n_users)
    # A coordinate of a point on the sphere has a beta law, but for its range.
    half = (_RANK - 1) / 2
    block = partial(
        _block,
        seed=seed,
        n_users=n_users,
        directions=directions,
        ends=np.cumsum(attention),
        spread=activity_spread,
        bound=2 * float(special.betaincinv(half, half, 1 - like_rate)) - 1,
        taken_anyway=false_positive_rate * per_exposure / (1 - like_rate),
    )
    written = []
    for shard in wanted:
        first, end = (n_users * place // n_shards for place in (shard, shard + 1))
        parts = [block(place) for place in range(first // _BLOCK, -(-end // _BLOCK))]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        own = slice(*np.searchsorted(columns[0], (first, end)))
        names = ("user", "item", "liked")
        frame = pl.DataFrame({name: x[own] for name, x in zip(names, columns, strict=True)})
        path = Path(folder) / f"interactions-{shard:05}-of-{n_shards:05}.parquet"
        with whole(path) as unfinished:
            frame.write_parquet(unfinished)
        written.append(path)
    return written


def _block(
    place: int,
    *,
    seed: int,
    n_users: int,
    directions: Float32[np.ndarray, "n_items rank"],
    ends: Float[np.ndarray, " n_items"],
    spread: int | float,
    bound: float,
    taken_anyway: float,
) -> tuple[Shaped[np.ndarray, " n"], Shaped[np.ndarray, " n"], Shaped[np.ndarray, " n"]]:
    """Users, items and whether they are liked, of the interactions of a block of users.

    ``ends`` adds up the attention of the items, and ``bound`` is what likes exceed.
    """
    rng = np.random.default_rng((seed, _USERS, place))
    first, n_items = place * _BLOCK, len(ends)
    taste = _directions(rng, _BLOCK)
    activity = np.exp(spread * rng.standard_normal(_BLOCK) - spread**2 / 2)
    # Points of a Poisson process: an item is shown where there is one at least, which has the
    # probability 1 - exp(-intensity), independently of all others.
    shown = rng.poisson(activity * ends[-1])
    users = np.repeat(np.arange(_BLOCK), shown)
    points = users + rng.random(len(users))
    points.sort()  # so that what is looked up next lies near what was looked up before
    items = np.searchsorted(ends, (points - users) * ends[-1], side="right")
    items = np.minimum(items, n_items - 1)
    again = np.append(False, (items[1:] == items[:-1]) & (users[1:] == users[:-1]))[: len(users)]
    users, items = users[~again], items[~again]

    liked = np.einsum("nr,nr->n", taste[users], directions[items]) > bound
    taken = liked | (rng.random(len(users)) < taken_anyway)
    taken &= users < n_users - first
    return first + users[taken], items[taken], liked[taken]


def _directions(rng: np.random.Generator, n: int) -> Float32[np.ndarray, "n rank"]:
    normal = rng.standard_normal((n, _RANK), np.float32)
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)


def _intensity(
    attention: Float[np.ndarray, " n_items"], spread: int | float, n_shown: float
) -> float:
    """The c for which users are shown ``n_shown`` items on average."""
    from scipy import optimize  # takes long to import

    # The activity by Gauss and Hermite, and items that get about as much attention together.
    nodes, shares = np.polynomial.hermite_e.hermegauss(41)
    activity = np.exp(spread * nodes - spread**2 / 2)
    shares = shares / shares.sum()
    groups = np.array_split(np.sort(attention)[::-1], min(len(attention), 4096))
    means, sizes = np.array([(group.mean(), len(group)) for group in groups]).T

    def excess(log_c: float) -> float:
        shown = -np.expm1(-np.exp(log_c) * activity[:, None] * means) @ sizes
        return float(shares @ shown) - n_shown

    lowest = np.log(n_shown / attention.sum())  # where no item comes up twice
    log_c: Any = optimize.brentq(excess, lowest - 1e-9, lowest + 50)
    return float(np.exp(log_c))
