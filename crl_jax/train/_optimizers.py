"""Optimisers and learning-rate schedules whose numbers may be traced."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._checks import check_range
from .._pytree import STATIC, pytree_dataclass
from . import rows

Scalar = float | Float[Array, ""]
Rule = Callable[[Any, Any], optax.GradientTransformation]
"""``rule(learning_rate, weight_decay)``: an Optax transformation. It is called while tracing, so
both numbers can be swept by ``vmap`` and changed without recompiling. The ``weight_decay`` may be
None for none at all."""

Schedule = Callable[[Any, Any], Any]
"""``schedule(progress, decay)``: the factor on the learning rate when the share ``progress`` in
``[0, 1)`` of the steps is done; ``decay`` is the factor that it comes down to."""


@runtime_checkable
class Updates(Protocol):
    """What the engine asks of an optimiser: Optax's two functions, told the step."""

    def init(self, params: Any) -> Any:
        """Its state before the first step."""
        ...

    def update(self, grads: Any, state: Any, params: Any, step: Int[Array, ""]) -> tuple[Any, Any]:
        """What to add to the parameters, and the state after it."""
        ...


def adam_l2(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    """Adam with L2 regularisation added to the gradient, as the published comparisons use it."""
    return _with_l2(optax.adam(learning_rate), weight_decay)


def adamw(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    """Adam with decoupled weight decay."""
    return optax.adamw(learning_rate, weight_decay=0.0 if weight_decay is None else weight_decay)


def adagrad_l2(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    """Adagrad with L2 regularisation added to the gradient."""
    return _with_l2(optax.adagrad(learning_rate), weight_decay)


def rowwise_adagrad_l2(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    """:func:`crl_jax.train.rows.rowwise_adagrad` of tables, with L2 added to the gradient."""
    return _with_l2(rows.dense(rows.rowwise_adagrad(learning_rate)), weight_decay)


def sgd_l2(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    """Stochastic gradient descent with L2 regularisation added to the gradient."""
    return _with_l2(optax.sgd(learning_rate), weight_decay)


def lars(learning_rate: Any, weight_decay: Any) -> optax.GradientTransformation:
    r"""LARS: gradient descent with momentum, in steps relative to the length of each parameter.

    .. math::
        v \leftarrow 0.9\,v + \eta\,r\,(g + \lambda w), \qquad w \leftarrow w - v, \qquad
        r = 0.001\,\frac{\lVert w \rVert}{\lVert g + \lambda w \rVert}

    for the learning rate :math:`\eta` and the weight decay :math:`\lambda`, where r is 1 if either
    length is 0. Parameters with fewer than two axes, which are biases and those of normalisations,
    have :math:`r = 1` and :math:`\lambda = 0`. Large batches train with it, after a ``warm_up``.

    References:
      You et al., `Large Batch Training of Convolutional Networks
      <https://arxiv.org/abs/1708.03888>`_, 2017, algorithm 1; with the length of the sum of
      gradient and decay, as the published code of SimCLR and BYOL has it.
    """
    return optax.lars(
        learning_rate, 0.0 if weight_decay is None else weight_decay, weight_decay_mask=_matrices,
        trust_coefficient=0.001, trust_ratio_mask=_matrices, momentum=0.9,
    )  # fmt: skip


def _matrices(params: Any) -> Any:
    """Which parameters have two axes or more."""
    return jax.tree.map(lambda x: jnp.ndim(x) > 1, params)


def _with_l2(rule: optax.GradientTransformation, weight_decay: Any) -> optax.GradientTransformation:
    if weight_decay is None:
        return rule
    return optax.chain(optax.add_decayed_weights(weight_decay), rule)


def constant(progress: Any, decay: Any) -> Any:
    """The factor 1 throughout, whatever ``decay`` is."""
    del decay
    return jnp.ones_like(progress)


def step_decay(progress: Any, decay: Any) -> Any:
    """1 in the first half, ``decay`` in the second: the step of the published recipes."""
    return jnp.where(progress < 0.5, 1.0, decay)


def linear(progress: Any, decay: Any) -> Any:
    """From 1 to ``decay`` along a line; with ``warm_up``, that of BERT from there on."""
    return 1 + (decay - 1) * progress


def cosine(progress: Any, decay: Any) -> Any:
    """From 1 to ``decay`` along half a cosine."""
    return decay + (1 - decay) * 0.5 * (1 + jnp.cos(jnp.pi * progress))


@dataclass(frozen=True)
class ScheduledOptimizer:
    """What all optimisers whose numbers are leaves have.

    The learning rate of each step is ``learning_rate * schedule(progress, decay)``, after a
    linear rise over the share ``warm_up`` of the steps.

    Attributes:
      learning_rate: Learning rate before the schedule, > 0.
      weight_decay: L2 coefficient, >= 0; None for none at all.
      decay: Factor on the learning rate that the schedule comes down to, >= 0.
      warm_up: Share of the steps in which the learning rate rises, in [0, 1).
      n_steps: Steps that the schedule spans; :func:`fit` sets it.
      schedule: See :data:`Schedule`. Static.
    """

    learning_rate: Any = 1e-3
    weight_decay: Any = None
    decay: Any = 0.1
    warm_up: Any = 0.0
    n_steps: Any = 1
    schedule: Schedule = field(default=constant, metadata=STATIC)

    def __post_init__(self) -> None:
        check_range("learning_rate", self.learning_rate, 0, jnp.inf, low_open=True, high_open=True)
        check_range("weight_decay", self.weight_decay, 0, jnp.inf, high_open=True)
        check_range("decay", self.decay, 0, jnp.inf, high_open=True)
        check_range("warm_up", self.warm_up, 0, 1, high_open=True)

    def rate(self, step: Int[Array, ""] | int) -> Float[Array, ""]:
        """The learning rate of a step."""
        # Optimisers of rows ask for steps to come, past the last one too.
        progress = jnp.minimum(jnp.asarray(step).astype(jnp.float32) / self.n_steps, 1)
        rate = self.learning_rate * self.schedule(progress, self.decay)
        done = jnp.where(
            self.warm_up > 0, progress / jnp.where(self.warm_up > 0, self.warm_up, 1), 1
        )
        return rate * jnp.minimum(done, 1)


@pytree_dataclass
class Optimizer(ScheduledOptimizer):
    """An Optax optimiser whose numbers are leaves, see :class:`ScheduledOptimizer`.

    Attributes:
      rule: See :data:`Rule`. Static.
    """

    rule: Rule = field(default=adam_l2, metadata=STATIC)

    def transformation(self, step: Int[Array, ""] | int) -> optax.GradientTransformation:
        """The Optax transformation at a step."""
        return self.rule(self.rate(step), self.weight_decay)

    def init(self, params: Any) -> Any:
        """State before the first step."""
        return self.transformation(0).init(params)

    def update(self, grads: Any, state: Any, params: Any, step: Int[Array, ""]) -> tuple[Any, Any]:
        """What to add to the parameters at a step, and the state after it."""
        return self.transformation(step).update(grads, state, params)


RowRule = Callable[[rows.Rate], rows.RowTransformation]
"""``rule(rate)``: what happens to rows, such as :func:`crl_jax.train.rows.adam`; ``rate`` gives
the learning rate of a step."""


@pytree_dataclass
class RowOptimizer(ScheduledOptimizer):
    """An optimiser of the rows that a batch reads; its task is a :class:`RowTask`.

    Its numbers are those of :class:`ScheduledOptimizer`, but for ``weight_decay``, which would
    change all
    rows in each step: L2 of the rows of a batch is a term of the task's loss.

    Attributes:
      rule: See :data:`RowRule`. Static.
    """

    rule: RowRule = field(default=rows.adam, metadata=STATIC)

    @property
    def row_rule(self) -> rows.RowTransformation:
        """What happens to rows."""
        return self.rule(self.rate)

    def init(self, params: Any) -> Any:
        """What goes with each table before the first step."""
        return jax.tree.map(partial(rows.init, self.row_rule), params)

    def flush_lazy_updates(
        self, params: Any, state: Any, step: Int[Array, ""], mesh: Mesh | None = None
    ) -> tuple[Any, Any]:
        """All rows as they are before a step, and what goes with them; they may lie on a mesh."""
        tables, tree = jax.tree.flatten(params)
        wake = (
            rows.flush_lazy_updates if mesh is None else partial(rows.flush_lazy_updates_on, mesh)
        )
        awake = [
            wake(self.row_rule, table, own, step)
            for table, own in zip(tables, tree.flatten_up_to(state), strict=True)
        ]
        tables, states = zip(*awake)
        return tree.unflatten(tables), tree.unflatten(states)


@pytree_dataclass
class OptaxOptimizer:
    """An Optax transformation as it is, with its own schedules.

    Programs are shared among calls with the same object.
    """

    tx: optax.GradientTransformation = field(metadata=STATIC)

    def init(self, params: Any) -> Any:
        """State before the first step."""
        return self.tx.init(params)

    def update(self, grads: Any, state: Any, params: Any, step: Int[Array, ""]) -> tuple[Any, Any]:
        """What to add to the parameters, and the state after it."""
        del step
        return self.tx.update(grads, state, params)


AnyOptimizer = Updates | RowOptimizer
"""What the engine trains with: all of the parameters, or rows of them."""

# On CPUs a step of Adam by rows costs per row that it reads four times what a step of the dense one
# costs per row of the tables.
_ROWS_COST = 4


def prefer_row_updates(n_rows: int, n_read: int) -> bool:
    """Whether a step costs less by rows than on whole tables.

    Args:
      n_rows: Rows of the tables.
      n_read: Rows that a step reads, each as often as it is read.
    """
    return n_rows > _ROWS_COST * n_read
