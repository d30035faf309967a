"""Flax modules as pure functions of their parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key


class Recommender(Protocol):
    """A module that scores users against items."""

    def __call__(
        self, users: Int[Array, "batch"], items: Int[Array, "batch n"]
    ) -> Float[Array, "batch n"]:
        """Scores of each user with its own ``n`` items."""
        ...

    def all_scores(self, users: Int[Array, "batch"]) -> Float[Array, "batch n_items"]:
        """Scores of each user with the whole catalogue."""
        ...


class SharedScores(Protocol):
    """A recommender that can score all users of a batch against the same few items.

    An encoder without this method is asked for each pair by itself, which costs a gather where a
    product would do.
    """

    def shared_scores(
        self, users: Int[Array, "batch"], items: Int[Array, "n"]
    ) -> Float[Array, "n batch"]:
        """Scores of every user with every item; users trail, so that a vector holds many."""
        ...


@runtime_checkable
class RowScores(Protocol):
    """A recommender whose scores depend on a few rows of its tables.

    It can be trained row by row: a step then costs what the rows of its batch cost, and not what
    the tables cost.
    """

    def row_ids(self, users: Int[Array, "batch"], items: Int[Array, "batch n"]) -> dict[str, Array]:
        """Which rows of each table the scores of ``users`` with ``items`` depend on."""
        ...

    def row_scores(self, rows: dict[str, Array]) -> Float[Array, "batch n"]:
        """Those scores, from the rows."""
        ...


class Functional(NamedTuple):
    """A recommender taken apart: pure functions.

    Attributes:
      init: ``init(key) -> params``, nested dicts of arrays.
      score: ``score(params, users, items) -> [batch, n]``.
      score_all: ``score_all(params, users) -> [batch, n_items]``.
      score_shared: ``score_shared(params, users [batch], items [n]) -> [n, batch]``, every user
        with every item.
      row_ids: ``row_ids(users, items)``: the rows of each table that the scores depend on, or
        None for an encoder that is no :class:`RowScores`.
      row_scores: ``row_scores(rows) -> [batch, n]``, the scores from these rows, or None.
    """

    init: Callable[[Key[Array, ""]], Any]
    score: Callable[[Any, Array, Array], Array]
    score_all: Callable[[Any, Array], Array]
    score_shared: Callable[[Any, Array, Array], Array]
    row_ids: Callable[[Array, Array], Any] | None = None
    row_scores: Callable[[Any], Array] | None = None


def functional(build: Callable[[nnx.Rngs], Any]) -> Functional:
    """Takes a module apart so that only arrays cross ``jit``, ``grad``, ``scan`` and ``vmap``.

    The module is a constructor of parameters: its graph is read once, without computing
    anything, and merged with the parameters while tracing.

    Args:
      build: Makes the module from random streams, for instance
        ``lambda rngs: MatrixFactorization(10, 20, rngs=rngs)``. All its variables must be
        ``nnx.Param``.

    Returns:
      The :class:`Functional`. Keep it: each call of this function makes new functions, and ``jit``
      caches by function.

    Raises:
      ValueError: If the module has state besides its parameters.
    """
    abstract = nnx.eval_shape(lambda: build(nnx.Rngs(params=0)))
    graphdef, _, rest = nnx.split(abstract, nnx.Param, ...)
    if jax.tree.leaves(rest):
        raise ValueError(f"`build` must make a module with parameters alone, got also {rest}.")

    def init(key: Key[Array, ""]) -> Any:
        return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(params=key)), nnx.Param))

    def score(params: Any, users: Array, items: Array) -> Array:
        return nnx.merge(graphdef, params)(users, items)

    def score_all(params: Any, users: Array) -> Array:
        return nnx.merge(graphdef, params).all_scores(users)

    def score_shared(params: Any, users: Array, items: Array) -> Array:
        module = nnx.merge(graphdef, params)
        if hasattr(module, "shared_scores"):
            return module.shared_scores(users, items)
        return module(users, jnp.broadcast_to(items, (users.shape[0], items.shape[0]))).T

    if not isinstance(abstract, RowScores):
        return Functional(init, score, score_all, score_shared)
    return Functional(init, score, score_all, score_shared, abstract.row_ids, abstract.row_scores)
