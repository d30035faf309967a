"""Auxiliary loss terms of a ranking task: uniformity (DirectAU) and contrasts of two views."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .._checks import check_count
from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from .._reduce import masked_mean
from ..data import Interactions
from ..losses import accepts_where, info_nce, normalize, per_anchor_loss, uniformity
from ..models import Encoder, LightGCN, Tables


@dataclass(frozen=True)
class AuxiliaryLoss(ABC):
    """Base class of terms added to the loss of a ranking, see :class:`RankingOptions`.

    Subclasses are frozen dataclasses, registered as pytrees, that define :meth:`encode` and
    :meth:`loss`; and :meth:`init` and :meth:`start_epoch`, if they have a state.

    Attributes:
      weight: Weight of the term, at least 0.
      by_rows: Whether the term reads only the embeddings of the batch, so that the encoder can be
        trained by rows, with parameters that are tables of the batch's rows. Class attribute.
    """

    weight: Annotated[Any, Range(0, high_open=True)] = 1.0
    by_rows: ClassVar[bool] = False

    @abstractmethod
    def encode(self, encoder: Encoder, params: Any, key: Key[Array, ""]) -> tuple[Tables, Any]:
        """Returns the tables for the ranking loss, and the views for :meth:`loss`."""

    @abstractmethod
    def loss(
        self,
        views: Any,
        users: Int[Array, "batch"],
        items: Int[Array, "batch"],
        where: Bool[Array, "batch"],
        state: Any = (),
    ) -> Float[Array, ""]:
        """Returns the weighted term of a batch; ``where`` masks padding."""

    def init(self, encoder: Encoder, params: Any) -> Any:
        """Returns the initial state, a pytree of arrays; by default an empty one."""
        del encoder, params
        return ()

    def start_epoch(
        self,
        key: Key[Array, ""],
        encoder: Encoder,
        params: Any,
        state: Any,
        epoch: Int[Array, ""],
    ) -> Any:
        """Returns the state of the epoch, which :meth:`loss` receives; by default the previous."""
        del key, encoder, params, epoch
        return state

    def check(self, encoder: Encoder) -> None:
        """Raises ``ValueError`` unless the encoder is supported; called before training."""
        del encoder


@per_anchor_loss
def align_positives(
    pos: Float[Array, "*batch"], neg: Float[Array, "*batch n_neg"], *, reduce_fn: Any = None
) -> Float[Array, "..."]:
    r"""Alignment of DirectAU, from cosines: :math:`\lVert u - i \rVert^2 = 2 - 2 s^+`.

    Negatives are ignored. Training must add :class:`Uniformity`; otherwise all embeddings collapse.

    Args:
      pos: Cosines :math:`s^+` of users and items, shape ``[*batch]``.
      neg: Ignored.
      reduce_fn: As in :func:`crl_jax.losses.bpr`; None returns one loss per anchor.

    References:
      Wang et al., `Towards Representation Alignment and Uniformity in Collaborative Filtering
      <https://arxiv.org/abs/2206.12811>`_, 2022, Eq. 7.

    >>> print(align_positives(jnp.array([1.0, 0.0]), jnp.zeros((2, 1))))
    [0. 2.]
    """
    del neg
    values = 2 - 2 * pos
    return values if reduce_fn is None else reduce_fn(values, where=None)


@pytree_dataclass
class Uniformity(AuxiliaryLoss):
    r"""Uniformity of the users and of the items of a batch; with alignment, DirectAU.

    .. math::
        \frac\gamma2 \Bigl[\log \frac{1}{B(B-1)} \sum_{a \ne b} e^{-c \lVert u_a - u_b \rVert^2}
        + \log \frac{1}{B(B-1)} \sum_{a \ne b} e^{-c \lVert i_a - i_b \rVert^2}\Bigr]

    Embeddings are normalised. Use it with :func:`align_positives` and the cosine similarity. The
    sums are over the examples of a batch, as in the published code: a user with several examples
    occurs several times, at distance 0 from itself.

    Attributes:
      weight: Weight :math:`\gamma` of the uniformity.
      scale: Scale :math:`c > 0`.

    References:
      Wang et al., `Towards Representation Alignment and Uniformity in Collaborative Filtering
      <https://arxiv.org/abs/2206.12811>`_, 2022, Eq. 7 and 8.
    """

    scale: Annotated[Any, Range(0, low_open=True, high_open=True)] = 2.0
    by_rows: ClassVar[bool] = True

    def encode(self, encoder: Encoder, params: Any, key: Key[Array, ""]) -> tuple[Tables, Tables]:
        """Returns the encoded tables for both."""
        tables = encoder.encode(params, key)
        return tables, tables

    def loss(
        self,
        views: Tables,
        users: Int[Array, "batch"],
        items: Int[Array, "batch"],
        where: Bool[Array, "batch"],
        state: Any = (),
    ) -> Float[Array, ""]:
        """See :meth:`AuxiliaryLoss.loss`."""
        del state
        users_term, items_term = (
            uniformity(normalize(table[ids]), scale=self.scale, where=where)
            for table, ids in zip(views, (users, items))
        )
        weight = jnp.asarray(self.weight, jnp.float32)
        return weight / 2 * (users_term + items_term).astype(jnp.float32)


_Views = tuple[Tables, tuple[Tables, Tables]]  # tables of the ranking loss, and two views


@dataclass(frozen=True)
class ContrastiveAuxiliaryLoss(AuxiliaryLoss):
    r"""Contrasts two views of the users, and of the items, of a batch.

    .. math::
        w \Bigl[\frac1{|U|} \sum_{u \in U} \ell(z_u \cdot z'_u, z_u \cdot z'_{U \setminus u})
        + \frac1{|I|} \sum_{i \in I} \ell(z_i \cdot z'_i, z_i \cdot z'_{I \setminus i})\Bigr]

    U and I are the distinct users and items of the batch; z and z' are their normalised embeddings
    in the two views, which subclasses define.

    Attributes:
      weight: Weight w of the contrast, at least 0.
      hyperparams: Hyper-parameters of the loss by name.
      loss_fn: Loss of a positive and negatives that accepts ``where``. Static.
    """

    weight: Annotated[Any, Range(0, high_open=True)] = 0.1
    hyperparams: dict[str, Any] = field(default_factory=lambda: {"temperature": 0.2})
    loss_fn: Callable[..., Array] = field(default=info_nce, metadata=STATIC)

    def loss(
        self,
        views: tuple[Tables, Tables],
        users: Int[Array, "batch"],
        items: Int[Array, "batch"],
        where: Bool[Array, "batch"],
        state: Any = (),
    ) -> Float[Array, ""]:
        """See :meth:`AuxiliaryLoss.loss`."""
        del state
        total = sum(self._side(*side, where) for side in zip(*views, (users, items)))
        return jnp.asarray(self.weight, jnp.float32) * total

    def check(self, encoder: Encoder) -> None:
        """See :meth:`AuxiliaryLoss.check`."""
        if not accepts_where(self.loss_fn):
            raise ValueError(
                "`loss_fn` must accept a `where` mask, which excludes duplicates and padding, got "
                f"{self.loss_fn!r:.100}."
            )

    def _side(
        self,
        first: Float[Array, "n dim"],
        second: Float[Array, "n dim"],
        ids: Int[Array, "batch"],
        where: Bool[Array, "batch"],
    ) -> Float[Array, ""]:
        z, z_other, unique = normalize(first[ids]), normalize(second[ids]), distinct(ids, where)
        is_negative = unique[:, None] & unique[None, :] & (ids[:, None] != ids[None, :])
        losses = self.loss_fn(
            jnp.sum(z * z_other, axis=-1), z @ z_other.T, where=is_negative, reduce_fn=None,
            **self.hyperparams,
        )  # fmt: skip
        return masked_mean(losses, where=unique).astype(jnp.float32)


def distinct(ids: Int[Array, "batch"], where: Bool[Array, "batch"]) -> Bool[Array, "batch"]:
    """Marks the first of equal ids among those that ``where`` marks."""
    same = ids[:, None] == ids[None, :]
    return where & ~jnp.any(jnp.tril(same, -1) & where[None, :], axis=1)


@pytree_dataclass
class GraphContrast(ContrastiveAuxiliaryLoss):
    """Two random encodings with the parameters of the ranking's encoder: SGL and SimGCL.

    SGL drops edges, ``LightGCN.from_interactions(train, edge_dropout=0.1, renormalize=True)``, or
    nodes, ``node_dropout=0.1``, or samples the edges of each layer separately, ``walk=True``.
    SimGCL adds noise: ``LightGCN.from_interactions(train, noise=0.1)``. Requires three propagations
    per step.

    The published code of SGL samples one pair of views per epoch with an exact dropout count and
    contrasts all users and items. This implementation samples views at each step, each edge or node
    independently, and contrasts the users and items of the batch.

    Attributes:
      first: Encoder of the first view.
      second: Encoder of the second view.

    References:
      Wu et al., `Self-supervised Graph Learning for Recommendation
      <https://arxiv.org/abs/2010.10783>`_, 2021; Yu et al., `Are Graph Augmentations Necessary?
      Simple Graph Contrastive Learning for Recommendation <https://arxiv.org/abs/2112.08679>`_,
      2022.
    """

    first: Encoder = field(kw_only=True)
    second: Encoder = field(kw_only=True)

    def check(self, encoder: Encoder) -> None:
        """Raises ``ValueError`` unless the views have the users and items of the encoder."""
        super().check(encoder)
        for name, view in (("first", self.first), ("second", self.second)):
            _check_sizes(name, (view.n_users, view.n_items), encoder)

    def encode(self, encoder: Encoder, params: Any, key: Key[Array, ""]) -> _Views:
        """Encodes each view with a separate key."""
        keys = [jax.random.fold_in(key, i) for i in (1, 2)]
        views = self.first.encode(params, keys[0]), self.second.encode(params, keys[1])
        return encoder.encode(params, key), views


@pytree_dataclass
class LayerContrast(ContrastiveAuxiliaryLoss):
    """Contrasts the final embeddings with those of one layer: XSimGCL.

    Requires one propagation per step, and a :class:`crl_jax.models.LightGCN` with noise.

    Attributes:
      layer: The layer, from 1. Static.

    References:
      Yu et al., `XSimGCL: Towards Extremely Simple Graph Contrastive Learning for Recommendation
      <https://arxiv.org/abs/2209.02544>`_, 2023.
    """

    layer: Annotated[int, Range(1)] = field(default=1, kw_only=True, metadata=STATIC)

    def check(self, encoder: Encoder) -> None:
        """Raises ``ValueError`` unless the encoder has the layer."""
        super().check(encoder)
        check_layer(self.layer, as_light_gcn(encoder))

    def encode(self, encoder: Encoder, params: Any, key: Key[Array, ""]) -> _Views:
        """Returns the final embeddings, and those of the layer from the same propagation."""
        encoder = as_light_gcn(encoder)
        weights = encoder.layer_weights, one_layer(self.layer)
        final, layer = encoder.mixes(params, key, weights)
        return final, (final, layer)


@pytree_dataclass
class SpectralContrast(ContrastiveAuxiliaryLoss):
    r"""Contrasts the embeddings with those of a low-rank graph: LightGCL.

    A layer of the second view is :math:`U S V^\top E^{(l-1)}`, from the truncated SVD of the
    normalised interaction matrix, instead of a sum over neighbours. Requires one propagation per
    step, and a :class:`crl_jax.models.LightGCN`. See :meth:`from_interactions`.

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
        """Computes the truncated SVD of the normalised training interactions.

        Args:
          train: Training interactions only.
          rank: Number of singular vectors, at least 1 and less than the numbers of users and items.
          **settings: Other attributes.

        Raises:
          ValueError: If ``rank`` is out of range.
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
        svd: Any = svds(matrix, rank, v0=np.ones(min(shape)))
        left, singular_values, right = svd
        parts = left * np.sqrt(singular_values), right.T * np.sqrt(singular_values)
        users, items = (jnp.asarray(part, jnp.float32) for part in parts)
        return cls(users=users, items=items, **settings)

    def check(self, encoder: Encoder) -> None:
        """Raises ``ValueError`` unless the encoder is a LightGCN of the same users and items."""
        super().check(encoder)
        _check_sizes("auxiliary_loss", (len(self.users), len(self.items)), as_light_gcn(encoder))

    def encode(self, encoder: Encoder, params: Any, key: Key[Array, ""]) -> _Views:
        """Returns the final embeddings, and the view from the same layers."""
        encoder = as_light_gcn(encoder)
        weights = encoder.layer_weights
        final, inner = encoder.mixes(params, key, (weights, weights[1:]))
        users = self.users @ (self.items.T @ inner.items)
        items = self.items @ (self.users.T @ inner.users)
        base = encoder.base_tables(params)
        view = Tables(weights[0] * base.users + users, weights[0] * base.items + items)
        return final, (view, final)


def as_light_gcn(encoder: Encoder) -> LightGCN:
    """Returns the encoder; raises ``ValueError`` unless it is a LightGCN."""
    if not isinstance(encoder, LightGCN):
        raise ValueError(
            f"`encoder` must be a LightGCN for this auxiliary loss, got {type(encoder).__name__}."
        )
    return encoder


def check_layer(layer: int, encoder: LightGCN) -> None:
    """Raises ``ValueError`` unless the encoder has the layer."""
    n_layers = len(encoder.layer_weights) - 1
    if layer > n_layers:
        raise ValueError(f"`layer` must be at most {n_layers}, got {layer}.")


def one_layer(layer: int) -> tuple[float, ...]:
    """Returns the weights of the layers of which only one is not 0."""
    return *(0.0,) * layer, 1.0


def _check_sizes(name: str, sizes: tuple[int, int], encoder: Encoder) -> None:
    if sizes != (encoder.n_users, encoder.n_items):
        raise ValueError(
            f"`{name}` must have the {encoder.n_users} users and {encoder.n_items} items of the "
            f"encoder, got {sizes[0]} and {sizes[1]}."
        )
