"""Large simulated logs, written as shards."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float, Float32

from .._checks import check_range
from .._files import whole
from .._hyperparams import Range, check_arguments
from ._values import import_polars

# Users that share a random generator: changing it changes the result of every seed.
_BLOCK = 4096
_RANK = 8
# Random streams; those of users also depend on the block.
_ITEMS, _USERS = 0, 1


@check_arguments
def simulate_shards(
    folder: str | Path,
    *,
    n_users: Annotated[int, Range(1)],
    n_items: Annotated[int, Range(1)],
    n_interactions: int,
    n_shards: int = 8,
    shards: Iterable[int] | None = None,
    seed: int = 0,
    like_rate: Annotated[float, Range(0, 1, low_open=True, high_open=True)] = 0.15,
    popularity_skew: Annotated[int | float, Range(0, np.inf, high_open=True)] = 0.5,
    activity_spread: Annotated[int | float, Range(0, np.inf, high_open=True)] = 1.0,
    false_positive_rate: float = 0.1,
) -> list[Path]:
    r"""Writes simulated interactions with ground truth as Parquet files.

    The model is that of :func:`simulate`, at a cost proportional to the number of interactions
    instead of the number of pairs:

    * Preference: :math:`w_u, h_i` are uniform on the unit sphere in 8 dimensions; user u likes i
      if :math:`w_u^\top h_i` exceeds its ``1 - like_rate`` quantile. Each user likes the fraction
      ``like_rate`` of items, and each item is liked by that fraction of users.
    * Exposure: u is exposed to i with probability :math:`1 - \exp(-c\,a_u\,\rho_i^{-s})`,
      independently, where :math:`\rho_i` is the rank of i in a random order of the items, s is
      ``popularity_skew``, and the activity :math:`a_u` is log-normal with mean 1 and
      ``activity_spread`` as the standard deviation of its logarithm.
    * Interaction: every exposed and liked pair, and each exposed pair that is not liked with the
      probability for which false positives are the fraction ``false_positive_rate`` of all
      interactions. The constant c is chosen so that ``n_interactions`` are expected.

    All fractions and counts hold in expectation. The interactions depend on ``seed`` and the
    sizes, but not on ``n_shards``. Memory is that of one shard.

    Args:
      folder: Folder for files ``interactions-00000-of-00008.parquet`` and so on; it is created.
        Each has the columns ``user``, ``item`` (from 0) and ``liked``, whether it is a true
        positive. All interactions of a user are in one shard.
      n_users: Number of users, at least ``n_shards``.
      n_items: Number of items, at least 1.
      n_interactions: Expected number of interactions, at most half of the number with all items
        exposed to all users.
      n_shards: Number of files of the log, in [1, 100,000].
      shards: Indices of the shards to write, so that several processes can share the work; all by
        default.
      seed: Seed of the random generators.
      like_rate: Fraction of items that each user likes, in (0, 1).
      popularity_skew: Exponent s >= 0 of the exposure; 0 is uniform.
      activity_spread: Spread of the users' activity, at least 0; 0 makes all users equal.
      false_positive_rate: Fraction of interactions with items that are not liked, in
        [0, 1 - like_rate]; at the maximum, every exposure is an interaction.

    Returns:
      Paths of the files written. A file appears under its name when it is complete.

    Raises:
      ValueError: If an argument is out of range.
      ImportError: If polars is not installed.
    """
    from scipy import special  # imported here: slow

    pl = import_polars("Writing Parquet")
    check_range("n_shards", n_shards, 1, min(n_users, 100_000))
    check_range("false_positive_rate", false_positive_rate, 0, 1 - like_rate)
    per_exposure = like_rate / (1 - false_positive_rate)
    check_range("n_interactions", n_interactions, 1, 0.5 * per_exposure * n_users * n_items)
    indices = range(n_shards) if shards is None else list(shards)
    for shard in indices:
        check_range("shards", shard, 0, n_shards - 1)

    rng = np.random.default_rng((seed, _ITEMS))
    directions = _directions(rng, n_items)
    attention = (1.0 + rng.permutation(n_items)) ** -popularity_skew
    attention *= _intensity(attention, activity_spread, n_interactions / per_exposure / n_users)
    ends = np.cumsum(attention)
    # A coordinate of a uniform point on the sphere has a beta distribution on [-1, 1].
    half = (_RANK - 1) / 2
    threshold = 2 * float(special.betaincinv(half, half, 1 - like_rate)) - 1
    false_positive_probability = false_positive_rate * per_exposure / (1 - like_rate)

    def block(index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Users, items and labels of the interactions of a block of users."""
        rng = np.random.default_rng((seed, _USERS, index))
        first = index * _BLOCK
        preferences = _directions(rng, _BLOCK)
        normal = rng.standard_normal(_BLOCK)
        activity = np.exp(activity_spread * normal - activity_spread**2 / 2)
        # Points of a Poisson process: an item is exposed if it has at least one point, which has
        # the probability 1 - exp(-intensity), independently of all others.
        n_points = rng.poisson(activity * ends[-1])
        users = np.repeat(np.arange(_BLOCK), n_points)
        points = users + rng.random(len(users))
        points.sort()  # makes consecutive lookups local
        items = np.searchsorted(ends, (points - users) * ends[-1], side="right")
        items = np.minimum(items, n_items - 1)
        repeated = (items[1:] == items[:-1]) & (users[1:] == users[:-1])
        repeated = np.append(False, repeated)[: len(users)]
        users, items = users[~repeated], items[~repeated]

        liked = np.einsum("nr,nr->n", preferences[users], directions[items]) > threshold
        observed = liked | (rng.random(len(users)) < false_positive_probability)
        observed &= users < n_users - first
        return first + users[observed], items[observed], liked[observed]

    written = []
    for shard in indices:
        first, end = (n_users * index // n_shards for index in (shard, shard + 1))
        parts = [block(index) for index in range(first // _BLOCK, -(-end // _BLOCK))]
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        rows = slice(*np.searchsorted(columns[0], (first, end)))
        names = ("user", "item", "liked")
        frame = pl.DataFrame({name: x[rows] for name, x in zip(names, columns, strict=True)})
        path = Path(folder) / f"interactions-{shard:05}-of-{n_shards:05}.parquet"
        with whole(path, pl.exceptions.PolarsError) as unfinished:
            frame.write_parquet(unfinished)
        written.append(path)
    return written


def _directions(rng: np.random.Generator, n: int) -> Float32[np.ndarray, "n rank"]:
    normal = rng.standard_normal((n, _RANK), np.float32)
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)


def _intensity(
    attention: Float[np.ndarray, " n_items"], spread: int | float, n_exposed: float
) -> float:
    """Solves for the c with which users are exposed to ``n_exposed`` items on average."""
    from scipy import optimize  # imported here: slow

    # Gauss-Hermite quadrature over the activity; items of similar exposure are grouped.
    nodes, shares = np.polynomial.hermite_e.hermegauss(41)
    activity = np.exp(spread * nodes - spread**2 / 2)
    shares = shares / shares.sum()
    groups = np.array_split(np.sort(attention)[::-1], min(len(attention), 4096))
    means, sizes = np.array([(group.mean(), len(group)) for group in groups]).T

    def excess(log_c: float) -> float:
        exposed = -np.expm1(-np.exp(log_c) * activity[:, None] * means) @ sizes
        return float(shares @ exposed) - n_exposed

    lowest = np.log(n_exposed / attention.sum())  # without repeated points
    log_c: Any = optimize.brentq(excess, lowest - 1e-9, lowest + 50)
    return float(np.exp(log_c))
