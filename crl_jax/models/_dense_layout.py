"""Sums of neighbours as a matrix product: for accelerators, while users × items fit in memory."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, BFloat16, Bool, Float, Int, Int64

from .._pytree import pytree_dataclass


@pytree_dataclass(eq=False)
class DenseLayout:
    """The graph as a matrix of zeros and ones, which bfloat16 holds exactly.

    Attributes:
      taken: 1 where the user took the item, ``[n_users, n_items]``.
      edges: User and item of each interaction, ``[2, n]``; None where none is ever dropped.
    """

    taken: Any
    edges: Any

    @classmethod
    def from_csr(
        cls,
        indptr: Int64[np.ndarray, " rows"],
        items: Int[np.ndarray, " n"],
        n_items: int,
        droppable: bool,
    ) -> "DenseLayout":
        """Lays out interactions in CSR form."""
        n_users = len(indptr) - 1
        users = np.repeat(np.arange(n_users, dtype=np.int32), np.diff(indptr))
        edges = jnp.asarray(np.stack([users, items.astype(np.int32)]))
        taken = _matrix(n_users, n_items, edges, jnp.ones(len(items), jnp.bfloat16))
        return cls(taken, edges if droppable else None)

    def enter(self, users: Array, items: Array) -> tuple[Array, Array]:
        """Tables as they are."""
        return users, items

    leave = enter

    def sums(self, tables: tuple[Array, Array], scales: tuple[Array, Array]) -> tuple[Array, Array]:
        """The sums over each one's neighbours, scaled."""
        (users, items), (user_scale, item_scale) = tables, scales
        return user_scale * _times(self.taken, items, 1), item_scale * _times(self.taken, users, 0)

    def kept(self, keep: Bool[Array, "n"]) -> "DenseLayout":
        """Without the interactions that ``keep`` does not have."""
        assert self.edges is not None
        taken = _matrix(*self.taken.shape, self.edges, keep.astype(jnp.bfloat16))
        return replace(self, taken=taken)


@partial(jax.jit, static_argnums=(0, 1))
def _matrix(n_users: int, n_items: int, edges: Array, values: Array) -> Array:
    return jnp.zeros((n_users, n_items), jnp.bfloat16).at[edges[0], edges[1]].set(values)


def _times(
    matrix: BFloat16[Array, "m n"], table: Float[Array, "_rows dim"], side: int
) -> Float[Array, "_sums dim"]:
    """The product with the matrix, or with its transpose where ``side`` is 0."""
    if table.dtype == jnp.float32 and jax.default_backend() != "cpu":
        return _times_in_parts(matrix, table, side)
    # XLA's compiler for CPUs does not know all products of bfloat16.
    contract = (((side,), (0,)), ((), ()))
    exact = lax.Precision.HIGHEST
    return lax.dot_general(matrix.astype(table.dtype), table, contract, precision=exact)


def _times_in_parts(
    matrix: BFloat16[Array, "m n"], table: Float[Array, "_rows dim"], side: int
) -> Float[Array, "_sums dim"]:
    """The same for float32, by a fast product of three times the width and not a slow one.

    A float32 is the sum of three numbers of 8 bits each, whose products with 0 and 1 are exact in
    bfloat16.
    """
    contract = (((side,), (0,)), ((), ()))
    high = _eight_bits(table)
    middle = _eight_bits(table - high)
    low = table - high - middle
    parts = jnp.concatenate([high, middle, low], axis=1).astype(jnp.bfloat16)
    made = lax.dot_general(matrix, parts, contract, preferred_element_type=jnp.float32)
    high, middle, low = jnp.split(made, 3, axis=1)
    return high + (middle + low)


def _eight_bits(x: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
    # Not a cast to bfloat16 and back, which compilers may take for nothing.
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
