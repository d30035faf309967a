"""One epoch of training on positive-unlabelled interactions, as a pure function."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from ..losses import is_anchorwise
from ..metrics import sampling_quality
from ..models import Functional
from ..samplers import Batch, Positives, Sampler, informativeness, permute, sample_seen
from ..samplers._positives import below
from ._credence import Credence
from ._optimizers import Optimizer
from ._rows import row_updates

# Numbers drawn ahead of an epoch's steps; past this (64 MiB) each step draws its own. Drawing for
# all steps at once gives the same ids in a third of the time, the work per operation being larger.
_MAX_DRAWN_AHEAD = 2**24


@dataclass(frozen=True)
class Step:
    """What one step of training does: the static side, hashed by ``jit``.

    Attributes:
      model: The encoder's functions.
      loss: ``loss(pos, neg, *, reduce_fn=None, **knobs) -> [B]``, for instance from
        :mod:`crl_jax.losses`; ``pos`` is ``[B]``, or ``[B, 1 + n_group + n_pos]`` if more than the
        own positive is scored. If it takes ``where``, ``[B, N]``, that masks the anchors which
        only fill the last batch up, save for losses that :func:`crl_jax.losses.anchorwise` marks.
      optimizer: Makes the Optax transformation from learning rate and weight decay.
      batch_size: Anchors per step, B.
      n_neg: Negatives per anchor, N.
      n_pos: Extra positives drawn per anchor, M.
      draw_batches: Batches whose negatives are drawn together, from the parameters before the
        first of them.
      n_group: Users drawn per anchor from those who took its item, with replacement: their scores
        with it follow that of the own positive.
      row_wise: Whether a step changes the rows of its batch alone, see :func:`fit`.
    """

    model: Functional
    loss: Callable[..., Array]
    optimizer: Optimizer
    batch_size: int
    n_neg: int
    n_pos: int
    draw_batches: int = 1
    n_group: int = 0
    row_wise: bool = False

    @property
    def n_ahead(self) -> int:
        """Scores that come before those of the negatives."""
        return 1 + self.n_group + self.n_pos

    @property
    def masks_fillers(self) -> bool:
        """Whether the loss is told which anchors are real."""
        taken = inspect.signature(self.loss).parameters.values()
        named = any(p.name == "where" or p.kind is p.VAR_KEYWORD for p in taken)
        return named and not is_anchorwise(self.loss)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Anchors:
    """The interactions that an epoch goes through, and what negatives are drawn from.

    Attributes:
      users: User of each interaction.
      items: Item of each interaction.
      positives: What every user has taken.
      held_out: Positives that training must not see: negatives among them are counted as false.
        None counts nothing.
      takers: The users who took each item, as the "items" that it took; for ``n_group``.
      rows: Where the interactions of each user begin and end; given, an anchor is a user drawn
        uniformly, then one of the interactions of that user, as many as there are. None goes
        through all interactions, each once.
    """

    users: Int[Array, "n"]
    items: Int[Array, "n"]
    positives: Positives
    held_out: Positives | None = None
    takers: Positives | None = None
    rows: Int[Array, "drawn 2"] | None = None


class EpochState(NamedTuple):
    """What an epoch changes.

    Attributes:
      params: Parameters.
      opt_state: State of the optimiser.
      sampler_state: State of the sampler.
      confidence: What multiplies the loss of each interaction, ``[n]``; None for 1.
    """

    params: Any
    opt_state: Any
    sampler_state: Any = ()
    confidence: Float[Array, "n"] | None = None


class _Comparisons(NamedTuple):
    """What steps compare; all arrays lead with ``[batches, batch_size]``, or the latter alone.

    Attributes:
      users: Users of the anchors.
      items: Own positive, extra positives and negatives of each, ``[..., 1 + n_pos + n_neg]``.
      group: Users who took the positive, ``[..., n_group]``, or None.
      weight: What multiplies the loss of each anchor, or None.
      real: False for anchors that only fill the last draw up.
    """

    users: Int[Array, "*batch"]
    items: Int[Array, "*batch n_items"]
    group: Int[Array, "*batch n_group"] | None
    weight: Float[Array, "*batch"] | None
    real: Bool[Array, "*batch"]


def run_epoch(
    step: Step,
    state: EpochState,
    key: Key[Array, ""],
    anchors: Anchors,
    sampler: Sampler,
    knobs: dict[str, Any],
    epoch: Int[Array, ""] | int = 0,
    credence: Credence | None = None,
) -> tuple[EpochState, dict[str, Float[Array, ""]]]:
    """Takes as many anchors as there are interactions, in steps of a scan.

    They are the interactions, each once in an order that ``key`` fixes, or draws by user; see
    :class:`Anchors`.

    Args:
      step: What a step does.
      state: State before the epoch.
      key: Key of this epoch: order, negatives and extra positives.
      anchors: The interactions.
      sampler: Chooses the negatives.
      knobs: ``learning_rate`` and ``weight_decay`` of this epoch, and ``loss``, the
        hyper-parameters of the loss; all may be traced.
      epoch: Epochs before this one, for samplers that change over time.
      credence: Estimates the ``confidence`` of ``state`` when its turn comes, or there is none yet.

    Returns:
      The state after the epoch, and means over it: ``loss`` over anchors, and, if ``anchors`` has
      positives held out, ``tnr`` and ``inf`` over negatives
      (:func:`crl_jax.metrics.sampling_quality`).
    """
    if credence is not None:
        state = state._replace(confidence=_expect(step, credence, state, key, anchors, epoch))
    n, batch = anchors.users.shape[0], step.batch_size
    n_drawn = batch * step.draw_batches
    n_draws = -(-n // n_drawn)
    order_key, draw_key = jax.random.split(key)
    # The last draw is filled up with anchors that `position < n` masks. How many of each batch
    # are real is known here: counting them in every step costs as much as a small product.
    position = jnp.arange(n_draws * n_drawn, dtype=jnp.int32).reshape(n_draws, n_drawn)
    first = batch * np.arange(n_draws * step.draw_batches).reshape(n_draws, -1)
    n_real = np.clip(n - first, 0, batch).astype(np.float32)
    if anchors.rows is None:
        index = permute(order_key, position % n, n)
    else:
        index = _draw_by_user(order_key, anchors.rows, position.shape)
    keys = jax.random.split(draw_key, n_draws)
    epoch = jnp.asarray(epoch, jnp.int32)
    update = (_row_step if step.row_wise else _dense_step)(step, knobs)

    def draw(key: Key[Array, ""], index: Int[Array, "drawn"]) -> tuple[Any, ...]:
        neg_key, pos_key = jax.random.split(key)
        users, own = anchors.users[index], anchors.items[index]
        pos, group = own[:, None], None
        if step.n_pos:
            extra = sample_seen(pos_key, users, anchors.positives, step.n_pos)
            pos = jnp.concatenate([pos, extra], axis=1)
        if step.n_group:
            assert anchors.takers is not None
            group_key = jax.random.fold_in(key, 2)
            group = sample_seen(group_key, own, anchors.takers, step.n_group)
        weight = None if state.confidence is None else state.confidence[index]
        proposals = sampler.propose(neg_key, users, anchors.positives, step.n_neg)
        return users, pos, group, weight, proposals

    def turn(state: EpochState, drawn: tuple[Any, ...]) -> tuple[EpochState, dict[str, Array]]:
        """Negatives for some batches, and the steps on them."""
        ids, position, n_real = drawn
        users, pos, group, weight, proposals = ids if ahead else draw(*ids)
        batch = Batch(
            users, pos[:, 0], anchors.positives, state.params, epoch, step.model, step.n_neg
        )
        neg, sampler_state = sampler.select(proposals, batch, state.sampler_state)
        items = jnp.concatenate([pos, neg], axis=1)
        real = position < n
        steps = jax.tree.map(
            lambda x: x.reshape(step.draw_batches, step.batch_size, *x.shape[1:]),
            _Comparisons(users, items, group, weight, real),
        )
        carry = state.params, state.opt_state
        if step.draw_batches == 1:
            carry, (total, scores) = update(carry, jax.tree.map(lambda x: x[0], (steps, n_real)))
        else:
            full = update if step.row_wise else _skip_empty(update)
            carry, (totals, scores) = jax.lax.scan(full, carry, (steps, n_real))
            total, scores = jnp.sum(totals), scores.reshape(-1, *scores.shape[2:])
        report = {"loss": total}
        if anchors.held_out is not None:
            info = informativeness(scores[:, :1], scores[:, step.n_ahead :])
            is_false = anchors.held_out.contains(users, neg)
            kept = jnp.broadcast_to(real[:, None], neg.shape)
            quality = sampling_quality(info, is_false, where=kept)
            share = jnp.sum(n_real) / n
            report |= {"tnr": quality.tnr * share, "inf": quality.inf * share}
        return EpochState(*carry, sampler_state, state.confidence), report

    size = sum(math.prod(x.shape) for x in jax.tree.leaves(jax.eval_shape(draw, keys[0], index[0])))
    ahead = n_draws * size <= _MAX_DRAWN_AHEAD
    ids = jax.vmap(draw)(keys, index) if ahead else (keys, index)
    started = sampler.start_epoch(
        jax.random.fold_in(key, 2), anchors.positives, state.params, state.sampler_state
    )
    # Two steps a turn: a tenth off the epoch of a loss with many scores, on CPUs.
    state, report = jax.lax.scan(
        turn,
        state._replace(sampler_state=started),
        (ids, position, jnp.asarray(n_real)),
        unroll=2 if step.draw_batches == 1 else 1,
    )
    sums = jax.tree.map(jnp.sum, report)
    return state, {**sums, "loss": sums["loss"] / n}


def _draw_by_user(
    key: Key[Array, ""], rows: Int[Array, "drawn 2"], shape: tuple[int, ...]
) -> Int[Array, "..."]:
    """Interactions: a row drawn uniformly, then one of its places."""
    row_key, place_key = jax.random.split(key)
    start, stop = rows[below(row_key, shape, jnp.int32(rows.shape[0]))].T
    return (start + below(place_key, start.shape, stop - start)).T


_Carry = tuple[Any, Any]
_Batch = tuple[_Comparisons, Float[Array, ""]]
"""The comparisons of a step, and how many of its anchors are real."""
_Update = Callable[[_Carry, _Batch], tuple[_Carry, tuple[Array, Array]]]


def _expect(
    step: Step,
    credence: Credence,
    state: EpochState,
    key: Key[Array, ""],
    anchors: Anchors,
    epoch: Int[Array, ""] | int,
) -> Float[Array, "n"]:
    """The confidence after an expectation step, if this epoch begins with one."""

    def estimate() -> Array:
        sample_key, n_items = jax.random.fold_in(key, 3), anchors.positives.n_items
        users, items = anchors.users, anchors.items
        return credence.estimate(sample_key, step.model, state.params, users, items, n_items)

    before = state.confidence
    if before is None:
        return estimate()
    due = jnp.asarray(epoch) % jnp.asarray(credence.every) == 0
    return jax.lax.cond(due, lambda: estimate().astype(before.dtype), lambda: before)


def _skip_empty(update: _Update) -> _Update:
    """Past the last anchor the last draw holds batches without any: they are no steps."""

    def stepped(carry: _Carry, batch: _Batch) -> tuple[_Carry, tuple[Array, Array]]:
        shapes = jax.eval_shape(update, carry, batch)[1]
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return jax.lax.cond(batch[1] > 0, update, lambda carry, _: (carry, nothing), carry, batch)

    return stepped


def _dense_step(step: Step, knobs: dict[str, Any]) -> _Update:
    """A step with the gradient of all parameters."""
    optimizer = step.optimizer(knobs["learning_rate"], knobs["weight_decay"])

    def update(carry: _Carry, batch: _Batch) -> tuple[_Carry, tuple[Array, Array]]:
        params, opt_state = carry

        def of_params(params: Any) -> tuple[Array, tuple[Array, Array]]:
            scores = [step.model.score(params, *pairs) for pairs in _pairs(batch[0])]
            return _mean_loss(step, knobs["loss"], scores, batch)

        grads, seen = jax.grad(of_params, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), seen

    return update


def _row_step(step: Step, knobs: dict[str, Any]) -> _Update:
    """A step with the gradient of the rows that the batch touches."""
    row_ids, row_scores = step.model.row_ids, step.model.row_scores
    assert row_ids is not None
    assert row_scores is not None

    def update(carry: _Carry, batch: _Batch) -> tuple[_Carry, tuple[Array, Array]]:
        params, opt_state = carry
        these, n_real = batch
        if step.batch_size == 1:
            # XLA makes slices of gathers and scatters of one row, and copies whole tables to keep
            # them apart. With a second anchor, that counts for nothing, they stay in place.
            these = jax.tree.map(lambda x: jnp.repeat(x, 2, axis=0), these)
            these = these._replace(real=these.real & jnp.array([True, False]))
        ids = [row_ids(*pairs) for pairs in _pairs(these)]
        rows = [jax.tree.map(lambda table, at: table[at], params, own) for own in ids]
        decay = knobs["weight_decay"] / jnp.maximum(n_real, 1)

        def of_rows(rows: Any) -> tuple[Array, tuple[Array, Array]]:
            return _mean_loss(
                step, knobs["loss"], [row_scores(own) for own in rows], (these, n_real)
            )

        grads, (total, scores) = jax.grad(of_rows, has_aux=True)(rows)
        optimizer = step.optimizer(knobs["learning_rate"], decay)
        params = row_updates(
            optimizer, params, ids[0], rows[0], grads[0], where=these.real, weight=these.weight
        )
        if these.group is not None:
            # The L2 terms are those of the anchors' rows, whoever else vouches for the item.
            where = jnp.repeat(these.real, step.n_group)
            params = row_updates(
                optimizer, params, ids[1], rows[1], grads[1],
                where=where, weight=jnp.zeros(where.shape),
            )  # fmt: skip
        return (params, opt_state), (total, scores[: step.batch_size])

    return update


def _pairs(batch: _Comparisons) -> list[tuple[Array, Array]]:
    """Users with the items to score for each: the anchors, and the groups with their positive."""
    anchors = batch.users, batch.items
    if batch.group is None:
        return [anchors]
    own = jnp.repeat(batch.items[:, :1], batch.group.shape[1], axis=0)
    return [anchors, (batch.group.reshape(-1), own)]


def _mean_loss(
    step: Step, knobs: dict[str, Any], scores: list[Array], batch: _Batch
) -> tuple[Array, tuple[Array, Array]]:
    """Mean over the real anchors; their sum and the scores beside it."""
    these, n_real = batch
    out = scores[0]
    if len(scores) > 1:
        group = scores[1].reshape(out.shape[0], -1)
        out = jnp.concatenate([out[:, :1], group, out[:, 1:]], axis=1)
    pos = out[:, : step.n_ahead] if step.n_ahead > 1 else out[:, 0]
    neg = out[:, step.n_ahead :]
    if step.masks_fillers:
        knobs = {**knobs, "where": jnp.broadcast_to(these.real[:, None], neg.shape)}
    losses = step.loss(pos, neg, reduce_fn=None, **knobs)
    if these.weight is not None:
        losses = these.weight.astype(losses.dtype) * losses
    total = jnp.sum(jnp.where(these.real, losses, 0))
    return total / jnp.maximum(n_real, 1).astype(total.dtype), (total, out)
