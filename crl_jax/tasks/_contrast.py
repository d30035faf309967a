"""Two views of the users and items of a batch, contrasted beside the loss of a ranking."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .._pytree import STATIC, pytree_dataclass
from .._reduce import masked_mean
from ..data import Interactions
from ..losses import accepts_where, info_nce, normalize
from ..models import Encoder, LightGCN, Tables
from ..train import check_count
from ._auxiliary import AuxiliaryLoss


@dataclass(frozen=True)
class ContrastiveAuxiliaryLoss(AuxiliaryLoss):
    r"""A term of the loss: each user of a batch against the others, and each item.

    .. math::
        w \Bigl[\frac1{|U|} \sum_{u \in U} \ell(z_u \cdot z'_u, z_u \cdot z'_{U \setminus u})
        + \frac1{|I|} \sum_{i \in I} \ell(z_i \cdot z'_i, z_i \cdot z'_{I \setminus i})\Bigr]

    U and I are the distinct users and items of the batch, z and z' their rows in two views, of
    length 1. What the views are is up to the classes that inherit.

    Attributes:
      weight: The w.
      hyperparams: Hyper-parameters of the loss by name.
      loss_fn: Any loss of a positive and negatives that takes ``where``. Static.
    """

    weight: Any = 0.1
    hyperparams: dict[str, Any] = field(default_factory=lambda: {"temperature": 0.2})
    loss_fn: Callable[..., Array] = field(default=info_nce, metadata=STATIC)

    @abstractmethod
    def encode(
        self, encoder: Encoder, params: Any, key: Key[Array, ""]
    ) -> tuple[Tables, tuple[Tables, Tables]]:
        """What the loss of the ranking sees, and the two views."""

    def loss(
        self,
        views: tuple[Tables, Tables],
        users: Int[Array, "batch"],
        items: Int[Array, "batch"],
        where: Bool[Array, "batch"],
    ) -> Float[Array, ""]:
        """See :meth:`AuxiliaryLoss.loss`."""
        sides = zip(*views, (users, items))
        total = sum(self._side(first, second, ids, where) for first, second, ids in sides)
        return jnp.asarray(self.weight, jnp.float32) * total

    def check(self, encoder: Encoder) -> None:
        """See :meth:`AuxiliaryLoss.check`."""
        if not accepts_where(self.loss_fn):
            raise ValueError(
                "`loss_fn` of a contrast must take `where`: it says who is no negative."
            )

    def place(self, name: str) -> str:
        """A field, or else a hyper-parameter of the loss."""
        return name if name == "weight" else f"hyperparams.{name}"

    def _side(
        self,
        first: Float[Array, "n dim"],
        second: Float[Array, "n dim"],
        ids: Int[Array, "batch"],
        where: Bool[Array, "batch"],
    ) -> Float[Array, ""]:
        z, other = normalize(first[ids]), normalize(second[ids])
        same = ids[:, None] == ids[None, :]
        again = jnp.any(jnp.tril(same, -1) & where[None, :], axis=1)
        once = where & ~again
        each = self.loss_fn(
            jnp.sum(z * other, axis=-1), z @ other.T,
            where=once[:, None] & once[None, :] & ~same, reduce_fn=None, **self.hyperparams,
        )  # fmt: skip
        return masked_mean(each, where=once).astype(jnp.float32)


@pytree_dataclass
class GraphContrast(ContrastiveAuxiliaryLoss):
    """Two encodings by chance, with the parameters of the ranking's encoder: SGL and SimGCL.

    Views of SGL do without edges, ``LightGCN.from_interactions(train, edge_dropout=0.1,
    renormalize=True)``, or
    nodes, ``node_dropout=0.1``, or draw the edges anew for each layer, ``walk=True``. Those of
    SimGCL add noise: ``LightGCN.from_interactions(train, noise=0.1)``. Three propagations a step.

    SGL's code draws one pair of views for an epoch, with exactly the share that is asked for, and
    compares with all users and items. Here views are drawn at each step, each part by itself, and
    compared are those of the batch.

    Attributes:
      first: Makes the first view.
      second: Makes the second.

    References:
      Wu et al., `Self-supervised Graph Learning for Recommendation
      <https://arxiv.org/abs/2010.10783>`_, 2021; Yu et al., `Are Graph Augmentations Necessary?
      Simple Graph Contrastive Learning for Recommendation <https://arxiv.org/abs/2112.08679>`_,
      2022.
    """

    first: Encoder = field(kw_only=True)
    second: Encoder = field(kw_only=True)

    def check(self, encoder: Encoder) -> None:
        """The views must be of the encoder's users and items."""
        super().check(encoder)
        for name, view in (("first", self.first), ("second", self.second)):
            _check_same(name, (view.n_users, view.n_items), encoder)

    def encode(
        self, encoder: Encoder, params: Any, key: Key[Array, ""]
    ) -> tuple[Tables, tuple[Tables, Tables]]:
        """Each encodes with a key of its own."""
        keys = [jax.random.fold_in(key, i) for i in (1, 2)]
        views = self.first.encode(params, keys[0]), self.second.encode(params, keys[1])
        return encoder.encode(params, key), views


