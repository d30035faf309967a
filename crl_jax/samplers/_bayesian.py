"""Bayesian negative sampling (BNS)."""

from dataclasses import field
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._hyperparams import Range, Scalar
from .._pytree import STATIC, pytree_dataclass
from ..models import Tables
from ._base import Ids, Sampler, SamplingContext, Selection, Users, best
from ._criteria import informativeness, sampling_risk, unbiasedness
from ._ecdf import (
    CatalogueSample,
    candidate_ecdf,
    draw_sample,
    exact_ecdf,
    sampled_ecdf,
    user_table,
)
from ._positives import Positives, sample_unseen
from ._priors import Prior, as_prior, check_prior, lookup_prior


@pytree_dataclass
class BNS(Sampler):
    r"""Bayesian negative sampling: the candidate with the least sampling risk out of m.

    .. math::
        j = \arg\min_{l \in \mathcal M_u} \text{info}(l) \cdot [1 - (1+\lambda)\,\text{unbias}(l)]

    See :func:`informativeness`, :func:`unbiasedness` and :func:`sampling_risk`. The posterior
    requires the eCDF of the candidate's score among the user's scores on :math:`\mathcal I_u^-`:
    exact, or from a sample of the catalogue, drawn once per epoch, with an error bounded by
    :func:`crl_jax.stats.dkw_error`, or from the candidates in the mini-batch alone.

    Candidates are drawn independently; the choice among them is deterministic. If p depends on F
    only, as for ``uniform_prior``, BNS selects by rank as DNS does.

    Attributes:
      prior: Prior :math:`P_{fn}` of a false negative, see :data:`Prior`, such as
        :func:`popularity_prior`.
      risk_lambda: Gain :math:`\lambda \ge 0` of a true negative relative to the cost of a false
        one; larger values prefer hard negatives.
      risk_lambda_slope: Decrease of ``risk_lambda`` per epoch, >= 0: 0.1 for BNS-1.
      risk_lambda_min: Minimum of the decreasing ``risk_lambda``, >= 0: 2 for BNS-1.
      candidates: Number m >= 1 of candidates; None for all of :math:`\mathcal I_u^-`, the exact
        risk minimiser, which ranks the whole catalogue. Static.
      ecdf_samples: Number of items sampled for the eCDF, shared by all users during an epoch; None
        for the exact eCDF. Static.
      ecdf: Items of the eCDF: ``"catalogue"``, or ``"batch"`` for the N = n m candidates that the
        mini-batch has for the anchor, of which the k-th smallest has F = :math:`k/(N+1)`. That
        costs as much as :class:`DNS`, but is coarse, and reached a lower NDCG. Static.
      criterion: ``"risk"``, or ``"posterior"`` to maximise the unbiasedness alone. Static.

    Raises:
      ValueError: If a hyper-parameter is out of range or, when negatives are drawn, an array
        ``prior`` has another number of users or items.

    References:
      "Contrastive Learning for Personalized Recommendation", algorithm 2, (4.26) and (4.29), and
      section 5.6.2.3 for ``ecdf="batch"``;
      Liu and Wang, `Bayesian Negative Sampling for Recommendation
      <https://arxiv.org/abs/2204.06520>`_, 2023.
    """

    prior: Annotated[Prior, Range(0, 1)]
    risk_lambda: Annotated[Scalar, Range(0)] = 5.0
    risk_lambda_slope: Annotated[Scalar, Range(0)] = 0.0
    risk_lambda_min: Annotated[Scalar, Range(0)] = 0.0
    candidates: Annotated[int | None, Range(1)] = field(default=5, metadata=STATIC)
    ecdf_samples: Annotated[int | None, Range(1)] = field(default=None, metadata=STATIC)
    criterion: Literal["risk", "posterior"] = field(default="risk", metadata=STATIC)
    ecdf: Literal["catalogue", "batch"] = field(default="catalogue", metadata=STATIC)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prior", as_prior(self.prior))
        if self.candidates is None and self.ecdf_samples is not None:
            raise ValueError(
                "`ecdf_samples` must be None with `candidates=None`, whose eCDF is exact, "
                f"got {self.ecdf_samples}."
            )
        if self.ecdf == "batch" and (self.candidates is None or self.ecdf_samples is not None):
            raise ValueError(
                "`ecdf` must be catalogue with `candidates=None` or `ecdf_samples`, got 'batch'."
            )

    @property
    def uses_bitmap(self) -> bool:
        """Whether the eCDF excludes seen items; candidates are unseen."""
        return self.ecdf == "catalogue"

    def init(
        self, key: Key[Array, ""], positives: Positives, tables: Tables
    ) -> CatalogueSample | tuple[()]:
        """Draws the first catalogue sample of a sampled eCDF."""
        return () if self.ecdf_samples is None else draw_sample(key, positives, self.ecdf_samples)

    def start_epoch(
        self, key: Key[Array, ""], positives: Positives, tables: Tables, state: Any
    ) -> CatalogueSample | tuple[()]:
        """Draws the catalogue sample of the epoch."""
        return () if self.ecdf_samples is None else draw_sample(key, positives, self.ecdf_samples)

    def propose(self, key: Key[Array, ""], users: Users, positives: Positives, n: int) -> Ids:
        """Draws candidates."""
        check_prior(self.prior, positives.n_users, positives.n_items)
        return sample_unseen(key, users, positives, n * (self.candidates or 0))

    def select(self, proposals: Any, batch: SamplingContext, state: Any) -> Selection:
        """Returns the least risky candidate of each group."""
        items = proposals
        if self.candidates is None:
            return self._select_from_all(batch), state
        if self.ecdf == "catalogue" and self.ecdf_samples is None:
            ecdf, scores, pos = exact_ecdf(batch, items)
        else:
            both = batch.scores(jnp.concatenate([batch.items[:, None], items], axis=1))
            pos, scores = both[:, :1], both[:, 1:]
            is_sampled = self.ecdf == "catalogue"
            ecdf = sampled_ecdf(batch, scores, state) if is_sampled else candidate_ecdf(scores)
        prior = lookup_prior(self.prior, batch.users, items)
        value = self._value(pos, scores, ecdf, prior, batch.epoch)
        shape = (-1, batch.n, self.candidates)
        return best(value.reshape(shape), items.reshape(shape)), state

    def _select_from_all(self, batch: SamplingContext) -> Int[Array, "batch n"]:
        """Returns the least risky of all unseen items."""
        n_users, n_items = batch.positives.n_users, batch.positives.n_items
        # The eCDF does not depend on the positive, so that one row per user suffices.
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
        # With fewer unseen items than negatives, the best items repeat.
        n_unseen = batch.positives.n_unseen(batch.users)[:, None]
        position = jnp.arange(batch.n, dtype=jnp.int32)[None] % jnp.maximum(n_unseen, 1)
        ids = jnp.take_along_axis(order, position, axis=1)
        return jnp.where(n_unseen > 0, ids, n_items)

    def _value(
        self,
        pos: Float[Array, "batch 1"],
        scores: Float[Array, "batch n"],
        ecdf: Float[Array, "batch n"],
        prior: Float[Array, "batch n"],
        epoch: Int[Array, ""],
    ) -> Float[Array, "batch n"]:
        """Returns the objective that the selected negative maximises."""
        unbias = unbiasedness(ecdf, prior)
        if self.criterion == "posterior":
            return unbias
        decrease = self.risk_lambda_slope * epoch.astype(jnp.float32)
        risk_lambda = jnp.maximum(self.risk_lambda - decrease, self.risk_lambda_min)
        return -sampling_risk(informativeness(pos, scores), unbias, risk_lambda=risk_lambda)
