"""Augmented views of examples, and the base class of tasks on two views."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key

from .._blocks import map_blocks
from .._checks import check_count
from .._floats import cast_floats
from .._pytree import STATIC
from ..losses import normalize
from ..models import Network
from ..train import Batch, StepContext, Task
from ._score_task import split_labels

Augment = Callable[[Key[Array, ""], Any], Any]
"""``augment(key, example)`` returns a random view of one example. Either a function, or a pytree
dataclass with ``__call__``, whose numbers are then leaves of the task. Optional methods:
``plain(example)``, the deterministic view for evaluation; ``batch(keys, examples)`` and
``plain_batch(examples)``, the views of a whole batch, for examples of different sizes, such as
graphs. Batches of views are concatenated leaf by leaf."""


class ViewBatch(NamedTuple):
    """Two views of each example of a batch.

    Attributes:
      first: First view of each.
      second: Second view of each.
      indices: Indices of the examples in the data, ``[batch]``.
      labels: Their classes, ``[batch]``; None without labels.
    """

    first: Any
    second: Any
    indices: Int[Array, "batch"] | None = None
    labels: Int[Array, "batch"] | None = None


@dataclass(frozen=True)
class TwoViewTask(Task):
    """Task on two views of each example. Subclasses define ``init`` and ``loss``.

    The data are examples, every leaf ``[n, ...]``, or :class:`LabelledExamples`.

    Attributes:
      network: Encoder of a view, ``[batch, dim]``. Static.
      augment: Random views, see :data:`Augment`.
      pretrained: Initial parameters of the network, or some of them by name, such as
        ``{"backbone": ...}`` of a :class:`crl_jax.models.BackboneWithHead`. All others are
        initialized at random.

    Raises:
      ValueError: If a field has the wrong type.
    """

    network: Network = field(metadata=STATIC)
    augment: Any
    pretrained: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_network("network", self.network)
        object.__setattr__(self, "augment", as_pytree("augment", self.augment))

    def init_network(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Initializes the network, and replaces its parameters by those of ``pretrained``.

        Raises:
          ValueError: If a parameter of ``pretrained`` has an unknown name or another shape.
        """
        params, network_state = self.network.init(key)
        if self.pretrained is not None:
            params = replace_params(params, self.pretrained)
        return params, network_state

    def network_variables(self, params: Any, model_state: Any) -> tuple[Any, Any]:
        """Returns the network's part of ``params`` and of ``model_state``."""
        return params, network_state(model_state)

    def shard(self, mesh: Mesh) -> "TwoViewTask":
        """Returns the task with the augmentation ``augment.shard(mesh)``, if it has the method."""
        shard = getattr(self.augment, "shard", None)
        return self if shard is None else replace(self, augment=shard(mesh))

    def batch(self, key: Key[Array, ""], examples: Batch) -> ViewBatch:
        """Draws two independent views of each example."""
        data, labels = split_labels(examples.data)
        keys = jax.random.split(key, (2, examples.indices.shape[0]))
        first, second = (draw_views(self.augment, view_keys, data) for view_keys in keys)
        return ViewBatch(first, second, examples.indices, labels)

    def embed(
        self, params: Any, model_state: Any, examples: Any, *, block_size: int = 512
    ) -> Float[Array, "batch dim"]:
        """Computes embeddings in evaluation mode, of ``augment.plain`` views if there are any.

        Args:
          params: Parameters of the task.
          model_state: Model state of the task.
          examples: Every leaf ``[batch, ...]``.
          block_size: Number of examples per block, which bounds the memory; static.
        """
        return self._apply_in_blocks("__call__", params, model_state, examples, block_size)

    def represent(
        self, params: Any, model_state: Any, examples: Any, *, block_size: int = 512
    ) -> Float[Array, "batch width"]:
        """Computes features before the head, by the module's method ``features``.

        Arguments as for :meth:`embed`.
        """
        return self._apply_in_blocks("features", params, model_state, examples, block_size)

    def _apply_in_blocks(
        self, method: str, params: Any, model_state: Any, examples: Any, block_size: int
    ) -> Float[Array, "batch width"]:
        variables = self.network_variables(params, model_state)
        return map_plain_views(
            lambda views: self.network.apply(*variables, views, method=method)[0],
            self.augment, examples, block_size,
        )  # fmt: skip

    def encode_views(
        self, params: Any, model_state: Any, *views: Any
    ) -> tuple[list[Float[Array, "batch dim"]], Any]:
        """Returns normalized embeddings of batches of views, and variables, in training mode."""
        joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *views)
        _, variables = self.network_variables(params, model_state)
        z, variables = self.network.apply(params, variables, cast_like(params, joined), train=True)
        return jnp.split(normalize(z), len(views)), variables


