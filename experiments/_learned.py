"""What a training on two views learned: features, embeddings of views, and how good they are."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from crl_jax import losses, tasks, train, weights

_BLOCK = 250
"""Examples that are encoded at a time."""
_ALIGNED = 1000
"""Examples whose two views are compared."""


@dataclass(frozen=True)
class Learned:
    """What a training learned.

    Attributes:
      task: What was trained.
      params: Its parameters.
      extra: What changed besides them.
    """

    task: Any
    params: Any
    model_state: Any

    @classmethod
    def of(cls, task: Any, fitted: train.FitResult) -> "Learned":
        """Of the one run of a training."""
        model_state = jax.tree.map(lambda leaf: leaf[0], fitted.state.model_state)
        return cls(task, fitted.run(), model_state)

    @property
    def alpha(self) -> jax.Array | None:
        """The α of the loss that was measured; None if none was."""
        # Of tasks with prototypes it stands with what they share with others.
        state = getattr(getattr(self.model_state, "momentum", self.model_state), "alpha", None)
        return None if state is None else weights.measured_alpha(state)

    def features(self, examples: Any) -> jax.Array:
        """Features of examples as they are, before the head."""
        return _represent(self.task, self.params, self.model_state, jnp.asarray(examples))

    def two_views(self, examples: Any, seed: int) -> tuple[jax.Array, jax.Array]:
        """Embeddings of length 1 of two random views of each example."""
        return _two_views(self.task, self.params, self.model_state, jnp.asarray(examples), seed)

    def of_views(self, examples: Any, seed: int) -> dict[str, Any]:
        """Alignment and uniformity of the embeddings of views of some examples."""
        some = examples[:: max(1, len(examples) // _ALIGNED)][:_ALIGNED]
        return _aligned(*self.two_views(some, seed))


def represent(task: tasks.TwoViewTask, params: Any, model_state: Any, examples: Any) -> Any:
    """Features of examples as they are, in blocks that bound the memory."""
    return task.represent(params, model_state, examples, block_size=_BLOCK)


_represent = train.jit(represent)


@train.jit
def _two_views(
    task: Any, params: Any, model_state: Any, examples: Any, seed: Any
) -> tuple[Any, Any]:
    place = jnp.arange(len(examples), dtype=jnp.int32)
    views = task.batch(jax.random.key(seed), train.Batch(place, examples))

    def embed(views: Any) -> Any:
        return losses.normalize(
            task.network.apply(*task.network_variables(params, model_state), views)[0]
        )

    return embed(views.first), embed(views.second)


def _aligned(first: Any, second: Any) -> dict[str, Any]:
    return {"alignment": losses.alignment(first, second), "uniformity": losses.uniformity(first)}


def measured_of_views(examples: Any, seed: int) -> Any:
    """Measures ``train_alignment`` and ``train_uniformity`` of views of examples, for reports."""
    return jax.tree_util.Partial(_of_views, jnp.asarray(examples), seed)


def _of_views(examples: Any, seed: Any, task: Any, params: Any, model_state: Any) -> dict[str, Any]:
    found = _aligned(*_two_views(task, params, model_state, examples, seed))
    return {f"train_{name}": value for name, value in found.items()}


def neighbours(asked: int, n: int) -> int:
    """How many of ``n`` examples vote: no more than a tenth."""
    return max(1, min(asked, n // 10))
