"""Matrix factorisation, an encoder of two embedding tables."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .._hyperparams import Range, Scalar
from .._pytree import STATIC, pytree_dataclass
from ._encoder import Encoder, Tables

Initializer = Callable[[Key[Array, ""], tuple[int, int]], Array]
"""``initializer(key, shape)``, such as those of ``jax.nn.initializers``."""


@dataclass(frozen=True)
class _Normal:
    """Equal for equal deviations, so that jit caches match, and can be pickled."""

    deviation: float

    def __call__(self, key: Key[Array, ""], shape: tuple[int, int]) -> Array:
        return jax.nn.initializers.normal(self.deviation)(key, shape)


def normal(deviation: float) -> Initializer:
    """Normal initializer; initializers of equal deviations are equal."""
    return _Normal(deviation)


def xavier_normal(key: Key[Array, ""], shape: tuple[int, int]) -> Array:
    """Xavier normal initializer, :func:`jax.nn.initializers.xavier_normal` with its defaults."""
    return jax.nn.initializers.xavier_normal()(key, shape)


def xavier_uniform(key: Key[Array, ""], shape: tuple[int, int]) -> Array:
    """Xavier uniform initializer, :func:`jax.nn.initializers.xavier_uniform` with its defaults."""
    return jax.nn.initializers.xavier_uniform()(key, shape)


def init_tables(
    key: Key[Array, ""], n_users: int, n_items: int, dim: int, initializer: Initializer
) -> dict[str, Array]:
    """Returns tables of users and items, each with its own random stream."""
    return {
        "users": initializer(jax.random.fold_in(key, 0), (n_users, dim)),
        "items": initializer(jax.random.fold_in(key, 1), (n_items, dim)),
    }


@pytree_dataclass
class MatrixFactorization(Encoder):
    r"""Matrix factorisation: two embedding tables.

    By default the score is the inner product :math:`s_{ui} = w_u^\top h_i`.

    Attributes:
      initializer: Initializer of each table; by default Xavier normal, with standard deviation
        √(2 / (rows + dim)). Static.
      dropout: Dropout rate of the elements of user vectors in training, in [0, 1); None for none.

    Raises:
      ValueError: If a size or ``dropout`` is out of range.

    References:
      Koren et al., Matrix Factorization Techniques for Recommender Systems, 2009; the
      initialisation is that of the dissertation's chapters 5 and 6. Dropout of user
      vectors is that of the published code of SimpleX (Mao et al., 2021) and BSL (Wu et al., 2024).
    """

    initializer: Initializer = field(default=xavier_normal, metadata=STATIC)
    dropout: Annotated[Scalar | None, Range(0, 1, high_open=True)] = field(
        default=None, kw_only=True
    )
    by_rows: ClassVar[bool] = True

    def init(self, key: Key[Array, ""]) -> dict[str, Array]:
        """Returns ``users`` ``[n_users, dim]`` and ``items`` ``[n_items, dim]``."""
        return init_tables(key, self.n_users, self.n_items, self.dim, self.initializer)

    def encode(self, params: Any, key: Key[Array, ""] | None = None) -> Tables:
        """Returns the tables, with dropout of user vectors if there is a key."""
        users = params["users"]
        if key is not None and self.dropout is not None:
            users = _dropout(key, users, self.dropout)
        return Tables(users, params["items"])


def _dropout(
    key: Key[Array, ""], table: Float[Array, "rows dim"], rate: Scalar
) -> Float[Array, "rows dim"]:
    """Dropout by 16-bit integers: half of the random bits of a uniform distribution."""
    rate = jnp.asarray(rate, jnp.float32)
    keep = jax.random.bits(key, table.shape, jnp.uint16) >= (rate * 2**16).astype(jnp.uint16)
    return jnp.where(keep, table / (1 - rate).astype(table.dtype), jnp.zeros((), table.dtype))