def check_network(name: str, network: Any) -> None:
    """Raises ``ValueError`` unless ``network`` is a :class:`crl_jax.models.Network`."""
    if not isinstance(network, Network):
        raise ValueError(
            f"`{name}` must be a models.Network, such as models.Network(build) with "
            f"build(rngs) returning a Flax NNX module, got {network!r:.100}."
        )


def check_batch_size(task: Task, ctx: StepContext) -> None:
    """Raises ``ValueError`` if a batch of one example leaves no negatives."""
    if ctx.where.shape[0] < 2:
        raise ValueError(
            f"`batch_size` must be at least 2 for {type(task).__name__}, whose negatives are the "
            "other examples of the batch, got 1."
        )


def as_pytree(name: str, augment: Any) -> Any:
    """Wraps a function as a pytree without leaves; pytrees are returned unchanged."""
    if isinstance(augment, type) or not callable(augment):
        raise ValueError(
            f"`{name}` must be callable as {name}(key, example), got {augment!r:.100}."
        )
    return jax.tree_util.Partial(augment) if jax.tree_util.all_leaves([augment]) else augment


def draw_views(augment: Any, keys: Key[Array, "batch"], examples: Any) -> Any:
    """Draws a random view of each example."""
    batched = _method(augment, "batch")
    return jax.vmap(augment)(keys, examples) if batched is None else batched(keys, examples)


def map_plain_views(fn: Callable[[Any], Any], augment: Any, examples: Any, block_size: int) -> Any:
    """Applies a function to the views for evaluation, by default the examples, in blocks."""
    check_count("block_size", block_size)
    plain, batched = _method(augment, "plain"), _method(augment, "plain_batch")
    if batched is None:
        batched = (lambda block: block) if plain is None else jax.vmap(plain)
    return map_blocks(lambda block: fn(batched(block)), examples, block_size)


def _method(augment: Any, name: str) -> Callable[..., Any] | None:
    """Looks up an optional method, also through ``jax.tree_util.Partial``."""
    return getattr(augment, name, getattr(getattr(augment, "func", None), name, None))


def replace_params(params: Any, pretrained: Any, path: tuple[str, ...] = ()) -> Any:
    """Replaces parameters by pretrained ones of known names and equal shapes."""
    where, is_dict = "/".join(path), isinstance(pretrained, dict)
    if not isinstance(params, dict):
        if is_dict or jnp.shape(pretrained) != params.shape:
            got = "a dictionary" if is_dict else jnp.shape(pretrained)
            raise ValueError(f"`pretrained` must have {where} of shape {params.shape}, got {got}.")
        return jnp.asarray(pretrained).astype(params.dtype)
    if not is_dict or not pretrained.keys() <= params.keys():
        unknown = sorted(map(str, pretrained.keys() - params.keys())) if is_dict else pretrained
        raise ValueError(
            f"`pretrained` must name parameters of {where or 'the network'}, got {unknown!r:.100}."
        )
    replaced = {k: replace_params(params[k], x, (*path, str(k))) for k, x in pretrained.items()}
    return {**params, **replaced}


def cast_like(params: Any, inputs: Any) -> Any:
    """Casts floating inputs to the dtype of the parameters, in which a network computes."""
    dtypes = [x.dtype for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating)]
    return cast_floats(inputs, dtypes[0]) if dtypes else inputs


def network_state(model_state: Any) -> Any:
    """Returns the field ``network_state`` of a model state, or else the model state itself."""
    return getattr(model_state, "network_state", model_state)


def both_views(ctx: StepContext) -> StepContext:
    """Returns the context of a loss with two anchors per example: all first, then all second."""
    return ctx._replace(where=jnp.tile(ctx.where, 2), n=2 * ctx.n)
