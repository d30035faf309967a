"""Bayesian negative sampling: candidates judged by what they teach and by whether they are true."""

from dataclasses import field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._checks import check_range
from .._hyperparams import Scalar
from .._pytree import STATIC, pytree_dataclass
from ..models import Tables
from ._base import Sampler, SamplingContext, best
from ._criteria import informativeness, sampling_risk, unbiasedness
from ._ecdf import CatalogueSample, draw_sample, exact_ecdf, sampled_ecdf, user_table
from ._positives import Positives, sample_unseen
from ._priors import Prior, as_prior, check_prior, lookup_prior


@pytree_dataclass
class BNS(Sampler):
    r"""Bayesian negative sampling: of m uniform candidates the one with the least sampling risk.

    .. math::
        j = \arg\min_{l \in \mathcal M_u} \text{info}(l) \cdot [1 - (1+\lambda)\,\text{unbias}(l)]

    See :func:`informativeness`, :func:`unbiasedness` and :func:`sampling_risk`. The posterior
    needs the eCDF of the candidate's score among the user's scores on all of
    :math:`\mathcal I_u^-`: exact, or from a sample of the catalogue, drawn anew for each epoch,
    whose error :func:`crl_jax.stats.dkw_error` bounds.

    Given its candidates it is deterministic; they are drawn independently. Where p grows with
    nothing but F, as for ``uniform_prior``, it picks by rank as DNS does.

    Attributes:
      prior: :math:`P_{fn}`, see :data:`Prior`, such as :func:`popularity_prior`.
      risk_lambda: The :math:`\lambda \ge 0`: the larger, the more hard negatives count.
      risk_lambda_slope: What ``risk_lambda`` loses with every epoch, >= 0: 0.1 for BNS-1.
      risk_lambda_least: Where it stops losing, >= 0: 2 for BNS-1.
      candidates: The m >= 1; or None for all of :math:`\mathcal I_u^-`, the sampler that
        minimises the risk, which ranks the whole catalogue. Static.
      ecdf_samples: Items drawn for the eCDF, the same for all users during an epoch; or None for
        the exact one. Static.
      criterion: ``"risk"``, or ``"posterior"`` for the largest unbiasedness alone. Static.

    Raises:
      ValueError: If a number leaves its range, or, where negatives are drawn, an array for
        ``prior`` is of other users or items.

    References:
      "Contrastive Learning for Personalized Recommendation", algorithm 2, (4.26) and (4.29);
      Liu and Wang, `Bayesian Negative Sampling for Recommendation
      <https://arxiv.org/abs/2204.06520>`_, 2023.
    """

    prior: Prior
    risk_lambda: Scalar = 5.0
    risk_lambda_slope: Scalar = 0.0
    risk_lambda_least: Scalar = 0.0
    candidates: int | None = field(default=5, metadata=STATIC)
    ecdf_samples: int | None = field(default=None, metadata=STATIC)
    criterion: Literal["risk", "posterior"] = field(default="risk", metadata=STATIC)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prior", as_prior(self.prior))
        check_range("prior", self.prior, 0, 1)
        for name in ("risk_lambda", "risk_lambda_slope", "risk_lambda_least"):
            check_range(name, getattr(self, name), 0, jnp.inf)
        for name in ("candidates", "ecdf_samples"):
            check_range(name, getattr(self, name), 1, jnp.inf)
        if self.criterion not in ("risk", "posterior"):
            raise ValueError(f"`criterion` must be risk or posterior, got {self.criterion!r}.")
        if self.candidates is None and self.ecdf_samples is not None:
            raise ValueError(
                "`ecdf_samples` has no use with all items as candidates: their ranks are exact."
            )

    @property
    def uses_bitmap(self) -> bool:
        """Of all items, or of those of its sample."""
        return True

    def init(
        self, key: Key[Array, ""], positives: Positives, tables: Tables
    ) -> CatalogueSample | tuple[()]:
        """A first sample of the catalogue, if the eCDF is to be taken over one."""
        return () if self.ecdf_samples is None else draw_sample(key, positives, self.ecdf_samples)

    def start_epoch(
        self, key: Key[Array, ""], positives: Positives, tables: Tables, state: Any
    ) -> CatalogueSample | tuple[()]:
        """Another sample."""
        return () if self.ecdf_samples is None else draw_sample(key, positives, self.ecdf_samples)

    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> Int[Array, "batch n_candidates"]:
        """Candidates."""
        check_prior(self.prior, positives.n_users, positives.n_items)
        return sample_unseen(key, users, positives, n * (self.candidates or 0))

    def select(
        self, proposals: Any, batch: SamplingContext, state: Any
    ) -> tuple[Int[Array, "batch n"], Any]:
        """The least risky of each group of candidates."""
        items = proposals
        if self.candidates is None:
            return self._select_from_all(batch), state
        if self.ecdf_samples is None:
            standing, scores, pos = exact_ecdf(batch, items)
        else:
            both = batch.scores(jnp.concatenate([batch.items[:, None], items], axis=1))
            pos, scores = both[:, :1], both[:, 1:]
            standing = sampled_ecdf(batch, scores, state)
        prior = lookup_prior(self.prior, batch.users, items)
        value = self._value(pos, scores, standing, prior, batch.epoch)
        shape = (-1, batch.n, self.candidates)
        return best(value.reshape(shape), items.reshape(shape)), state

    def _select_from_all(self, batch: SamplingContext) -> Int[Array, "batch n"]:
        """The least risky of all that each user has not taken."""
        n_users, n_items = batch.positives.n_users, batch.positives.n_items
        # The eCDF does not depend on the anchor's positive: one row per user is enough.
        table = batch.users.shape[0] >= n_users
        users = jnp.arange(n_users, dtype=jnp.int32) if table else batch.users
        every_item = jnp.arange(n_items, dtype=jnp.int32)
        rows = user_table(batch, users)
        prior = lookup_prior(self.prior, users, jnp.broadcast_to(every_item, rows.scores.shape))

        row = batch.users if table else jnp.arange(users.size)
        pos = rows.scores[row, batch.items][:, None]
        value = self._value(pos, rows.scores[row], rows.ecdf[row], prior[row], batch.epoch)
        value = jnp.where(rows.unseen[row], value, -jnp.inf)
        _, order = jax.lax.top_k(value, min(batch.n, n_items))
        # Where fewer items are left than negatives are wanted, the best come again.
        n_unseen = batch.positives.n_unseen(batch.users)[:, None]
        place = jnp.arange(batch.n, dtype=jnp.int32)[None] % jnp.maximum(n_unseen, 1)
        ids = jnp.take_along_axis(order, place, axis=1)
        return jnp.where(n_unseen > 0, ids, n_items)

    def _value(
        self,
        pos: Float[Array, "batch 1"],
        scores: Float[Array, "batch n"],
        standing: Float[Array, "batch n"],
        prior: Float[Array, "batch n"],
        epoch: Int[Array, ""],
    ) -> Float[Array, "batch n"]:
        """What is largest for the negative to choose."""
        unbias = unbiasedness(standing, prior)
        if self.criterion == "posterior":
            return unbias
        lost = self.risk_lambda_slope * epoch.astype(jnp.float32)
        risk_lambda = jnp.maximum(self.risk_lambda - lost, self.risk_lambda_least)
        return -sampling_risk(informativeness(pos, scores), unbias, risk_lambda=risk_lambda)


