"""Encoder of ids and side features, whose feature part represents unseen users and items."""

from dataclasses import field
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .._hyperparams import Range, Scalar
from .._pytree import STATIC, pytree_dataclass
from ..data import Features
from ._encoder import Encoder, Tables
from ._mf import Initializer, init_tables, xavier_normal


@pytree_dataclass
class FeatureEncoder(Encoder):
    r"""Two embedding tables of ids, plus linear functions of side features.

    .. math:: v = z e + W^\top x + \sum_c a_c b_c

    For a user or an item, e is the embedding of its id, x its dense features, the sum runs over its
    categories c with weights :math:`a_c` and embeddings :math:`b_c`. In training, z is 0 with the
    probability of the id dropout and 1 otherwise, drawn for each row in each step; outside
    training it is 1. Remaining ids are not rescaled, so that a vector without its id, which
    :meth:`item_vectors` returns for an item that was not in training, is one that training has
    seen. Without side features of users (or items), their vectors are the embeddings of the ids.

    Dense features and categories are shared by rows, so that :class:`crl_jax.train.RowOptimizer`
    does not support this encoder.

    Attributes:
      user_features: Features of all users, from :meth:`crl_jax.data.FeatureSchema.transform`.
      item_features: Features of all items.
      user_id_dropout: Probability in [0, 1] that a training step omits the id of a user. With 1,
        ids are not used outside training either. No effect without ``user_features``.
      item_id_dropout: The same for items.
      initializer: Initializer of each array of parameters; by default Xavier normal. Static.

    Raises:
      ValueError: If a value is out of range, or there are no features or those of other numbers of
        users or items.

    References:
      Kula, Metadata Embeddings for User and Item Cold-start Recommendations, 2015 (arXiv
      1507.08439), section 3.1: sums of feature embeddings. Volkovs et al., DropoutNet: Addressing
      Cold Start in Recommender Systems, 2017, section 4.2: dropout of whole id vectors.

    >>> from crl_jax import data
    >>> columns = {"genre": ["war", "war", "drama", "drama"]}
    >>> films = data.FeatureTable.from_columns(range(4), columns)
    >>> schema = data.FeatureSchema.fit(films, [0, 1, 2], min_count=1)
    >>> encoder = FeatureEncoder(5, 3, 8, item_features=schema.transform(films, [0, 1, 2]))
    >>> params = encoder.init(jax.random.key(0))
    >>> encoder.encode(params).items.shape
    (3, 8)
    >>> encoder.item_vectors(params, schema.transform(films, [3])).shape  # a new item
    (1, 8)
    """

    user_features: Features | None = field(default=None, kw_only=True)
    item_features: Features | None = field(default=None, kw_only=True)
    user_id_dropout: Annotated[Scalar, Range(0, 1)] = field(default=0.0, kw_only=True)
    item_id_dropout: Annotated[Scalar, Range(0, 1)] = field(default=0.5, kw_only=True)
    initializer: Initializer = field(default=xavier_normal, kw_only=True, metadata=STATIC)

    def __post_init__(self) -> None:
        super().__post_init__()
        sides = (
            ("user", self.user_features, self.n_users),
            ("item", self.item_features, self.n_items),
        )
        for kind, features, n in sides:
            if features is not None and len(features) != n:
                raise ValueError(
                    f"`{kind}_features` must have a row for each of {n} {kind}s, "
                    f"got {len(features)}."
                )
        if self.user_features is None and self.item_features is None:
            raise ValueError("`user_features` or `item_features` must be given, got neither.")

    def init(self, key: Key[Array, ""]) -> dict[str, Any]:
        """Returns the parameters.

        ``users`` ``[n_users, dim]`` and ``items`` ``[n_items, dim]`` are embeddings of ids. For
        each side with features, ``user_features`` or ``item_features`` has the arrays ``dense``
        ``[n_dense, dim]`` and ``categories`` ``[n_categories, dim]``.
        """
        params: dict[str, Any] = init_tables(
            key, self.n_users, self.n_items, self.dim, self.initializer
        )
        for stream, name in ((2, "user_features"), (4, "item_features")):
            features: Features | None = getattr(self, name)
            if features is not None:
                # Initializers of older JAX divide by the number of rows.
                params[name] = {
                    part: self.initializer(jax.random.fold_in(key, stream + i), (n, self.dim))
                    if n
                    else jnp.zeros((0, self.dim))
                    for i, (part, n) in enumerate(
                        (("dense", features.n_dense), ("categories", features.n_categories))
                    )
                }
        return params

    def encode(self, params: Any, key: Key[Array, ""] | None = None) -> Tables:
        """Returns the vectors; with a ``key``, after dropout of ids."""
        user_key, item_key = (None, None) if key is None else jax.random.split(key)
        users, items = params["users"], params["items"]
        if self.user_features is not None:
            users = _drop_ids(users, self.user_id_dropout, user_key)
            users = users + self.user_vectors(params, self.user_features)
        if self.item_features is not None:
            items = _drop_ids(items, self.item_id_dropout, item_key)
            items = items + self.item_vectors(params, self.item_features)
        return Tables(users, items)

    def user_vectors(self, params: Any, features: Features) -> Float[Array, "n dim"]:
        """Vectors of users who are not in training, from their features alone."""
        return feature_vectors(params["user_features"], features)

    def item_vectors(self, params: Any, features: Features) -> Float[Array, "n dim"]:
        """Vectors of items that are not in training, from their features alone."""
        return feature_vectors(params["item_features"], features)


def feature_vectors(params: Any, features: Features) -> Float[Array, "n dim"]:
    """Linear function of dense features plus the weighted sum of category embeddings.

    Args:
      params: Arrays ``dense`` ``[n_dense, dim]`` and ``categories`` ``[n_categories, dim]``.
      features: Features of n users or items.
    """
    dense, categories = params["dense"], params["categories"]
    vectors = jnp.asarray(features.dense, dense.dtype) @ dense
    if not features.n_categories:
        return vectors
    weights = jnp.asarray(features.weights, categories.dtype)
    embeddings = categories[jnp.maximum(jnp.asarray(features.categories), 0)]
    return vectors + jnp.einsum("nw,nwd->nd", weights, embeddings)


def _drop_ids(
    ids: Float[Array, "rows dim"], rate: Scalar, key: Key[Array, ""] | None
) -> Float[Array, "rows dim"]:
    """Replaces embeddings of ids by zero with probability ``rate``; without a key if it is 1."""
    rate = jnp.asarray(rate, jnp.float32)
    keep = rate < 1
    if key is not None:
        keep = jax.random.uniform(key, (len(ids), 1)) >= rate
    return jnp.where(keep, ids, jnp.zeros((), ids.dtype))
