"""Pallas kernels for TPUs that compute statistics of the rows of a score matrix in tiles.

See :func:`crl_jax.kernels.row_log_sums`. Every function computes the scores of its tiles again.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from .._mesh import LANES
from ._row_log_sums import Anchors, Bins, Keys, Options, Weights

_VMEM_BYTES = 64 * 2**20
_LOWEST = float(jnp.finfo(jnp.float32).min) / 2  # differences to it do not overflow
_LARGEST = float(jnp.finfo(jnp.float32).max)

Statistics = tuple[Any, Any, Any]
"""Largest score, log of the sums relative to it, and factors of the gradient of each sum."""


def extremes(options: Options, anchors: Anchors, keys: Keys) -> tuple[Array, Array, Array]:
    """Number of negatives of each anchor, and their smallest and largest score."""
    column = _column(anchors.x)
    out = [column(jnp.int32), column(), column()]
    count, low, high = _call(_extremes_kernel, options, anchors, keys, None, out=out)
    return count, low, high


def histogram(options: Options, anchors: Anchors, keys: Keys, bins: Bins) -> Array:
    """Number of negatives of each anchor in each bin, ``[N, bins]``; padded to whole lanes."""
    n, n_bins = anchors.x.shape[0], -(-options.bins // LANES) * LANES
    out = [_like(anchors.x, (16, n_bins // 16, n), jnp.int32)]
    (counts,) = _call(partial(_histogram_kernel, options), options, anchors, keys, bins, out=out)
    return jnp.transpose(counts, (2, 1, 0)).reshape(n, n_bins)


def sums(
    options: Options, anchors: Anchors, keys: Keys, weights: Weights | None
) -> tuple[Array, Array, Array]:
    """Largest score of each anchor, number of negatives, and sums relative to the largest."""
    column = _column(anchors.x)
    out = [column(), column(jnp.int32), *(column() for _ in range(anchors.exponents.shape[1]))]
    top, count, *total = _call(
        partial(_sums_kernel, options), options, anchors, keys, weights, out=out
    )
    return top, count, jnp.concatenate(total, axis=1)


def gradients(
    options: Options, anchors: Anchors, keys: Keys, weights: Weights | None, statistics: Statistics
) -> tuple[Array, Array, Array]:
    """Gradients of anchors and keys, and means of the scores below the largest, ``[N, K]``."""
    column = _column(anchors.x)
    d_anchors = [column(columns=anchors.x.shape[1])]
    d_anchors += [column() for _ in range(anchors.exponents.shape[1])]
    d_y, d_x, *means = _call(
        partial(_gradient_kernel, options), options, anchors, keys, weights, statistics,
        out=[_like(keys.x, keys.x.shape), *d_anchors], backward=True,
    )  # fmt: skip
    return d_x, d_y, jnp.concatenate(means, axis=1)


# --- kernels --------------------------------------------------------------------------------------


def _extremes_kernel(
    anchors: Anchors, keys: Keys, weights: None, count: Any, low: Any, high: Any
) -> None:
    del weights

    @pl.when(pl.program_id(1) == 0)
    def _start() -> None:
        low[...] = jnp.full_like(low, _LARGEST)
        high[...] = jnp.full_like(high, -_LARGEST)
        count[...] = jnp.zeros_like(count)

    scores, where = _tile(anchors, keys)
    low[...] = jnp.minimum(low[...], _row(jnp.min, jnp.where(where, scores, _LARGEST)))
    high[...] = jnp.maximum(high[...], _row(jnp.max, jnp.where(where, scores, -_LARGEST)))
    count[...] += _row(jnp.sum, where.astype(jnp.int32))


def _histogram_kernel(
    options: Options, anchors: Anchors, keys: Keys, bins: Bins, counts: Any
) -> None:
    """Adds the counts ``[16, bins / 16, rows]`` of the bins ``16 * word + digit``.

    The 16 bins of a word are fields of an integer, to which a score adds 1 in the field of its
    digit. Fields of 2 bits hold 3 additions; they are added to fields of 4, 8 and 16 bits, which
    hold the sums of 15, 255 and all keys of a tile.
    """

    @pl.when(pl.program_id(1) == 0)
    def _start() -> None:
        counts[...] = jnp.zeros_like(counts)

    scores, where = _tile(anchors, keys)
    bin_, _ = _place(options, bins, scores)
    bin_ = jnp.where(where, bin_, -1).T  # keys along sublanes, over which a sum is cheap
    word, one = bin_ >> 4, jnp.left_shift(1, 2 * (bin_ & 15))
    n_keys, n_rows = bin_.shape

    def in_word(number: Any) -> list[Array]:
        """Counts of a word: 8 integers ``[1, rows]`` with fields of 16 bits."""
        bytes_ = [jnp.zeros((8, n_rows), jnp.int32)] * 4
        for start in range(0, n_keys, 15 * 8):
            nibbles = [jnp.zeros((8, n_rows), jnp.int32)] * 2
            for at in range(start, min(start + 15 * 8, n_keys), 3 * 8):
                part = slice(at, min(at + 3 * 8, start + 15 * 8, n_keys))
                here = jnp.where(word[part] == number, one[part], 0)
                total = jnp.sum(here.reshape(-1, 8, n_rows), axis=0)
                nibbles = _add_fields(nibbles, [total], 2)
            bytes_ = _add_fields(bytes_, nibbles, 4)
        halves = _add_fields([jnp.zeros((8, n_rows), jnp.int32)] * 8, bytes_, 8)
        return [jnp.sum(x, axis=0, keepdims=True) for x in halves]

    def add(group: Any, _: None) -> None:
        first = pl.multiple_of(8 * group, 8)
        of_words = [in_word(first + i) for i in range(8)]
        for digit, parts in enumerate(zip(*of_words, strict=True)):
            packed = jnp.concatenate(parts, axis=0)
            counts[digit, pl.ds(first, 8), :] += packed & 0xFFFF
            counts[digit + 8, pl.ds(first, 8), :] += packed >> 16

    jax.lax.fori_loop(0, counts.shape[1] // 8, add, None)


def _add_fields(sums: list[Array], integers: list[Array], bits: int) -> list[Array]:
    """Adds the fields of integers to sums with fields of twice the bits, and twice as many.

    Field k of integer i of n belongs to the sum ``i + n * (k % 2)``.
    """
    mask = {2: 0x33333333, 4: 0x0F0F0F0F, 8: 0x00FF00FF}[bits]
    fields = [(x >> shift) & mask for shift in (0, bits) for x in integers]
    return [total + field for total, field in zip(sums, fields, strict=True)]


def _sums_kernel(
    options: Options, anchors: Anchors, keys: Keys, weights: Weights | None,
    top: Any, count: Any, *sums: Any,
) -> None:  # fmt: skip
    @pl.when(pl.program_id(1) == 0)
    def _start() -> None:
        top[...] = jnp.full_like(top, _LOWEST)
        for ref in (count, *sums):
            ref[...] = jnp.zeros_like(ref)

    scores, where = _tile(anchors, keys)
    count[...] += _row(jnp.sum, where.astype(jnp.int32))
    weight, where = _weigh(options, weights, scores, where)
    before = top[...]
    now = jnp.maximum(before, _row(jnp.max, jnp.where(where, scores, _LOWEST)))
    top[...] = now
    below = jnp.where(where, scores - now, 0)
    for k, total in enumerate(sums):
        exponent = anchors.exponents[:, k : k + 1]
        terms = jnp.exp(exponent * below)
        terms = jnp.where(where, terms, 0) if weight is None else weight * terms
        total[...] = total[...] * jnp.exp(exponent * (before - now)) + _row(jnp.sum, terms)


def _gradient_kernel(
    options: Options, anchors: Anchors, keys: Keys, weights: Weights | None,
    statistics: Statistics, d_y: Any, d_x: Any, *means: Any,
) -> None:  # fmt: skip
    """Adds the gradients of a tile of keys, and those of all anchors, which stay in fast memory."""
    n_rows = options.tile[0]
    rows = pl.ds(pl.multiple_of(pl.program_id(1) * n_rows, n_rows), n_rows)

    @pl.when(pl.program_id(1) == 0)
    def _start_keys() -> None:
        d_y[...] = jnp.zeros_like(d_y)

    @pl.when(pl.program_id(0) == 0)
    def _start_anchors() -> None:
        for ref in (d_x, *means):
            ref[rows, :] = jnp.zeros((n_rows, ref.shape[1]), jnp.float32)

    shares, below = _shares(options, anchors, keys, weights, statistics)
    scaled = [statistics[2][:, k : k + 1] * share for k, share in enumerate(shares)]
    d_scores = reduce(jnp.add, scaled)
    d_x[rows, :] += _dot(d_scores, keys.x[...].astype(jnp.float32), 1, 0)
    d_y[...] += _dot(d_scores, anchors.x[...].astype(jnp.float32), 0, 0)
    for mean, share in zip(means, shares, strict=True):
        mean[rows, :] += _row(jnp.sum, share * below)


# --- tiles of scores ------------------------------------------------------------------------------


def _tile(anchors: Anchors, keys: Keys) -> tuple[Array, Array]:
    """Scores of a tile and the mask of negatives, ``[rows, keys]``."""
    scores = _dot(anchors.x[...], keys.x[...], 1, 1)
    return scores, (anchors.ids[...] != keys.ids[...]) & (keys.valid[...] != 0)


def _dot(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    axes = (((a_axis,), (b_axis,)), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


def _row(of_row: Callable[..., Array], values: Array) -> Array:
    return of_row(values, axis=1, keepdims=True)


def _place(options: Options, bins: Bins, scores: Array) -> tuple[Array, Array]:
    """Bins of scores, and the share of the bin's width below them."""
    at = jnp.minimum((scores - bins.low[...]) * bins.scale[...], options.bins)
    bin_ = jnp.minimum(at.astype(jnp.int32), options.bins - 1)
    return bin_, at - bin_.astype(jnp.float32)


