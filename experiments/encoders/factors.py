"""Encoders of one vector for each user and item: as they are, or mixed over the graph."""

from typing import Any

from crl_jax import data, models

from .._ranges import COUNT, Range
from .._registry import Hyperparam, count
from ._entry import EncoderEntry


def _factors(
    log: data.Interactions,
    *,
    dim: int,
    similarity: models.Similarity,
    initializer: Any = None,
    dropout: float,
) -> models.MatrixFactorization:
    return models.MatrixFactorization(
        log.n_users,
        log.n_items,
        dim,
        similarity=similarity,
        initializer=initializer or models.xavier_normal,
        dropout=dropout or None,
    )


def _lightgcn(
    log: data.Interactions,
    *,
    dim: int,
    similarity: models.Similarity,
    initializer: Any = None,
    layers: int,
    edge_dropout: float,
) -> models.LightGCN:
    return models.LightGCN.from_interactions(
        log,
        dim,
        layers,
        edge_dropout=edge_dropout,
        similarity=similarity,
        **({"initializer": initializer} if initializer else {}),
    )


MF = EncoderEntry(
    help="matrix factorisation",
    hyperparams={
        "dropout": Hyperparam(
            0.0,
            "Probability that a step does without a number of a user's vector",
            Range(0, 1, high_open=True),
        ),
    },
    make=_factors,
    by_rows=models.MatrixFactorization.by_rows,
)
LIGHTGCN = EncoderEntry(
    help="vectors mixed with those of their neighbours in the graph of interactions",
    hyperparams={
        "layers": count(3, "Times that neighbours are mixed", COUNT),
        "edge_dropout": Hyperparam(
            models.LightGCN.edge_dropout,
            "Probability that a step does without an interaction",
            Range(0, 1, high_open=True),
        ),
    },
    make=_lightgcn,
    by_rows=models.LightGCN.by_rows,
)
