"""Softmax classification of a network's features: linear evaluation or fine-tuning."""

from dataclasses import field
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from .._floats import at_least_float32, cast_floats
from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..models import Network
from ..train import Batch, LossOutput, StepContext, Task
from ._score_task import LabelledExamples
from ._views import as_pytree, cast_like, check_network, draw_views, map_plain_views


@pytree_dataclass
class Classification(Task):
    r"""Classifier on the features of a network, trained by softmax cross-entropy.

    .. math::
        \ell = -\log \mathrm{softmax}(W^\top f(t(x)) + b)_y

    for the features f of a random augmentation t of an example. By default the network is frozen
    and in evaluation mode, and only the classifier is trained, from zeros; published linear
    evaluations differ in that their batch statistics are updated. With ``finetune``, the network is
    trained as well, in training mode. With ``hidden``, the features pass through a hidden layer,
    :math:`f \mapsto \tanh(V^\top f + c)`, whose initial weights :math:`V` are random, as in the
    head of BERT.

    The data are :class:`LabelledExamples` or pairs ``(examples, labels)``. Examples with a negative
    label are ignored. The history reports the training ``accuracy``.

    Precision: logits are in full float32 of the features.

    Attributes:
      network: Network with a method ``features``, returning ``[batch, dim]``. Static.
      augment: Random views, see :data:`Augment`.
      backbone: Parameters and non-trainable variables of the network: the result of its ``init``,
        or of ``network_variables(params, model_state)`` of the task that trained it.
      dim: Dimension of the features. Static.
      n_classes: Number of classes. Static.
      finetune: Whether the network is trained as well. Static.
      hidden: Width of a hidden layer; ``None`` for a linear classifier. Static.

    Raises:
      ValueError: If a field is invalid, or, before training, if a label is not below ``n_classes``
        or none is known.

    References:
      Zhang et al., `Colorful Image Colorization <https://arxiv.org/abs/1603.08511>`_, 2016,
      section 3.2, for the linear evaluation.
    """

    network: Network = field(metadata=STATIC)
    augment: Any
    backbone: tuple[Any, Any]
    dim: Annotated[int, Range(1)] = field(metadata=STATIC)
    n_classes: Annotated[int, Range(2)] = field(metadata=STATIC)
    finetune: bool = field(default=False, metadata=STATIC)
    hidden: Annotated[int | None, Range(1)] = field(default=None, metadata=STATIC)

    def __post_init__(self) -> None:
        check_network("network", self.network)
        object.__setattr__(self, "augment", as_pytree("augment", self.augment))
        if not isinstance(self.backbone, tuple | list) or len(self.backbone) != 2:
            raise ValueError(
                "`backbone` must be a pair (params, variables), such as network.init(key), "
                f"got {type(self.backbone).__name__}."
            )

    def check_data(self, data: Any) -> None:
        """Raises ``ValueError`` for labels out of range."""
        labels = np.asarray(_split(data)[1])
        if labels.size and labels.max() >= self.n_classes:
            raise ValueError(
                f"`labels` must be less than `n_classes` {self.n_classes}, got {labels.max()}."
            )
        if not (labels >= 0).any():
            raise ValueError("`labels` must contain a known class, got negative labels alone.")

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Returns a linear layer of zeros, the hidden layer, and with ``finetune`` the backbone."""
        width = self.hidden or self.dim
        layer = {"kernel": jnp.zeros((width, self.n_classes)), "bias": jnp.zeros(self.n_classes)}
        params: dict[str, Any] = {"layer": layer}
        if self.hidden is not None:
            kernel = jax.nn.initializers.glorot_uniform()(key, (self.dim, self.hidden))
            params["hidden"] = {"kernel": kernel, "bias": jnp.zeros(self.hidden)}
        if not self.finetune:
            return params, {}
        network, variables = self.backbone
        return {**params, "network": network}, variables

    def batch(self, key: Key[Array, ""], examples: Batch) -> tuple[Any, Int[Array, "batch"]]:
        """Draws a random view of each example."""
        data, labels = _split(examples.data)
        keys = jax.random.split(key, labels.shape[0])
        return draw_views(self.augment, keys, data), labels

    def loss(self, params: Any, model_state: Any, batch: Any, ctx: StepContext) -> LossOutput:
        """Computes the mean over the real examples of known class, and their ``accuracy``."""
        views, labels = batch
        logits, model_state = self._apply(
            params, model_state, cast_like(params, views), train=self.finetune
        )
        known = ctx.where & (labels >= 0)
        ctx = ctx._replace(where=known, n=jnp.sum(known).astype(ctx.n.dtype))
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits, jnp.where(known, labels, 0)
        )
        correct = (jnp.argmax(logits, axis=1) == labels).astype(losses.dtype)
        return ctx.mean(losses), (model_state, {"accuracy": ctx.mean(correct)})

    def logits(
        self, params: Any, model_state: Any, examples: Any, *, block_size: int = 512
    ) -> Float[Array, "n n_classes"]:
        """Computes the logits in evaluation mode; arguments as for :meth:`TwoViewTask.embed`."""
        return map_plain_views(
            lambda views: self._apply(params, model_state, views, train=False)[0],
            self.augment, examples, block_size,
        )  # fmt: skip

    def classify(
        self, params: Any, model_state: Any, examples: Any, *, block_size: int = 512
    ) -> Int[Array, "n"]:
        """Returns the most probable class; arguments as for :meth:`logits`."""
        logits = self.logits(params, model_state, examples, block_size=block_size)
        return jnp.argmax(logits, axis=1).astype(jnp.int32)

    def _apply(
        self, params: Any, model_state: Any, views: Any, *, train: bool
    ) -> tuple[Float[Array, "batch n_classes"], Any]:
        """Computes the logits, at least float32, and the new model state."""
        layer = params["layer"]
        if self.finetune:
            network = params["network"], model_state
        else:
            frozen, variables = self.backbone
            network = cast_floats(frozen, layer["kernel"].dtype), variables
        features, variables = self.network.apply(*network, views, train=train, method="features")
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise ValueError(
                f"`dim` must be the width of the features, whose shape is {features.shape}, "
                f"got {self.dim}."
            )
        if self.hidden is not None:
            features = jnp.tanh(_affine(params["hidden"], features))
        (logits,) = at_least_float32(_affine(layer, features))
        return logits, variables if self.finetune else model_state


def _affine(layer: Any, x: Float[Array, "batch dim"]) -> Float[Array, "batch width"]:
    product = jnp.matmul(x, layer["kernel"].astype(x.dtype), precision=jax.lax.Precision.HIGHEST)
    return product + layer["bias"].astype(x.dtype)[None]


def _split(data: Any) -> tuple[Any, Any]:
    if isinstance(data, LabelledExamples):
        return data.examples, data.labels
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError(
            "`data` of Classification must be tasks.LabelledExamples or a pair "
            f"(examples, labels), got {type(data).__name__}."
        )
    return data[0], data[1]
