"""Ranking items for users from positive-unlabelled interactions, as a task."""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key

from .._checks import check_range
from .._pytree import STATIC, pytree_dataclass
from .._take import take_rows
from ..data import Interactions
from ..losses import accepts_where, bpr, is_per_anchor_loss
from ..metrics import sampling_quality
from ..models import Encoder, Similarity, Tables
from ..samplers import (
    RNS,
    Positives,
    Sampler,
    SamplingContext,
    SharedSampler,
    broadcast_pools,
    informativeness,
    sample_seen,
)
from ..train import Batch, RowTask, StepContext, stream
from ._auxiliary import AuxiliaryLoss
from ._batch import PairBatch, RankingBatch, RankingState, RowIndices
from ._confidence import Confidence
from ._interactions import comparable, transpose_interactions
from ._pools import negatives_of_pools, scores_of_pools, taken_of_pools

HyperparamSchedule = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""``hyperparam_schedule(progress, hyperparams)``: the hyper-parameters of a loss when the share
``progress`` of the epochs is done, from those given. A pure function, called while tracing."""
L2Target = Literal["tables", "rows", "encoded"]
"""What an L2 term acts on: whole tables; the rows of the batch before any layer; or the rows of
the batch as the encoder has them."""


@pytree_dataclass
class Ranking(RowTask):
    """Any encoder, loss and sampler on interactions; :func:`fit_ranking` makes one.

    Attributes:
      encoder: Makes vectors of users and items.
      seen: The interactions that are gone through.
      positives: What every user has taken.
      sampler: Chooses the negatives.
      hyperparams: Hyper-parameters of the loss by name.
      init_scale: Factor on the initial parameters.
      l2: Coefficient of the L2 term that :attr:`l2_target` names; that of whole tables is the
        optimiser's.
      held_out: Positives that training must not see: negatives among them are counted as false.
        None counts nothing.
      takers: The users who took each item, for ``n_group``.
      confidence: Weighs the losses of interactions by how credible these are; None by 1.
      contrast: A further term, such as one that contrasts two views of the batch; None for none.
      loss_fn: ``loss(pos, neg, *, reduce_fn=None, **hyperparams) -> [batch]``. Static.
      hyperparam_schedule: See :data:`HyperparamSchedule`. Static.
      n_neg: Negatives per anchor. Static.
      n_pos: Extra positives drawn per anchor. Static.
      n_group: Users drawn per anchor from those who took its item. Static.
      l2_target: See :data:`L2Target`. Static.
      serve_similarity: What a score is outside training; None for that of the encoder. Static.
    """

    encoder: Encoder
    seen: PairBatch
    positives: Positives
    sampler: Sampler
    hyperparams: dict[str, Any]
    init_scale: Any = 1.0
    l2: Any = 0.0
    held_out: Positives | None = None
    takers: Positives | None = None
    confidence: Confidence | None = None
    auxiliary_loss: AuxiliaryLoss | None = None
    loss_fn: Callable[..., Array] = field(default=bpr, metadata=STATIC)
    hyperparam_schedule: HyperparamSchedule | None = field(default=None, metadata=STATIC)
    n_neg: int = field(default=1, metadata=STATIC)
    n_pos: int = field(default=0, metadata=STATIC)
    n_group: int = field(default=0, metadata=STATIC)
    l2_target: L2Target = field(default="tables", metadata=STATIC)
    serve_similarity: Similarity | None = field(default=None, metadata=STATIC)

    def __post_init__(self) -> None:
        check_range("init_scale", self.init_scale, 0, jnp.inf, low_open=True, high_open=True)
        check_range("weight_decay", self.l2, 0, jnp.inf, high_open=True)

    @classmethod
    def from_interactions(
        cls,
        train: Interactions,
        *,
        encoder: Encoder,
        loss: Callable[..., Array],
        hyperparams: Mapping[str, Any] | None = None,
        sampler: Sampler | None = None,
        held_out: Interactions | None = None,
        n_group: int = 0,
        streamed: bool = False,
        **fields: Any,
    ) -> "Ranking":
        """The task of learning from ``train``, its arrays on the default device.

        Args:
          train: Interactions to learn from. Those of users who took the whole catalogue are
            passed over: there is nothing to compare them with.
          encoder: The encoder, of the users and items of ``train``.
          loss: The :attr:`loss_fn`.
          hyperparams: Its hyper-parameters.
          sampler: Chooses the negatives; by default uniformly.
          held_out: Positives that training must not see.
          n_group: Users drawn per anchor.
          streamed: Whether the anchors come from the host: then :attr:`seen` is empty, and what
            the device holds of an interaction is the four bytes by which negatives are checked.
          **fields: Further attributes.
        """
        sampler = sampler or RNS()
        shared = isinstance(sampler, SharedSampler)
        keep = comparable(train)
        if streamed:
            keep = slice(0)
        pairs = (jnp.asarray(x[keep].astype(np.int32)) for x in (train.users, train.items))
        return cls(
            encoder=encoder,
            seen=PairBatch(*pairs),
            positives=Positives.from_interactions(train, bitmap=sampler.uses_bitmap),
            sampler=sampler,
            hyperparams=dict(hyperparams or {}),
            held_out=None
            if held_out is None
            else Positives.from_interactions(held_out, bitmap=shared),
            takers=Positives.from_interactions(transpose_interactions(train)) if n_group else None,
            n_group=n_group,
            loss_fn=loss,
            **fields,
        )

    @property
    def serving(self) -> Encoder:
        """The encoder with the similarity that ranks."""
        if self.serve_similarity is None:
            return self.encoder
        return replace(self.encoder, similarity=self.serve_similarity)

    def init(self, key: Key[Array, ""]) -> tuple[Any, RankingState]:
        """The encoder's initial values, scaled, and the state of the sampler."""
        params = self.encoder.init(stream(key, "params"))
        scale = jnp.asarray(self.init_scale)
        params = jax.tree.map(lambda x: scale.astype(x.dtype) * x, params)
        tables = self.encoder.encode(params)
        self._check_tables(tables)
        sampler = self.sampler.init(stream(key, "model_state"), self.positives, tables)
        even = jnp.ones(self.seen.users.shape, jnp.float32)
        return params, RankingState(sampler, None if self.confidence is None else even)

    def table_paths(self) -> tuple[str, ...]:
        """Paths of the encoder's tables with a row per user or item."""
        return self.encoder.table_paths()

    def shard(self, mesh: Mesh) -> "Ranking":
        """With an encoder for that mesh."""
        return replace(self, encoder=self.encoder.shard(mesh))

    def start_epoch(
        self, key: Key[Array, ""], params: Any, model_state: RankingState, epoch: Int[Array, ""]
    ) -> RankingState:
        """The E step, when its turn comes, and what the sampler does between epochs."""
        tables = self.encoder.encode(params)
        own_key = jax.random.fold_in(key, 2)
        sampler = self.sampler.start_epoch(own_key, self.positives, tables, model_state.sampler)
        return RankingState(
            sampler, self._expect(jax.random.fold_in(key, 3), tables, model_state, epoch)
        )

    def _expect(
        self, key: Key[Array, ""], tables: Tables, model_state: RankingState, epoch: Int[Array, ""]
    ) -> Float[Array, "n"] | None:
        step, before = self.confidence, model_state.confidence
        if step is None or before is None:
            return None

        def estimate() -> Array:
            found = step.estimate(key, self.encoder, tables, *self.seen, self.encoder.n_items)
            return found.astype(before.dtype)

        due = epoch % jnp.asarray(step.every) == 0
        return jax.lax.cond(due, estimate, lambda: before)

    def batch(self, key: Key[Array, ""], examples: Batch) -> RankingBatch:
        """Ids: the anchors, extra positives, groups, and what the sampler proposes."""
        neg_key, pos_key = jax.random.split(key)
        users, own = examples.data
        pos, group = own[:, None], None
        if self.n_pos:
            model_state = sample_seen(pos_key, users, self.positives, self.n_pos)
            pos = jnp.concatenate([pos, model_state], axis=1)
        if self.n_group:
            assert self.takers is not None
            group_key = jax.random.fold_in(key, 2)
            group = sample_seen(group_key, own, self.takers, self.n_group)
        proposals = self.sampler.propose(neg_key, users, self.positives, self.n_neg)
        return RankingBatch(examples.indices, users, pos, group, proposals)

    def complete_batch(
        self, params: Any, model_state: RankingState, batch: RankingBatch, ctx: StepContext
    ) -> tuple[RankingBatch, RankingState]:
        """The negatives."""
        return self._select(self.encoder.encode(params), model_state, batch, ctx)

    def _select(
        self, tables: Tables, model_state: RankingState, draw: RankingBatch, ctx: StepContext
    ) -> tuple[RankingBatch, RankingState]:
        given = self._sampled(tables, draw, ctx)
        chosen = self.sampler.select(draw.proposals, given, model_state.sampler)
        neg, state = self._checked(chosen, len(draw.users))
        is_false = None
        if self.held_out is not None and not isinstance(self.sampler, SharedSampler):
            is_false = self.held_out.contains(draw.users, neg)
        return draw._replace(proposals=(), neg=neg, is_false=is_false), model_state._replace(
            sampler=state
        )

    def _check_tables(self, tables: Any) -> None:
        users, items = self.encoder.n_users, self.encoder.n_items
        found: Any = type(tables).__name__
        if isinstance(tables, Tables):
            found = (jnp.shape(tables.users), jnp.shape(tables.items))
            if found == ((users, found[1][-1]), (items, found[0][-1])):
                return
        raise ValueError(
            f"`encode` of {type(self.encoder).__name__} must return Tables of {users} users and "
            f"{items} items, of one width, got {found}."
        )

    def _checked(self, chosen: Any, n_anchors: int) -> tuple[Int[Array, "batch n_neg"], Any]:
        """What a sampler has chosen, if it is that."""
        sampler = type(self.sampler).__name__
        if not isinstance(chosen, tuple) or len(chosen) != 2:
            raise ValueError(f"`select` of {sampler} must return ids and a state, got {chosen}.")
        n = self.n_neg
        if isinstance(self.sampler, SharedSampler):
            n = self.sampler.size(n_anchors, n)
        if jnp.shape(chosen[0]) != (n_anchors, n):
            raise ValueError(
                f"`sampler` must choose `n_neg` = {n} items for each of {n_anchors} anchors, "
                f"got {jnp.shape(chosen[0])} from {sampler}."
            )
        return chosen

    def _sampled(self, tables: Tables, draw: RankingBatch, ctx: StepContext) -> SamplingContext:
        return SamplingContext(
            draw.users, draw.pos[:, 0], self.positives, tables, ctx.epoch, self.encoder,
            self.n_neg,
        )  # fmt: skip

    def loss(
        self, params: Any, model_state: RankingState, batch: RankingBatch, ctx: StepContext
    ) -> tuple[Array, tuple[RankingState, dict[str, Array]]]:
        """The mean over the real anchors."""
        tables, views = self._encode(params, jax.random.fold_in(ctx.key, 0))
        if batch.neg is None:
            constant = jax.lax.stop_gradient(tables)
            batch, model_state = self._select(constant, model_state, batch, ctx)
        ids, where = self._ids(batch), None
        at = ids if batch.at is None else batch.at
        pos, neg = self._parted(self.encoder.score(tables, at.users, at.items))
        if isinstance(self.sampler, SharedSampler):
            assert ids.pools is not None
            assert at.pools is not None
            given = self._sampled(tables, batch, ctx)
            where = negatives_of_pools(self.sampler, given, ids.pools, ctx.where)
            if self.held_out is not None:
                false = taken_of_pools(self.held_out, batch.users, ids.pools)
                batch = batch._replace(is_false=false)
            neg = scores_of_pools(self.encoder, tables, jnp.asarray(at.users), at.pools)
        if at.group is not None:
            pos = self._with_group(pos, tables, at)
        total, metrics = self._mean_loss(pos, neg, ids.pools, model_state, batch, ctx, where)
        if self.l2_target != "tables":
            rows = tables if self.l2_target == "encoded" else self.encoder.base_tables(params)
            total = total + self.l2 * self._half_squares(rows, at, model_state, batch, ctx)
        if self.auxiliary_loss is not None:
            term = self.auxiliary_loss.loss(
                views, jnp.asarray(at.users), jnp.asarray(at.items[:, 0]), ctx.where
            )
            total, metrics = total + term, {**metrics, "auxiliary_loss": term}
        return total, (model_state, metrics)

    def _encode(self, params: Any, key: Key[Array, ""]) -> tuple[Tables, Any]:
        if self.auxiliary_loss is None:
            return self.encoder.encode(params, key), None
        return self.auxiliary_loss.encode(self.encoder, params, key)

    def rows(self, batch: RankingBatch) -> dict[str, Array]:
        """The rows of the anchors, of their groups, and of all items."""
        ids = self._ids(batch)
        users = [ids.users] if ids.group is None else [ids.users, ids.group.ravel()]
        items = [ids.items.ravel()]
        if ids.pools is not None and self._draws_pools:
            items.append(ids.pools.ravel())
        return {"users": jnp.concatenate(users), "items": jnp.concatenate(items)}

    def relocate(self, batch: RankingBatch, at: dict[str, Array | np.ndarray]) -> RankingBatch:
        """With where the vectors stand in tables of these rows."""
        ids = self._ids(batch)
        n, n_own = len(ids.users), ids.items.size
        items, pools = at["items"][:n_own].reshape(ids.items.shape), None
        if ids.pools is not None and self._draws_pools:
            pools = jnp.asarray(at["items"][n_own:]).reshape(ids.pools.shape)
        elif isinstance(self.sampler, SharedSampler):
            pools = self.sampler.pools((), jnp.asarray(items[:, 0]))
        group = None if ids.group is None else at["users"][n:].reshape(ids.group.shape)
        return batch._replace(at=RowIndices(at["users"][:n], items, pools, group))

    def _ids(self, batch: RankingBatch) -> RowIndices:
        """Where the vectors of the batch stand in whole tables."""
        assert batch.neg is not None
        if isinstance(self.sampler, SharedSampler):
            pools = self.sampler.pools_of(batch.neg, batch.pos[:, 0])
            return RowIndices(batch.users, batch.pos, pools, batch.group)
        items = jnp.concatenate([batch.pos, batch.neg], axis=1)
        return RowIndices(batch.users, items, None, batch.group)

    @property
    def _draws_pools(self) -> bool:
        """Whether there are shared negatives that are no items of the batch."""
        return isinstance(self.sampler, SharedSampler) and self.sampler.is_drawn

    def _parted(self, own: Array) -> tuple[Array, Array]:
        """Scores of anchors with their positives, and with their negatives."""
        return own[:, : 1 + self.n_pos], own[:, 1 + self.n_pos :]

    def _with_group(self, pos: Array, tables: Tables, at: RowIndices) -> Array:
        """With the scores of those who took the anchor's item after that of the anchor."""
        assert at.group is not None
        own = jnp.repeat(jnp.asarray(at.items[:, :1]), at.group.shape[1], axis=0)
        scores = self.encoder.score(tables, at.group.reshape(-1), own).reshape(at.group.shape)
        return jnp.concatenate([pos[:, :1], scores, pos[:, 1:]], axis=1)

    def _mean_loss(
        self,
        pos: Array,
        neg: Array,
        pools: Int[Array, "runs n"] | None,
        model_state: RankingState,
        batch: RankingBatch,
        ctx: StepContext,
        where: Bool[Array, "batch n_neg"] | None,
    ) -> tuple[Array, dict[str, Array]]:
        """Mean over the real anchors, and the metrics of the sampler beside it."""
        own = pos[:, :1]
        if pos.shape[1] == 1:
            pos = pos[:, 0]
        hyperparams = dict(self.hyperparams)
        if self.hyperparam_schedule is not None:
            hyperparams = self.hyperparam_schedule(ctx.progress, hyperparams)
        if where is None and self._masks_fillers:
            where = jnp.broadcast_to(ctx.where[:, None], neg.shape)
        if where is not None:
            hyperparams["where"] = where
        if pools is not None:
            neg = self._corrected(neg, pools, hyperparams)
        losses = self.loss_fn(pos, neg, reduce_fn=None, **hyperparams)
        mean = ctx.mean(self._weighed(losses, model_state, batch))
        metrics = {"loss": mean}
        if batch.is_false is not None:
            info = informativeness(own, neg)
            kept = jnp.broadcast_to(ctx.where[:, None], neg.shape)
            kept = kept if where is None else kept & where
            quality = sampling_quality(info, batch.is_false, where=kept)
            metrics |= {"tnr": quality.tnr, "inf": quality.inf}
        return mean, metrics

    def _corrected(self, neg: Array, pools: Array, hyperparams: dict[str, Any]) -> Array:
        """Scores of a pool as though it had been drawn uniformly: the loss divides by t."""
        assert isinstance(self.sampler, SharedSampler)
        ratio = self.sampler.log_ratio(pools)
        if ratio is None:
            return neg
        temperature = jnp.asarray(hyperparams.get("temperature", 1.0), ratio.dtype)
        return neg - broadcast_pools((temperature * ratio).astype(neg.dtype), len(neg))

    @property
    def _masks_fillers(self) -> bool:
        """Whether the loss is told which anchors are real: it looks across them, and can be."""
        return accepts_where(self.loss_fn) and not is_per_anchor_loss(self.loss_fn)

    @staticmethod
    def _weighed(
        values: Float[Array, "batch"], model_state: RankingState, batch: RankingBatch
    ) -> Float[Array, "batch"]:
        """Each anchor's times the confidence in its interaction."""
        if model_state.confidence is None:
            return values
        return model_state.confidence[batch.place].astype(values.dtype) * values

    def _half_squares(
        self,
        rows: Tables,
        at: RowIndices,
        model_state: RankingState,
        batch: RankingBatch,
        ctx: StepContext,
    ) -> Array:
        """Half the squared length of the rows of an anchor, a mean over the real ones."""
        users, items = take_rows(rows.users, at.users), take_rows(rows.items, at.items)
        squares = jnp.sum(users**2, axis=-1) + jnp.sum(items**2, axis=(1, 2))
        if at.pools is not None and self._draws_pools:
            of_pools = jnp.sum(take_rows(rows.items, at.pools) ** 2, axis=(1, 2))
            squares = squares + broadcast_pools(of_pools, len(squares))
        return 0.5 * ctx.mean(self._weighed(squares.astype(jnp.float32), model_state, batch))
