"""Pallas kernels for TPUs that compute statistics of the rows of a score matrix in tiles.

See :func:`crl_jax.kernels.row_log_sums`. Every function computes the scores of its tiles again.
"""

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array

from .._mesh import LANES
from ._row_log_sums import Anchors, Bins, Keys, Options, Weights, unpacked

_VMEM_BYTES = 64 * 2**20
_STRIP = 8  # rows: one register per 128 keys
_LOWEST = float(jnp.finfo(jnp.float32).min) / 2  # differences to it do not overflow
_LARGEST = float(jnp.finfo(jnp.float32).max)

# As of jnp.take_along_axis, which takes three operations more for negative indices.
_ALONG_LANES = jax.lax.GatherDimensionNumbers(
    offset_dims=(), collapsed_slice_dims=(1,), start_index_map=(1,),
    operand_batching_dims=(0,), start_indices_batching_dims=(0,),
)  # fmt: skip

Statistics = tuple[Any, Any, Any]
"""Largest score, log of the sums relative to it, and factors of the gradient of each sum."""


def extremes(options: Options, anchors: Anchors, keys: Keys) -> tuple[Array, Array, Array]:
    """Number of negatives of each anchor, and their smallest and largest score."""
    column = _column(anchors.x)
    out = [column(jnp.int32), column(), column()]
    count, low, high = _call(_extremes_kernel, options, anchors, keys, None, out=out)
    return _reduce_row(jnp.sum, count), _reduce_row(jnp.min, low), _reduce_row(jnp.max, high)


