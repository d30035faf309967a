"""Simplified and robust negative sampling: a memory of likely items, and how they vary."""

from dataclasses import field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._checks import check_range
from .._hyperparams import Scalar
from .._pytree import STATIC, pytree_dataclass
from ..models import Tables
from ._base import Sampler, SamplingContext
from ._positives import Positives, sample_unseen


class SRNSState(NamedTuple):
    """What :class:`SRNS` remembers.

    Attributes:
      memory: Items that each user may get as negatives, int32 ``[n_users, memory]``.
      past: Tables at the end of the last epochs, leading axis ``history``; those of the encoder's
        initial values before there are as many.
    """

    memory: Int[Array, "n_users memory"]
    past: Tables


class _Proposals(NamedTuple):
    fresh: Int[Array, "batch fresh"]
    noise: Float[Array, "batch memory_plus_fresh"]


@pytree_dataclass
class SRNS(Sampler):
    r"""Prefers negatives that score high and whose score has varied.

    Each user has a memory :math:`\mathcal M_u` of :math:`S_1` items not taken. For an anchor
    (u, i) it gives the n items of the memory with the highest

    .. math::
        P_k + \alpha_t \operatorname{std}_{e}[P_k^{(e)}],
        \qquad P_k = \sigma(\hat x_{uk} - \hat x_{ui}),
        \qquad \alpha_t = \alpha \min(t/T_0, 1)

    with the deviation over the last epochs: those of false negatives, which the encoder learns
    steadily, vary little. The memory of a user in the batch is then extended by :math:`S_2` fresh
    uniform items, and :math:`S_1` of these are kept, drawn without replacement in proportion to
    :math:`e^{\hat x_{uk}/\tau}`; equal items count once, while there are others.

    The published code keeps scores of some thousand items per user over five epochs. Here the
    encoder's tables at the end of these epochs are kept, and past scores computed from them.

    Attributes:
      memory: The :math:`S_1 \ge n`; static.
      fresh: The :math:`S_2 \ge 1`; static.
      history: Epochs the deviation goes over, >= 1; static.
      variance_weight: The :math:`\alpha \ge 0`.
      warm_up: The :math:`T_0 > 0`, in epochs.
      temperature: The :math:`\tau > 0`.

    References:
      Ding et al., `Simplify and Robustify Negative Sampling for Implicit Collaborative Filtering
      <https://arxiv.org/abs/2009.03376>`_, 2020, algorithm 1; SRNS in "Contrastive Learning for
      Personalized Recommendation", section 4.5.1.2.
    """

    memory: int = field(default=8, metadata=STATIC)
    fresh: int = field(default=8, metadata=STATIC)
    history: int = field(default=5, metadata=STATIC)
    variance_weight: Scalar = 5.0
    warm_up: Scalar = 50.0
    temperature: Scalar = 10.0

    def __post_init__(self) -> None:
        for name in ("memory", "fresh", "history"):
            check_range(name, getattr(self, name), 1, jnp.inf)
        check_range("variance_weight", self.variance_weight, 0, jnp.inf)
        check_range("warm_up", self.warm_up, 0, jnp.inf, low_open=True)
        check_range("temperature", self.temperature, 0, jnp.inf, low_open=True)

    def init(self, key: Key[Array, ""], positives: Positives, tables: Tables) -> SRNSState:
        """A memory of uniform items, and the encoder's first tables as its whole past."""
        users = jnp.arange(positives.n_users, dtype=jnp.int32)
        past = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.history, *x.shape)), tables)
        return SRNSState(sample_unseen(key, users, positives, self.memory), past)

    def start_epoch(
        self, key: Key[Array, ""], positives: Positives, tables: Tables, state: SRNSState
    ) -> SRNSState:
        """Remembers the tables that the last epoch ended with; forgets the oldest."""

        def push(past: Array, now: Array) -> Array:
            return jnp.concatenate([past[1:], now[None]])

        return state._replace(past=jax.tree.map(push, state.past, tables))

    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> _Proposals:
        """Fresh items, and the noise that decides which stay in memory."""
        if n > self.memory:
            raise ValueError(f"`memory` must be at least the {n} negatives, got {self.memory}.")
        item_key, noise_key = jax.random.split(key)
        width = self.memory + self.fresh
        return _Proposals(
            sample_unseen(item_key, users, positives, self.fresh),
            jax.random.gumbel(noise_key, (*users.shape, width)),
        )

    def select(
        self, proposals: _Proposals, batch: SamplingContext, state: SRNSState
    ) -> tuple[Int[Array, "batch n"], SRNSState]:
        """The best of the memory, and the memory thereafter."""
        held = state.memory[batch.users]
        pool = jnp.concatenate([held, proposals.fresh], axis=1)
        both = jnp.concatenate([batch.items[:, None], pool], axis=1)
        scores = batch.scores(both)
        likely = _likelihood(scores[:, : 1 + self.memory])
        before = jax.vmap(
            lambda tables: _likelihood(
                batch.encoder.score(tables, batch.users, both[:, : 1 + self.memory])
            )
        )(jax.lax.stop_gradient(state.past))
        ramp = jnp.minimum(batch.epoch.astype(jnp.float32) / self.warm_up, 1)
        value = likely + self.variance_weight * ramp * jnp.std(before, axis=0)
        _, at = jax.lax.top_k(value, batch.n)
        negatives = jnp.take_along_axis(held, at, axis=1)

        repeated = jnp.tril(pool[:, :, None] == pool[:, None, :], k=-1).any(axis=-1)
        preference = jnp.where(
            repeated, -jnp.inf, scores[:, 1:] / self.temperature + proposals.noise
        )
        _, at = jax.lax.top_k(preference, self.memory)
        kept = jnp.take_along_axis(pool, at, axis=1)
        # Of several anchors of one user the first decides, whatever order a scatter takes.
        order = jnp.arange(batch.users.shape[0], dtype=jnp.int32)
        first = jnp.full(state.memory.shape[0], order.size, jnp.int32).at[batch.users].min(order)
        rows = jnp.where(first[batch.users] == order, batch.users, state.memory.shape[0])
        memory = state.memory.at[rows].set(kept, mode="drop")
        return negatives, state._replace(memory=memory)


def _likelihood(scores: Float[Array, "batch n_plus_1"]) -> Float[Array, "batch n"]:
    """How near each item's score comes to the anchor's positive, in column 0."""
    return jax.nn.sigmoid(scores[:, 1:] - scores[:, :1])
