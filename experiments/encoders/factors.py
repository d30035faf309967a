"""Encoders with one embedding per user and item: matrix factorisation and LightGCN."""

from typing import Any

from crl_jax import data, models

from .._registry import declared
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
    source=models.MatrixFactorization,
    hyperparams=declared(models.MatrixFactorization, "dropout", defaults={"dropout": 0.0}),
    make=_factors,
)
LIGHTGCN = EncoderEntry(
    source=models.LightGCN,
    hyperparams=declared(
        models.LightGCN.from_interactions, "n_layers", "edge_dropout", flags={"n_layers": "layers"}
    ),
    make=_lightgcn,
)
