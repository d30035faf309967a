"""Two views of each example, which a network is to tell from the views of the others."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._blocks import map_blocks
from .._checks import check_count
from .._floats import cast_floats
from .._pytree import STATIC, pytree_dataclass
from ..losses import info_nce, normalize, view_scores
from ..models import Network
from ..train import Batch, StepContext, Task, stream
from ._alpha import AlphaEstimator
from ._augment import as_they_are, as_tree, draw_views
from ._base import AlphaState, ScoreTask, alpha_of, of_both, variables_of
from ._labels import LossInputs, same_class, split_labels


class ViewBatch(NamedTuple):
    """A batch: two views of each example.

    Attributes:
      first: One view of each.
      second: The other.
      place: Where the examples stand in the data, ``[batch]``.
      labels: Their classes, ``[batch]``; None without labels.
    """

    first: Any
    second: Any
    place: Int[Array, "batch"] | None = None
    labels: Int[Array, "batch"] | None = None


@dataclass(frozen=True)
class TwoViewTask(Task):
    """What tasks on two views of each example share. One of your own defines init and loss.

    The data are examples, every leaf ``[n, ...]``, or :class:`LabelledExamples` ones.

    Attributes:
      network: Makes an embedding of each view, ``[batch, dim]``. Static.
      augment: See :data:`Augment`; the numbers of one that is a registered dataclass are leaves.
      pretrained: Parameters of the network that training starts from, or some of them by their
        names, such as ``{"backbone": ...}`` of a :class:`crl_jax.models.BackboneWithHead`. The
        others, and
        all without it, start at random.
    """

    network: Network = field(metadata=STATIC)
    augment: Any
    pretrained: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "augment", as_tree(self.augment))

    def start_network(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Initial parameters and other variables of the network.

        Raises:
          ValueError: If a parameter of ``pretrained`` is none of the network, or of another shape.
        """
        params, rest = self.network.init(key)
        return (params if self.pretrained is None else put(params, self.pretrained)), rest

    def network_variables(self, params: Any, model_state: Any) -> tuple[Any, Any]:
        """Parameters and other variables of the network, from those of the task."""
        return params, model_state

    def batch(self, key: Key[Array, ""], examples: Batch) -> ViewBatch:
        """Two views of each example, independently."""
        data, labels = split_labels(examples.data)
        keys = jax.random.split(key, (2, examples.place.shape[0]))
        first, second = (draw_views(self.augment, own, data) for own in keys)
        return ViewBatch(first, second, examples.place, labels)

    def embed(
        self, params: Any, model_state: Any, examples: Any, *, block_size: int = 512
    ) -> Float[Array, "batch dim"]:
        """Embeddings outside training, of examples as they are: ``augment.plain`` ones, if any.

        Args:
          params: Parameters of the task.
          extra: What else changes.
          examples: Every leaf ``[batch, ...]``.
          block_size: Examples at a time, which bounds the memory; static.
        """
        return self._in_blocks("__call__", params, model_state, examples, block_size)

    def represent(
        self, params: Any, model_state: Any, examples: Any, *, block_size: int = 512
    ) -> Float[Array, "batch width"]:
        """Features before the head, outside training: what ``features`` of the module gives.

        Arguments as for :meth:`embed`.
        """
        return self._in_blocks("features", params, model_state, examples, block_size)

    def _in_blocks(
        self, method: str, params: Any, model_state: Any, examples: Any, block_size: int
    ) -> Float[Array, "batch width"]:
        check_count("block_size", block_size)
        variables = self.network_variables(params, model_state)

        def of_block(examples: Any) -> Array:
            seen = as_they_are(self.augment, examples)
            return self.network.apply(*variables, seen, method=method)[0]

        return map_blocks(of_block, examples, block_size)


