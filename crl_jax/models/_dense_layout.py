"""Neighbour sums as a dense matrix product: for accelerators with memory for users × items."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, BFloat16, Bool, Float

from .._pytree import pytree_dataclass
from ..data import Interactions
from ._gather_layout import Pair


@pytree_dataclass(eq=False)
class DenseLayout:
    """Adjacency matrix in bfloat16, which represents 0 and 1 exactly."""

    adjacency: Any  # [n_users, n_items]
    edges: Any  # user and item of each interaction, [2, n]; None if edges cannot be dropped

    @classmethod
    def from_interactions(cls, train: Interactions, droppable: bool) -> "DenseLayout":
        """Builds the layout of a log; edges can be dropped if ``droppable``."""
        edges = jnp.asarray(np.stack([train.users, train.items]).astype(np.int32))
        adjacency = _matrix(train.n_users, train.n_items, edges, jnp.ones(len(train), jnp.bfloat16))
        return cls(adjacency, edges if droppable else None)

    def permute(self, users: Array, items: Array) -> Pair:
        """Returns the tables unchanged."""
        return users, items

    unpermute = permute

    def neighbour_sums(self, tables: Pair, scales: Pair) -> Pair:
        """Scaled sums over the neighbours of each user and item."""
        (users, items), (user_scale, item_scale) = tables, scales
        user_sums, item_sums = _times(self.adjacency, items, 1), _times(self.adjacency, users, 0)
        return user_scale * user_sums, item_scale * item_sums

    def mask_edges(self, keep: Bool[Array, "n"]) -> "DenseLayout":
        """Returns the layout with only the interactions where ``keep`` is True."""
        assert self.edges is not None
        adjacency = _matrix(*self.adjacency.shape, self.edges, keep.astype(jnp.bfloat16))
        return replace(self, adjacency=adjacency)


@partial(jax.jit, static_argnums=(0, 1))
def _matrix(n_users: int, n_items: int, edges: Array, values: Array) -> Array:
    return jnp.zeros((n_users, n_items), jnp.bfloat16).at[edges[0], edges[1]].set(values)


def _times(
    matrix: BFloat16[Array, "m n"], table: Float[Array, "_rows dim"], side: int
) -> Float[Array, "_sums dim"]:
    """Product with the matrix, or with its transpose if ``side`` is 0."""
    exact = partial(_times_exact, side=side)
    if table.dtype != jnp.float32:
        return exact(matrix, table)
    split = partial(_times_split, side=side)
    return lax.platform_dependent(matrix, table, cpu=exact, default=split)


def _times_exact(matrix: Array, table: Array, side: int) -> Array:
    """Product in the dtype of the table: XLA on CPUs lacks some bfloat16 products."""
    contract = (((side,), (0,)), ((), ()))
    return lax.dot_general(
        matrix.astype(table.dtype), table, contract, precision=lax.Precision.HIGHEST
    )


def _times_split(
    matrix: BFloat16[Array, "m n"], table: Float[Array, "_rows dim"], side: int
) -> Float[Array, "_sums dim"]:
    """Exact float32 product as one fast bfloat16 product of three times the width.

    A float32 is the sum of three numbers of 8 bits each, whose products with 0 and 1 are exact in
    bfloat16.
    """
    contract = (((side,), (0,)), ((), ()))
    high = _eight_bits(table)
    middle = _eight_bits(table - high)
    low = table - high - middle
    parts = jnp.concatenate([high, middle, low], axis=1).astype(jnp.bfloat16)
    product = lax.dot_general(matrix, parts, contract, preferred_element_type=jnp.float32)
    high, middle, low = jnp.split(product, 3, axis=1)
    return high + (middle + low)


def _eight_bits(x: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
    # Compilers may remove a cast to bfloat16 and back.
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
