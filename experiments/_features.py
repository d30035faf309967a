"""Side features of a run: their files, and the vectors and metrics of cold items."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, losses, metrics, models, serving, tasks

from ._options import EncoderOptions
from ._problem import Problem

SIMULATED = "simulated"
"""Name of the simulated features, which belong to the simulated data."""
KINDS = ("user", "item")


class FeatureTables(NamedTuple):
    """Serving tables of an encoder with side features, and its parameters of the features.

    Attributes:
      users, items: See :class:`crl_jax.models.Tables`.
      user_features, item_features: Weights of dense features and embeddings of categories; None for
        a side without features.
    """

    users: Any
    items: Any
    user_features: Any
    item_features: Any


def read_side(
    kind: str, path: str, ids: np.ndarray, min_count: int
) -> tuple[data.FeatureSchema, data.FeatureTable]:
    """Reads the features of users or items, and fits their encoding to those of the training.

    Raises:
      ValueError: If the file is invalid, or has no row for one of the ids.
    """
    if path == SIMULATED:
        simulated = data.simulate()
        factors = simulated.user_factors if kind == "user" else simulated.item_factors
        table = data.simulate_features(factors, seed=KINDS.index(kind))
    else:
        table = data.read_features(path)
    return data.FeatureSchema.fit(table, ids, min_count=min_count), table


def tables_of(fitted: tasks.RankingResult, run: int) -> models.Tables | FeatureTables:
    """Returns the serving tables of a run, with the parameters of features if there are any."""
    tables = fitted.tables(run)
    if not isinstance(fitted.encoder, models.FeatureEncoder):
        return tables
    params = fitted.run(run)
    return FeatureTables(*tables, *(params.get(f"{kind}_features") for kind in KINDS))


def feature_models(
    encoding: EncoderOptions, part: data.Interactions, learned: Any
) -> dict[str, serving.FeatureModel]:
    """Returns the arguments ``user_model`` and ``item_model`` of a recommender."""
    if not isinstance(learned, FeatureTables):
        return {}
    options: Any = encoding
    found = {}
    for kind, ids in zip(KINDS, (part.user_ids, part.item_ids)):
        if (params := getattr(learned, f"{kind}_features")) is not None:
            path = getattr(options, f"{kind}_features")
            schema, _ = read_side(kind, path, ids, options.min_category_count)
            found[f"{kind}_model"] = serving.FeatureModel.from_params(schema, params)
    return found


def cold_metrics(
    encoding: EncoderOptions, problem: Problem, learned: Any, ks: tuple[int, ...]
) -> dict[str, float]:
    """Returns the mean metrics of cold items; none without ``--cold-items``.

    Those prefixed by ``cold`` rank cold items among each other, those prefixed by ``cold_all`` rank
    them among all items.
    """
    if problem.cold is None:
        return {}
    options: Any = encoding
    ids = problem.known.item_ids
    schema, table = read_side("item", options.item_features, ids, options.min_category_count)
    features = schema.transform(table, problem.cold.item_ids)
    new = models.feature_vectors(learned.item_features, jax.tree.map(jnp.asarray, features))
    if (encoding.serve_similarity or encoding.similarity) == "cosine":
        new = losses.normalize(new)
    items = {"cold": new, "cold_all": jnp.concatenate([jnp.asarray(learned.items), new])}
    found = {}
    for prefix, layout in problem.cold_layouts.items():
        tables = models.Tables(learned.users, items[prefix])
        values = metrics.summarize(metrics.evaluate(models.inner_scores, tables, layout, ks=ks))
        found |= {f"{prefix}_{name}": x for name, x in values.items()}
    return {name: x for name, x in found.items() if "coverage" not in name}