@pytree_dataclass
class SimCLR(ScoreTask, TwoViewTask):
    r"""SimCLR: all 2B views of a batch are anchors, with the other views as negatives.

    With labels the history has ``false_negatives``, the share of negatives that are of their
    anchor's class, and ``auc``, how often one of the class scores above one of another, or 0.5 if
    that is more. Neither changes what is learned.

    Attributes:
      network: See :class:`TwoViewTask`. The length of embeddings does not matter, as scores are
        cosines.
      augment: See :class:`TwoViewTask`.
      hyperparams: Hyper-parameters of the loss, such as its temperature.
      loss_fn: ``loss(pos, neg, *, where, reduce_fn, **hyperparams)``, for instance
        :func:`crl_jax.losses.bayesian_contrastive`. Static.
      alpha: Measures the ``alpha`` of the loss: :class:`AlphaFromLabels` or
        :class:`AlphaFromViews`.
        None leaves it to ``hyperparams``.
      pretrained: See :class:`TwoViewTask`.

    References:
      Chen et al., `A Simple Framework for Contrastive Learning of Visual Representations
      <https://arxiv.org/abs/2002.05709>`_, 2020, algorithm 1.
    """

    hyperparams: dict[str, Any] = field(default_factory=dict)
    loss_fn: Callable[..., Array] = field(default=info_nce, metadata=STATIC)
    alpha: AlphaEstimator | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_alpha()

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Of the network: its other variables are what changes besides the parameters."""
        params, rest = self.start_network(stream(key, "params"))
        return params, self.with_alpha(rest)

    def network_variables(self, params: Any, model_state: Any) -> tuple[Any, Any]:
        """See :meth:`TwoViewTask.network_variables`."""
        return params, variables_of(model_state)

    def loss(
        self, params: Any, model_state: Any, batch: ViewBatch, ctx: StepContext
    ) -> tuple[Array, tuple[Any, dict[str, Array]]]:
        """The mean over both views of the real examples."""
        both = jax.tree.map(lambda *views: jnp.concatenate(views), batch.first, batch.second)
        _, rest = self.network_variables(params, model_state)
        z, rest = self.network.apply(params, rest, cast_like(params, both), train=True)
        scores = view_scores(*jnp.split(normalize(z), 2))
        # Both views of a real example are real; fillers are nobody's negatives.
        ctx = of_both(ctx)
        real = ctx.where[:, None] & ctx.where[None, :]
        scores = LossInputs(scores.pos, scores.neg, scores.where & real)
        labels = None if batch.labels is None else jnp.tile(batch.labels, 2)
        classes, alpha = same_class(labels, labels), alpha_of(model_state)
        loss, alpha, metrics = self.score_loss(scores, classes, alpha, ctx)
        return loss, (rest if alpha is None else AlphaState(rest, alpha), metrics)


def put(params: Any, given: Any, path: tuple[str, ...] = ()) -> Any:
    """The tree with the leaves that are given.

    Raises:
      ValueError: If one is not in the tree, or of another shape.
    """
    if not isinstance(params, dict):
        if isinstance(given, dict) or jnp.shape(given) != params.shape:
            got = "a dictionary" if isinstance(given, dict) else jnp.shape(given)
            where = "/".join(path)
            raise ValueError(f"`pretrained` must have {where} of shape {params.shape}, got {got}.")
        return jnp.asarray(given).astype(params.dtype)
    if not isinstance(given, dict) or not given.keys() <= params.keys():
        names = sorted(map(str, given.keys() - params.keys())) if isinstance(given, dict) else given
        where = "/".join(path) or "the network"
        raise ValueError(f"`pretrained` must name parameters of {where}, got {names!r:.100}.")
    return {**params, **{k: put(params[k], x, (*path, str(k))) for k, x in given.items()}}


def cast_like(params: Any, inputs: Any) -> Any:
    """Floating inputs in the dtype of the parameters, which a network computes in."""
    dtypes = [x.dtype for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.floating)]
    return cast_floats(inputs, dtypes[0]) if dtypes else inputs
