"""Base class of the baselines: models of a user's history that are fitted in closed form."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Int32
from scipy import sparse

from .._checks import check_count
from .._hyperparams import check_fields
from .._take import csr_entries
from ..data import Interactions
from ..metrics import top_k

_BLOCK = 256
"""Number of users that are scored at a time."""
Histories = sparse.csr_array
"""Binary rows of users, float32 ``[n, n_items]``: 1 for each item of the history."""
Arrays = Mapping[str, np.ndarray]
Scorer = Callable[[Histories], Float32[np.ndarray, "n n_items"]]
"""Function of the scores of all items for histories."""
Vectors = tuple[Float32[np.ndarray, "n dim"], Float32[np.ndarray, "n_items dim"]]


@dataclass(frozen=True)
class Baseline(ABC):
    """Recommender without gradient descent, as a frozen dataclass of its hyper-parameters.

    Raises:
      ValueError: If a hyper-parameter is out of range.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    def fit(self, train: Interactions) -> "FittedBaseline":
        """Fits the model to interactions, on the host.

        Raises:
          ValueError: If the data are empty, or too large for the model.
        """
        return FittedBaseline(self, train, self.arrays(histories(train)))

    @abstractmethod
    def arrays(self, rows: Histories) -> Arrays:
        """Returns the fitted arrays by name, from the histories of the training users.

        Raises:
          ValueError: If the data are too large for the model.
        """

    @abstractmethod
    def scorer(self, rows: Histories, arrays: Arrays) -> Scorer:
        """Returns the function of the scores, from the training histories and :meth:`arrays`."""

    def vectors(self, rows: Histories, arrays: Arrays) -> Vectors | None:
        """Returns vectors of users and items whose inner products are the scores.

        None for models whose scores are no inner products.
        """
        del rows, arrays
        return None


@dataclass(frozen=True, eq=False)
class FittedBaseline:
    """Fitted baseline, and a ``score_fn`` of :func:`crl_jax.metrics.evaluate`.

    As a score function it ignores its first argument, for which None may be passed. It computes on
    the host, by a callback; a mesh of several devices is not supported.

    Attributes:
      model: The baseline.
      train: The interactions that it was fitted to.
      arrays: Its fitted arrays by name, see :meth:`Baseline.arrays`.
    """

    model: Baseline
    train: Interactions
    arrays: Arrays

    def score_histories(self, rows: Histories) -> Float32[np.ndarray, "n n_items"]:
        """Returns the scores of all items for the histories of any users."""
        return self._scorer(rows)

    def scores(self, users: Any) -> Float32[np.ndarray, "n n_items"]:
        """Returns the scores of all items for the users of these indices."""
        return self.score_histories(self.histories[np.asarray(users)])

    def __call__(self, params: Any, users: Int[Array, " n"], /) -> Float[Array, "n n_items"]:
        """Returns :meth:`scores` inside compiled programs."""
        del params
        shape = jax.ShapeDtypeStruct((*users.shape, self.train.n_items), jnp.float32)
        return jax.pure_callback(self.scores, shape, users, vmap_method="sequential")

    def vectors(self) -> Vectors:
        """Returns vectors of all users and items whose inner products are the scores.

        They take the place of the tables of a trained encoder, such as in
        :func:`crl_jax.models.blend`.

        Raises:
          ValueError: If the model has no vectors; :class:`IALS` and :class:`EASE` have.
        """
        vectors = self.model.vectors(self.histories, self.arrays)
        if vectors is None:
            raise ValueError(
                f"`vectors` needs a model of inner products, got {type(self.model).__name__}."
            )
        return vectors

    def recommend(
        self, users: Any, k: int, *, exclude: Interactions | None = None
    ) -> tuple[Int32[np.ndarray, "n k"], Float32[np.ndarray, "n k"]]:
        """Returns the items with the greatest scores of each user, and their scores.

        Ties are broken by the lower index. Short lists are padded with -1 and -inf.

        Args:
          users: User indices ``[n]``.
          k: Number of items per user, at least 1.
          exclude: Items that are left out of the list of each user; by default those that the model
            was fitted to.

        Raises:
          ValueError: If ``k`` is below 1.
        """
        check_count("k", k)
        users, exclude = np.asarray(users), self.train if exclude is None else exclude
        items = np.full((len(users), k), -1, np.int32)
        best = np.full((len(users), k), -np.inf, np.float32)
        n_top = min(k, self.train.n_items)
        for start in range(0, len(users), _BLOCK):
            block = users[start : start + _BLOCK]
            scores = self.scores(block)
            bounds, entries = csr_entries(exclude.indptr, block)
            rows = np.repeat(np.arange(len(block)), np.diff(bounds))
            scores[rows, exclude.items[entries]] = -np.inf
            values, indices = map(np.asarray, top_k(jnp.asarray(scores), n_top))
            best[start : start + _BLOCK, :n_top] = values
            items[start : start + _BLOCK, :n_top] = np.where(values > -np.inf, indices, -1)
        return items, best

    def __getstate__(self) -> dict[str, Any]:
        """Returns the fields alone: functions that are cached cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def histories(self) -> Histories:
        """Histories of the training users."""
        return histories(self.train)

    @cached_property
    def _scorer(self) -> Scorer:
        return self.model.scorer(self.histories, self.arrays)


def histories(train: Interactions) -> Histories:
    """Returns the histories of all users, float32 ``[n_users, n_items]``.

    Raises:
      ValueError: If there are no interactions.
    """
    if not len(train):
        raise ValueError("`train` must have an interaction, got none.")
    ones = np.ones(len(train), np.float32)
    shape = train.n_users, train.n_items
    return sparse.csr_array((ones, train.items, train.indptr), shape=shape)


def dense(scores: Any) -> Float32[np.ndarray, "n n_items"]:
    """Returns sparse or dense scores as a contiguous float32 array."""
    array = scores.toarray() if sparse.issparse(scores) else np.asarray(scores)
    return np.ascontiguousarray(array, np.float32)
