"""What looks on from the host while the engine trains."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._checkpoint import load_checkpoint, save_checkpoint
from ._fingerprint import check_same
from ._sharding import Sharding


@dataclass
class TrainingLoop:
    """The host's side of a training: what callbacks see, and may replace when it starts.

    Attributes:
      state: All that changes on the device.
      epoch: Epochs trained.
      history: One dictionary per report.
      seconds: Time spent in training.
      sharding: How the state lies on several devices; None for one.
      identity: What tells this training from others; made when it is asked for.
    """

    state: Any
    epoch: int
    history: list[dict[str, Any]]
    seconds: float
    sharding: Sharding | None = None
    identity: Callable[[], dict[str, Any]] = dict

    def record(self, identity: dict[str, Any]) -> dict[str, Any]:
        """What a checkpoint says beside the state."""
        return {
            "fingerprint": identity,
            "epoch": self.epoch,
            "history": self.history,
            "seconds": self.seconds,
        }

    def go_on_from(self, path: Any, record: dict[str, Any], identity: dict[str, Any]) -> None:
        """Takes up what a checkpoint says; ValueError if it is of another training."""
        check_same(path, record["fingerprint"], identity)
        self.epoch, self.history = record["epoch"], record["history"]
        self.seconds = record["seconds"]

    def whole(self) -> Any:
        """The state without what fills tables up on several devices."""
        return self.state if self.sharding is None else self.sharding.whole(self.state)


class Callback:
    """Looks on from the host: draws a bar, writes a file."""

    def on_start(self, loop: TrainingLoop) -> None:
        """Before the first epoch."""

    def on_report(self, loop: TrainingLoop) -> None:
        """After each report; the last entry of the history is new."""

    def on_end(self, loop: TrainingLoop) -> None:
        """After the last epoch."""


class Progress(Callback):
    """Calls a function with each entry of the history, those of a checkpoint first.

    Args:
      see: ``see(entry)``.
    """

    def __init__(self, see: Callable[[dict[str, Any]], None]):
        self._see = see

    def on_start(self, loop: TrainingLoop) -> None:
        """Shows what a checkpoint brought."""
        for entry in loop.history:
            self._see(entry)

    def on_report(self, loop: TrainingLoop) -> None:
        """Shows the new entry."""
        self._see(loop.history[-1])


class Checkpoint(Callback):
    """Writes all that changes to a file, and goes on from it.

    Args:
      path: The file. If it exists, training goes on from it.
      seconds: Least time between two writings, besides that at the end.

    Raises:
      ValueError: At the start, if the file is of another training: of other data, numbers or
        functions, by what these compute.
    """

    def __init__(self, path: str | os.PathLike[str], seconds: float = 5.0):
        self._path, self._seconds, self._saved = path, seconds, time.monotonic()
        self._identity: dict[str, Any] = {}

    def on_start(self, loop: TrainingLoop) -> None:
        """Reads the file, if there is one."""
        self._saved, self._identity = time.monotonic(), loop.identity()
        if not os.path.exists(self._path):
            return
        state, meta = load_checkpoint(self._path, jax.eval_shape(as_data, loop.whole()))
        loop.go_on_from(self._path, meta, self._identity)
        loop.state = from_data(state, loop.state)

    def on_report(self, loop: TrainingLoop) -> None:
        """Writes the file, if it is time."""
        if time.monotonic() - self._saved >= self._seconds:
            self.on_end(loop)

    def on_end(self, loop: TrainingLoop) -> None:
        """Writes the file."""
        state = jax.device_get(as_data(loop.whole()))
        save_checkpoint(self._path, state, loop.record(self._identity))
        self._saved = time.monotonic()


def _is_key(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def as_data(tree: Any) -> Any:
    """Random keys as the numbers that they hold, which files can."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, tree)


def from_data(tree: Any, like: Any) -> Any:
    """The random keys that stand in ``like`` made of these numbers again."""
    return jax.tree.map(
        lambda x, old: jax.random.wrap_key_data(x) if _is_key(old) else x, tree, like
    )
