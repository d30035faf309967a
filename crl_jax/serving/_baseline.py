"""Recommender of a fitted baseline, and loading of either class of recommenders."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32
from scipy import sparse

from .. import baselines
from ..baselines import Baseline, FittedBaseline
from ..data import Interactions
from ._base import BaseRecommender, Csr, read
from ._export import export
from ._rank import best_on_host
from ._recommender import Recommender
from ._results import Recommendations

_USERS = 256
"""Number of users whose pairs are scored at a time."""
_MODELS: dict[str, type[Baseline]] = {
    name: cls
    for name, cls in vars(baselines).items()
    if isinstance(cls, type) and issubclass(cls, Baseline) and cls is not Baseline
}
_ARRAYS = {
    f"{part}/{name}" for part in ("known", "train") for name in ("indptr", "items")
} | {"user_ids", "item_ids"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class BaselineRecommender(BaseRecommender):
    """Fitted baseline, queried by the ids of the dataset.

    Construct it with :meth:`from_fitted` or :meth:`load`. A user is scored by the interactions that
    the baseline was fitted to; pass later ones to :meth:`recommend_new`. Scores are computed on the
    host, in blocks of users. Lists are exact; ties are broken by catalogue order.

    Attributes:
      fitted: The fitted baseline.
      known: Known interactions, which are excluded from lists, with the ids of users and items.

    Raises:
      ValueError: If ``known`` has other users or items than ``fitted``, or a fitted number is not
        finite.

    >>> from crl_jax.baselines import Popularity
    >>> log = Interactions.from_arrays(["ann", "ann", "bob"], ["tea", "milk", "tea"])
    >>> model = BaselineRecommender.from_fitted(Popularity().fit(log))
    >>> print(model.recommend("bob", 1).to_dict(), model.score("ann", ["tea", "milk"]))
    {'bob': [('milk', 1.0)]} [2. 1.]
    """

    fitted: FittedBaseline
    known: Interactions

    _format, _kind = "crl_jax baseline", "fitted baseline"

    def __post_init__(self) -> None:
        for name in ("user_ids", "item_ids"):
            own, fitted = getattr(self.known, name), getattr(self.fitted.train, name)
            if not np.array_equal(own, fitted):
                raise ValueError(
                    f"`known` must have the {name} of the training data, got {len(own)} and "
                    f"{len(fitted)} different ones."
                )
        for name, array in self.fitted.arrays.items():
            if not np.isfinite(array).all():
                raise ValueError(f"`fitted` must be finite, got NaN or infinity in {name}.")

    @classmethod
    def from_fitted(
        cls, fitted: FittedBaseline, known: Interactions | None = None
    ) -> "BaselineRecommender":
        """Constructs a recommender from a fitted baseline.

        Args:
          fitted: The result of :meth:`crl_jax.baselines.Baseline.fit`.
          known: Interactions that are excluded from lists; by default those that it was fitted to.

        Raises:
          ValueError: As :class:`BaselineRecommender`.
        """
        known = fitted.train if known is None else known
        return cls(fitted, replace(known, ratings=None, timestamps=None))

    @classmethod
    def _restored(
        cls, stored: dict[str, np.ndarray], meta: dict[str, Any]
    ) -> "BaselineRecommender":
        own = {name for name in stored if not name.startswith("arrays/")}
        if own != _ARRAYS:
            raise ValueError(f"expected the arrays {sorted(_ARRAYS)}, got {sorted(own)}.")
        ids = {name: stored[name] for name in ("user_ids", "item_ids")}
        known, train = (
            Interactions(indptr=stored[f"{part}/indptr"], items=stored[f"{part}/items"], **ids)
            for part in ("known", "train")
        )
        name, hyperparams = meta.get("model"), meta.get("hyperparams")
        if name not in _MODELS or not isinstance(hyperparams, dict):
            raise ValueError(f"expected one of {', '.join(_MODELS)}, got {name!r}.")
        arrays = {name.partition("/")[2]: stored[name] for name in stored if name not in _ARRAYS}
        return cls(_restored_fitted(_MODELS[name](**hyperparams), train, arrays), known)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the recommender atomically to one file, without pickle.

        Args:
          path: The file; by convention ``recommender.npz`` in the run directory.

        Raises:
          ValueError: If the baseline is not one of :mod:`crl_jax.baselines`.
        """
        model, name = self.fitted.model, type(self.fitted.model).__name__
        if _MODELS.get(name) is not type(model):
            raise ValueError(f"`fitted` must be one of {', '.join(_MODELS)}, got {name}.")
        parts = {"known": self.known, "train": self.fitted.train}
        tree: dict[str, Any] = {n: {"indptr": p.indptr, "items": p.items} for n, p in parts.items()}
        tree |= {**self._ids_by_name(), "arrays": dict(self.fitted.arrays)}
        numbers = {n: np.asarray(value).item() for n, value in asdict(model).items()}
        self._write(path, tree, {"model": name, "hyperparams": numbers})

    def recommend_new(
        self,
        items: Any,
        k: int = 10,
        *,
        include_known: bool = False,
        candidates: Any = None,
        exclude: Any = None,
    ) -> Recommendations:
        """Returns the top-k items of users with any histories, who need not be in the data.

        Args:
          items: Item ids of one user; a list of such lists for several users, who are named 0, 1,
            …; a mapping from names of users to lists; or Interactions.
          k: Number of items per user, >= 1.
          include_known: Whether ``items`` may be recommended.
          candidates: As for :meth:`recommend`.
          exclude: As for :meth:`recommend`.

        Raises:
          ValueError: If an item is unknown, a user has none, or ``k`` is below 1.
        """
        users, known = self._baskets(items)
        shape = len(users), self.known.n_items
        rows = sparse.csr_array((np.ones(len(known[1]), np.float32), known[1], known[0]), shape)
        lists = self._top_k(rows, known, k, include_known, candidates, exclude)
        return Recommendations(users, *lists, np.zeros(len(users), bool))

    def export(self, path: str | os.PathLike[str]) -> None:
        """Exports the fitted arrays and the ids for other tools, atomically.

        The arrays are those of the fitted baseline, with ``user_ids`` and ``item_ids``.
        The suffix of ``path`` selects the format: ``.npz``, or ``.safetensors`` (text ids are
        stored as JSON in the metadata; needs the package safetensors).

        Raises:
          ValueError: If the suffix is another one, or the package of the format is not installed.
        """
        export(path, {**self.fitted.arrays, **self._ids_by_name()}, (".npz", ".safetensors"))

    def __repr__(self) -> str:
        sizes = f"{self.known.n_users} users, {self.known.n_items} items"
        return f"BaselineRecommender({sizes}, {self.fitted.model})"

    def _queries(self, users: np.ndarray) -> sparse.csr_array:
        return self.fitted.histories[users]

    def _best(
        self, queries: Any, known: Csr, mask: np.ndarray | None, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        score = self.fitted.score_histories
        return best_on_host(lambda block: score(queries[block]), known, self.known.n_items, mask, k)

    def _scores(self, users: np.ndarray, items: np.ndarray) -> Float32[np.ndarray, " n"]:
        scores, distinct_users = np.empty(len(users), np.float32), np.unique(users)
        for start in range(0, len(distinct_users), _USERS):
            block = distinct_users[start : start + _USERS]
            positions = np.flatnonzero(np.isin(users, block))
            scores[positions] = self.fitted.scores(block)[
                np.searchsorted(block, users[positions]), items[positions]
            ]
        return scores

    def _is_cold(self, users: np.ndarray) -> Bool[np.ndarray, " n"]:
        return self.fitted.train.degrees[users] == 0


def load(path: str | os.PathLike[str]) -> Recommender | BaselineRecommender:
    """Loads a recommender of either class, written by its ``save``.

    Args:
      path: The file, or a run directory that contains ``recommender.npz``.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If the file is damaged or has another format or version.
    """
    file, stored, meta = read(path)
    is_baseline = meta.get("format") == BaselineRecommender._format
    return (BaselineRecommender if is_baseline else Recommender).restored(file, stored, meta)


def _restored_fitted(
    model: Baseline, train: Interactions, arrays: Mapping[str, np.ndarray]
) -> FittedBaseline:
    """Returns a fitted baseline from stored arrays.

    Raises:
      ValueError: If the arrays are not those of the model. Other errors of NumPy are possible.
    """
    fitted = FittedBaseline(model, train, arrays)
    scores = fitted.scores([0])
    if scores.shape != (1, train.n_items) or scores.dtype != np.float32:
        raise ValueError(f"the arrays {sorted(arrays)} are not those of {model}.")
    return fitted
