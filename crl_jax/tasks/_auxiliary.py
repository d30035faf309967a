"""Auxiliary loss terms of a ranking task, and DirectAU."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from .._hyperparams import Range
from .._pytree import pytree_dataclass
from ..losses import normalize, per_anchor_loss, uniformity
from ..models import Encoder, Tables


@dataclass(frozen=True)
class AuxiliaryLoss(ABC):
    """Base class of terms added to the loss of a ranking, see :class:`RankingOptions`.

    Subclasses are frozen dataclasses, registered as pytrees, that define :meth:`encode` and
    :meth:`loss`.

    Attributes:
      weight: Weight of the term, at least 0.
      by_rows: Whether the term reads only the embeddings of the batch, so that the encoder can be
        trained by rows, with parameters that are tables of the batch's rows. Class attribute.
    """

    weight: Any = 1.0
    by_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        Range(0, high_open=True).check("weight", self.weight)

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
    ) -> Float[Array, ""]:
        """Returns the weighted term of a batch; ``where`` masks padding."""

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
      weight: Weight :math:`\gamma`.
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
    ) -> Float[Array, ""]:
        """See :meth:`AuxiliaryLoss.loss`."""
        users_term, items_term = (
            uniformity(normalize(table[ids]), scale=self.scale, where=where)
            for table, ids in zip(views, (users, items))
        )
        weight = jnp.asarray(self.weight, jnp.float32)
        return weight / 2 * (users_term + items_term).astype(jnp.float32)
