"""One epoch of training on positive-unlabelled interactions, as a pure function."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from ..samplers import Positives, permute, sample_seen, sample_unseen
from ._optimizers import Optimizer

# Ids drawn ahead of an epoch's steps; past this (64 MiB) each step draws its own. Drawing for all
# steps at once gives the same ids in a third of the time, the work per operation being larger.
_MAX_DRAWN_AHEAD = 2**24


@dataclass(frozen=True)
class Step:
    """What one step of training does: the static side, hashed by ``jit``.

    Attributes:
      score: ``score(params, users [B], items [B, n]) -> [B, n]``.
      loss: ``loss(pos, neg, *, reduce_fn=None, **knobs) -> [B]``, for instance from
        :mod:`crl_jax.losses`; ``pos`` is ``[B]``, or ``[B, 1 + n_pos]`` if ``n_pos > 0``.
      optimizer: Makes the Optax transformation from learning rate and weight decay.
      batch_size: Anchors per step, B.
      n_neg: Unlabelled items drawn per anchor, N.
      n_pos: Extra positives drawn per anchor, M.
    """

    score: Callable[[Any, Array, Array], Array]
    loss: Callable[..., Array]
    optimizer: Optimizer
    batch_size: int
    n_neg: int
    n_pos: int


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["users", "items", "positives"],
    meta_fields=[],
)
@dataclass(frozen=True)
class Anchors:
    """The interactions an epoch goes through, each once, and what negatives are drawn from."""

    users: Int[Array, "n"]
    items: Int[Array, "n"]
    positives: Positives


def run_epoch(
    step: Step,
    params: Any,
    opt_state: Any,
    key: Key[Array, ""],
    anchors: Anchors,
    knobs: dict[str, Any],
) -> tuple[Any, Any, Float[Array, ""]]:
    """Goes once through all interactions in an order that ``key`` fixes, in steps of a scan.

    Args:
      step: What a step does.
      params: Parameters.
      opt_state: State of the optimiser.
      key: Key of this epoch: order, negatives and extra positives.
      anchors: The interactions.
      knobs: ``learning_rate`` and ``weight_decay`` of this epoch, and ``loss``, the
        hyper-parameters of the loss; all may be traced.

    Returns:
      Parameters, optimiser state and the mean loss over all anchors.
    """
    n, batch = anchors.users.shape[0], step.batch_size
    n_steps = -(-n // batch)
    order_key, draw_key = jax.random.split(key)
    # The last batch is filled up with anchors that `position < n` masks. How many of each batch
    # are real is known here: counting them in every step costs as much as a small product.
    position = jnp.arange(n_steps * batch, dtype=jnp.int32).reshape(n_steps, batch)
    n_real = np.minimum(batch, n - batch * np.arange(n_steps)).astype(np.float32)
    index = permute(order_key, position % n, n)
    keys = jax.random.split(draw_key, n_steps)
    optimizer = step.optimizer(knobs["learning_rate"], knobs["weight_decay"])

    def draw(key: Key[Array, ""], index: Int[Array, "batch"]) -> tuple[Array, Array]:
        neg_key, pos_key = jax.random.split(key)
        users = anchors.users[index]
        columns = [anchors.items[index][:, None]]
        if step.n_pos:
            columns.append(sample_seen(pos_key, users, anchors.positives, step.n_pos))
        columns.append(sample_unseen(neg_key, users, anchors.positives, step.n_neg))
        return users, jnp.concatenate(columns, axis=1)

    def loss_fn(
        params: Any, users: Array, items: Array, position: Array, n_real: Array
    ) -> tuple[Array, Array]:
        scores = step.score(params, users, items)
        pos = scores[:, : 1 + step.n_pos] if step.n_pos else scores[:, 0]
        losses = step.loss(pos, scores[:, 1 + step.n_pos :], reduce_fn=None, **knobs["loss"])
        total = jnp.sum(jnp.where(position < n, losses, 0))
        return total / n_real.astype(total.dtype), total

    def update(carry: tuple[Any, Any], batch: tuple[Array, ...]) -> tuple[tuple[Any, Any], Array]:
        params, opt_state = carry
        *ids, position, n_real = batch
        users, items = ids if drawn_ahead else draw(*ids)
        grads, total = jax.grad(loss_fn, has_aux=True)(params, users, items, position, n_real)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), total

    width = 1 + step.n_pos + step.n_neg
    drawn_ahead = n_steps * batch * width <= _MAX_DRAWN_AHEAD
    ids = jax.vmap(draw)(keys, index) if drawn_ahead else (keys, index)
    # Two steps a turn: a tenth off the epoch of a loss with many scores, on CPUs.
    (params, opt_state), totals = jax.lax.scan(
        update, (params, opt_state), (*ids, position, jnp.asarray(n_real)), unroll=2
    )
    return params, opt_state, jnp.sum(totals) / n
