"""Negatives of several kinds for one anchor."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from .._pytree import pytree_dataclass
from ..models import Tables
from ._base import Sampler, SamplingContext
from ._positives import Positives


@pytree_dataclass
class MixedSampler(Sampler):
    """Takes turns: the first negative comes from the first sampler, the next from the next.

    For losses that compare an anchor with unlabelled items of different kinds, such as the likely
    and the unpopular ones of :func:`crl_jax.losses.mpr`.

    Attributes:
      samplers: The samplers, at least one; after the last one comes the first again. Of fewer
        negatives than samplers the last ones give none.
    """

    samplers: tuple[Sampler, ...]

    def __post_init__(self) -> None:
        if isinstance(self.samplers, (tuple, list)) and not self.samplers:
            raise ValueError("`samplers` must hold at least one sampler, got none.")

    @property
    def uses_bitmap(self) -> bool:
        """Whether one of them does."""
        return any(sampler.uses_bitmap for sampler in self.samplers)

    def init(self, key: Key[Array, ""], positives: Positives, tables: Tables) -> tuple[Any, ...]:
        """The states of all."""
        return tuple(sampler.init(own, positives, tables) for own, sampler in self._keyed(key))

    def start_epoch(
        self, key: Key[Array, ""], positives: Positives, tables: Tables, state: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """All start it."""
        return tuple(
            sampler.start_epoch(own, positives, tables, before)
            for (own, sampler), before in zip(self._keyed(key), state, strict=True)
        )

    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> tuple[Any, ...]:
        """The proposals of all."""
        return tuple(
            sampler.propose(own, users, positives, count) if count else None
            for (own, sampler), count in zip(self._keyed(key), self._counts(n), strict=True)
        )

    def select(
        self, proposals: tuple[Any, ...], batch: SamplingContext, state: tuple[Any, ...]
    ) -> tuple[Int[Array, "batch n"], tuple[Any, ...]]:
        """The selections of all, one after the other."""
        chosen, states = [], []
        for sampler, count, own, before in zip(
            self.samplers, self._counts(batch.n), proposals, state, strict=True
        ):
            ids, after = None, before
            if count:
                ids, after = sampler.select(own, dataclasses.replace(batch, n=count), before)
            chosen.append(ids)
            states.append(after)
        k = len(self.samplers)
        turns = [chosen[i % k][:, i // k] for i in range(batch.n)]
        return jnp.stack(turns, axis=1), tuple(states)

    def _keyed(self, key: Key[Array, ""]) -> zip:
        return zip(jax.random.split(key, len(self.samplers)), self.samplers, strict=True)

    def _counts(self, n: int) -> list[int]:
        """How many of ``n`` negatives each gives."""
        k = len(self.samplers)
        return [len(range(i, n, k)) for i in range(k)]
