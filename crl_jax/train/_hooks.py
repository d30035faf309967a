"""Hooks: metrics and early stopping, evaluated on the device inside the compiled epochs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from .._pytree import STATIC, pytree_dataclass
from ._task import State, Task


class EpochReport(NamedTuple):
    """Report of one run after an evaluation period.

    Attributes:
      epoch: Number of completed epochs.
      values: Scalars by name: ``loss``, the metrics of the task and those of preceding hooks.
      stopped: Whether the run had already stopped before this period.
      mesh: Mesh of the parameters; None for a single device.
    """

    epoch: Int[Array, ""]
    values: dict[str, Array]
    stopped: Bool[Array, ""]
    mesh: Mesh | None = None


@dataclass(frozen=True)
class Hook:
    """Base class of hooks, which run on the device every ``eval_every`` epochs.

    A hook is a frozen dataclass and a pytree, like a task. Its state is part of the training state
    and of checkpoints.
    """

    def init(self, task: Task, state: State) -> Any:
        """Returns the initial hook state."""
        del task, state
        return ()

    def measure(
        self, task: Task, state: State, hook_state: Any, report: EpochReport
    ) -> tuple[Any, dict[str, Array], Bool[Array, ""]]:
        """Returns the new hook state, metrics for the report, and whether the run stops."""
        del task, state, report
        return hook_state, {}, jnp.bool_(False)


@pytree_dataclass
class ValidationMetrics(Hook):
    """Hook that records metrics of the current parameters.

    Attributes:
      metrics: Pure function ``metrics(task, params, model_state)`` that returns scalars by name,
        or a ``jax.tree_util.Partial`` that binds its data.
    """

    metrics: Any

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, jax.tree_util.Partial) and callable(self.metrics):
            object.__setattr__(self, "metrics", jax.tree_util.Partial(self.metrics))

    def measure(
        self, task: Task, state: State, hook_state: Any, report: EpochReport
    ) -> tuple[Any, dict[str, Array], Bool[Array, ""]]:
        """Returns the metrics; the run continues."""
        return hook_state, self.metrics(task, state.params, state.model_state), jnp.bool_(False)


class BestState(NamedTuple):
    """State of :class:`EarlyStopping`.

    Attributes:
      params: Parameters with the best score.
      score: Best score; ``-inf`` before the first.
      epoch: Epoch of the best score; 0 before the first.
    """

    params: Any
    score: Float[Array, ""]
    epoch: Int[Array, ""]


@pytree_dataclass
class EarlyStopping(Hook):
    """Hook that keeps the best parameters and stops runs whose score no longer improves.

    Attributes:
      metric: Name of the score in the report, higher is better. None keeps the last parameters
        and never stops a run. Static.
      patience: Number of epochs without improvement after which a run stops.
    """

    metric: str | None = field(default=None, metadata=STATIC)
    patience: Any = 2**30

    def init(self, task: Task, state: State) -> BestState:
        """Returns the initial parameters without a score."""
        del task
        # No NaN, which ``jax_debug_nans`` would report.
        return BestState(state.params, jnp.float32(-jnp.inf), jnp.int32(0))

    def measure(
        self, task: Task, state: State, hook_state: BestState, report: EpochReport
    ) -> tuple[BestState, dict[str, Array], Bool[Array, ""]]:
        """Keeps the parameters if their score is the best so far."""
        del task
        if self.metric is None:
            score, better = hook_state.score, ~report.stopped
        else:
            score = report.values[self.metric].astype(jnp.float32)
            # Any number beats the initial state; NaN beats nothing.
            improved = (hook_state.epoch == 0) | (score > hook_state.score)
            better = ~report.stopped & ~jnp.isnan(score) & improved
        epoch = jnp.where(better, report.epoch, hook_state.epoch)
        best = BestState(
            jax.tree.map(
                lambda new, old: jnp.where(better, new, old), state.params, hook_state.params
            ),
            jnp.where(better, score, hook_state.score),
            epoch,
        )
        waited = jnp.int32(0) if self.metric is None else report.epoch - epoch
        return best, {}, waited >= self.patience


@pytree_dataclass
class FinalValue(Hook):
    """Hook that keeps a value of each run's final state while other runs continue.

    Attributes:
      value_fn: Pure function of the :class:`State`. Static.
    """

    value_fn: Callable[[State], Any] = field(metadata=STATIC)

    def init(self, task: Task, state: State) -> Any:
        """Returns the value of the initial state."""
        del task
        return self.value_fn(state)

    def measure(
        self, task: Task, state: State, hook_state: Any, report: EpochReport
    ) -> tuple[Any, dict[str, Array], Bool[Array, ""]]:
        """Records the current value for runs that have not stopped."""
        del task
        value = jax.tree.map(
            lambda new, old: jnp.where(report.stopped, old, new), self.value_fn(state), hook_state
        )
        return value, {}, jnp.bool_(False)