def histogram(options: Options, anchors: Anchors, keys: Keys, bins: Bins) -> Array:
    """Number of negatives of each anchor in each bin, ``[N, bins]``; padded to whole lanes."""
    n, blocks = anchors.x.shape[0], -(-options.bins // LANES)
    out = [_output_shape(anchors.x, (blocks, LANES, n), jnp.int32)]
    (counts,) = _call(partial(_histogram_kernel, options), options, anchors, keys, bins, out=out)
    return counts.reshape(blocks * LANES, n).T


def sums(options: Options, anchors: Anchors, keys: Keys) -> tuple[Array, Array, Array]:
    """Largest score of each anchor, number of negatives, and sums relative to the largest."""
    column = _column(anchors.x)
    out = [column(), column(jnp.int32), *(column() for _ in range(anchors.powers.shape[1]))]
    tops, count, *totals = _call(_sums_kernel, options, anchors, keys, None, out=out)
    top = _reduce_row(jnp.max, tops)
    powers = jnp.split(anchors.powers, len(totals), axis=1)
    total = [
        _reduce_row(jnp.sum, each * jnp.exp2(power * (tops - top)))
        for each, power in zip(totals, powers, strict=True)
    ]
    total = jnp.where(top <= _LOWEST, 0, jnp.concatenate(total, axis=1))  # NaN is not empty
    return top, _reduce_row(jnp.sum, count), total


def weighted_sums(options: Options, anchors: Anchors, keys: Keys, weights: Weights) -> Array:
    """Weighted sums relative to the score ``weights.top``, ``[N, K]``."""
    column = _column(anchors.x)
    out = [column() for _ in range(anchors.powers.shape[1])]
    totals = _call(_weighted_sums_kernel, options, anchors, keys, weights, out=out)
    return jnp.concatenate([_reduce_row(jnp.sum, total) for total in totals], axis=1)


def gradients(
    options: Options, anchors: Anchors, keys: Keys, weights: Weights | None, statistics: Statistics
) -> tuple[Array, Array, Array]:
    """Gradients of anchors and keys, and means of the scores below the largest, ``[N, K]``."""
    column = _column(anchors.x)
    d_anchors = [column(columns=anchors.x.shape[1])]
    d_anchors += [column() for _ in range(anchors.powers.shape[1])]
    d_y, d_x, *means = _call(
        partial(_gradient_kernel, options), options, anchors, keys, weights, statistics,
        out=[_output_shape(keys.x, keys.x.shape), *d_anchors], backward=True,
    )  # fmt: skip
    return d_x, d_y, jnp.concatenate([_reduce_row(jnp.sum, mean) for mean in means], axis=1)


def _reduce_row(reduce_fn: Callable[..., Array], values: Array) -> Array:
    return reduce_fn(values, axis=1, keepdims=True)


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

    for rows, scores, where in _strips(anchors, keys):
        low[rows] = _lanes(jnp.minimum, jnp.where(where, scores, _LARGEST), low[rows])
        high[rows] = _lanes(jnp.maximum, jnp.where(where, scores, -_LARGEST), high[rows])
        count[rows] = _lanes(jnp.add, where.astype(jnp.int32), count[rows])


def _histogram_kernel(
    options: Options, anchors: Anchors, keys: Keys, bins: Bins, counts: Any
) -> None:
    """Adds the counts of bins, ``[bins / 128, 128, rows]``.

    Bit i of an integer belongs to key i of 32, so that a mask of the keys in a bin is a conjunction
    of the bits of their bins, and its population count is the number of these keys.
    """

    @pl.when(pl.program_id(1) == 0)
    def _start() -> None:
        counts[...] = jnp.zeros_like(counts)

    scores = _dot(anchors.x[...], keys.x[...], 1, 1)
    where = _negatives(anchors.ids[...], keys, keys.valid[...] != 0, scores)
    low, scale = (_repeat(a[...], scores) for a in bins)
    bin_ = _bits(_place(low, scale, scores)[0])
    # Keys along sublanes. The 7 low bits are those within 128 bins, after which a bit is the mask.
    within = jnp.where(where, bin_ & (LANES - 1) | LANES, 0).T
    blocks = ((bin_ >> 7) & 255).T if counts.shape[0] > 1 else None
    n_keys, n_rows = within.shape
    for row in range(0, n_rows, LANES):
        lanes = slice(row, row + LANES)
        parts = [slice(key, key + 32 * 8) for key in range(0, n_keys, 32 * 8)]
        planes = [_bit_planes(within[part, lanes]) for part in parts]
        higher = [] if blocks is None else [_bit_planes(blocks[part, lanes]) for part in parts]
        _add_counts(options.bins, counts, lanes, planes, higher)


def _add_counts(
    bins: int, counts: Any, lanes: slice, planes: list[list[Array]], higher: list[list[Array]]
) -> None:
    """Adds the counts of bins, 128 after 128, to those of some rows.

    Args:
      bins: Number of bins; of fewer than 128, only these are counted.
      counts: Counts ``[blocks, 128, rows]``.
      lanes: The rows.
      planes: For each part of the keys, the bits of their bins within 128, then the mask.
      higher: For each part, the bits of the block of 128 bins; empty if there is one.
    """
    n_bits = (counts.shape[0] - 1).bit_length()
    n_within = min(max((bins - 1).bit_length(), 3), 7)  # whole groups of 8 bins

    def add(block: Any, _: None) -> None:
        masks = [part[7] for part in planes]
        for bit in range(n_bits):
            flip = ((block >> bit) & 1) - 1  # all bits where that of the block is 0
            masks = [mask & (part[bit] ^ flip) for mask, part in zip(masks, higher, strict=True)]
        bin_counts = _count_per_bin(masks, planes, n_within - 1)
        for first in range(0, 2**n_within, 8):
            totals = [next(bin_counts) for _ in range(8)]
            counts[block, first : first + 8, lanes] += _sublane_sums(totals)

    if higher:
        jax.lax.fori_loop(0, counts.shape[0], add, None)
    else:
        add(0, None)


def _bit_planes(values: Array) -> list[Array]:
    """Bits of values below 256, ``[256, lanes]``: bit i of row r of plane b is bit b of row 8i + r.

    Fewer rows than 256 are followed by zeros.
    """
    rows = [values[at : at + 8] for at in range(0, values.shape[0], 8)]
    rows += [jnp.zeros_like(rows[0])] * (32 - len(rows))
    words = [reduce(jnp.bitwise_or, [rows[i + 8 * k] << 8 * k for k in range(4)]) for i in range(8)]
    # Transposition of 8 by 8 bits, by exchanges of blocks across the diagonal.
    for step, mask in ((4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        for i in range(8):
            if not i & step:
                exchanged = ((words[i] >> step) ^ words[i + step]) & mask
                words[i + step] ^= exchanged
                words[i] ^= exchanged << step
    return words


def _count_per_bin(masks: list[Array], planes: list[list[Array]], bit: int) -> Iterator[Array]:
    """Number of keys of each bin in order, of those in the masks of the parts."""
    ones = [mask & part[bit] for mask, part in zip(masks, planes, strict=True)]
    if bit == 0:
        n_ones = _ones(ones)
        yield _ones(masks) - n_ones
        yield n_ones
        return
    zeros = [mask ^ one for mask, one in zip(masks, ones, strict=True)]
    yield from _count_per_bin(zeros, planes, bit - 1)
    yield from _count_per_bin(ones, planes, bit - 1)


def _ones(masks: list[Array]) -> Array:
    return reduce(jnp.add, map(jax.lax.population_count, masks))


def _sublane_sums(totals: list[Array]) -> Array:
    """Sums over the rows of eight arrays ``[8, lanes]``, as the rows of one."""
    row = jax.lax.broadcasted_iota(jnp.int32, totals[0].shape, 0)
    for step in (4, 2, 1):
        is_first = row & step == 0
        pairs = zip(totals[:step], totals[step:], strict=True)
        totals = [
            jnp.where(is_first, a, b)
            + jnp.where(is_first, pltpu.roll(a, 8 - step, axis=0), pltpu.roll(b, step, axis=0))
            for a, b in pairs
        ]
    return totals[0]


def _sums_kernel(
    anchors: Anchors, keys: Keys, weights: None, top: Any, count: Any, *sums: Any
) -> None:
    del weights

    @pl.when(pl.program_id(1) == 0)
    def _start() -> None:
        top[...] = jnp.full_like(top, _LOWEST)
        for ref in (count, *sums):
            ref[...] = jnp.zeros_like(ref)

    for rows, scores, where in _strips(anchors, keys):
        count[rows] = _lanes(jnp.add, where.astype(jnp.int32), count[rows])
        scores = jnp.where(where, scores, _LOWEST)
        old_top = top[rows]
        new_top = _lanes(jnp.maximum, scores, old_top)
        top[rows] = new_top
        below = scores - _repeat(new_top, scores)
        for k, total in enumerate(sums):
            power = _columns(anchors.powers, rows, k)
            earlier = total[rows] * jnp.exp2(power * (old_top - new_top))
            total[rows] = _lanes(jnp.add, jnp.exp2(_repeat(power, scores) * below), earlier)


def _weighted_sums_kernel(anchors: Anchors, keys: Keys, weights: Weights, *sums: Any) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _start() -> None:
        for ref in sums:
            ref[...] = jnp.zeros_like(ref)

    for rows, scores, where in _strips(anchors, keys):
        weight, below = _weigh(weights, rows, scores)
        for k, total in enumerate(sums):
            power = _repeat(_columns(anchors.powers, rows, k), scores)
            terms = jnp.where(where, weight * jnp.exp2(power * below), 0)
            total[rows] = _lanes(jnp.add, terms, total[rows])


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

    strips = []
    for part, scores, where in _strips(anchors, keys):
        shares, below = _shares(anchors, weights, statistics, part, scores, where)
        scaled = [
            _repeat(_columns(statistics[2], part, k), scores) * share
            for k, share in enumerate(shares)
        ]
        strips.append(reduce(jnp.add, scaled))
        at = pl.ds(rows.start + part.start, part.stop - part.start)
        for mean, share in zip(means, shares, strict=True):
            mean[at, :] = _lanes(jnp.add, share * below, mean[at, :])
    d_scores = jnp.concatenate(strips, axis=0)
    d_x[rows, :] += _dot(d_scores, keys.x[...].astype(jnp.float32), 1, 0)
    d_y[...] += _dot(d_scores, anchors.x[...].astype(jnp.float32), 0, 0)


# --- tiles of scores ------------------------------------------------------------------------------


def _strips(anchors: Anchors, keys: Keys) -> Iterator[tuple[slice, Array, Array]]:
    """Rows of a strip of a tile, their scores and the mask of negatives, ``[strip, keys]``.

    The values of a strip take few registers, and those of rows one.
    """
    scores, valid = _dot(anchors.x[...], keys.x[...], 1, 1), keys.valid[...] != 0
    for start in range(0, scores.shape[0], _STRIP):
        rows = slice(start, start + _STRIP)
        yield rows, scores[rows], _negatives(anchors.ids[rows, :], keys, valid, scores[rows])


def _negatives(ids: Array, keys: Keys, valid: Array, scores: Array) -> Array:
    """Mask of the valid keys with another id than the row, ``[rows, keys]``."""
    return (_repeat(ids, scores) != keys.ids[...]) & valid


def _columns(ref: Any, rows: slice, k: int) -> Array:
    """Value k of rows in all lanes, ``[rows, 128]``."""
    return ref[rows, k * LANES : (k + 1) * LANES]


def _repeat(values: Array, scores: Array) -> Array:
    """Values of rows in all lanes for each score, ``[rows, keys]``."""
    return jnp.tile(values, (1, scores.shape[1] // LANES))


def _dot(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    axes = (((a_axis,), (b_axis,)), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


def _lanes(combine: Callable[[Array, Array], Array], values: Array, initial: Array) -> Array:
    """Reduction of ``[rows, keys]`` to whole lanes, ``[rows, 128]``; no lane waits for another."""
    starts = range(0, values.shape[1], LANES)
    return reduce(combine, [values[:, at : at + LANES] for at in starts], initial)


def _place(low: Array, scale: Array, scores: Array) -> tuple[Array, Array]:
    """Bins of scores as whole numbers, and the share of the bin's width below them."""
    at = (scores - low) * scale
    bin_ = jnp.floor(at)
    return bin_, at - bin_


def _bits(whole: Array) -> Array:
    """Integer with the low 22 bits of a whole number below 2²²; a cast takes twice as long."""
    return jax.lax.bitcast_convert_type(whole + 1.5 * 2**23, jnp.int32)


def _weigh(weights: Weights, rows: slice, scores: Array) -> tuple[Array, Array]:
    """Weights of a strip, and its scores below the top; masked scores have any."""
    low, scale = (_repeat(a[rows], scores) for a in weights.bins)
    bin_, share = _place(low, scale, scores)
    first, rise = unpacked(_look_up(weights.table[rows], bin_))
    # Scores of weight 0 may be far above the top.
    return first + share * rise, jnp.minimum(scores - _repeat(weights.top[rows], scores), 0)


def _look_up(table: Array, bins: Array) -> Array:
    """``table[row, bins[row, key]]``, by gathers within 128 lanes."""
    results = []
    for start in range(0, bins.shape[1], LANES):
        part = bins[:, start : start + LANES]
        lane, value = _bits(part) & (LANES - 1), None
        for first in range(0, table.shape[1], LANES):
            entry = jax.lax.gather(
                table[:, first : first + LANES], lane[:, :, None], _ALONG_LANES, (1, 1),
                mode=jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS,
            )  # fmt: skip
            value = entry if value is None else jnp.where(part >= first, entry, value)
        results.append(value)
    return jnp.concatenate(results, axis=1)


def _shares(
    anchors: Anchors, weights: Weights | None, statistics: Statistics,
    rows: slice, scores: Array, where: Array,
) -> tuple[list[Array], Array]:  # fmt: skip
    """Shares of each score in the sums of its row, and scores below the largest."""
    top, log_norm, _ = statistics
    if weights is None:
        weight, below = None, jnp.where(where, scores, _LOWEST) - _repeat(top[rows], scores)
    else:
        weight, below = _weigh(weights, rows, scores)
    shares = []
    for k in range(log_norm.shape[1] // LANES):
        power, norm = (_repeat(_columns(a, rows, k), scores) for a in (anchors.powers, log_norm))
        share = jnp.exp2(power * below - norm)
        shares.append(share if weight is None else jnp.where(where, weight * share, 0))
    return shares, below


# --- calls ----------------------------------------------------------------------------------------


def _output_shape(
    x: Array, shape: tuple[int, ...], dtype: Any = jnp.float32
) -> jax.ShapeDtypeStruct:
    """Shape of an output that varies over the mesh axes of ``x``, as ``jax.shard_map`` checks."""
    kind = jax.typeof(x)
    for name in ("manual_axis_type", "vma"):  # the name depends on the version of JAX
        if hasattr(kind, name):
            return jax.ShapeDtypeStruct(shape, dtype, **{name: getattr(kind, name)})
    raise AttributeError(f"{kind!r} states no mesh axes.")


def _column(x: Array) -> Callable[..., jax.ShapeDtypeStruct]:
    def column(dtype: Any = jnp.float32, columns: int = LANES) -> jax.ShapeDtypeStruct:
        return _output_shape(x, (x.shape[0], columns), dtype)

    return column


def _fill_lanes(values: Array) -> Array:
    """Each column in 128 lanes, where a kernel would have to permute lanes to use it."""
    return jnp.repeat(values, LANES, axis=1)


def _call(
    kernel: Callable[..., None], options: Options, anchors: Anchors, keys: Keys, *more: Any,
    out: list[jax.ShapeDtypeStruct], backward: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    """Runs a kernel over tiles.

    The inner loop is over keys, for outputs of anchors. In the backward pass it is over anchors,
    for the first output, which is of keys; the others are whole arrays in fast memory.
    """
    n_rows, n_keys = options.tile
    n_powers = anchors.powers.shape[1]
    anchors = Anchors(anchors.x, _fill_lanes(anchors.ids), _fill_lanes(anchors.powers))
    more = jax.tree.map(lambda a: a if a.shape[1] >= LANES else _fill_lanes(a), more)
    grid = anchors.x.shape[0] // n_rows, keys.x.shape[0] // n_keys

    def row(outer: Any, inner: Any) -> Any:
        return inner if backward else outer

    def key(outer: Any, inner: Any) -> Any:
        return outer if backward else inner

    def row_spec(a: Any) -> pl.BlockSpec:
        if a.ndim == 3:  # counts of bins
            return pl.BlockSpec((*a.shape[:2], n_rows), lambda *at: (0, 0, row(*at)))
        return pl.BlockSpec((n_rows, a.shape[1]), lambda *at: (row(*at), 0))

    key_spec = pl.BlockSpec((n_keys, keys.x.shape[1]), lambda *at: (key(*at), 0))
    lane_spec = pl.BlockSpec((1, n_keys), lambda *at: (0, key(*at)))
    if backward:
        out_specs = [key_spec, *(pl.BlockSpec(a.shape, lambda *_: (0, 0)) for a in out[1:])]
    else:
        out_specs = [row_spec(a) for a in out]
    (n, dim), m = anchors.x.shape, keys.x.shape[0]
    return pl.pallas_call(
        kernel,
        grid=grid[::-1] if backward else grid,
        in_specs=(
            jax.tree.map(row_spec, anchors), Keys(key_spec, lane_spec, lane_spec),
            *jax.tree.map(row_spec, more),
        ),
        out_specs=out_specs,
        out_shape=out,
        interpret=options.interpret,
        cost_estimate=pl.CostEstimate(
            flops=2 * (3 if backward else 1) * n * m * dim,
            bytes_accessed=(grid[1] * n if backward else grid[0] * m) * dim * keys.x.dtype.itemsize,
            transcendentals=n * m * n_powers,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary" if backward else "parallel", "arbitrary"),
            vmem_limit_bytes=_VMEM_BYTES,
        ),
    )(anchors, keys, *more)  # fmt: skip
