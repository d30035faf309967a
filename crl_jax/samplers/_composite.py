"""Samplers composed of other samplers."""

import dataclasses
from abc import abstractmethod
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from .._hyperparams import Range
from .._pytree import pytree_dataclass
from ..models import Tables
from ._base import Sampler, SamplingContext, Selection, Users
from ._positives import Positives


class _Composite(Sampler):
    """Several samplers, each with its own random key and state."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            for sampler in value if isinstance(value, tuple | list) else (value,):
                # The mask of a pool would be lost.
                if getattr(sampler, "is_shared", False):
                    raise ValueError(
                        f"`{field.name}` must draw negatives for each anchor, got "
                        f"{type(sampler).__name__}, whose negatives are shared."
                    )

    @property
    @abstractmethod
    def _parts(self) -> tuple[Sampler, ...]: ...

    @abstractmethod
    def _counts(self, n: int) -> list[int]:
        """Returns the number of negatives that each sampler proposes."""

    def _split(self, key: Key[Array, ""]) -> zip:
        return zip(jax.random.split(key, len(self._parts)), self._parts, strict=True)

    @property
    def uses_bitmap(self) -> bool:
        """Whether any of the samplers uses a bitmap."""
        return any(sampler.uses_bitmap for sampler in self._parts)

    def init(self, key: Key[Array, ""], positives: Positives, tables: Tables) -> tuple[Any, ...]:
        """Returns the states of all samplers."""
        return tuple(sampler.init(key, positives, tables) for key, sampler in self._split(key))

    def start_epoch(
        self, key: Key[Array, ""], positives: Positives, tables: Tables, state: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Returns the states of all samplers at the start of an epoch."""
        return tuple(
            sampler.start_epoch(key, positives, tables, sampler_state)
            for (key, sampler), sampler_state in zip(self._split(key), state, strict=True)
        )

    def propose(
        self, key: Key[Array, ""], users: Users, positives: Positives, n: int
    ) -> tuple[Any, ...]:
        """Returns the proposals of all samplers."""
        return tuple(
            sampler.propose(key, users, positives, count) if count else None
            for (key, sampler), count in zip(self._split(key), self._counts(n), strict=True)
        )


@pytree_dataclass
class MixedSampler(_Composite):
    """Alternates between samplers: negative i comes from sampler i modulo their number.

    For losses that compare an anchor with unlabelled items of different kinds, such as the likely
    and the unpopular ones of :func:`crl_jax.losses.mpr`. With fewer negatives than samplers, the
    last samplers are unused.

    Attributes:
      samplers: The samplers, at least one and none with shared negatives.

    Raises:
      ValueError: If there is no sampler, or one is a :class:`SharedSampler`.
    """

    samplers: tuple[Sampler, ...]

    def __post_init__(self) -> None:
        if isinstance(self.samplers, (tuple, list)):
            if not self.samplers:
                raise ValueError("`samplers` must hold at least one sampler, got none.")
            super().__post_init__()

    @property
    def _parts(self) -> tuple[Sampler, ...]:
        return self.samplers

    def _counts(self, n: int) -> list[int]:
        k = len(self.samplers)
        return [len(range(i, n, k)) for i in range(k)]

    def select(self, proposals: Any, batch: SamplingContext, state: Any) -> Selection:
        """Returns the interleaved selections, and the next states."""
        selected, states = [], []
        for sampler, count, proposal, sampler_state in zip(
            self.samplers, self._counts(batch.n), proposals, state, strict=True
        ):
            ids = None
            if count:
                part = dataclasses.replace(batch, n=count)
                ids, sampler_state = sampler.select(proposal, part, sampler_state)
            selected.append(ids)
            states.append(sampler_state)
        n_rounds = -(-batch.n // len(self.samplers))
        used = [ids for ids in selected if ids is not None]
        padded = [jnp.pad(ids, ((0, 0), (0, n_rounds - ids.shape[1]))) for ids in used]
        rounds = jnp.stack(padded, axis=2)
        return rounds.reshape(rounds.shape[0], -1)[:, : batch.n], tuple(states)


@pytree_dataclass
class StagedSampler(_Composite):
    """Switches from one sampler to another after a number of epochs.

    BNS-2 is ``StagedSampler(RNS(), BNS(…))``.

    Attributes:
      first: Sampler of the first epochs.
      then: Sampler of the remaining epochs.
      epochs: Number of epochs of ``first``, >= 0.

    Raises:
      ValueError: If ``epochs`` is negative, or a sampler is a :class:`SharedSampler`.

    References:
      "Contrastive Learning for Personalized Recommendation", section 4.5.2.3, BNS-2.
    """

    first: Sampler
    then: Sampler
    epochs: Annotated[Int[Array, ""] | int, Range(0)] = 10

    @property
    def _parts(self) -> tuple[Sampler, ...]:
        return self.first, self.then

    def _counts(self, n: int) -> list[int]:
        return [n, n]

    def select(self, proposals: Any, batch: SamplingContext, state: Any) -> Selection:
        """Returns the selection of the sampler of the current epoch."""

        def first() -> tuple[Array, tuple[Any, Any]]:
            ids, after = self.first.select(proposals[0], batch, state[0])
            return ids, (after, state[1])

        def then() -> tuple[Array, tuple[Any, Any]]:
            ids, after = self.then.select(proposals[1], batch, state[1])
            return ids, (state[0], after)

        return jax.lax.cond(batch.epoch < self.epochs, first, then)
