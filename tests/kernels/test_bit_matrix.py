"""Products with a matrix of one bit per entry against float64, plain and by the kernel for TPUs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax.kernels import BitMatrix, bit_product
from crl_jax.kernels._bit_matrix import BLOCK, _digits, _plain, kernel_product

pytestmark = pytest.mark.usefixtures("quick_compiles")

KINDS = {"plain": _plain, "kernel": partial(kernel_product, interpret=True)}


def random_links(n_rows, n_columns):
    """Matrix whose second block of rows is empty except in its last column of blocks."""
    links = np.random.default_rng(0).random((n_rows, n_columns)) < 0.01
    links[BLOCK : 2 * BLOCK, : 2 * BLOCK] = False
    return links


LINKS = random_links(BLOCK + 300, 2 * BLOCK + 500)
MATRIX = BitMatrix.from_entries(*LINKS.shape, *np.nonzero(LINKS))
PADDED = np.pad(LINKS, [(0, -n % BLOCK) for n in LINKS.shape]).astype(np.float64)


def product(kind, matrix, table, transposed):
    return jax.jit(partial(KINDS[kind], transposed=transposed))(matrix, jnp.asarray(table))


def operands(transposed, scale):
    """The matrix in float64 and a table whose columns have different scales."""
    dense = PADDED.T if transposed else PADDED
    table = np.random.default_rng(1).normal(size=(dense.shape[1], 5))
    return dense, (scale * table * 10.0 ** np.arange(-8, 12, 4)).astype(np.float32)


def test_empty_blocks_are_skipped():
    np.testing.assert_array_equal(MATRIX.by_row, [[0, 0, 0, 1], [0, 1, 2, 2]])
    np.testing.assert_array_equal(MATRIX.by_column, [[0, 1, 2, 2], [0, 0, 0, 1]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("scale", [1, 1e-20, 1e20])
def test_error_is_within_rounding_bound(kind, transposed, scale):
    dense, table = operands(transposed, scale)
    got, wide = product(kind, MATRIX, table, transposed), table.astype(np.float64)
    # Each summand is rounded, and the sum.
    bound = dense.sum(1, keepdims=True) * 2**-24 * abs(wide).max(0) + 2**-21 * abs(dense) @ abs(
        wide
    )
    assert np.all(abs(got - dense @ wide) <= 1.01 * bound)


@pytest.mark.parametrize("transposed", [False, True])
def test_bfloat16_product_is_rounded_once(transposed):
    links = np.random.default_rng(0).random((8 * BLOCK, BLOCK)) < 0.05
    links = links if transposed else links.T
    matrix = BitMatrix.from_entries(*links.shape, *np.nonzero(links))
    table = jnp.asarray(np.random.default_rng(1).random((8 * BLOCK, 3)), jnp.bfloat16)
    got = jax.jit(partial(bit_product, transposed=transposed))(matrix, table)
    dense = (links.T if transposed else links).astype(np.float64)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        np.asarray(got, np.float64), dense @ np.asarray(table, np.float64), rtol=1.01 * 2**-8
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_rejects_tables_of_wrong_size(transposed):
    n = 3 * BLOCK if transposed else 2 * BLOCK  # the size of the other side
    with raises(ValueError, match="`table`"):
        bit_product(MATRIX, jnp.zeros((n, 2)), transposed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transposed", [False, True])
def test_empty_matrix_gives_zeros(kind, transposed):
    """This includes result blocks to which no stored block contributes."""
    none = np.zeros(0, np.int64)
    matrix = BitMatrix.from_entries(BLOCK + 1, 3, none, none)
    table = np.ones((2 * BLOCK if transposed else BLOCK, 2), np.float32)
    got = product(kind, matrix, table, transposed)
    np.testing.assert_array_equal(got, np.zeros((BLOCK if transposed else 2 * BLOCK, 2)))


def test_propagates_nonfinite_values():
    table = np.ones((PADDED.shape[1], 3), np.float32)
    table[np.flatnonzero(LINKS.any(0))[0], :2] = np.nan, np.inf
    got = np.asarray(product("kernel", MATRIX, table, False))
    assert not np.isfinite(got[:, :2]).any()
    np.testing.assert_array_equal(got[:, 2], PADDED.sum(1))


def test_zero_and_subnormal_tables_give_zeros():
    table = np.zeros((PADDED.shape[1], 2), np.float32)
    table[:, 1] = 1e-45
    np.testing.assert_array_equal(product("kernel", MATRIX, table, False), 0 * PADDED[:, :2])


def test_digits_reconstruct_numbers():
    numbers = np.array([[0, 1, -1, 127, 128, -128, -129, 127 * 2**16, -127 * 2**16, 8_322_943]])
    digits = np.asarray(_digits(jnp.asarray(numbers, jnp.int32)), np.int64)
    np.testing.assert_array_equal(digits[:1] + 256 * digits[1:2] + 65536 * digits[2:], numbers)


@pytest.mark.parametrize("transposed", [False, True])
def test_gradient_is_transposed_product(transposed):
    dense, table = operands(transposed, 1)
    slope = np.random.default_rng(2).normal(size=(len(dense), 5)).astype(np.float32)

    @jax.jit
    @jax.grad
    def gradient(table):
        return jnp.vdot(bit_product(MATRIX, table, transposed), slope)

    want = dense.T @ slope.astype(np.float64)
    np.testing.assert_allclose(gradient(jnp.asarray(table)), want, rtol=1e-5, atol=1e-5)
    # The product is linear: one finite difference is exact.
    change = np.random.default_rng(3).normal(size=table.shape)
    difference = np.vdot(dense @ change, slope)
    np.testing.assert_allclose(np.vdot(gradient(jnp.asarray(table)), change), difference, rtol=1e-5)


def test_wide_tables_match_narrow_products():
    _, table = operands(False, 1)
    wide = np.tile(table, (1, 30))
    got = product("kernel", MATRIX, wide, False)
    np.testing.assert_array_equal(got, np.tile(product("kernel", MATRIX, table, False), (1, 30)))


@pytest.mark.parametrize("transposed", [False, True])
def test_vmap_matches_separate_products(transposed):
    _, table = operands(transposed, 1)
    kernel = partial(KINDS["kernel"], MATRIX, transposed=transposed)
    got = jax.jit(jax.vmap(kernel))(jnp.stack([table, -3 * table]))
    np.testing.assert_array_equal(got[0], kernel(jnp.asarray(table)))
    np.testing.assert_array_equal(got[1], kernel(jnp.asarray(-3 * table)))
