"""Ranking task: learning to rank items for users from implicit feedback."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key

from .._checks import check_registered
from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from .._take import take_rows
from ..data import Interactions
from ..losses import accepts_where, bpr, is_per_anchor_loss
from ..metrics import sampling_quality
from ..models import Encoder, MatrixFactorization, Similarity, Tables
from ..samplers import (
    RNS,
    Negatives,
    Pools,
    Positives,
    Sampler,
    SamplingContext,
    broadcast_pools,
    informativeness,
    map_pools,
    sample_seen,
)
from ..train import Batch, LossOutput, RowTask, StepContext, stream
from ._auxiliary import AuxiliaryLoss
from ._batch import PairBatch, RankingBatch, RankingState, RowIndices, has_unseen
from ._confidence import ConfidenceEM

HyperparamSchedule = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""Pure function ``hyperparam_schedule(progress, hyperparams)`` that returns the loss's
hyper-parameters when the fraction ``progress`` of the epochs is completed; it is traced."""
HyperparamEstimator = Callable[[Array, Array, Array, dict[str, Any]], dict[str, Array]]
"""Pure function ``hyperparam_estimator(pos, neg, where, hyperparams)`` that returns
hyper-parameters estimated from the scores of a step, ``pos [B, 1]`` and ``neg [B, N]`` with its
mask: :func:`alpha_from_batch`. They replace those of the same name; it is traced."""
L2Target = Literal["tables", "rows", "encoded"]
"""Arrays in the L2 term: ``"tables"`` for whole tables, ``"rows"`` for the batch's rows of the
tables before any layer, ``"encoded"`` for the encoded rows of the batch."""