def _weigh(
    options: Options, weights: Weights | None, scores: Array, where: Array
) -> tuple[Array | None, Array]:
    """Weights of a tile, None if they are 1, and the mask of weights that are not 0."""
    if weights is None:
        return None, where
    bin_, share = _place(options, weights.bins, scores)
    first, last = _look_up(weights.first, bin_), _look_up(weights.last, bin_)
    weight = (1 - share) * first + share * last  # a difference could round to a negative weight
    weight = jnp.where(where, weight, 0)
    return weight, weight != 0


def _look_up(table: Any, index: Array) -> Array:
    """``table[row, index[row, key]]`` by gathers within 128 lanes."""
    found = []
    for start in range(0, index.shape[1], LANES):
        part = index[:, start : start + LANES]
        lane, value = part & (LANES - 1), None
        for first in range(0, table.shape[1], LANES):
            entries = table[:, first : first + LANES]
            entry = jnp.take_along_axis(entries, lane, axis=1, mode="promise_in_bounds")
            value = entry if value is None else jnp.where(part >= first, entry, value)
        found.append(value)
    return jnp.concatenate(found, axis=1)


def _shares(
    options: Options, anchors: Anchors, keys: Keys, weights: Weights | None,
    statistics: Statistics,
) -> tuple[list[Array], Array]:  # fmt: skip
    """Shares of each score in the sums of its row, and scores below the largest."""
    top, log_norm, _ = statistics
    scores, where = _tile(anchors, keys)
    weight, where = _weigh(options, weights, scores, where)
    below = jnp.where(where, scores - top[...], 0)
    shares = []
    for k in range(log_norm.shape[1]):
        exponent, norm = anchors.exponents[:, k : k + 1], log_norm[:, k : k + 1]
        share = jnp.where(where, jnp.exp(exponent * below - norm), 0)
        shares.append(share if weight is None else weight * share)
    return shares, below


