"""Callbacks, which run on the host between compiled epochs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._fingerprint import check_fingerprint
from ._sharding import Sharding


@dataclass
class TrainingLoop:
    """Host-side state of a training, visible to callbacks, which may replace it at the start.

    Attributes:
      state: The :class:`RunStates` on the device.
      epoch: Number of completed epochs.
      history: Reports, one dictionary each.
      seconds: Training time.
      sharding: Sharding of the state; None for a single device.
      fingerprint: Function that returns the fingerprint of the training: its run parameters, data
        and program.
    """

    state: Any
    epoch: int
    history: list[dict[str, Any]]
    seconds: float
    sharding: Sharding | None = None
    fingerprint: Callable[[], dict[str, Any]] = dict

    def metadata(self, fingerprint: dict[str, Any]) -> dict[str, Any]:
        """Returns the metadata of a checkpoint."""
        return {
            "fingerprint": fingerprint,
            "epoch": self.epoch,
            "history": self.history,
            "seconds": self.seconds,
        }

    def restore_metadata(
        self, path: Any, metadata: dict[str, Any], fingerprint: dict[str, Any]
    ) -> None:
        """Restores epoch and history; ``ValueError`` if the fingerprints differ."""
        check_fingerprint(path, metadata["fingerprint"], fingerprint)
        self.epoch, self.history = metadata["epoch"], metadata["history"]
        self.seconds = metadata["seconds"]

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
