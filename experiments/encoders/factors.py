"""Matrix factorisation."""

from typing import Any

from flax import nnx

from crl_jax import data, models

from ._entry import Build, EncoderEntry


def _make(log: data.Interactions, dim: int, deviation: float | None = None) -> Build:
    init = None if deviation is None else nnx.initializers.normal(deviation)

    def build(rngs: nnx.Rngs) -> models.MatrixFactorization:
        return models.MatrixFactorization(log.n_users, log.n_items, dim, init=init, rngs=rngs)

    return build


def _serve(params: Any) -> models.Tables:
    return models.Tables(params["users"], params["items"])


MF = EncoderEntry(help="matrix factorisation", make=_make, serve=_serve)
