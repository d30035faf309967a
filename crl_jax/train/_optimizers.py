"""Optimizers and learning-rate schedules whose hyper-parameters may be traced."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from . import rows
from .rows._sharded import pack_sharded, unpack_sharded, unpacked_table_sharded

Rule = Callable[[Any, Any], optax.GradientTransformation]
"""``rule(learning_rate, weight_decay)`` returns an Optax transformation. It is called while
tracing, so both values can be swept by ``vmap`` and changed without recompilation. A
``weight_decay`` of None means none."""

Schedule = Callable[[Any, Any], Any]
"""``schedule(progress, decay)`` returns the factor on the learning rate after the fraction
``progress`` in ``[0, 1)`` of the steps; ``decay`` is the final factor."""

_NonNegative = Range(0, high_open=True)


@runtime_checkable
class DenseOptimizer(Protocol):
    """Protocol of optimizers that update all parameters: Optax's functions with the step."""

    def init(self, params: Any) -> Any:
        """Returns the optimizer state before the first step."""
        ...

    def update(self, grads: Any, state: Any, params: Any, step: Int[Array, ""]) -> tuple[Any, Any]:
        """Returns the updates, which are added to the parameters, and the new state."""
        ...


def adam_l2(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    """Adam with L2 regularization added to the gradient, as in most published comparisons."""
    return _with_l2(optax.adam(learning_rate), weight_decay)


def adamw(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    """Adam with decoupled weight decay."""
    return optax.adamw(learning_rate, weight_decay=0.0 if weight_decay is None else weight_decay)


def adagrad_l2(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    """Adagrad with L2 regularization added to the gradient."""
    return _with_l2(optax.adagrad(learning_rate), weight_decay)


def rowwise_adagrad_l2(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    """:func:`crl_jax.train.rows.rowwise_adagrad` with L2 regularization added to the gradient."""
    return _with_l2(rows.dense(rows.rowwise_adagrad(learning_rate)), weight_decay)


def sgd_l2(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    """Stochastic gradient descent with L2 regularization added to the gradient."""
    return _with_l2(optax.sgd(learning_rate), weight_decay)


def lars(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    r"""LARS: momentum with layer-wise adaptive learning rates, for large batches.

    .. math::
        v \leftarrow 0.9\,v + \eta\,r\,(g + \lambda w), \qquad w \leftarrow w - v, \qquad
        r = 0.001\,\frac{\lVert w \rVert}{\lVert g + \lambda w \rVert}

    for the learning rate :math:`\eta` and the weight decay :math:`\lambda`, where r is 1 if either
    norm is 0. Parameters with fewer than two axes (biases, normalization) have :math:`r = 1` and
    :math:`\lambda = 0`. Usually combined with ``warm_up``.

    References:
      You et al., `Large Batch Training of Convolutional Networks
      <https://arxiv.org/abs/1708.03888>`_, 2017, algorithm 1; with the norm of the sum of gradient
      and decay, as in the published code of SimCLR and BYOL.
    """

    def is_matrix(params: Any) -> Any:
        return jax.tree.map(lambda x: jnp.ndim(x) > 1, params)

    return optax.lars(
        learning_rate, 0.0 if weight_decay is None else weight_decay, weight_decay_mask=is_matrix,
        trust_coefficient=0.001, trust_ratio_mask=is_matrix, momentum=0.9,
    )  # fmt: skip


def _with_l2(rule: optax.GradientTransformation, weight_decay: Any) -> optax.GradientTransformation:
    if weight_decay is None:
        return rule
    return optax.chain(optax.add_decayed_weights(weight_decay), rule)


def constant(progress: Any, decay: Any) -> Any:
    """Constant schedule; ignores ``decay``."""
    del decay
    return jnp.ones_like(progress)


def step_decay(progress: Any, decay: Any) -> Any:
    """Step schedule: 1 in the first half, ``decay`` in the second."""
    return jnp.where(progress < 0.5, 1.0, decay)


def linear(progress: Any, decay: Any) -> Any:
    """Linear schedule from 1 to ``decay``; with ``warm_up``, the schedule of BERT."""
    return 1 + (decay - 1) * progress


def cosine(progress: Any, decay: Any) -> Any:
    """Cosine schedule from 1 to ``decay``."""
    return decay + (1 - decay) * 0.5 * (1 + jnp.cos(jnp.pi * progress))


@dataclass(frozen=True)
class ScheduledOptimizer:
    """Learning-rate schedule shared by :class:`Optimizer` and :class:`RowOptimizer`.

    The learning rate of a step is ``learning_rate * schedule(progress, decay)``, after a linear
    warm-up over the fraction ``warm_up`` of the steps.

    Attributes:
      learning_rate: Peak learning rate, > 0.
      weight_decay: L2 coefficient, >= 0; None for none.
      decay: Final factor on the learning rate, >= 0.
      warm_up: Fraction of the steps with linear warm-up, in [0, 1).
      n_steps: Number of steps of the schedule; set by :func:`fit`.
      schedule: See :data:`Schedule`. Static.
    """

    learning_rate: Annotated[Any, Range(0, low_open=True, high_open=True)] = 1e-3
    weight_decay: Annotated[Any, _NonNegative] = None
    decay: Annotated[Any, _NonNegative] = 0.1
    warm_up: Annotated[Any, Range(0, 1, high_open=True)] = 0.0
    n_steps: Any = 1
    schedule: Schedule = field(default=constant, metadata=STATIC)

    def rate(self, step: Int[Array, ""] | int) -> Float[Array, ""]:
        """Returns the learning rate of a step."""
        # Row optimizers evaluate future steps, also past the last one.
        step, n_steps = jnp.asarray(step), jnp.asarray(self.n_steps)
        progress = jnp.minimum(step.astype(jnp.float32) / n_steps.astype(jnp.float32), 1)
        rate = self.learning_rate * self.schedule(progress, self.decay)
        warm_up = jnp.asarray(self.warm_up, jnp.float32)
        ramp = jnp.where(warm_up > 0, progress / jnp.where(warm_up > 0, warm_up, 1), 1)
        return rate * jnp.minimum(ramp, 1)


@pytree_dataclass
class Optimizer(ScheduledOptimizer):
    """Optax optimizer whose hyper-parameters are leaves, see :class:`ScheduledOptimizer`.

    Attributes:
      rule: See :data:`Rule`. Static.
    """

    rule: Rule = field(default=adam_l2, metadata=STATIC)

    def transformation(self, step: Int[Array, ""] | int) -> optax.GradientTransformation:
        """Returns the Optax transformation of a step."""
        return self.rule(self.rate(step), self.weight_decay)

    def init(self, params: Any) -> Any:
        """Returns the optimizer state before the first step."""
        return self.transformation(0).init(params)

    def update(self, grads: Any, state: Any, params: Any, step: Int[Array, ""]) -> tuple[Any, Any]:
        """Returns the updates of a step and the new state."""
        return self.transformation(step).update(grads, state, params)


RowRule = Callable[[rows.Rate], rows.RowTransformation]
"""``rule(rate)`` returns a row transformation, such as :func:`crl_jax.train.rows.adam`; ``rate`` is
a function from the step to its learning rate."""


@pytree_dataclass
class RowOptimizer(ScheduledOptimizer):
    """Optimizer that updates only the rows a batch reads; the task is a :class:`RowTask`.

    Its hyper-parameters are those of :class:`ScheduledOptimizer` except ``weight_decay``, which
    would change all rows in each step: use an L2 term on the batch's rows in the task's loss.

    Attributes:
      rule: See :data:`RowRule`. Static.
    """

    rule: RowRule = field(default=rows.adam, metadata=STATIC)

    @property
    def row_rule(self) -> rows.RowTransformation:
        """The row transformation with the schedule."""
        return self.rule(self.rate)

    def init(self, params: Any) -> Any:
        """Returns the state of each table before the first step."""
        return jax.tree.map(partial(rows.init, self.row_rule), params)

    def flush_lazy_updates(
        self, params: Any, state: Any, step: Int[Array, ""], mesh: Mesh | None = None
    ) -> tuple[Any, Any]:
        """Applies the pending lazy updates of all rows before a step; on a mesh if given."""
        flush = partial(rows.flush_lazy_updates_sharded, mesh, self.row_rule, step=step)
        return _per_table(flush, params, state)

    def pack(self, params: Any, state: Any, mesh: Mesh | None = None) -> tuple[Any, Any]:
        """Packs the tables for steps on a TPU: rows and their moments in slots of whole vectors."""
        return _per_table(partial(pack_sharded, mesh), params, state)

    def unpack(
        self, params: Any, state: Any, into: tuple[Any, Any], mesh: Mesh | None = None
    ) -> tuple[Any, Any]:
        """Inverse of :meth:`pack`, whose arguments are ``into``."""
        return _per_table(
            lambda table, state, *old: unpack_sharded(mesh, table, state, (old[0], old[1])),
            params, state, *into,
        )  # fmt: skip

    def unpacked_params(self, params: Any, state: Any, mesh: Mesh | None = None) -> Any:
        """Parameters, of packed or other tables."""
        tables, tree = jax.tree.flatten(params)
        unpacked = partial(unpacked_table_sharded, mesh)
        return tree.unflatten(map(unpacked, tables, tree.flatten_up_to(state)))


def _per_table(function: Callable[..., tuple[Any, Any]], params: Any, *trees: Any) -> Any:
    """Calls ``function`` on each table and what belongs to it; returns parameters and state."""
    tables, tree = jax.tree.flatten(params)
    results = map(function, tables, *map(tree.flatten_up_to, trees))
    return tuple(tree.unflatten(column) for column in zip(*results))


@pytree_dataclass
class OptaxOptimizer:
    """Adapter of an Optax optimizer with its own schedules.

    Programs are shared among calls with the same object.

    Attributes:
      tx: Optax transformation, or another object with its ``init`` and ``update``, such as
        ``optax.MultiSteps``. Static.
    """

    tx: Any = field(metadata=STATIC)

    def init(self, params: Any) -> Any:
        """Returns the optimizer state before the first step."""
        return self.tx.init(params)

    def update(self, grads: Any, state: Any, params: Any, step: Int[Array, ""]) -> tuple[Any, Any]:
        """Returns the updates of a step and the new state."""
        del step
        return self.tx.update(grads, state, params)


AnyOptimizer = DenseOptimizer | RowOptimizer
"""Optimizer of all parameters, or of rows of them."""


# Cost of row-wise Adam per gathered row, relative to that of dense Adam per table row; width 64.
# CPU: measured on two cores. GPU: measured on an H100 with JAX 0.11.2, where a step of dense Adam
# takes 0.70 ns per table row, and a step by rows 5.1 ns per gathered row. TPU: what the compiler
# states for a v5e, not measured on a device: 11 cycles per table row, and 32 per gathered row
# without gathers and scatters, for which it states none: these are assumed to cost as much again.
_ROW_COSTS = {"cpu": 4, "gpu": 7, "cuda": 7, "rocm": 7, "tpu": 6}


def prefer_row_updates(n_rows: int, n_read: int, platform: str) -> bool:
    """Whether row updates cost less than dense updates.

    Args:
      n_rows: Number of table rows.
      n_read: Number of rows that a step reads, with repetitions.
      platform: Platform of the devices that train: ``"cpu"``, ``"gpu"`` (or ``"cuda"``,
        ``"rocm"``) or ``"tpu"``. On these, row updates cost less if a step reads less than 1/4, 1/7
        or 1/6 of the rows. The first two are measured for width 64; that of TPUs is derived from
        cycles that the compiler states and was not measured on a device.

    Raises:
      ValueError: If the platform is unknown.
    """
    if platform not in _ROW_COSTS:
        raise ValueError(f"`platform` must be one of {sorted(_ROW_COSTS)}, got {platform!r}.")
    return n_rows > _ROW_COSTS[platform] * n_read