@pytree_dataclass
class LayerContrast(ContrastiveAuxiliaryLoss):
    """What the ranking sees, and one of its layers: XSimGCL. One propagation a step.

    The encoder is a :class:`crl_jax.models.LightGCN` with noise.

    Attributes:
      layer: The layer, from 1. Static.

    References:
      Yu et al., `XSimGCL: Towards Extremely Simple Graph Contrastive Learning for Recommendation
      <https://arxiv.org/abs/2209.02544>`_, 2023.
    """

    layer: int = field(default=1, kw_only=True, metadata=STATIC)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("layer", self.layer)

    def check(self, encoder: Encoder) -> None:
        """The encoder must have that layer."""
        super().check(encoder)
        n_layers = len(_of_layers(encoder).layer_weights) - 1
        if self.layer > n_layers:
            raise ValueError(f"`layer` must be one of the {n_layers} layers, got {self.layer}.")

    def encode(
        self, encoder: Encoder, params: Any, key: Key[Array, ""]
    ) -> tuple[Tables, tuple[Tables, Tables]]:
        """The encoding, and the layer of the same propagation."""
        encoder = _of_layers(encoder)
        whole, own = encoder.mixes(params, key, (encoder.layer_weights, _unit(self.layer)))
        return whole, (whole, own)


@pytree_dataclass
class SpectralContrast(ContrastiveAuxiliaryLoss):
    r"""What the ranking sees, and the same through the graph's first singular vectors: LightGCL.

    A layer of the other view is :math:`U S V^\top E^{(l-1)}` in place of a sum of neighbours. One
    propagation a step. Make one with :meth:`from_interactions`. The encoder is a
    :class:`crl_jax.models.LightGCN`.

    Attributes:
      users: :math:`U S^{1/2}`, ``[n_users, rank]``.
      items: :math:`V S^{1/2}`, ``[n_items, rank]``.

    References:
      Cai et al., `LightGCL: Simple Yet Effective Graph Contrastive Learning for Recommendation
      <https://arxiv.org/abs/2302.08191>`_, 2023.
    """

    users: Float[Array, "n_users rank"] = field(kw_only=True)
    items: Float[Array, "n_items rank"] = field(kw_only=True)

    @classmethod
    def from_interactions(
        cls, train: Interactions, rank: int = 5, **settings: Any
    ) -> "SpectralContrast":
        """The singular vectors of the normalised interactions.

        Args:
          train: The interactions to learn from, and no others.
          rank: How many, at least 1 and less than users and items.
          **settings: Further attributes.

        Raises:
          ValueError: If ``rank`` leaves its range.
        """
        from scipy.sparse import csr_array
        from scipy.sparse.linalg import svds

        shape = train.n_users, train.n_items
        check_count("rank", rank)
        if rank >= min(shape):
            raise ValueError(f"`rank` must be less than {min(shape)}, got {rank}.")
        degrees = np.diff(train.indptr), np.bincount(train.items, minlength=train.n_items)
        values = 1 / np.sqrt(degrees[0][train.users] * degrees[1][train.items])
        matrix = csr_array((values, (train.users, train.items)), shape)
        found: Any = svds(matrix, rank, v0=np.ones(min(shape)))
        left, strengths, right = found
        parts = left * np.sqrt(strengths), right.T * np.sqrt(strengths)
        users, items = (jnp.asarray(part, jnp.float32) for part in parts)
        return cls(users=users, items=items, **settings)

    def check(self, encoder: Encoder) -> None:
        """The encoder must have layers, of these users and items."""
        super().check(encoder)
        _check_same("contrast", (len(self.users), len(self.items)), _of_layers(encoder))

    def encode(
        self, encoder: Encoder, params: Any, key: Key[Array, ""]
    ) -> tuple[Tables, tuple[Tables, Tables]]:
        """The encoding, and the other view of the same layers."""
        encoder = _of_layers(encoder)
        weights = encoder.layer_weights
        whole, before = encoder.mixes(params, key, (weights, weights[1:]))
        users = self.users @ (self.items.T @ before.items)
        items = self.items @ (self.users.T @ before.users)
        own = encoder.base_tables(params)
        view = Tables(weights[0] * own.users + users, weights[0] * own.items + items)
        return whole, (view, whole)


def _of_layers(encoder: Encoder) -> LightGCN:
    if not isinstance(encoder, LightGCN):
        raise ValueError(
            f"`auxiliary_loss` of layers needs a LightGCN, got {type(encoder).__name__}."
        )
    return encoder


def _check_same(name: str, sizes: tuple[int, int], encoder: Encoder) -> None:
    if sizes != (encoder.n_users, encoder.n_items):
        raise ValueError(
            f"`{name}` must be of the {encoder.n_users} users and {encoder.n_items} items of the "
            f"encoder, got {sizes[0]} and {sizes[1]}."
        )


def _unit(layer: int) -> Sequence[float]:
    return (*(0.0,) * layer, 1.0)
