"""Encoders: from parameters to one vector for each user and item, and from vectors to scores."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key

from .._pytree import STATIC
from .._scaling import normalize_rows
from .._take import take_rows

Similarity = Literal["inner", "cosine"]


class Tables(NamedTuple):
    """What an encoder makes of its parameters.

    Attributes:
      users: One vector for each user, ``[n_users, dim]``.
      items: One vector for each item, ``[n_items, dim]``.
    """

    users: Float[Array, "n_users dim"]
    items: Float[Array, "n_items dim"]


@dataclass(frozen=True)
class Encoder(ABC):
    """A model of users and items, as pure functions of its parameters.

    An encoder is a frozen dataclass and a pytree. Sizes and switches are static, arrays such as
    graphs are leaves. Two equal encoders share their compiled programs.

    :meth:`encode` costs what the model costs; :meth:`score` is cheap. A training step encodes
    once, for its sampler and its loss, and so do validation and export. An encoder of one's own
    inherits from this class and defines :meth:`init` and :meth:`encode`.

    Attributes:
      n_users: Number of users.
      n_items: Number of items.
      dim: Width of the vectors.
      similarity: What a score is: the inner product of two vectors, or their cosine. Training may
        use another than serving: ``dataclasses.replace(encoder, similarity="inner")``.
      by_rows: Whether the parameters are tables ``users`` and ``items``, and :meth:`encode` makes
        each vector of its own row alone. Then some rows can be trained without the others.

    Raises:
      ValueError: If a size is not positive, or there is no such similarity.
    """

    n_users: int = field(metadata=STATIC)
    n_items: int = field(metadata=STATIC)
    dim: int = field(default=32, metadata=STATIC)
    similarity: Similarity = field(default="inner", metadata=STATIC)
    by_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("n_users", "n_items", "dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.similarity not in ("inner", "cosine"):
            raise ValueError(f"`similarity` must be inner or cosine, got {self.similarity!r}.")

    @abstractmethod
    def init(self, key: Key[Array, ""]) -> Any:
        """Initial parameters: arrays in any containers."""

    @abstractmethod
    def encode(self, params: Any, key: Key[Array, ""] | None = None) -> Tables:
        """The vectors of all users and items.

        Args:
          params: The parameters.
          key: Random key of what training leaves to chance, such as dropout; None outside it.
        """

    def score(
        self,
        tables: Tables,
        users: Int[Array | np.ndarray, "batch"],
        items: Int[Array | np.ndarray, "batch n"],
    ) -> Float[Array, "batch n"]:
        """Scores of each user with its own ``n`` items."""
        return self.score_vectors(take_rows(tables.users, users), take_rows(tables.items, items))

    def score_vectors(
        self, users: Float[Array, "batch dim"], items: Float[Array, "batch n dim"]
    ) -> Float[Array, "batch n"]:
        """The same from vectors that have been gathered."""
        # One gather of all items, one product: on CPUs a product of gathered rows written as a
        # multiply and a sum is fused with the gathers and runs at half the speed.
        return jnp.einsum("bd,bnd->bn", self._settle(users), self._settle(items))

    def score_shared(
        self, tables: Tables, users: Int[Array, "batch"], items: Int[Array, "n"]
    ) -> Float[Array, "n batch"]:
        """Scores of every user with every item; users trail, so that a vector holds many."""
        return self._settle(tables.items[items]) @ self._settle(tables.users[users]).T

    def is_table(self, params: Any) -> Any:
        """Which parameters have a row for each user, or for each item, as bools.

        By default all arrays that lead with either number. On several devices such tables may be
        spread by rows.
        """
        rows = (self.n_users, self.n_items)
        return jax.tree.map(lambda x: x.ndim > 1 and x.shape[0] in rows, params)

    def shard(self, mesh: Mesh) -> "Encoder":
        """The same encoder for parameters that lie on a mesh; by default it needs no change."""
        del mesh
        return self

    def base_tables(self, params: Any) -> Tables:
        """The embeddings before any layer, on which an L2 term may act."""
        return Tables(params["users"], params["items"])

    def serving_tables(self, params: Any) -> Tables:
        """Vectors whose inner products are the scores: of length 1 for cosines."""
        return Tables(*(self._settle(table) for table in self.encode(params)))

    def _settle(self, vectors: Any) -> Any:
        return normalize_rows(vectors) if self.similarity == "cosine" else vectors


def inner_scores(tables: Tables, users: Int[Array, "batch"]) -> Float[Array, "batch n_items"]:
    """Scores of some users with the whole catalogue, in full float32 on every backend.

    Args:
      tables: Vectors whose inner products are the scores, see :meth:`Encoder.serving_tables`.
      users: The users.
    """
    return jnp.matmul(tables.users[users], tables.items.T, precision=jax.lax.Precision.HIGHEST)
