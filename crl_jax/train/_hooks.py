"""Hooks, which run on the device inside the compiled epochs, and callbacks on the host."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ._fingerprint import check_fingerprint
from ._sharding import Sharding
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


Measurement = tuple[Any, dict[str, Array], Bool[Array, ""]]


@dataclass(frozen=True)
class Hook:
    """Base class of hooks, which run on the device every ``eval_every`` epochs.

    A hook is a frozen dataclass and a pytree, like a task. Its state is part of the training state
    and of checkpoints.
    """

    def init(self, task: Task, state: State) -> Any:
        """Returns the initial hook state."""
        return ()

    def measure(
        self, task: Task, state: State, hook_state: Any, report: EpochReport
    ) -> Measurement:
        """Returns the new hook state, metrics for the report, and whether the run stops."""
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
    ) -> Measurement:
        """Returns the metrics; the run continues."""
        metrics = self.metrics(task, state.params, state.model_state)
        return hook_state, jax.tree.map(jnp.asarray, metrics), jnp.bool_(False)


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
      patience: Number of epochs without improvement after which a run stops, >= 1.
    """

    metric: str | None = field(default=None, metadata=STATIC)
    patience: Annotated[Any, Range(1)] = 2**30

    def init(self, task: Task, state: State) -> BestState:
        """Returns the initial parameters without a score."""
        # No NaN, which ``jax_debug_nans`` would report.
        return BestState(state.params, jnp.float32(-jnp.inf), jnp.int32(0))

    def measure(
        self, task: Task, state: State, hook_state: Any, report: EpochReport
    ) -> Measurement:
        """Keeps the parameters if their score is the best so far."""
        if self.metric is None:
            score, better = hook_state.score, ~report.stopped
        else:
            if self.metric not in report.values:
                raise ValueError(
                    f"`metric` must be in the report of preceding hooks, which has "
                    f"{sorted(report.values)}, got {self.metric!r}."
                )
            score = report.values[self.metric].astype(jnp.float32)
            # Any number beats the initial state; NaN beats nothing.
            improved = (hook_state.epoch == 0) | (score > hook_state.score)
            better = ~report.stopped & ~jnp.isnan(score) & improved
        epoch = jnp.where(better, report.epoch, hook_state.epoch)
        params, score = jax.tree.map(
            lambda new, old: jnp.where(better, new, old), (state.params, score), hook_state[:2]
        )
        epochs_since_best = jnp.int32(0) if self.metric is None else report.epoch - epoch
        return BestState(params, score, epoch), {}, epochs_since_best >= self.patience


@pytree_dataclass
class FinalValue(Hook):
    """Hook that keeps a value of each run's final state while other runs continue.

    Attributes:
      value_fn: Pure function of the :class:`State`. Static.
    """

    value_fn: Callable[[State], Any] = field(metadata=STATIC)

    def init(self, task: Task, state: State) -> Any:
        """Returns the value of the initial state."""
        return self.value_fn(state)

    def measure(
        self, task: Task, state: State, hook_state: Any, report: EpochReport
    ) -> Measurement:
        """Records the current value for runs that have not stopped."""
        value = jax.tree.map(
            lambda new, old: jnp.where(report.stopped, old, new), self.value_fn(state), hook_state
        )
        return value, {}, jnp.bool_(False)


@dataclass
class TrainingLoop:
    """Host-side state of a training, visible to callbacks, which may replace it at the start.

    Attributes:
      state: The :class:`RunStates` on the device.
      epoch: Number of completed epochs.
      history: Reports, one dictionary each.
      seconds: Training time.
      sharding: Sharding of the state; None for a single device.
      fingerprint: Cached function that returns the fingerprint of the training: its run
        parameters, data and program.
    """

    state: Any
    epoch: int
    history: list[dict[str, Any]]
    seconds: float
    sharding: Sharding | None = None
    fingerprint: Callable[[], dict[str, Any]] = dict

    def metadata(self) -> dict[str, Any]:
        """Returns the metadata of a checkpoint."""
        progress = {name: getattr(self, name) for name in ("epoch", "history", "seconds")}
        return {"fingerprint": self.fingerprint(), **progress}

    def restore_metadata(self, path: Any, metadata: dict[str, Any]) -> None:
        """Restores epoch and history; ``ValueError`` if the fingerprints differ."""
        check_fingerprint(path, metadata["fingerprint"], self.fingerprint())
        for name in ("epoch", "history", "seconds"):
            setattr(self, name, metadata[name])

    def unpadded_state(self) -> Any:
        """Returns the state without the rows that pad tables on several devices."""
        return self.state if self.sharding is None else self.sharding.remove_padding(self.state)


class Callback:
    """Base class of callbacks, which observe a training from the host."""

    def on_start(self, loop: TrainingLoop) -> None:
        """Called before the first epoch."""

    def on_report(self, loop: TrainingLoop) -> None:
        """Called after each report, the last entry of ``loop.history``."""

    def on_end(self, loop: TrainingLoop) -> None:
        """Called after the last epoch."""


class Progress(Callback):
    """Calls a function with each entry of the history, including those of a checkpoint.

    Args:
      report_fn: ``report_fn(entry)``.
    """

    def __init__(self, report_fn: Callable[[dict[str, Any]], None]):
        self._report_fn = report_fn

    def on_start(self, loop: TrainingLoop) -> None:
        """Reports the entries restored from a checkpoint."""
        for entry in loop.history:
            self._report_fn(entry)

    def on_report(self, loop: TrainingLoop) -> None:
        """Reports the new entry."""
        self._report_fn(loop.history[-1])
