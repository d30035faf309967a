"""What is measured after some epochs, on the device, within the compiled call."""

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
    """What is known of one run at the end of some epochs.

    Attributes:
      epoch: Epochs trained.
      values: Numbers by name: ``loss``, the metrics of the task, and what the hooks before have
        measured.
      stopped: Whether the run had ended before.
      mesh: The devices that the parameters lie on; None for one.
    """

    epoch: Int[Array, ""]
    values: dict[str, Array]
    stopped: Bool[Array, ""]
    mesh: Mesh | None = None


@dataclass(frozen=True)
class Hook:
    """Measures a run after some epochs, on the device, within the compiled call.

    A hook is a frozen dataclass and a pytree, as a task is. What it remembers is part of what
    changes while training, and of checkpoints.
    """

    def init(self, task: Task, state: State) -> Any:
        """What it remembers before the first epoch."""
        del task, state
        return ()

    def measure(
        self, task: Task, state: State, memory: Any, report: EpochReport
    ) -> tuple[Any, dict[str, Array], Bool[Array, ""]]:
        """What it remembers now, what it adds to the report, and whether the run is to end."""
        del task, state, report
        return memory, {}, jnp.bool_(False)


@pytree_dataclass
class ValidationMetrics(Hook):
    """Puts metrics of the current parameters into the history.

    Attributes:
      metrics: ``metrics(task, params, model_state)`` gives arrays by name; a pure function, or a
        ``jax.tree_util.Partial`` of one with its data.
    """

    metrics: Any

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, jax.tree_util.Partial) and callable(self.metrics):
            object.__setattr__(self, "metrics", jax.tree_util.Partial(self.metrics))

    def measure(
        self, task: Task, state: State, memory: Any, report: EpochReport
    ) -> tuple[Any, dict[str, Array], Bool[Array, ""]]:
        """The metrics; it remembers nothing and ends nothing."""
        return memory, self.metrics(task, state.params, state.model_state), jnp.bool_(False)


class BestState(NamedTuple):
    """What :class:`EarlyStopping` remembers: parameters, their score and epoch."""

    params: Any
    score: Float[Array, ""]
    epoch: Int[Array, ""]


@pytree_dataclass
class EarlyStopping(Hook):
    """Keeps the best parameters, and ends a run whose score no longer rises.

    Attributes:
      metric: Name of the score in the report, higher being better; None keeps the last
        parameters and never ends a run. Static.
      patience: Epochs without a better score after which the run ends.
    """

    metric: str | None = field(default=None, metadata=STATIC)
    patience: Any = 2**30

    def init(self, task: Task, state: State) -> BestState:
        """The initial parameters, without a score."""
        del task
        return BestState(state.params, jnp.float32(jnp.nan), jnp.int32(0))

    def measure(
        self, task: Task, state: State, memory: BestState, report: EpochReport
    ) -> tuple[BestState, dict[str, Array], Bool[Array, ""]]:
        """Keeps the parameters if they are better than all before."""
        del task
        if self.metric is None:
            score, better = memory.score, ~report.stopped
        else:
            score = report.values[self.metric].astype(jnp.float32)
            # Written so that the first score beats NaN and a NaN beats nothing.
            better = ~report.stopped & ~jnp.isnan(score) & ~(score <= memory.score)
        epoch = jnp.where(better, report.epoch, memory.epoch)
        best = BestState(
            jax.tree.map(lambda new, old: jnp.where(better, new, old), state.params, memory.params),
            jnp.where(better, score, memory.score),
            epoch,
        )
        waited = jnp.int32(0) if self.metric is None else report.epoch - epoch
        return best, {}, waited >= self.patience


@pytree_dataclass
class FinalValue(Hook):
    """Keeps something of the state that each run ended with, while others go on.

    Attributes:
      of: ``of(state)`` gives what is kept; a pure function. Static.
    """

    of: Callable[[State], Any] = field(metadata=STATIC)

    def init(self, task: Task, state: State) -> Any:
        """Of the initial state."""
        del task
        return self.of(state)

    def measure(
        self, task: Task, state: State, memory: Any, report: EpochReport
    ) -> tuple[Any, dict[str, Array], Bool[Array, ""]]:
        """Of the state now, unless the run had ended."""
        del task

        def keep(new: Array, old: Array) -> Array:
            return jnp.where(report.stopped, old, new)

        return jax.tree.map(keep, self.of(state), memory), {}, jnp.bool_(False)
