"""Top-k selection from long rows: exact, approximate and sharded."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_range, is_static
from .._floats import at_least_float32
from .._mesh import DATA, TABLE, axis_size, filled, mesh_axis


def top_k(
    scores: Float[Array, "*batch n"], k: int
) -> tuple[Float[Array, "*batch k"], Int[Array, "*batch k"]]:
    """Returns the ``k`` largest scores of each row in descending order, with their indices.

    Exact, with the same order on every backend: ties (0 and -0 included) are broken by the lower
    index. If a row contains a NaN, all its values are NaN and its indices are meaningless.

    Args:
      scores: Shape ``[*batch, n]``; infinities are ordinary scores.
      k: Number of scores, ``1 <= k <= n``; static.

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
    # For shorter rows two small selections cost as much as the full one (measured on CPU).
    if not is_static(n) or n < max(4096, 128 * k):
        values, indices, has_nan = _one_stage(scores, k)
    else:
        values, indices, has_nan = _select_from_long_rows(scores, k)
    return jnp.where(has_nan, jnp.nan, values).astype(dtype), indices


def approx_top_k(
    scores: Float[Array, "*batch n"], k: int, recall_target: float = 0.95
) -> tuple[Float[Array, "*batch k"], Int[Array, "*batch k"]]:
    """Approximate :func:`top_k`, faster on TPU, by ``jax.lax.approx_max_k``.

    On other devices it is exact up to the order of ties. :func:`top_k_recall` measures the recall.

    Args:
      scores, k: As for :func:`top_k`.
      recall_target: Expected share of the ``k`` largest scores that is found, in (0, 1]; static.

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
    """Computes the recall of approximate top-k items over all rows; -1 marks padding.

    Raises:
      ValueError: If the arrays are not two-dimensional or differ in their number of rows.

    >>> top_k_recall(np.array([[5, 2, 7]]), np.array([[5, 7, 1]]))
    0.6666666666666666
    """
    found, exact = np.asarray(found), np.asarray(exact)
    if found.ndim != 2 or exact.ndim != 2 or len(found) != len(exact):
        raise ValueError(
            "`found` and `exact` must have shapes [rows, k] with equal rows, "
            f"got {found.shape} and {exact.shape}."
        )
    hits = (found[:, :, None] == exact[:, None, :]).any(axis=1)[exact >= 0]
    return float(np.mean(hits)) if hits.size else 1.0


def sharded_top_k(
    mesh: Mesh, scores: Float[Array, "rows n"], k: int, select: Callable[..., Any] = top_k
) -> tuple[Float[Array, "rows k"], Int[Array, "rows k"]]:
    """Computes :func:`top_k` of sharded scores, bit for bit.

    Rows are sharded over the axis ``data`` of the mesh and columns over its axis ``table``, if
    present. Each device applies ``select`` to its own columns; the candidates are then merged.
    """
    n_rows, rows, columns = len(scores), mesh_axis(mesh, DATA), mesh_axis(mesh, TABLE)

    def select_shard(scores: Array) -> tuple[Array, Array]:
        size = scores.shape[1]
        values, index = select(scores, min(k, size))
        if columns is None:
            return values, index
        index = index + size * lax.axis_index(columns)
        # Gathered in column order, so that ties are broken as in the row.
        values, index = (lax.all_gather(x, columns, axis=1, tiled=True) for x in (values, index))
        values, position = top_k(values, k)
        return values, jnp.take_along_axis(index, position, -1)

    # Padding is last among equal scores, so that it is never selected before a column.
    full = filled(scores, axis_size(mesh, DATA), 0, -jnp.inf)
    full = filled(full, axis_size(mesh, TABLE), 1, -jnp.inf)
    merge = jax.shard_map(
        select_shard, mesh=mesh, in_specs=PartitionSpec(rows, columns),
        out_specs=PartitionSpec(rows), check_vma=False,
    )  # fmt: skip
    values, index = merge(full)
    return values[:n_rows], index[:n_rows]


def _length(scores: Float[Array, "*batch n"], k: int) -> int:
    """Returns the row length and checks ``k`` against it."""
    n = scores.shape[-1]
    if not 1 <= k <= n:
        raise ValueError(f"`k` must lie in [1, {n}], the length of a row, got {k}.")
    return n


@partial(jax.jit, static_argnames="k")
def _select_from_long_rows(
    scores: Float[Array, "*batch n"], k: int
) -> tuple[Float[Array, "*batch k"], Int[Array, "*batch k"], Bool[Array, "*batch 1"]]:
    # For a TPU v5e the compiler states 1.6 million cycles for scoring and masking 2^20 items for 64
    # users with one stage and 4.0 with two, which also gather 329,000 scores and need twice the
    # memory. It states none for the selection itself; nothing was measured on a TPU. On an H100
    # (JAX 0.11.2) two stages select 20 of 2^20 items for 64 users in 0.34 ms, one stage in 8.5.
    return lax.platform_dependent(
        scores,
        tpu=partial(_one_stage, k=k),
        default=partial(_two_stages, k=k, chunk=_chunk_size(scores.shape[-1], k)),
    )


def _one_stage(
    scores: Float[Array, "*batch n"], k: int
) -> tuple[Float[Array, "*batch k"], Int[Array, "*batch k"], Bool[Array, "*batch 1"]]:
    values, indices = _select(scores, k)
    return values, indices, jnp.isnan(scores).any(-1, keepdims=True)


def _two_stages(
    scores: Float[Array, "*batch n"], k: int, chunk: int
) -> tuple[Float[Array, "*batch k"], Int[Array, "*batch k"], Bool[Array, "*batch 1"]]:
    """Selects the k chunks with the greatest maxima, then k among their elements.

    Correctness: let ``e`` be an element of a chunk ``c`` that was not chosen. The maximum of each
    chosen chunk is greater than that of ``c``, or equal with its chunk before ``c``. In both cases
    its first occurrence ranks before ``e``, so that k elements rank before ``e``. The candidates
    keep the order of the row, so that ties are broken as in the row.
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
    # Tail padding reads as -inf and ranks after every element of the row.
    selected = jnp.take_along_axis(scores, candidates, -1, mode="fill", fill_value=-jnp.inf)
    values, positions = _select(selected, k)
    indices = jnp.take_along_axis(candidates, positions, -1)
    return values, indices, has_nan.any(-1, keepdims=True)


def _select(
    scores: Float[Array, "*batch n"], k: int
) -> tuple[Float[Array, "*batch k"], Int[Array, "*batch k"]]:
    """Applies ``lax.top_k`` with -0 replaced by 0, which some backends rank below 0."""
    values, indices = lax.top_k(jnp.where(scores == 0, 0, scores), k)
    return values, indices


def _chunk_size(n: int, k: int) -> int:
    """Returns the power of two nearest to sqrt(n / k), which balances maxima and candidates.

    Chunks under 32 make the maxima slow, chunks over 256 gain nothing (measured on CPU).
    """
    return 2 ** round(min(max(math.log2(n / k) / 2, 5), 8))
