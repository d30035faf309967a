"""Alignment and uniformity in place of negatives: DirectAU."""

from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from .._checks import check_range
from .._pytree import pytree_dataclass
from ..losses import normalize, per_anchor_loss, uniformity
from ..models import Encoder, Tables
from ._auxiliary import AuxiliaryLoss


@per_anchor_loss
def align_positives(
    pos: Float[Array, "*batch"], neg: Float[Array, "*batch n_neg"], *, reduce_fn: Any = None
) -> Float[Array, "..."]:
    r"""DirectAU's alignment, of cosines: :math:`\lVert u - i \rVert^2 = 2 - 2 s^+`.

    Negatives are not looked at. Beside it training takes a :class:`Uniformity`, without which all
    vectors become one.

    Args:
      pos: Cosines :math:`s^+` of users with their items, shape ``[*batch]``.
      neg: Anything.
      reduce_fn: As in :func:`crl_jax.losses.bpr`; None returns one loss for each.

    References:
      Wang et al., `Towards Representation Alignment and Uniformity in Collaborative Filtering
      <https://arxiv.org/abs/2206.12811>`_, 2022, Eq. 7.

    >>> print(align_positives(jnp.array([1.0, 0.0]), jnp.zeros((2, 1))))
    [0. 2.]
    """
    del neg
    each = 2 - 2 * pos
    return each if reduce_fn is None else reduce_fn(each, where=None)


@pytree_dataclass
class Uniformity(AuxiliaryLoss):
    r"""Users of a batch apart from each other, and items too: with alignment, DirectAU.

    .. math::
        \frac\gamma2 \Bigl[\log \frac{1}{B(B-1)} \sum_{a \ne b} e^{-c \lVert u_a - u_b \rVert^2}
        + \log \frac{1}{B(B-1)} \sum_{a \ne b} e^{-c \lVert i_a - i_b \rVert^2}\Bigr]

    The vectors are of length 1. The loss beside it is :func:`align_positives`, and the encoder's
    similarity the cosine. The sums go over the examples of a batch, as in the published code: a
    user with several of them is so often there, at distance 0 from itself.

    Attributes:
      weight: The :math:`\gamma`.
      scale: The :math:`c > 0`.

    References:
      Wang et al., `Towards Representation Alignment and Uniformity in Collaborative Filtering
      <https://arxiv.org/abs/2206.12811>`_, 2022, Eq. 7 and 8.
    """

    scale: Any = 2.0
    by_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("scale", self.scale, 0, jnp.inf, low_open=True, high_open=True)

    def encode(self, encoder: Encoder, params: Any, key: Key[Array, ""]) -> tuple[Tables, Tables]:
        """The encoding, for both."""
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
        of_users, of_items = (
            uniformity(normalize(table[ids]), scale=self.scale, where=where)
            for table, ids in zip(views, (users, items))
        )
        return jnp.asarray(self.weight, jnp.float32) / 2 * (of_users + of_items).astype(jnp.float32)
