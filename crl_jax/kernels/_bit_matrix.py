r"""Products of a sparse 0/1 matrix, stored with one bit per entry, with narrow tables.

The matrix is cut into square blocks; blocks without a one are skipped. On TPUs a Pallas kernel
unpacks a block to 8-bit integers in fast memory and multiplies it by the table in fixed point on
the matrix unit. The numbers of a column are rounded to multiples of

.. math:: \frac{\max_r |x_r|}{127 \cdot 2^{16}},

an error of at most 2⁻²⁴ of the largest. They are then three digits of 8 bits, whose products with 0
and 1 are summed exactly in 32-bit integers. Other platforms unpack the blocks one after another and
multiply in the dtype of the table.

Row r of a block is bit 8 (r mod 4) + ⌊r / 128⌋ of word ⌊(r mod 128) / 4⌋: a word shifted by k and
masked is then four consecutive rows of the k-th group of 128, as TPUs store 8-bit integers.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from .._checks import check_shape
from .._floats import float_dtype
from .._pytree import pytree_dataclass

BLOCK = 1024
"""Rows and columns of a block."""
_WORDS = BLOCK // 32
_GROUP = 128
"""Rows that one shift unpacks."""
_WIDEST = 128
"""Columns of a table at once: sums of 512 do not fit into the fast memory of a TPU v5e."""
_LARGEST = 127 * 2**16
"""Largest number in three balanced digits of 8 bits whose first digit is positive."""


@pytree_dataclass(eq=False)
class BitMatrix:
    """Matrix of zeros and ones whose sizes are multiples of 1,024.

    Attributes:
      words: Bits, ``[n_rows / 32, n_columns]`` of uint32.
      by_row: Row and column of each block with a one, ordered by row, ``[2, n_blocks]``. Rows
        without such a block have one nevertheless.
      by_column: Column and row of the same, ordered by column.
    """

    words: Any
    by_row: Any
    by_column: Any

    @classmethod
    def from_entries(
        cls, n_rows: int, n_columns: int, rows: Int[np.ndarray, "n"], columns: Int[np.ndarray, "n"]
    ) -> "BitMatrix":
        """Builds the matrix with ones at distinct entries; sizes are padded with zeros."""
        sizes = tuple(-(-max(n, 1) // BLOCK) for n in (n_rows, n_columns))
        entries = np.stack([rows, columns]).astype(np.int32)
        blocks = entries // BLOCK
        ones = jnp.ones(len(rows), bool)
        return cls(
            words=_pack((sizes[0] * _WORDS, sizes[1] * BLOCK), jnp.asarray(entries), ones),
            by_row=jnp.asarray(_occupied(blocks, sizes)),
            by_column=jnp.asarray(_occupied(blocks[::-1], sizes[::-1])),
        )

    @staticmethod
    def count_blocks(rows: Int[np.ndarray, "n"], columns: Int[np.ndarray, "n"]) -> int:
        """Number of blocks that contain an entry."""
        return np.unique(np.stack([rows, columns]) // BLOCK, axis=1).shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns with padding."""
        return 32 * self.words.shape[0], self.words.shape[1]

    def masked(self, entries: Int[Array, "2 n"], keep: Bool[Array, "n"]) -> "BitMatrix":
        """Returns the matrix with ones only at those of its ``entries`` where ``keep`` is True."""
        return replace(self, words=_pack(self.words.shape, entries, keep))


def _occupied(blocks: np.ndarray, sizes: tuple[int, ...]) -> Int[np.ndarray, "2 n_blocks"]:
    """Distinct blocks in order, with block 0 of the other side where there is none."""
    every = np.stack([np.arange(sizes[0]), np.zeros(sizes[0])]).astype(np.int32)
    missing = every[:, ~np.isin(every[0], blocks[0])]
    return np.unique(np.concatenate([blocks, missing], axis=1), axis=1)


