"""Classes from the features of a network: its linear evaluation, or its fine-tuning."""

from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from .._blocks import map_blocks
from .._floats import at_least_float32, cast_floats
from .._pytree import STATIC, pytree_dataclass
from ..models import Network
from ..train import Batch, StepContext, Task, check_count
from ._augment import as_they_are, as_tree, draw_views
from ._simclr import cast_like


@pytree_dataclass
class Classification(Task):
    r"""A linear layer on the features of a network, trained by softmax cross-entropy.

    .. math::
        \ell = -\log \mathrm{softmax}(W^\top f(t(x)) + b)_y

    for the features f of a random augmentation t of an example. The layer alone is trained, from
    0. That is the linear evaluation of published code, but for one thing: the network is frozen
    altogether, and normalises by its running statistics. With ``finetune`` the network is trained,
    too, and normalises by those of the batch.

    The data are pairs ``(examples, labels)``, such as :class:`LabelledExamples`. Examples with a
    negative
    label are left out. The history has the ``accuracy`` on the batches of the training.

    Attributes:
      network: A module with a method ``features``, which gives ``[batch, dim]``. Static.
      augment: See :data:`Augment`.
      backbone: Parameters and other variables of the network: what its ``init`` gives, or
        ``task.network_variables(params, model_state)`` of the task that has trained it.
      dim: Width of the features. Static.
      n_classes: How many classes there are. Static.
      finetune: Whether the network is trained, too. Static.

    References:
      Zhang et al., `Colorful Image Colorization <https://arxiv.org/abs/1603.08511>`_, 2016,
      section 3.2, for the linear evaluation.
    """

    network: Network = field(metadata=STATIC)
    augment: Any
    backbone: tuple[Any, Any]
    dim: int = field(metadata=STATIC)
    n_classes: int = field(metadata=STATIC)
    finetune: bool = field(default=False, metadata=STATIC)

    def __post_init__(self) -> None:
        object.__setattr__(self, "augment", as_tree(self.augment))
        check_count("dim", self.dim)
        check_count("n_classes", self.n_classes, 2)

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """A layer of zeros; for fine-tuning the network and its other variables beside it."""
        del key
        layer = {"kernel": jnp.zeros((self.dim, self.n_classes)), "bias": jnp.zeros(self.n_classes)}
        if not self.finetune:
            return {"layer": layer}, {}
        params, rest = self.backbone
        return {"layer": layer, "network": params}, rest

    def batch(self, key: Key[Array, ""], examples: Batch) -> tuple[Any, Int[Array, "batch"]]:
        """A random view of each example, and the labels."""
        data, labels = examples.data
        keys = jax.random.split(key, labels.shape[0])
        return draw_views(self.augment, keys, data), labels

    def loss(
        self,
        params: Any,
        model_state: Any,
        batch: tuple[Any, Int[Array, "batch"]],
        ctx: StepContext,
    ) -> tuple[Array, tuple[Any, dict[str, Array]]]:
        """The mean over the real examples whose class is known; ``accuracy`` beside it."""
        views, labels = batch
        logits, after = self._apply(
            params, model_state, cast_like(params, views), train=self.finetune
        )
        known = ctx.where & (labels >= 0)
        ctx = ctx._replace(where=known, n=jnp.sum(known).astype(ctx.n.dtype))
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, jnp.where(known, labels, 0)
        )
        right = (jnp.argmax(logits, axis=1) == labels).astype(losses.dtype)
        return ctx.mean(losses), (after, {"accuracy": ctx.mean(right)})

    def logits(
        self, params: Any, model_state: Any, examples: Any, *, block_size: int = 512
    ) -> Float[Array, "n n_classes"]:
        """Scores of the classes, outside training, of examples as they are.

        Args:
          params: Parameters of the task.
          extra: What else changes.
          examples: Every leaf ``[n, ...]``; seen through ``augment.plain``, if there is one.
          block_size: Examples at a time, which bounds the memory; static.
        """
        check_count("block_size", block_size)

        def of_block(examples: Any) -> Array:
            seen = as_they_are(self.augment, examples)
            return self._apply(params, model_state, seen, train=False)[0]

        return map_blocks(of_block, examples, block_size)

    def classify(
        self, params: Any, model_state: Any, examples: Any, *, block_size: int = 512
    ) -> Int[Array, "n"]:
        """The class with the greatest score; arguments as for :meth:`logits`."""
        scores = self.logits(params, model_state, examples, block_size=block_size)
        return jnp.argmax(scores, axis=1).astype(jnp.int32)

    def _apply(
        self, params: Any, model_state: Any, examples: Any, *, train: bool
    ) -> tuple[Float[Array, "batch n_classes"], Any]:
        """Scores of the classes, at least float32, and what else has changed."""
        layer = params["layer"]
        if self.finetune:
            network, rest = params["network"], model_state
        else:
            frozen, rest = self.backbone
            network = cast_floats(frozen, layer["kernel"].dtype)
        features, after = self.network.apply(
            network, rest, examples, train=train, method="features"
        )
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise ValueError(
                f"`dim` must be the width of the features, whose shape is {features.shape}, "
                f"got {self.dim}."
            )
        scores = features @ layer["kernel"].astype(features.dtype)
        (scores,) = at_least_float32(scores + layer["bias"].astype(scores.dtype)[None])
        return scores, after if self.finetune else model_state
