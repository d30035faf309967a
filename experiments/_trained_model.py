"""Trained models of two-view training: features, embeddings of views, and their quality."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from crl_jax import losses, tasks, train, weights

BLOCK = 250
"""Number of examples per encoding batch."""
ON_DEVICE = 100 * BLOCK
"""Number of examples on the device at a time; a multiple of the block, so that blocks are equal."""
_ALIGNMENT_EXAMPLES = 1000
"""Number of examples whose two views are compared."""


@dataclass(frozen=True)
class TrainedModel:
    """Trained model.

    Attributes:
      task: The trained task.
      params: Its parameters.
      model_state: Its other state, such as batch statistics.
    """

    task: Any
    params: Any
    model_state: Any

    @classmethod
    def from_fit(cls, task: Any, fitted: train.FitResult) -> "TrainedModel":
        """Returns the learned model of a training with a single run."""
        model_state = jax.tree.map(lambda leaf: leaf[0], fitted.state.model_state)
        return cls(task, fitted.get_params(), model_state)

    @property
    def alpha(self) -> jax.Array | None:
        """Estimated α of the loss; None if it was not estimated."""
        # Tasks with prototypes store it in the state that they share with momentum tasks.
        state = getattr(getattr(self.model_state, "momentum", self.model_state), "alpha", None)
        return None if state is None else weights.measured_alpha(state)

    def features(self, examples: Any) -> jax.Array:
        """Returns the features of unaugmented examples, before the projection head."""
        if isinstance(examples, jax.Array) or len(examples) <= ON_DEVICE:
            return _represent(self.task, self.params, self.model_state, jnp.asarray(examples))
        return in_parts(self.features, examples, ON_DEVICE)

    def two_views(self, examples: Any, seed: int) -> tuple[jax.Array, jax.Array]:
        """Returns unit-norm embeddings of two random views of each example."""
        return _two_views(self.task, self.params, self.model_state, jnp.asarray(examples), seed)

    def view_metrics(self, examples: Any, seed: int) -> dict[str, Any]:
        """Returns alignment and uniformity of the view embeddings of a subset of examples."""
        return _alignment_uniformity(
            *self.two_views(examples[evenly_spaced(len(examples), _ALIGNMENT_EXAMPLES)], seed)
        )


def in_parts(compute: Callable[[Any], jax.Array], examples: Any, size: int) -> jax.Array:
    """Concatenates what a function computes of parts of ``examples``, which are on the host."""
    parts = (examples[i : i + size] for i in range(0, len(examples), size))
    return jnp.concatenate([compute(part) for part in parts])


def represent(task: tasks.TwoViewTask, params: Any, model_state: Any, examples: Any) -> Any:
    """Returns the features of unaugmented examples, computed in blocks to bound memory."""
    return task.represent(params, model_state, examples, block_size=BLOCK)


_represent = train.jit(represent)


@train.jit
def _two_views(
    task: Any, params: Any, model_state: Any, examples: Any, seed: Any
) -> tuple[Any, Any]:
    index = jnp.arange(len(examples), dtype=jnp.int32)
    views = task.batch(jax.random.key(seed), train.Batch(index, examples))

    def embed(views: Any) -> Any:
        return losses.normalize(
            task.network.apply(*task.network_variables(params, model_state), views)[0]
        )

    return embed(views.first), embed(views.second)


@jax.jit
def _alignment_uniformity(first: Any, second: Any) -> dict[str, Any]:
    return {"alignment": losses.alignment(first, second), "uniformity": losses.uniformity(first)}


def measure_views(examples: Any, seed: int) -> Any:
    """Returns a metric that reports ``train_alignment`` and ``train_uniformity`` of views."""
    return jax.tree_util.Partial(_measure_views, jnp.asarray(examples), seed)


def _measure_views(
    examples: Any, seed: Any, task: Any, params: Any, model_state: Any
) -> dict[str, Any]:
    metrics = _alignment_uniformity(*_two_views(task, params, model_state, examples, seed))
    return {f"train_{name}": value for name, value in metrics.items()}


def evenly_spaced(n: int, max_size: int) -> slice:
    """Returns a slice of ``n`` examples: ``max_size`` at most, evenly spaced."""
    step = max(1, n // max_size)
    return slice(0, max_size * step, step)


def neighbours(requested: int, n: int) -> int:
    """Returns the number of neighbours: at most a tenth of the ``n`` examples, at least 1."""
    return max(1, min(requested, n // 10))