# --- calls ----------------------------------------------------------------------------------------


def _like(x: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """Shape of an output that varies over the mesh axes of ``x``, as ``jax.shard_map`` checks."""
    kind = jax.typeof(x)
    for name in ("manual_axis_type", "vma"):  # the name depends on the version of JAX
        if hasattr(kind, name):
            return jax.ShapeDtypeStruct(shape, dtype, **{name: getattr(kind, name)})
    raise AttributeError(f"{kind!r} states no mesh axes.")


def _column(x: Array) -> Callable[..., jax.ShapeDtypeStruct]:
    def column(dtype: Any = jnp.float32, columns: int = 1) -> jax.ShapeDtypeStruct:
        return _like(x, (x.shape[0], columns), dtype)

    return column


def _call(
    kernel: Callable[..., None], options: Options, anchors: Anchors, keys: Keys, *more: Any,
    out: list[jax.ShapeDtypeStruct], backward: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    """Runs a kernel over tiles.

    The inner loop is over keys, for outputs of anchors. In the backward pass it is over anchors,
    for the first output, which is of keys; the others are whole arrays in fast memory.
    """
    n_rows, n_keys = options.tile
    grid = anchors.x.shape[0] // n_rows, keys.x.shape[0] // n_keys

    def row(outer: Any, inner: Any) -> Any:
        return inner if backward else outer

    def key(outer: Any, inner: Any) -> Any:
        return outer if backward else inner

    def of_rows(a: Any) -> pl.BlockSpec:
        if a.ndim == 3:  # counts of bins
            return pl.BlockSpec((*a.shape[:2], n_rows), lambda *at: (0, 0, row(*at)))
        return pl.BlockSpec((n_rows, a.shape[1]), lambda *at: (row(*at), 0))

    of_keys = pl.BlockSpec((n_keys, keys.x.shape[1]), lambda *at: (key(*at), 0))
    lanes = pl.BlockSpec((1, n_keys), lambda *at: (0, key(*at)))
    if backward:
        out_specs = [of_keys, *(pl.BlockSpec(a.shape, lambda *_: (0, 0)) for a in out[1:])]
    else:
        out_specs = [of_rows(a) for a in out]
    (n, dim), m = anchors.x.shape, keys.x.shape[0]
    return pl.pallas_call(
        kernel,
        grid=grid[::-1] if backward else grid,
        in_specs=(
            jax.tree.map(of_rows, anchors), Keys(of_keys, lanes, lanes),
            *jax.tree.map(of_rows, more),
        ),
        out_specs=out_specs,
        out_shape=out,
        interpret=options.interpret,
        cost_estimate=pl.CostEstimate(
            flops=2 * (3 if backward else 1) * n * m * dim,
            bytes_accessed=(grid[1] * n if backward else grid[0] * m) * dim * keys.x.dtype.itemsize,
            transcendentals=n * m * anchors.exponents.shape[1],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary" if backward else "parallel", "arbitrary"),
            vmem_limit_bytes=_VMEM_BYTES,
        ),
    )(anchors, keys, *more)  # fmt: skip