@pytree_dataclass
class StagedSampler(Sampler):
    """One sampler for the first epochs, another thereafter.

    BNS-2 is ``StagedSampler(RNS(), BNS(…))``.

    Attributes:
      first: The sampler of the first epochs.
      then: The sampler of the others.
      epochs: How many epochs ``first`` has, >= 0.

    References:
      "Contrastive Learning for Personalized Recommendation", section 4.5.2.3, BNS-2.
    """

    first: Sampler
    then: Sampler
    epochs: Int[Array, ""] | int = 10

    def __post_init__(self) -> None:
        check_range("epochs", self.epochs, 0, jnp.inf)

    @property
    def uses_bitmap(self) -> bool:
        """Whether one of the two does."""
        return self.first.uses_bitmap or self.then.uses_bitmap

    def init(self, key: Key[Array, ""], positives: Positives, tables: Tables) -> tuple[Any, Any]:
        """The states of both."""
        keys = jax.random.split(key)
        return (
            self.first.init(keys[0], positives, tables),
            self.then.init(keys[1], positives, tables),
        )

    def start_epoch(
        self, key: Key[Array, ""], positives: Positives, tables: Tables, state: tuple[Any, Any]
    ) -> tuple[Any, Any]:
        """Both start it."""
        keys = jax.random.split(key)
        return (
            self.first.start_epoch(keys[0], positives, tables, state[0]),
            self.then.start_epoch(keys[1], positives, tables, state[1]),
        )

    def propose(
        self, key: Key[Array, ""], users: Int[Array, "batch"], positives: Positives, n: int
    ) -> tuple[Any, Any]:
        """The proposals of both."""
        keys = jax.random.split(key)
        return (
            self.first.propose(keys[0], users, positives, n),
            self.then.propose(keys[1], users, positives, n),
        )

    def select(
        self, proposals: tuple[Any, Any], batch: SamplingContext, state: tuple[Any, Any]
    ) -> tuple[Int[Array, "batch n"], tuple[Any, Any]]:
        """The selection of the one whose turn it is."""

        def first() -> tuple[Array, tuple[Any, Any]]:
            ids, changed = self.first.select(proposals[0], batch, state[0])
            return ids, (changed, state[1])

        def then() -> tuple[Array, tuple[Any, Any]]:
            ids, changed = self.then.select(proposals[1], batch, state[1])
            return ids, (state[0], changed)

        return jax.lax.cond(batch.epoch < self.epochs, first, then)