@pytree_dataclass
class Ranking(RowTask):
    """Ranking task of an encoder, a loss and a sampler; see :func:`fit_ranking`.

    Attributes:
      encoder: Computes embeddings of users and items.
      seen: Training interactions.
      positives: Positives of every user.
      sampler: Negative sampler.
      hyperparams: Hyper-parameters of the loss by name.
      init_scale: Factor on the initial parameters, > 0.
      l2: Coefficient of the L2 term of ``l2_target``, >= 0; for ``"tables"`` the optimizer's
        weight decay is used instead.
      held_out: Positives excluded from training; negatives among them are counted as false. None
        disables the count.
      item_users: Users of each item, for ``n_group``.
      confidence: Estimates a weight for the loss of each interaction; None for 1.
      auxiliary_loss: Additional loss term, or None.
      loss_fn: ``loss(pos, neg, *, reduce_fn=None, **hyperparams) -> [batch]``. Static.
      hyperparam_schedule: See :data:`HyperparamSchedule`. Static.
      hyperparam_estimator: See :data:`HyperparamEstimator`. The history reports its estimates.
        Static.
      n_neg: Negatives per anchor. Static.
      n_pos: Extra positives per anchor. Static.
      n_group: Users sampled per anchor among those of its item. Static.
      l2_target: See :data:`L2Target`. Static.
      serve_similarity: Similarity for validation and recommendation; None for the encoder's.
        Static.
    """

    encoder: Encoder
    seen: PairBatch
    positives: Positives
    sampler: Sampler
    hyperparams: dict[str, Any]
    init_scale: Annotated[Any, Range(0, low_open=True, high_open=True)] = 1.0
    l2: Annotated[Any, Range(0, high_open=True)] = 0.0
    held_out: Positives | None = None
    item_users: Positives | None = None
    confidence: ConfidenceEM | None = None
    auxiliary_loss: AuxiliaryLoss | None = None
    loss_fn: Callable[..., Array] = field(default=bpr, metadata=STATIC)
    hyperparam_schedule: HyperparamSchedule | None = field(default=None, metadata=STATIC)
    hyperparam_estimator: HyperparamEstimator | None = field(default=None, metadata=STATIC)
    n_neg: int = field(default=1, metadata=STATIC)
    n_pos: int = field(default=0, metadata=STATIC)
    n_group: int = field(default=0, metadata=STATIC)
    l2_target: L2Target = field(default="tables", metadata=STATIC)
    serve_similarity: Similarity | None = field(default=None, metadata=STATIC)

    @classmethod
    def from_interactions(
        cls,
        train: Interactions,
        *,
        encoder: Encoder | Callable[[Interactions], Encoder] | None = None,
        loss: Callable[..., Array],
        hyperparams: Mapping[str, Any] | None = None,
        sampler: Sampler | None = None,
        held_out: Interactions | None = None,
        n_group: int = 0,
        streamed: bool = False,
        **fields: Any,
    ) -> "Ranking":
        """Creates the task from training interactions, with arrays on the default device.

        Args:
          train: Training interactions. Users who have seen the whole catalogue are excluded, since
            they have no negatives.
          encoder: Encoder, or a function that creates it from ``train``; by default
            :class:`crl_jax.models.MatrixFactorization`.
          hyperparams, held_out, n_group: See :class:`Ranking`.
          loss: See ``loss_fn``.
          sampler: Negative sampler; by default :class:`crl_jax.samplers.RNS`.
          streamed: Whether anchors are streamed from the host. ``seen`` is then empty, and the
            device holds four bytes per interaction for the exclusion of positives.
          **fields: Other attributes.
        """
        n_users, n_items = train.n_users, train.n_items
        if encoder is None:
            encoder = MatrixFactorization(n_users, n_items)
        elif not isinstance(encoder, Encoder):
            encoder = encoder(train)
        check_registered("encoder", encoder)
        if (encoder.n_users, encoder.n_items) != (n_users, n_items):
            raise ValueError(
                f"`encoder` must have {n_users} users and {n_items} items, "
                f"got {encoder.n_users} and {encoder.n_items}."
            )
        sampler = sampler or RNS()
        keep = has_unseen(train)
        if not keep.any():
            raise ValueError("`train` must leave some item of the catalogue unseen by some user.")
        if n_excluded := len(keep) - int(keep.sum()):
            warnings.warn(
                f"{n_excluded} interactions of users who have seen the whole catalogue are "
                "excluded from training, since these users have no negatives.",
                stacklevel=3,
            )
        used = slice(0) if streamed else keep
        pairs = (jnp.asarray(x[used].astype(np.int32)) for x in (train.users, train.items))
        if held_out is not None:
            fields["held_out"] = Positives.from_interactions(held_out, bitmap=sampler.is_shared)
        if n_group:
            by_item = Interactions.from_arrays(
                train.items, train.users, user_ids=train.item_ids, item_ids=train.user_ids
            )
            fields["item_users"] = Positives.from_interactions(by_item)
        positives = Positives.from_interactions(train, bitmap=sampler.uses_bitmap)
        return cls(
            encoder, PairBatch(*pairs), positives, sampler, dict(hyperparams or {}),
            loss_fn=loss, n_group=n_group, **fields,
        )  # fmt: skip

    @property
    def serving(self) -> Encoder:
        """Encoder with the similarity for validation and recommendation."""
        if self.serve_similarity is None:
            return self.encoder
        return replace(self.encoder, similarity=self.serve_similarity)

    def init(self, key: Key[Array, ""]) -> tuple[Any, RankingState]:
        """Returns the scaled initial parameters and the initial state."""
        params = self.encoder.init(stream(key, "params"))
        scale = jnp.asarray(self.init_scale)
        params = jax.tree.map(lambda x: scale.astype(x.dtype) * x, params)
        tables: Any = self.encoder.encode(params)
        users, items = self.encoder.n_users, self.encoder.n_items
        is_tables = isinstance(tables, Tables)
        got: Any = (jnp.shape(tables.users), jnp.shape(tables.items)) if is_tables else None
        if not is_tables or got != ((users, got[1][-1]), (items, got[0][-1])):
            raise ValueError(
                f"`encode` of {type(self.encoder).__name__} must return Tables of {users} users "
                f"and {items} items with one width, got {got or type(tables).__name__}."
            )
        sampler_state = self.sampler.init(stream(key, "model_state"), self.positives, tables)
        confidence = None
        if self.confidence is not None:
            confidence = jnp.ones(self.seen.users.shape, jnp.float32)
        auxiliary = () if (term := self.auxiliary_loss) is None else term.init(self.encoder, params)
        return params, RankingState(sampler_state, confidence, auxiliary)

    def table_paths(self) -> tuple[str, ...]:
        """Returns the paths of the encoder's embedding tables."""
        return self.encoder.table_paths()

    def shard(self, mesh: Mesh) -> "Ranking":
        """Returns the task with its encoder sharded over ``mesh``."""
        return replace(self, encoder=self.encoder.shard(mesh))

    def start_epoch(
        self, key: Key[Array, ""], params: Any, model_state: RankingState, epoch: Int[Array, ""]
    ) -> RankingState:
        """Updates sampler, auxiliary loss and, every ``confidence.every`` epochs, confidence."""
        tables = self.encoder.encode(params)
        sampler_key, confidence_key, auxiliary_key = (
            jax.random.fold_in(key, purpose) for purpose in (2, 3, 4)
        )
        model_state = model_state._replace(
            sampler=self.sampler.start_epoch(
                sampler_key, self.positives, tables, model_state.sampler
            )
        )
        if self.auxiliary_loss is not None:
            auxiliary = self.auxiliary_loss.start_epoch(
                auxiliary_key, self.encoder, params, model_state.auxiliary, epoch
            )
            model_state = model_state._replace(auxiliary=auxiliary)
        em, previous = self.confidence, model_state.confidence
        if em is None or previous is None:
            return model_state
        estimate = partial(em.estimate, confidence_key, self.encoder, tables, *self.seen)
        confidence = jax.lax.cond(
            epoch % jnp.asarray(em.every) == 0,
            lambda: estimate().astype(previous.dtype),
            lambda: previous,
        )
        return model_state._replace(confidence=confidence)

    def batch(self, key: Key[Array, ""], examples: Batch) -> RankingBatch:
        """Samples extra positives, groups and proposals of negatives for the anchors."""
        neg_key, pos_key = jax.random.split(key)
        users, items = examples.data
        pos, group = items[:, None], None
        if self.n_pos:
            extra = sample_seen(pos_key, users, self.positives, self.n_pos)
            pos = jnp.concatenate([pos, extra], axis=1)
        if self.n_group:
            assert self.item_users is not None
            group_key = jax.random.fold_in(key, 2)
            group = sample_seen(group_key, items, self.item_users, self.n_group)
        proposals = self.sampler.propose(neg_key, users, self.positives, self.n_neg)
        return RankingBatch(examples.indices, users, pos, group, proposals)

    def complete_batch(
        self, params: Any, model_state: RankingState, batch: RankingBatch, ctx: StepContext
    ) -> tuple[RankingBatch, RankingState]:
        """Selects the negatives of the batch."""
        return self._select(self.encoder.encode(params), model_state, batch, ctx)

    def _select(
        self, tables: Tables, model_state: RankingState, batch: RankingBatch, ctx: StepContext
    ) -> tuple[RankingBatch, RankingState]:
        context = self._sampling_context(tables, batch, ctx)
        selection: Any = self.sampler.select(batch.proposals, context, model_state.sampler)
        name, n_anchors = type(self.sampler).__name__, len(batch.users)
        if not isinstance(selection, tuple) or len(selection) != 2:
            raise ValueError(f"`select` of {name} must return ids and a state, got {selection}.")
        neg, sampler_state = selection
        n = self.sampler.n_negatives(n_anchors, self.n_neg)
        if jnp.shape(neg) != (n_anchors, n):
            raise ValueError(
                f"`sampler` must return `n_neg` = {n} items for each of {n_anchors} anchors, "
                f"got {jnp.shape(neg)} from {name}."
            )
        is_false = None
        if self.held_out is not None and not self.sampler.is_shared:
            is_false = self.held_out.contains(batch.users, neg)
        batch = batch._replace(proposals=(), neg=neg, is_false=is_false)
        return batch, model_state._replace(sampler=sampler_state)

    def _sampling_context(
        self, tables: Tables, batch: RankingBatch, ctx: StepContext
    ) -> SamplingContext:
        return SamplingContext(
            batch.users, batch.pos[:, 0], self.positives, tables, ctx.epoch, self.encoder,
            self.n_neg,
        )  # fmt: skip

    def loss(
        self, params: Any, model_state: RankingState, batch: RankingBatch, ctx: StepContext
    ) -> LossOutput:
        """Mean loss over the anchors that are no padding, with L2 and auxiliary terms."""
        key, views = jax.random.fold_in(ctx.key, 0), None
        if self.auxiliary_loss is None:
            tables = self.encoder.encode(params, key)
        else:
            tables, views = self.auxiliary_loss.encode(self.encoder, params, key)
        if batch.neg is None:
            constant = jax.lax.stop_gradient(tables)
            batch, model_state = self._select(constant, model_state, batch, ctx)
        assert batch.neg is not None
        context = self._sampling_context(tables, batch, ctx)
        negatives = self.sampler.negatives(batch.neg, context, ctx.where)
        at = self._row_indices(batch) if batch.at is None else batch.at
        # Negatives per anchor are scored together with the positives.
        scores = self.encoder.score(tables, at.users, at.items)
        pos, neg = scores[:, : 1 + self.n_pos], scores[:, 1 + self.n_pos :]
        if isinstance(negatives.ids, Pools):
            assert at.pools is not None
            neg = map_pools(  # one matrix product per pool
                lambda pool, users: self.encoder.score_shared(tables, users, pool).T,
                at.pools, jnp.asarray(at.users),
            )  # fmt: skip
            if self.held_out is not None:
                is_false = map_pools(
                    lambda pool, users: self.held_out.seen_in_pool(users, pool),  # type: ignore
                    negatives.ids.items, batch.users, sequential=True,
                )  # fmt: skip
                batch = batch._replace(is_false=is_false)
        if at.group is not None:  # after the score of the anchor, before extra positives
            item = jnp.repeat(jnp.asarray(at.items[:, :1]), at.group.shape[1], axis=0)
            group = self.encoder.score(tables, at.group.reshape(-1), item).reshape(at.group.shape)
            pos = jnp.concatenate([pos[:, :1], group, pos[:, 1:]], axis=1)
        total, metrics = self._mean_loss(pos, neg, negatives, model_state, batch, ctx)
        if self.l2_target != "tables":
            rows = tables if self.l2_target == "encoded" else self.encoder.base_tables(params)
            total = total + self.l2 * self._half_squares(rows, at, model_state, batch, ctx)
        if self.auxiliary_loss is not None:
            term = self.auxiliary_loss.loss(
                views, jnp.asarray(at.users), jnp.asarray(at.items[:, 0]), ctx.where,
                model_state.auxiliary,
            )  # fmt: skip
            total, metrics = total + term, {**metrics, "auxiliary_loss": term}
        return total, (model_state, metrics)

    def rows(self, batch: RankingBatch) -> dict[str, Array]:
        """Returns the ids of the rows of users and items that the batch reads."""
        ids = self._row_indices(batch)
        users = [ids.users] if ids.group is None else [ids.users, ids.group.ravel()]
        items = [ids.items.ravel()]
        if ids.pools is not None and self.sampler.n_rows(len(ids.users), self.n_neg):
            items.append(ids.pools.ravel())
        return {"users": jnp.concatenate(users), "items": jnp.concatenate(items)}

    def relocate(self, batch: RankingBatch, at: dict[str, Array | np.ndarray]) -> RankingBatch:
        """Sets the indices of the batch in tables of the rows from :meth:`rows`."""
        ids = self._row_indices(batch)
        n, n_items = len(ids.users), ids.items.size
        items, pools = at["items"][:n_items].reshape(ids.items.shape), None
        if ids.pools is not None:
            if self.sampler.n_rows(n, self.n_neg):
                pools = jnp.asarray(at["items"][n_items:]).reshape(ids.pools.shape)
            else:  # the pool consists of the positives of the batch
                pools = jnp.asarray(items[:, 0])[None]
        group = None if ids.group is None else at["users"][n:].reshape(ids.group.shape)
        return batch._replace(at=RowIndices(at["users"][:n], items, pools, group))

    def _row_indices(self, batch: RankingBatch) -> RowIndices:
        """Indices of the batch's embeddings in whole tables."""
        assert batch.neg is not None
        neg = self.sampler.negative_ids(batch.neg, batch.pos[:, 0])
        if isinstance(neg, Pools):
            return RowIndices(batch.users, batch.pos, neg.items, batch.group)
        items = jnp.concatenate([batch.pos, neg], axis=1)
        return RowIndices(batch.users, items, None, batch.group)

    def _mean_loss(
        self,
        pos: Array,
        neg: Array,
        negatives: Negatives,
        model_state: RankingState,
        batch: RankingBatch,
        ctx: StepContext,
    ) -> tuple[Array, dict[str, Array]]:
        """Mean over the anchors that are no padding, and metrics of the sampler."""
        anchor_pos = pos[:, :1]
        if pos.shape[1] == 1:
            pos = pos[:, 0]
        hyperparams = dict(self.hyperparams)
        if self.hyperparam_schedule is not None:
            hyperparams = self.hyperparam_schedule(ctx.progress, hyperparams)
        where = negatives.mask
        is_real = jnp.broadcast_to(ctx.where[:, None], neg.shape)
        # A loss across anchors must not use padding as negatives.
        if where is None and accepts_where(self.loss_fn) and not is_per_anchor_loss(self.loss_fn):
            where = is_real
        estimates: dict[str, Array] = {}
        if self.hyperparam_estimator is not None:
            mask = is_real if where is None else is_real & where
            scores = jax.lax.stop_gradient((anchor_pos, neg))
            estimates = self.hyperparam_estimator(*scores, mask, hyperparams)
            hyperparams |= estimates
        if where is not None:
            hyperparams["where"] = where
        corrected = neg
        if negatives.log_q is not None:
            log_q = negatives.log_q
            temperature = jnp.asarray(hyperparams.get("temperature", 1.0), log_q.dtype)
            correction = (temperature * log_q).astype(neg.dtype)  # the loss divides by temperature
            if isinstance(negatives.ids, Pools):
                correction = broadcast_pools(correction, len(neg))
            corrected = neg - correction
        losses = self.loss_fn(pos, corrected, reduce_fn=None, **hyperparams)
        if (weights := model_state.confidence) is not None:
            losses = weights[batch.indices].astype(losses.dtype) * losses
        mean = ctx.mean(losses)
        metrics = {"loss": mean, **estimates}
        if batch.is_false is not None:
            mask = is_real if where is None else is_real & where
            quality = sampling_quality(informativeness(anchor_pos, neg), batch.is_false, where=mask)
            metrics |= quality._asdict()
        return mean, metrics

    def _half_squares(
        self,
        rows: Tables,
        at: RowIndices,
        model_state: RankingState,
        batch: RankingBatch,
        ctx: StepContext,
    ) -> Array:
        """Half the squared norm of the rows of an anchor, averaged without padding."""
        users, items = take_rows(rows.users, at.users), take_rows(rows.items, at.items)
        squares = jnp.sum(users**2, axis=-1) + jnp.sum(items**2, axis=(1, 2))
        if at.pools is not None and self.sampler.n_rows(len(at.users), self.n_neg):
            pool_squares = jnp.sum(take_rows(rows.items, at.pools) ** 2, axis=(1, 2))
            squares = squares + broadcast_pools(pool_squares, len(squares))
        squares = squares.astype(jnp.float32)
        if (weights := model_state.confidence) is not None:
            squares = weights[batch.indices].astype(squares.dtype) * squares
        return 0.5 * ctx.mean(squares)
