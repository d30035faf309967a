"""Flax modules as pure functions of their parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
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


class Functional(NamedTuple):
    """A recommender taken apart: three pure functions.

    Attributes:
      init: ``init(key) -> params``, nested dicts of arrays.
      score: ``score(params, users, items) -> [batch, n]``.
      score_all: ``score_all(params, users) -> [batch, n_items]``.
    """

    init: Callable[[Key[Array, ""]], Any]
    score: Callable[[Any, Array, Array], Array]
    score_all: Callable[[Any, Array], Array]


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

    return Functional(init, score, score_all)
