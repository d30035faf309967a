"""Matrix factorisation: the encoder with nothing between the tables and the score."""

from collections.abc import Callable
from dataclasses import field
from functools import cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .._checks import check_range
from .._hyperparams import Scalar
from .._pytree import STATIC, pytree_dataclass
from ._encoder import Encoder, Tables

Initializer = Callable[[Key[Array, ""], tuple[int, int]], Array]
"""``initializer(key, shape)``, such as those of ``jax.nn.initializers``."""


@cache
def normal(deviation: float) -> Initializer:
    """Initial values from a normal law; equal calls give the same function, which jit caches by."""
    return jax.nn.initializers.normal(deviation)


xavier_normal: Initializer = jax.nn.initializers.xavier_normal()
xavier_uniform: Initializer = jax.nn.initializers.xavier_uniform()


def init_tables(
    key: Key[Array, ""], n_users: int, n_items: int, dim: int, initializer: Initializer
) -> dict[str, Array]:
    """A table of users and one of items, each with its own stream of ``key``."""
    return {
        "users": initializer(jax.random.fold_in(key, 0), (n_users, dim)),
        "items": initializer(jax.random.fold_in(key, 1), (n_items, dim)),
    }


@pytree_dataclass
class MatrixFactorization(Encoder):
    r"""Two embedding tables; by default their inner product, :math:`s_{ui} = w_u^\top h_i`.

    Attributes:
      initializer: Makes the initial values of each table; by default Xavier-normal ones, of
        deviation √(2 / (rows + dim)). Static.
      dropout: Probability in [0, 1) that a training step does without a number of a user's vector;
        the others then count 1 / (1 - dropout) times. None for no dropout.

    Raises:
      ValueError: If a size or ``dropout`` is out of its range.

    References:
      Koren et al., Matrix Factorization Techniques for Recommender Systems, 2009; the
      initialisation is that of the dissertation's chapters 5 and 6. Dropout of users' vectors is
      that of the published code of SimpleX (Mao et al., 2021) and BSL (Wu et al., 2024).
    """

    initializer: Initializer = field(default=xavier_normal, metadata=STATIC)
    dropout: Scalar | None = field(default=None, kw_only=True)
    by_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("dropout", self.dropout, 0, 1, high_open=True)

    def init(self, key: Key[Array, ""]) -> dict[str, Array]:
        """``users`` ``[n_users, dim]`` and ``items`` ``[n_items, dim]``."""
        return init_tables(key, self.n_users, self.n_items, self.dim, self.initializer)

    def encode(self, params: Any, key: Key[Array, ""] | None = None) -> Tables:
        """The tables themselves; with a key, users' vectors without what dropout leaves out."""
        users = params["users"]
        if key is not None and self.dropout is not None:
            users = _without(key, users, self.dropout)
        return Tables(users, params["items"])


def _without(
    key: Key[Array, ""], table: Float[Array, "rows dim"], rate: Scalar
) -> Float[Array, "rows dim"]:
    """Dropout, by numbers of 16 bits: half as many random words as a uniform law takes."""
    rate = jnp.asarray(rate, jnp.float32)
    keep = jax.random.bits(key, table.shape, jnp.uint16) >= (rate * 2**16).astype(jnp.uint16)
    return jnp.where(keep, table / (1 - rate).astype(table.dtype), jnp.zeros((), table.dtype))
