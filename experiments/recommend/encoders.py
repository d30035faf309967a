"""Registry of encoders of users and items by command-line name.

A new encoder requires an :class:`EncoderEntry` in :data:`ENCODERS`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from crl_jax import data, models

from .._registry import Entry, Hyperparam, Registry, count, declared, resolve_flags
from ._features import KINDS, read_side
from ._options import EncoderOptions


@dataclass(frozen=True, kw_only=True)
class EncoderEntry(Entry):
    """An encoder of users and items on the command line.

    Attributes:
      source: Its class.
      make: ``make(log, *, dim, similarity, **values)``, with values keyed by flag name, and an
        ``initializer`` unless the encoder is to use its own.
    """

    make: Callable[..., models.Encoder]

    @property
    def by_rows(self) -> bool:
        """See :class:`crl_jax.models.Encoder`."""
        return self.source.by_rows

    @property
    def sweepable(self) -> frozenset[str]:
        """Always empty: all points of a sweep train the same encoder."""
        return frozenset()


def make_entry(
    source: type[models.Encoder], *names: str, flags: Mapping[str, str] | None = None
) -> EncoderEntry:
    """Returns the entry of an encoder with ``from_interactions(log, dim=…, …)``.

    Without this method, the constructor is called with the numbers of users and items.

    Args:
      source: The class.
      *names: Hyper-parameters that become flags; by default all of them.
      flags: See :func:`declared`.
    """
    build: Any = getattr(source, "from_interactions", None)
    own = declared(build or source, *names, flags=flags)
    own = {
        name: hyperparam for name, hyperparam in own.items() if name not in ("dim", "similarity")
    }
    fields = {name: hyperparam.field or name for name, hyperparam in own.items()}

    def make(log: data.Interactions, **values: Any) -> models.Encoder:
        kwargs = {fields.get(name, name): value for name, value in values.items()}
        return source(log.n_users, log.n_items, **kwargs) if build is None else build(log, **kwargs)

    return EncoderEntry(source=source, hyperparams=own, make=make)


def _matrix_factorization(
    log: data.Interactions, *, dropout: float, **values: Any
) -> models.Encoder:
    return models.MatrixFactorization(log.n_users, log.n_items, dropout=dropout or None, **values)


class FeatureEntry(EncoderEntry):
    """The encoder of ids and side features, whose files are flags."""

    def check(self, values: Mapping[str, Any], given: Collection[str]) -> None:
        """See :meth:`Entry.check`."""
        del given
        if values["user_features"] is None and values["item_features"] is None:
            raise ValueError(
                "--encoder features needs --item-features or --user-features, files of features."
            )


def _feature_encoder(
    log: data.Interactions, *, min_category_count: int, **values: Any
) -> models.Encoder:
    for kind, ids in zip(KINDS, (log.user_ids, log.item_ids)):
        if (path := values[f"{kind}_features"]) is not None:
            schema, table = read_side(kind, path, ids, min_category_count)
            encoded = schema.transform(table, ids)
            values[f"{kind}_features"] = jax.tree.map(jnp.asarray, encoded)
    return models.FeatureEncoder(log.n_users, log.n_items, **values)


def _file_hyperparam(kind: str) -> Hyperparam:
    help_text = f"File with side features of {kind}s, one per line; simulated for simulated data"
    return Hyperparam(None, help_text, kind=str, sweeps=False)


ENCODERS = Registry(
    {
        "mf": EncoderEntry(
            source=models.MatrixFactorization,
            hyperparams=declared(models.MatrixFactorization, "dropout", defaults={"dropout": 0.0}),
            make=_matrix_factorization,
        ),
        "lightgcn": make_entry(
            models.LightGCN, "n_layers", "edge_dropout", flags={"n_layers": "layers"}
        ),
        "features": FeatureEntry(
            source=models.FeatureEncoder,
            hyperparams={
                **{f"{kind}_features": _file_hyperparam(kind) for kind in reversed(KINDS)},
                **declared(models.FeatureEncoder, "item_id_dropout", "user_id_dropout"),
                "min_category_count": count(
                    2, "Number of users or items that a category must occur in to have an embedding"
                ),
            },
            make=_feature_encoder,
        ),
    },
    make=make_entry,
)


def resolve_encoder(
    options: EncoderOptions, log: data.Interactions, dim: int, swept: tuple[str, ...] = ()
) -> models.Encoder:
    """Creates the chosen encoder for training on ``log``, with embeddings of width ``dim``.

    Raises:
      ValueError: If a flag is not supported by the encoder.
    """
    values = resolve_flags("encoder", options, ENCODERS, swept)
    make = ENCODERS[options.encoder].make
    return make(log, dim=dim, similarity=options.similarity or "inner", **values)


def default_encoder(
    name: str, log: data.Interactions, dim: int, initializer: Any = None
) -> models.Encoder:
    """Creates an encoder by name with its default flags and, optionally, another initializer."""
    entry = ENCODERS[name]
    values = {flag: hyperparam.default for flag, hyperparam in entry.flags.items()}
    if initializer is not None:
        values["initializer"] = initializer
    return entry.make(log, dim=dim, similarity="inner", **values)
