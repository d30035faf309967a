"""Side features of a run: their files, and the vectors and metrics of cold items."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, losses, metrics, models, serving, tasks

from ._options import EncoderOptions
from ._problem import Problem

_MAX_ENTRIES = 2**27
"""Entries of a matrix of features, 0.5 GB, beyond which references by features are omitted."""
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


def serving_tables(fitted: tasks.RankingResult, run: int) -> models.Tables | FeatureTables:
    """Returns the serving tables of a run, with the parameters of features if there are any."""
    tables = fitted.tables(run)
    if not isinstance(fitted.encoder, models.FeatureEncoder):
        return tables
    params = fitted.get_params(run)
    return FeatureTables(*tables, *(params.get(f"{kind}_features") for kind in KINDS))


def feature_models(
    encoding: EncoderOptions, part: data.Interactions, learned: Any
) -> dict[str, serving.FeatureModel]:
    """Returns the arguments ``user_model`` and ``item_model`` of a recommender."""
    if not isinstance(learned, FeatureTables):
        return {}
    options: Any = encoding
    arguments = {}
    for kind, ids in zip(KINDS, (part.user_ids, part.item_ids)):
        if (params := getattr(learned, f"{kind}_features")) is not None:
            path = getattr(options, f"{kind}_features")
            schema, _ = read_side(kind, path, ids, options.min_category_count)
            arguments[f"{kind}_model"] = serving.FeatureModel.from_params(schema, params)
    return arguments


def cold_metrics(
    encoding: EncoderOptions, problem: Problem, learned: Any, ks: tuple[int, ...]
) -> dict[str, float]:
    """Returns the mean metrics of cold items; none without ``--cold-items``.

    Those prefixed by ``cold`` rank cold items among each other, those prefixed by ``cold_all`` rank
    them among all items.
    """
    if problem.cold is None:
        return {}
    _, cold = _encode_items(encoding, problem)
    new = models.feature_vectors(learned.item_features, cold)
    if (encoding.serve_similarity or encoding.similarity) == "cosine":
        new = losses.normalize(new)
    items = jnp.concatenate([jnp.asarray(learned.items), new])
    return _evaluate_cold(problem, models.Tables(learned.users, items), ks)


def cold_references(
    encoding: EncoderOptions, problem: Problem, ks: tuple[int, ...]
) -> dict[str, dict[str, float]]:
    """Returns the metrics of :func:`reference_tables`; none without ``--cold-items``."""
    if problem.cold is None:
        return {}
    tables = reference_tables(problem.known, *_encode_items(encoding, problem))
    return {name: _evaluate_cold(problem, each, ks) for name, each in tables.items()}


def reference_tables(
    log: data.Interactions, warm: data.Features, cold: data.Features
) -> dict[str, models.Tables]:
    """Returns vectors of users, and of warm and then cold items, of methods without training.

    * ``random``: a random order;
    * ``popularity``: the number of users of an item, 0 for cold items, with ties in random order;
    * ``popularity by features``: linear regression of the logarithm of that number on the features;
    * ``content kNN``: the sum of the cosine similarities of the features of an item with those of
      the user's items.
    """
    rng, n = np.random.default_rng(0), log.n_items + len(cold)
    counts = log.item_counts

    def tables_from_scores(scores: np.ndarray) -> models.Tables:
        return _tables(np.ones((log.n_users, 1)), scores[:, None])

    tables = {
        "random": _tables(rng.standard_normal((log.n_users, 32)), rng.standard_normal((n, 32))),
        "popularity": tables_from_scores(
            np.concatenate([counts, np.zeros(len(cold))]) + rng.random(n)
        ),
    }
    if n * (warm.n_categories + warm.n_dense) > _MAX_ENTRIES:
        return tables
    features = np.concatenate([dense_features(warm), dense_features(cold)])
    design = np.concatenate([features, np.ones((n, 1))], axis=1)
    weights = np.linalg.lstsq(design[: log.n_items], np.log1p(counts))[0]
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    profiles = np.zeros((log.n_users, features.shape[1]))
    np.add.at(profiles, log.users, unit[log.items])
    return {
        **tables,
        "popularity by features": tables_from_scores(design @ weights),
        "content kNN": _tables(profiles, unit),
    }


def dense_features(features: data.Features) -> np.ndarray:
    """Returns the weights of all categories and the dense features of each user or item."""
    rows = np.zeros((len(features), features.n_categories))
    categories, weights = np.asarray(features.categories), np.asarray(features.weights)
    index, slot = np.nonzero(categories >= 0)
    rows[index, categories[index, slot]] = weights[index, slot]
    return np.concatenate([rows, np.asarray(features.dense)], axis=1)


def _encode_items(
    encoding: EncoderOptions, problem: Problem
) -> tuple[data.Features, data.Features]:
    """Returns the features of the warm and of the cold items."""
    assert problem.cold is not None
    options: Any = encoding
    warm, cold = problem.known.item_ids, problem.cold.item_ids
    schema, table = read_side("item", options.item_features, warm, options.min_category_count)
    return tuple(  # pyright: ignore[reportReturnType]
        jax.tree.map(jnp.asarray, schema.transform(table, ids)) for ids in (warm, cold)
    )


def _evaluate_cold(
    problem: Problem, tables: models.Tables, ks: tuple[int, ...]
) -> dict[str, float]:
    """Returns the metrics of cold items, which follow the others in ``tables``."""
    results = {}
    for prefix, layout in problem.cold_layouts.items():
        items = tables.items[problem.known.n_items :] if prefix == "cold" else tables.items
        candidates = models.Tables(tables.users, items)
        values = metrics.summarize(metrics.evaluate(models.inner_scores, candidates, layout, ks=ks))
        results |= {f"{prefix}_{n}": x for n, x in values.items() if not n.startswith("coverage")}
    return results


def _tables(users: np.ndarray, items: np.ndarray) -> models.Tables:
    return models.Tables(jnp.asarray(users, jnp.float32), jnp.asarray(items, jnp.float32))
