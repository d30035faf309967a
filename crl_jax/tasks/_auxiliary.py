"""A term of the loss of a ranking that looks at the users and items of a batch."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from .._checks import check_range
from ..models import Encoder, Tables


@dataclass(frozen=True)
class AuxiliaryLoss(ABC):
    """What is added to the loss of a ranking; give it to :func:`fit_ranking` as ``auxiliary_loss``.

    One of your own is a frozen dataclass, registered as a pytree, that defines :meth:`encode` and
    :meth:`loss`.

    Attributes:
      weight: What the term is multiplied with, at least 0.
      by_rows: Whether the vectors of the batch are all that it looks at. Then the encoder can be
        trained by rows; its parameters are tables of the rows of the batch.
    """

    weight: Any = 1.0
    by_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_range("weight", self.weight, 0, jnp.inf, high_open=True)

    @abstractmethod
    def encode(self, encoder: Encoder, params: Any, key: Key[Array, ""]) -> tuple[Tables, Any]:
        """What the loss of the ranking sees, and what :meth:`loss` does."""

    @abstractmethod
    def loss(
        self,
        views: Any,
        users: Int[Array, "batch"],
        items: Int[Array, "batch"],
        where: Bool[Array, "batch"],
    ) -> Float[Array, ""]:
        """The term for a batch, times its weight; ``where`` tells the real examples."""

    def check(self, encoder: Encoder) -> None:
        """Raises ``ValueError`` unless the term suits the encoder; called before training."""
        del encoder

    def place(self, name: str) -> str:
        """Where a number of a sweep belongs that is called ``auxiliary_loss.NAME`` there."""
        return name