@partial(jax.jit, static_argnums=0)
def _pack(shape: tuple[int, int], entries: Array, keep: Array) -> Array:
    rows, columns = entries
    row = rows % BLOCK
    word = rows // BLOCK * _WORDS + row % _GROUP // 4
    bit = (row % 4 * 8 + row // _GROUP).astype(jnp.uint32)
    # Entries are distinct: a sum of bits is their union.
    bits = keep.astype(jnp.uint32) << bit
    return jnp.zeros(shape, jnp.uint32).at[word, columns].add(bits)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def bit_product(
    matrix: BitMatrix, table: Float[Array, "_n dim"], transposed: bool = False
) -> Float[Array, "_m dim"]:
    """Product of the matrix, or of its transpose, with a table; see the module for its rounding.

    On TPUs, a NaN or an infinity makes its column NaN. JAX cannot compile the kernel for several
    platforms at once: export a program for TPUs separately.

    Raises:
      ValueError: If the table does not have a row for each column (transposed: row) of the matrix.
    """
    check_shape("table", table, (matrix.shape[0 if transposed else 1], table.shape[1]))
    plain = partial(_plain, transposed=transposed)
    if table.dtype != jnp.float32:
        return plain(matrix, table)
    kernel = partial(kernel_product, transposed=transposed)
    return lax.platform_dependent(matrix, table, tpu=kernel, default=plain)


bit_product.defvjp(
    lambda matrix, table, transposed: (bit_product(matrix, table, transposed), matrix),
    lambda transposed, matrix, grad: (None, bit_product(matrix, grad, not transposed)),
)


def _plain(matrix: BitMatrix, table: Array, *, transposed: bool) -> Array:
    """Product by unpacking blocks of rows one after another."""
    words = matrix.words.reshape(-1, _WORDS, matrix.words.shape[1])
    # Sums over blocks in half precision would be rounded once per block.
    dtype = float_dtype(table)
    product = partial(jnp.matmul, precision=lax.Precision.HIGHEST, preferred_element_type=dtype)
    if not transposed:
        sums = lax.map(lambda words: product(_unpacked(words, table.dtype), table), words)
        return sums.reshape(-1, table.shape[1]).astype(table.dtype)

    def add(total: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        words, rows = block
        return total + product(_unpacked(words, table.dtype).T, rows), None

    start = jnp.zeros((words.shape[2], table.shape[1]), dtype)
    sums, _ = lax.scan(add, start, (words, table.reshape(-1, BLOCK, table.shape[1])))
    return sums.astype(table.dtype)


def _unpacked(words: Array, dtype: Any) -> Array:
    """Entries of a block of rows, ``[BLOCK, n_columns]``."""
    shifts = np.arange(8)[:, None, None, None] + 8 * np.arange(4)[:, None]
    bits = words[None, :, None] >> shifts.astype(np.uint32) & 1
    return bits.reshape(BLOCK, -1).astype(dtype)


def kernel_product(
    matrix: BitMatrix, table: Float[Array, "_n dim"], *, transposed: bool, interpret: bool = False
) -> Float[Array, "_m dim"]:
    """The product in fixed point by a Pallas kernel for TPUs."""
    if table.shape[1] > _WIDEST:
        product = partial(kernel_product, matrix, transposed=transposed, interpret=interpret)
        starts = list(range(_WIDEST, table.shape[1], _WIDEST))
        return jnp.concatenate([product(x) for x in jnp.split(table, starts, axis=1)], axis=1)
    # Imported here: takes half a second, and no other layout needs it.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    scale = jnp.maximum(jnp.max(jnp.abs(table), axis=0, keepdims=True), 1e-30)
    # Compilers may return a maximum other than NaN of numbers one of which is NaN.
    scale = jnp.where(jnp.isfinite(table).all(axis=0, keepdims=True), scale, jnp.nan)
    rounded = jnp.round(table / scale * _LARGEST).astype(jnp.int32).T
    dim, blocks = len(rounded), matrix.by_column if transposed else matrix.by_row
    n_steps = blocks.shape[1]
    n_out = matrix.shape[1 if transposed else 0]

    def kernel(blocks: Any, words: Any, table: Any, out: Any, sums: Any) -> None:
        step = pl.program_id(0)
        own = blocks[0, step]

        @pl.when((step == 0) | (own != blocks[0, jnp.maximum(step - 1, 0)]))
        def _() -> None:
            sums[...] = jnp.zeros_like(sums)

        shifted = [words[...] >> np.uint32(k) & np.uint32(0x01010101) for k in range(8)]
        entries = jnp.concatenate([pltpu.bitcast(x, jnp.int8) for x in shifted])
        sums[...] += lax.dot_general(
            _digits(table[...]),
            entries,
            (((1,), (0 if transposed else 1,)), ((), ())),
            preferred_element_type=jnp.int32,
        )

        @pl.when((step == n_steps - 1) | (own != blocks[0, jnp.minimum(step + 1, n_steps - 1)]))
        def _() -> None:
            low, middle, high = (sums[pl.ds(i * dim, dim), :].astype(jnp.float32) for i in range(3))
            out[...] = high * 2**16 + (middle * 2**8 + low)

    def words_at(step: Any, blocks: Any) -> tuple[Any, Any]:
        own, other = blocks[0, step], blocks[1, step]
        return (other, own) if transposed else (own, other)

    sums = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((dim, n_out), jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(n_steps,),
            in_specs=[
                pl.BlockSpec((_WORDS, BLOCK), words_at),
                pl.BlockSpec((dim, BLOCK), lambda step, blocks: (0, blocks[1, step])),
            ],
            out_specs=pl.BlockSpec((dim, BLOCK), lambda step, blocks: (0, blocks[0, step])),
            scratch_shapes=[pltpu.VMEM((3 * dim, BLOCK), jnp.int32)],
        ),
        interpret=interpret,
    )(blocks, matrix.words, rounded)
    return sums.T * (scale / _LARGEST)


def _digits(x: Int[Array, "dim n"]) -> Int[Array, "three_dim n"]:
    """Three balanced digits of 8 bits, the lowest first."""
    digits = []
    for _ in range(3):
        low = (x << 24) >> 24  # the last 8 bits, with their sign
        digits.append(low)
        x = (x - low) >> 8
    return jnp.concatenate(digits).astype(jnp.int8)
