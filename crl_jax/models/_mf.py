"""Matrix factorisation: the encoder with nothing between the tables and the score."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int


class MatrixFactorization(nnx.Module):
    r"""Two embedding tables and their inner product, :math:`s_{ui} = \mathbf w_u^\top \mathbf h_i`.

    Args:
      n_users: Rows of the user table.
      n_items: Rows of the item table.
      dim: Width of both tables.
      init: Makes the initial values; by default Xavier-normal ones, of deviation
        √(2 / (rows + dim)).
      rngs: Source of the initial values (its ``params`` stream).

    References:
      Koren et al., Matrix Factorization Techniques for Recommender Systems, 2009; the
      initialisation is that of the dissertation's chapters 5 and 6.
    """

    def __init__(
        self, n_users: int, n_items: int, dim: int = 32, *, init: Any = None, rngs: nnx.Rngs
    ):
        init = init or nnx.initializers.xavier_normal()
        self.users = nnx.Param(init(rngs.params(), (n_users, dim)))
        self.items = nnx.Param(init(rngs.params(), (n_items, dim)))

    def __call__(
        self, users: Int[Array, "batch"], items: Int[Array, "batch n"]
    ) -> Float[Array, "batch n"]:
        """Scores of each user with its own ``n`` items."""
        return self.row_scores({"users": self.users[users], "items": self.items[items]})

    @staticmethod
    def row_ids(users: Int[Array, "batch"], items: Int[Array, "batch n"]) -> dict[str, Array]:
        """A row of the user table for each anchor, one of the item table for each score."""
        return {"users": users, "items": items}

    @staticmethod
    def row_scores(rows: dict[str, Array]) -> Float[Array, "batch n"]:
        """Products of the users' rows ``[batch, dim]`` with the items' ``[batch, n, dim]``."""
        # One gather of all items, one product: on CPUs a product of gathered rows written as a
        # multiply and a sum is fused with the gathers and runs at half the speed.
        return jnp.einsum("bd,bnd->bn", rows["users"], rows["items"])

    def shared_scores(
        self, users: Int[Array, "batch"], items: Int[Array, "n"]
    ) -> Float[Array, "n batch"]:
        """Scores of every user with every item, users trailing: one product."""
        return self.items[items] @ self.users[users].T

    def all_scores(self, users: Int[Array, "batch"]) -> Float[Array, "batch n_items"]:
        """Scores of each user with the whole catalogue, in full float32 on every backend."""
        return jnp.matmul(self.users[users], self.items[...].T, precision=jax.lax.Precision.HIGHEST)
