"""Base class of encoders, which map parameters to user and item vectors, and vectors to scores."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key

from .._checks import is_static
from .._hyperparams import Range, check_fields
from .._pytree import STATIC, serializable
from .._scaling import normalize_rows
from .._take import take_rows

Similarity = Literal["inner", "cosine"]
"""Similarity of user and item vectors: inner product or cosine."""


@serializable
class Tables(NamedTuple):
    """User and item vectors of an encoder: ``[n_users, dim]`` and ``[n_items, dim]``."""

    users: Float[Array, "n_users dim"]
    items: Float[Array, "n_items dim"]


@dataclass(frozen=True)
class Encoder(ABC):
    """Model of users and items as pure functions of its parameters.

    An encoder is a frozen dataclass and a pytree: sizes and options are static, arrays such as
    graphs are leaves. Equal encoders share compiled programs. Subclasses define :meth:`init` and
    :meth:`encode`.

    :meth:`encode` runs the model; :meth:`score` is cheap. A training step encodes once for its
    sampler and its loss; so do validation and export.

    Attributes:
      n_users: Number of users.
      n_items: Number of items.
      dim: Dimension of the vectors.
      similarity: Score of two vectors: ``"inner"`` product or ``"cosine"``. Training may use
        another one than serving: ``dataclasses.replace(encoder, similarity="inner")``.
      by_rows: Whether the parameters are tables ``users`` and ``items`` and each vector depends on
        its own row only, so that some rows can be trained without the others.

    Raises:
      ValueError: If a size is not positive or the similarity is unknown.
    """

    n_users: Annotated[int, Range(1)] = field(metadata=STATIC)
    n_items: Annotated[int, Range(1)] = field(metadata=STATIC)
    dim: Annotated[int, Range(1)] = field(default=32, metadata=STATIC)
    similarity: Similarity = field(default="inner", metadata=STATIC)
    by_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def init(self, key: Key[Array, ""]) -> Any:
        """Returns initial parameters: a pytree of arrays."""

    @abstractmethod
    def encode(self, params: Any, key: Key[Array, ""] | None = None) -> Tables:
        """Returns the vectors of all users and items.

        With a random ``key`` for training, for instance with dropout; without for inference.
        """

    def score(
        self,
        tables: Tables,
        users: Int[Array | np.ndarray, "batch"],
        items: Int[Array | np.ndarray, "batch n"],
    ) -> Float[Array, "batch n"]:
        """Scores of each user with its ``n`` candidates.

        Precision: float32 products have the platform's default precision, as in all training.
        """
        anchors, candidates = self._lookup(tables.users, users), self._lookup(tables.items, items)
        # On CPUs a multiply and a sum would be fused with the gathers and run at half the speed.
        return jnp.einsum("bd,bnd->bn", anchors, candidates)

    def _lookup(
        self, table: Float[Array, "n dim"], index: Int[Array | np.ndarray, "*shape"]
    ) -> Float[Array, "*shape dim"]:
        """Rows for :meth:`score`, normalised before the lookup if that makes fewer of them."""
        if is_static(*index.shape, len(table)) and index.size > len(table):
            return take_rows(self._normalize(table), index)
        return self._normalize(take_rows(table, index))

    def score_shared(
        self, tables: Tables, users: Int[Array, "batch"], items: Int[Array, "n"]
    ) -> Float[Array, "n batch"]:
        """Scores of all users with all items; users are the last axis for vectorisation.

        Precision: that of :meth:`score`.
        """
        return self._normalize(tables.items[items]) @ self._normalize(tables.users[users]).T

    def table_paths(self) -> tuple[str, ...]:
        """Paths of the parameters with a row per user or item, which may be sharded by row."""
        return ("users", "items")

    def shard(self, mesh: Mesh) -> "Encoder":
        """Returns the encoder for parameters that are sharded on a mesh; unchanged by default."""
        del mesh
        return self

    def base_tables(self, params: Any) -> Tables:
        """Embeddings before the first layer, for L2 regularisation."""
        return Tables(params["users"], params["items"])

    def serving_tables(self, params: Any) -> Tables:
        """Vectors whose inner products are the scores: unit vectors for cosine similarity."""
        return Tables(*(self._normalize(table) for table in self.encode(params)))

    def _normalize(self, vectors: Any) -> Any:
        return normalize_rows(vectors) if self.similarity == "cosine" else vectors


def inner_scores(tables: Tables, users: Int[Array, "batch"]) -> Float[Array, "batch n_items"]:
    """Scores of users with all items, in full float32 on every backend.

    ``tables`` are vectors whose inner products are the scores, see :meth:`Encoder.serving_tables`.
    """
    return jnp.matmul(tables.users[users], tables.items.T, precision=jax.lax.Precision.HIGHEST)
