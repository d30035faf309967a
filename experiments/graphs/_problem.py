"""The graphs of a run: read, and drawn from."""

from dataclasses import dataclass

import numpy as np

from crl_jax import data, models

from .._study import OnStage
from ._options import DataOptions


@dataclass(frozen=True)
class Problem:
    """The graphs of a run. Examples are places among them.

    Attributes:
      graphs: All of them. The scored model learns from all, without their labels.
      arrays: The same on the device.
      learn: Places of those that the search learns from.
      valid: Places of those that it is decided on.
    """

    graphs: data.Graphs
    arrays: models.GraphArrays
    learn: np.ndarray
    valid: np.ndarray

    @property
    def all(self) -> np.ndarray:
        """Places of all graphs."""
        return np.arange(len(self.graphs), dtype=np.int32)

    def labels(self, places: np.ndarray) -> np.ndarray:
        """The classes of the graphs at these places."""
        return self.graphs.labels[places]


def load_problem(options: DataOptions, on_stage: OnStage) -> Problem:
    """Reads the graphs and draws what is asked for.

    Raises:
      ValueError: If there are too few graphs for a validation part.
      DataError: If they cannot be read.
    """
    on_stage("reading the graphs")
    graphs = data.load_graphs(options.data, features=options.features)
    order = np.random.default_rng(options.split_seed).permutation(len(graphs)).astype(np.int32)
    n_valid = round(options.valid * len(graphs))
    if not 0 < n_valid < len(graphs):
        raise ValueError(
            f"--valid {options.valid:g} of {len(graphs)} graphs leaves nothing to learn from, or "
            "to decide on."
        )
    learn, valid = np.sort(order[n_valid:]), np.sort(order[:n_valid])
    return Problem(graphs, models.GraphArrays.from_graphs(graphs), learn, valid)
