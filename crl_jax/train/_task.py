"""Training tasks and the state of a training run."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key

_STREAMS = {"params": 0, "epochs": 1, "model_state": 2}
"""Random streams of a run, independent of one another."""


def stream(key: Key[Array, ""], purpose: str) -> Key[Array, ""]:
    """Derives the key of a random stream: ``"params"``, ``"epochs"`` or ``"model_state"``."""
    return jax.random.fold_in(key, _STREAMS[purpose])


class State(NamedTuple):
    """Training state of one run; every leaf is an array.

    Attributes:
      step: Number of updates taken.
      key: Random key from which epochs and steps derive theirs.
      params: Parameters.
      opt_state: Optimizer state.
      model_state: Other state of the task: batch statistics, queues, moving averages, sampler
        caches, example weights.
    """

    step: Int[Array, ""]
    key: Key[Array, ""]
    params: Any
    opt_state: Any
    model_state: Any


class Batch(NamedTuple):
    """Examples of a batch.

    Attributes:
      indices: Indices of the examples in the dataset, ``[batch]``.
      data: The examples, every leaf ``[batch, ...]``.
    """

    indices: Int[Array, "*batch"]
    data: Any


class StepContext(NamedTuple):
    """Context of a training step.

    Attributes:
      key: Random key of the step.
      epoch: Number of completed epochs.
      progress: Fraction of all epochs completed, in [0, 1).
      where: Mask that excludes padding examples, ``[batch]``.
      n: Number of examples that are not padding.
    """

    key: Key[Array, ""]
    epoch: Int[Array, ""]
    progress: Float[Array, ""]
    where: Bool[Array, "batch"]
    n: Float[Array, ""]

    def mean(self, values: Float[Array, "batch"]) -> Float[Array, ""]:
        """Mean over the examples that are not padding; 0 if there are none."""
        return jnp.sum(jnp.where(self.where, values, 0)) / jnp.maximum(self.n, 1).astype(
            values.dtype
        )


LossOutput = tuple[Float[Array, ""], tuple[Any, dict[str, Float[Array, ""]]]]
"""Loss and ``(model_state, metrics)``."""


class Task(ABC):
    """Base class of training tasks: model, batches and loss as pure functions.

    A task is a frozen dataclass and a pytree, see :func:`crl_jax.pytree_dataclass`. Arrays and
    hyper-parameters are leaves: they may be traced, swept by ``vmap`` and changed without
    recompilation. Functions and fields that determine shapes are static. Equal tasks share their
    compiled programs.
    """

    @abstractmethod
    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Returns the initial ``(params, model_state)``.

        ``key`` is the key of the run; :func:`stream` splits it by purpose.
        """

    def check_data(self, data: Any) -> None:
        """Raises ``ValueError`` if the data of :class:`ArrayBatches` are unsuitable.

        Called before tracing. The default accepts all data.
        """
        del data

    def start_epoch(
        self, key: Key[Array, ""], params: Any, model_state: Any, epoch: Int[Array, ""]
    ) -> Any:
        """Returns ``model_state`` at the start of an epoch, for instance after an E-step."""
        return model_state

    def table_paths(self) -> tuple[str, ...]:
        """Paths of the parameters that are embedding tables ``[rows, ...]``, for sharding by row.

        A path joins field names and keys by dots, as in ``"encoder.users"``. The default is none.
        """
        return ()

    def shard(self, mesh: Mesh) -> "Task":
        """Returns the task with its arrays laid out for a mesh; the default is the task itself."""
        return self

    @abstractmethod
    def batch(self, key: Key[Array, ""], examples: Batch) -> Any:
        """Gathers, samples and augments a batch; independent of the parameters."""

    def complete_batch(
        self, params: Any, model_state: Any, batch: Any, ctx: StepContext
    ) -> tuple[Any, Any]:
        """Selects parts of a batch by the parameters, without a gradient.

        Called once for all updates that share a draw (``draw_batches`` of :class:`TrainConfig`),
        or once per step of a :class:`RowOptimizer`; otherwise not at all.

        Returns:
          The completed batch and ``model_state``.
        """
        return batch, model_state

    @abstractmethod
    def loss(self, params: Any, model_state: Any, batch: Any, ctx: StepContext) -> LossOutput:
        """Returns the mean loss of the examples and ``(model_state, metrics)``.

        Loss and metrics are means over the examples that are not padding, see
        :meth:`StepContext.mean`. An epoch reports the mean of its steps.
        """

    def after_update(self, params: Any, model_state: Any) -> Any:
        """Returns ``model_state`` after an update of the parameters (moving averages, queues)."""
        return model_state


class RowTask(Task):
    """Task whose loss reads few rows of its parameters, which are tables ``[rows, dim]``.

    A step of a :class:`RowOptimizer` gathers and updates these rows only: the parameters that
    :meth:`Task.loss` receives are then tables of the gathered rows.
    """

    @abstractmethod
    def rows(self, batch: Any) -> Any:
        """Row indices that a batch reads from each table, int32 ``[m]``, structured as params."""

    @abstractmethod
    def relocate(self, batch: Any, at: Any) -> Any:
        """Returns the batch with its row indices replaced by those in the gathered tables.

        ``at`` holds the new indices, in the structure and shapes of :meth:`rows`.
        """
