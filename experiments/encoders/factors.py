"""Matrix factorisation."""

from crl_jax import data, models

from ._entry import EncoderEntry


def _make(log: data.Interactions, dim: int) -> models.MatrixFactorization:
    return models.MatrixFactorization(log.n_users, log.n_items, dim)


MF = EncoderEntry(help="matrix factorisation", make=_make)
