"""Vectors of users and items that were not in training, from their side features."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32

from .._checks import check_shape
from ..data import FeatureSchema, FeatureTable


@dataclass(frozen=True, eq=False)
class FeatureModel:
    """Linear function from raw side features to vectors, on the host.

    It is the feature part of a trained :class:`crl_jax.models.FeatureEncoder`.

    Attributes:
      schema: Encoding of raw features.
      dense: Weights of the dense features, float32 ``[n_dense, dim]``.
      categories: Embeddings of the categories, float32 ``[n_categories, dim]``.

    Raises:
      ValueError: If an array has another number of rows than the schema, the widths differ, or a
        weight is not a finite number.
    """

    schema: FeatureSchema
    dense: Float32[np.ndarray, "n_dense dim"]
    categories: Float32[np.ndarray, "n_categories dim"]

    def __post_init__(self) -> None:
        dim = self.dense.shape[1] if np.ndim(self.dense) == 2 else 0
        rows = {"dense": self.schema.n_dense, "categories": self.schema.n_categories}
        for name, n in rows.items():
            array = getattr(self, name)
            check_shape(name, array, (n, dim))
            if array.dtype.kind != "f" or not np.isfinite(array).all():
                raise ValueError(
                    f"`{name}` must be finite numbers, got NaN, infinity or another type "
                    f"({array.dtype}): the model diverged, or the file is damaged."
                )

    @classmethod
    def from_params(cls, schema: FeatureSchema, params: Mapping[str, Any]) -> "FeatureModel":
        """Creates the model from ``params["item_features"]`` or ``params["user_features"]``.

        Args:
          schema: Schema that encoded the features of the training.
          params: Arrays ``dense`` and ``categories``.

        Raises:
          ValueError: If an array is missing, or as the constructor.
        """
        if missing := {"dense", "categories"} - params.keys():
            raise ValueError(
                f"`params` must have the arrays dense and categories, got no {min(missing)}."
            )
        arrays = (np.asarray(params[name]).astype(np.float32) for name in ("dense", "categories"))
        return cls(schema, *arrays)

    def vectors(self, table: FeatureTable, ids: Any = None) -> Float32[np.ndarray, "n dim"]:
        """Returns the vectors of rows of a table; infinite or NaN beyond float32.

        Args:
          table: Raw features with the columns of the schema.
          ids: Ids of the rows; by default all.

        Raises:
          ValueError: As :meth:`crl_jax.data.FeatureSchema.transform`.
        """
        features = self.schema.transform(table, ids)
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = features.dense @ self.dense
            if features.n_categories:
                embeddings = self.categories[np.maximum(features.categories, 0)]
                vectors = vectors + np.einsum("nw,nwd->nd", features.weights, embeddings)
        return vectors
