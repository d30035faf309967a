"""Saved model of a recommendation run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np

from crl_jax import baselines, data, models, serving, train

from .._ranges import shorten
from .._rundir import CHECKPOINT, CONFIG, METRICS
from ._config import Config
from ._features import FeatureTables
from .encoders import ENCODERS

MODEL, RECOMMENDER = "model.npz", "recommender.npz"
FITTED = "seed-{}.npz"
"""Name of the file of a fitted baseline."""
RankingModel: TypeAlias = models.Tables | FeatureTables | baselines.FittedBaseline


@dataclass(frozen=True)
class Model:
    """Trained models and interactions of a run, for recommendations.

    Attributes:
      tables: Vectors of users and items whose inner products are the scores, leading axis
        ``seeds``; or the fitted baselines of all seeds.
      known: Training and validation set, with the original ids.
      test: Test set.
      trained_on: Names of the data parts that it was trained on: train, valid, test.
    """

    tables: models.Tables | list[baselines.FittedBaseline]
    known: data.Interactions
    test: data.Interactions
    trained_on: tuple[str, ...]

    @property
    def n_seeds(self) -> int:
        """Number of seeds."""
        return len(self.tables if isinstance(self.tables, list) else self.tables.users)

    def select_seed(self, index: int) -> RankingModel:
        """Returns the model of a seed."""
        if isinstance(self.tables, list):
            return self.tables[index]
        return models.Tables(*(table[index] for table in self.tables))


def score_fn_and_params(learned: RankingModel) -> tuple[Callable[..., Any], Any]:
    """Returns the score function of a model, and its parameters."""
    if isinstance(learned, baselines.FittedBaseline):
        return learned, None
    return models.inner_scores, models.Tables(learned.users, learned.items)


def save_model(folder: Path, model: Model, config: Config) -> None:
    """Saves the model of a run."""
    meta: dict[str, Any] = {"trained_on": list(model.trained_on)}
    tree: dict[str, Any] = {}
    if isinstance(model.tables, list):
        meta["seeds"] = model.n_seeds
        for index, fitted in enumerate(model.tables):
            path = folder / CHECKPOINT / FITTED.format(index)
            serving.BaselineRecommender.from_fitted(fitted).save(path)
    else:
        meta["encoder"] = config.encoding.encoder
        tree["tables"] = jax.device_get(model.tables)._asdict()
    tree |= {
        "user_ids": model.known.user_ids,
        "item_ids": model.known.item_ids,
        "indptr": model.known.indptr,
        "items": model.known.items,
        "test_indptr": model.test.indptr,
        "test_items": model.test.items,
    }
    train.save_checkpoint(folder / CHECKPOINT / MODEL, tree, meta)


def load_model(folder: Path) -> Model:
    """Loads the model of a run, see :func:`save_model`.

    Raises:
      ValueError: If there is no trained model in ``folder``, or it is damaged.
    """
    path = folder / CHECKPOINT / MODEL
    try:
        stored, meta = train.load_checkpoint(path)
    except FileNotFoundError:
        hint = "it holds no run"
        if (folder / METRICS).exists():
            hint = f"{path} is missing, or another command trained it"
        elif (folder / CONFIG).exists():
            hint = "its training is not finished"
        raise ValueError(f"{folder} has no trained model: {hint}.") from None
    _check_names(path, stored, meta)
    try:
        known, test = (
            data.Interactions(
                indptr=stored[f"{prefix}indptr"],
                items=stored[f"{prefix}items"],
                user_ids=stored["user_ids"],
                item_ids=stored["item_ids"],
            )
            for prefix in ("", "test_")
        )
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: expected the interactions of a run, got: {error}") from None
    trained_on = tuple(meta["trained_on"])
    if "seeds" in meta:
        paths = [path.with_name(FITTED.format(index)) for index in range(meta["seeds"])]
        fitted = [serving.BaselineRecommender.load(path).fitted for path in paths]
        return Model(fitted, known, test, trained_on)
    tables = models.Tables(stored["tables/users"], stored["tables/items"])
    n_seeds, dim = (tables.users.shape[0], tables.users.shape[-1]) if tables.users.ndim else (0, 0)
    for name, table, rows in zip(tables._fields, tables, (known.n_users, known.n_items)):
        wanted = max(n_seeds, 1), rows, max(dim, 1)
        if table.shape != wanted or table.dtype != np.float32:
            raise ValueError(
                f"{path}: expected tables/{name} as float32{list(wanted)}, "
                f"got {table.dtype}{list(table.shape)}."
            )
    return Model(tables, known, test, trained_on)


def _check_names(path: Path, stored: dict[str, Any], meta: Any) -> None:
    is_fitted = isinstance(meta, dict) and "seeds" in meta
    tables = [] if is_fitted else ["tables/items", "tables/users"]
    wanted = [
        "indptr", "item_ids", "items", *tables, "test_indptr", "test_items", "user_ids",
    ]  # fmt: skip
    if sorted(stored) != wanted:
        raise ValueError(f"{path}: expected the arrays {wanted}, got {sorted(stored)}.")
    if is_fitted:
        if not isinstance(meta["seeds"], int) or meta["seeds"] < 1:
            raise ValueError(f"{path}: expected the number of seeds, got {shorten(meta)}.")
    elif not isinstance(meta, dict) or meta.get("encoder") not in ENCODERS:
        known = ", ".join(ENCODERS)
        raise ValueError(f"{path}: expected an encoder among {known}, got {shorten(meta)}.")
    parts = meta.get("trained_on")
    if not isinstance(parts, list) or not all(part in ("train", "valid", "test") for part in parts):
        raise ValueError(f"{path}: expected the parts it was trained on, got {shorten(parts)}.")
