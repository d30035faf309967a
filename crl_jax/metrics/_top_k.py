"""The greatest of long rows: exact, approximate, and on several devices."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from .._checks import check_range
from .._floats import at_least_float32
from .._mesh import DATA, TABLE, axis_size, filled, mesh_axis


def top_k(
    scores: Float[Array, "*batch n"], k: int
) -> tuple[Float[Array, "*batch k"], Int[Array, "*batch k"]]:
    """The ``k`` greatest scores of each row, greatest first, and where they stand.

    Exact, and with one order on every backend: a greater score ranks first, and of equal
    scores (0 and -0 are equal) the one with the lower index. A NaN has no rank: the values of
    a row that holds one are all NaN and its indices mean nothing.

    Args:
      scores: Shape ``[*batch, n]``; infinities are ordinary scores.
      k: How many, ``1 <= k <= n``; static.

    Returns:
      The values, of the dtype of ``scores``, and the int32 indices, each ``[*batch, k]``.

    Raises:
      ValueError: If ``k`` does not lie in ``[1, n]``.

    >>> values, indices = top_k(jnp.array([1.0, 3.0, 2.0, 3.0]), 3)
    >>> print(values, indices)
    [3. 3. 2.] [1 3 2]
    """
    n = _length(scores, k)
    dtype = scores.dtype
    (scores,) = at_least_float32(scores)
    # Below this the two smaller selections cost as much as the large one (measured on CPU).
    if n < max(4096, 128 * k):
        values, indices = _select(scores, k)
        has_nan = jnp.isnan(scores).any(-1, keepdims=True)
    else:
        values, indices, has_nan = _two_stages(scores, k, _chunk_size(n, k))
    return jnp.where(has_nan, jnp.nan, values).astype(dtype), indices


def approx_top_k(
    scores: Float[Array, "*batch n"], k: int, recall_target: float = 0.95
) -> tuple[Float[Array, "*batch k"], Int[Array, "*batch k"]]:
    """:func:`top_k` which on a TPU may miss some, and takes a fraction of the time.

    It is ``jax.lax.approx_max_k``. On other devices that is exact, but for the order of equal
    scores. :func:`top_k_recall` says how many were missed.

    Args:
      scores: As for :func:`top_k`.
      k: As for :func:`top_k`.
      recall_target: Share of the ``k`` greatest that is expected to be found, in (0, 1]; static.

    Raises:
      ValueError: If ``k`` or ``recall_target`` leaves its range.

    >>> values, indices = approx_top_k(jnp.array([1.0, 4.0, 2.0, 3.0]), 2)
    >>> print(values, indices)
    [4. 3.] [1 3]
    """
    _length(scores, k)
    check_range("recall_target", recall_target, 0, 1, low_open=True)
    has_nan = jnp.isnan(scores).any(-1, keepdims=True)
    values, indices = lax.approx_max_k(scores, k, recall_target=recall_target)
    return jnp.where(has_nan, jnp.nan, values), indices


def top_k_recall(
    found: Int[np.ndarray | Array, "rows k"], exact: Int[np.ndarray | Array, "rows k"]
) -> float:
    """Share of the exact items that were found, over all rows; -1 stands for no item.

    >>> top_k_recall(np.array([[5, 2, 7]]), np.array([[5, 7, 1]]))
    0.6666666666666666
    """
    found, exact = np.asarray(found), np.asarray(exact)
    hits = (found[:, :, None] == exact[:, None, :]).any(axis=1)[exact >= 0]
    return float(np.mean(hits)) if hits.size else 1.0


def sharded_top_k(
    mesh: Mesh, scores: Float[Array, "rows n"], k: int, select: Callable[..., Any] = top_k
) -> tuple[Float[Array, "rows k"], Int[Array, "rows k"]]:
    """:func:`top_k` of scores that lie on several devices, to the same bits.

    Each device selects among its own columns. The candidates of all devices are then few.

    Args:
      mesh: The devices. Rows lie along its axis ``data`` and columns along its axis ``table``; it
        may lack either.
      scores: As for :func:`top_k`.
      k: As for :func:`top_k`.
      select: What a device selects by: :func:`top_k`, or an approximate one.
    """
    n_rows, rows, columns = len(scores), mesh_axis(mesh, DATA), mesh_axis(mesh, TABLE)

    def of_device(scores: Array) -> tuple[Array, Array]:
        size = scores.shape[1]
        values, places = select(scores, min(k, size))
        if columns is None:
            return values, places
        places = places + size * lax.axis_index(columns)
        # In the order of the columns, hence ties among the candidates break as in the row.
        values, places = (lax.all_gather(x, columns, axis=1, tiled=True) for x in (values, places))
        values, found = top_k(values, k)
        return values, jnp.take_along_axis(places, found, -1)

    # What fills the columns up stands behind all scores: of equal ones the first is taken.
    full = filled(scores, axis_size(mesh, DATA), 0, -jnp.inf)
    full = filled(full, axis_size(mesh, TABLE), 1, -jnp.inf)
    merge = jax.shard_map(
        of_device, mesh=mesh, in_specs=PartitionSpec(rows, columns), out_specs=PartitionSpec(rows),
        check_vma=False,
    )  # fmt: skip
    values, places = merge(full)
    return values[:n_rows], places[:n_rows]


def _length(scores: Float[Array, "*batch n"], k: int) -> int:
    """The length of a row, which ``k`` may not exceed."""
    n = scores.shape[-1]
    if not 1 <= k <= n:
        raise ValueError(f"`k` must lie in [1, {n}], the length of a row, got {k}.")
    return n


def _two_stages(
    scores: Float[Array, "*batch n"], k: int, chunk: int
) -> tuple[Float[Array, "*batch k"], Int[Array, "*batch k"], Array]:
    """Selects the k chunks with the greatest maxima, then k among their elements.

    Why nothing is lost: say that an element precedes another if it ranks before it in the
    order that :func:`top_k` states. Let ``e`` lie in a chunk ``c`` that was not chosen. The
    maximum of each chosen chunk is greater than that of ``c``, or equal with its chunk before
    ``c``. In both cases the first element that attains it precedes ``e``: it is greater, or
    equal with a lower index. So k elements precede ``e``, one in each chosen chunk.
    The candidates keep the order of the row, hence ties among them break as in the row.
    """
    *batch, n = scores.shape
    n_chunks = -(-n // chunk)
    tail = [(0, 0)] * len(batch) + [(0, n_chunks * chunk - n)]
    chunked = jnp.pad(scores, tail, constant_values=-jnp.inf).reshape(*batch, n_chunks, chunk)
    # One reduction of two operands instead of a maximum and an `any`: XLA's CPU backend fuses
    # it with the padding, while it materialises a padded copy for each plain reduction.
    maxima, has_nan = lax.reduce(
        (chunked, jnp.isnan(chunked)),
        (jnp.array(-jnp.inf, scores.dtype), jnp.array(False)),
        lambda a, b: (lax.max(a[0], b[0]), a[1] | b[1]),
        (len(batch) + 1,),
    )
    _, chosen = _select(maxima, k)
    chosen = jnp.sort(chosen, -1)
    candidates = chosen[..., None] * chunk + lax.iota(jnp.int32, chunk).reshape(
        (1,) * chosen.ndim + (chunk,)
    )
    candidates = candidates.reshape(*batch, k * chunk)
    # The padding of the tail reads as -inf and stands behind every element of the row.
    found = jnp.take_along_axis(scores, candidates, -1, mode="fill", fill_value=-jnp.inf)
    values, positions = _select(found, k)
    indices = jnp.take_along_axis(candidates, positions, -1)
    return values, indices, has_nan.any(-1, keepdims=True)


def _select(
    scores: Float[Array, "*batch n"], k: int
) -> tuple[Float[Array, "*batch k"], Int[Array, "*batch k"]]:
    """``lax.top_k``, which ranks -0 below 0 on some backends, with the two made equal."""
    values, indices = lax.top_k(jnp.where(scores == 0, 0, scores), k)
    return values, indices


def _chunk_size(n: int, k: int) -> int:
    """The power of two next to sqrt(n / k), where n / C maxima and k C candidates balance.

    Chunks under 32 make the maxima slow, chunks over 256 gain nothing (measured on CPU).
    """
    return 2 ** round(min(max(math.log2(n / k) / 2, 5), 8))
