"""What the engine trains: a state that changes, and a task that says how."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key

_STREAMS = {"params": 0, "epochs": 1, "model_state": 2}
"""Purposes of randomness. No stream depends on how much of another was used."""


def stream(key: Key[Array, ""], purpose: str) -> Key[Array, ""]:
    """The key of one purpose of a run: ``"params"``, ``"epochs"`` or ``"model_state"``."""
    return jax.random.fold_in(key, _STREAMS[purpose])


class State(NamedTuple):
    """All that changes while one run trains; every leaf is an array.

    Attributes:
      step: Updates so far.
      key: Random key of the run; epochs and steps derive theirs from it.
      params: Parameters.
      opt_state: State of the optimiser.
      extra: What else a task keeps: batch statistics, queues, averaged copies, memories of
        samplers, weights of examples.
    """

    step: Int[Array, ""]
    key: Key[Array, ""]
    params: Any
    opt_state: Any
    model_state: Any


class Batch(NamedTuple):
    """Which examples a batch is made of.

    Attributes:
      place: Their places in the data, ``[batch]``.
      data: What the source of the batches holds of them, every leaf ``[batch, ...]``.
    """

    place: Int[Array, "*batch"]
    data: Any


class StepContext(NamedTuple):
    """Where in its training a step stands.

    Attributes:
      key: Random key of the step.
      epoch: Epochs trained before this one.
      progress: Share of the epochs done, in [0, 1).
      where: False for examples that only fill the batch up, ``[batch]``.
      n: How many are real.
    """

    key: Key[Array, ""]
    epoch: Int[Array, ""]
    progress: Float[Array, ""]
    where: Bool[Array, "batch"]
    n: Float[Array, ""]

    def mean(self, values: Float[Array, "batch"]) -> Float[Array, ""]:
        """The mean of the values of real examples; 0 of none."""
        return jnp.sum(jnp.where(self.where, values, 0)) / jnp.maximum(self.n, 1).astype(
            values.dtype
        )


class Task(ABC):
    """What is trained: an encoder, batches and a loss, put together as pure functions.

    A task is a frozen dataclass and a pytree. Arrays and numbers are leaves: they may be traced,
    swept by ``vmap`` and changed without compiling anew. Functions and what shapes depend on are
    static fields. Two equal tasks share their compiled programs.
    """

    @abstractmethod
    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Initial parameters, and what else changes: ``(params, model_state)``.

        ``key`` is that of the run: :func:`stream` splits it by purpose.
        """

    def check_data(self, data: Any) -> None:
        """Raises ``ValueError`` if the task cannot learn from the data, before any is traced.

        It is shown what :class:`ArrayBatches` hold; by default it takes all.
        """
        del data

    def start_epoch(
        self, key: Key[Array, ""], params: Any, model_state: Any, epoch: Int[Array, ""]
    ) -> Any:
        """``model_state`` at the start of an epoch; the place of an E step."""
        del key, params, epoch
        return model_state

    def is_table(self, params: Any) -> Any:
        """Which parameters are tables ``[rows, ...]`` that may lie by rows on several devices.

        Bools in the containers of ``params``; by default none are.
        """
        return jax.tree.map(lambda _: False, params)

    def shard(self, mesh: Mesh) -> "Task":
        """The same task with what it holds laid out for a mesh; by default as it is."""
        del mesh
        return self

    @abstractmethod
    def batch(self, key: Key[Array, ""], examples: Batch) -> Any:
        """Gathers, draws and augments; sees no parameters, so that it may be called ahead."""

    def complete_batch(
        self, params: Any, model_state: Any, batch: Any, ctx: StepContext
    ) -> tuple[Any, Any]:
        """What looks at the parameters, without a gradient, for several updates at once.

        Called only where batches are drawn together or steps go by rows, see :class:`TrainConfig`.

        Returns:
          The batch with what was chosen, and ``model_state``.
        """
        del params, ctx
        return batch, model_state

    @abstractmethod
    def loss(
        self, params: Any, model_state: Any, batch: Any, ctx: StepContext
    ) -> tuple[Float[Array, ""], tuple[Any, dict[str, Float[Array, ""]]]]:
        """The mean loss of the real examples, and ``(model_state, metrics)``.

        Metrics are means over the real examples; an epoch reports their mean.
        """

    def after_update(self, params: Any, model_state: Any) -> Any:
        """``model_state`` after the parameters have changed: averaged copies, queues."""
        del params
        return model_state


class RowTask(Task):
    """A task whose loss depends on a few rows of its parameters, which are tables ``[rows, dim]``.

    A step can then read and change these rows alone, and costs what the batch costs: the
    parameters that :meth:`loss` gets are then tables of the rows that were read.
    """

    @abstractmethod
    def rows(self, batch: Any) -> Any:
        """The rows of each table that a batch reads, int32 ``[m]``, in the containers of params."""

    @abstractmethod
    def relocate(self, batch: Any, at: Any) -> Any:
        """The batch for a table of those rows; ``at`` says where each of :meth:`rows` stands."""


def take(data: Any, index: Int[Array, "*batch"]) -> Any:
    """Those examples of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], data)
