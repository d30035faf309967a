"""CLIP: two encoders of paired examples, such as images and texts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..losses import (
    clip_contrastive,
    fused_tower_loss,
    info_nce,
    normalize,
    tiled_tower_loss,
    tower_scores,
)
from ..models import Network
from ..train import Batch, LossOutput, StepContext, stream
from ..weights import MeasuredAlphaState
from ._score_task import (
    AlphaEstimator,
    LossInputs,
    ScoreTask,
    class_masks,
    split_labels,
    with_alpha,
)
from ._tiles import Tile, by_tile, check_tile, first_inputs
from ._views import (
    ViewBatch,
    as_pytree,
    both_views,
    cast_like,
    check_batch_size,
    check_network,
    draw_views,
    map_plain_views,
    network_state,
    replace_params,
)

_TOWERS = ("first", "second")


@pytree_dataclass
class CLIP(ScoreTask):
    r"""CLIP: cosines of all pairs of a batch, with a trainable temperature.

    The data are pairs ``(first, second)``, such as images and texts, or :class:`LabelledExamples`
    of pairs, where pairs with one label match, such as two captions of an image. Both halves of
    each pair are anchors: the first among all second halves, the second among all first halves. The
    loss is the mean of both directions.

    With labels the history reports ``false_negatives`` and ``auc``, see :class:`SimCLR`. Labels do
    not affect training unless ``exclude_equal`` is set.

    Precision: that of :func:`crl_jax.losses.tower_scores`.

    Attributes:
      first: Encoder of first halves. Static.
      second: Encoder of second halves, of the same dimension. Static.
      temperature: Initial temperature, > 0. A temperature in ``hyperparams`` is fixed instead.
      min_temperature: Lower bound of the temperature, >= 0.
      loss_fn: ``loss(pos, neg, *, where, reduce_fn, temperature, **hyperparams)``: any contrastive
        loss of :mod:`crl_jax.losses`. Static.
      hyperparams: Fixed hyper-parameters of the loss.
      bias: Initial value of a trainable bias, for :func:`crl_jax.losses.sigmoid_contrastive`; None
        for losses without one. SigLIP uses temperature 0.1 and bias -10.
      augment_first: Random views of first halves, see :data:`Augment`; None for no augmentation.
      augment_second: Random views of second halves.
      alpha: See :class:`SimCLR`. It is estimated with first halves as anchors.
      exclude_equal: Whether pairs with one label are excluded from each other's negatives. Static.
      pretrained: Initial parameters, or some of them by name, such as
        ``{"second": {"backbone": ...}}`` of a :class:`crl_jax.models.BackboneWithHead`. All others
        are initialized at random.
      tile: Number of anchors whose scores are in memory at a time; None for all. With tiles, memory
        is linear in the batch size, also in the backward pass, and label metrics are computed on
        the first ``max(tile, 16)`` anchors only. See :func:`crl_jax.losses.tiled_tower_loss`. With
        ``"fused"``, a TPU stores no scores, on one device: see
        :func:`crl_jax.losses.fused_tower_loss`. Static.

    Raises:
      ValueError: If a field is invalid, a hyper-parameter is set twice, or the batch size is 1.

    References:
      Radford et al., `Learning Transferable Visual Models From Natural Language Supervision
      <https://arxiv.org/abs/2103.00020>`_, 2021, Figure 3 and section 2.5; Zhai et al., `Sigmoid
      Loss for Language Image Pre-Training <https://arxiv.org/abs/2303.15343>`_, 2023.
    """

    first: Network = field(metadata=STATIC)
    second: Network = field(metadata=STATIC)
    temperature: Annotated[Any, Range(0, low_open=True)] = 0.07
    min_temperature: Annotated[Any, Range(0)] = 0.01
    loss_fn: Callable[..., Array] = field(default=info_nce, metadata=STATIC)
    hyperparams: dict[str, Any] = field(default_factory=dict)
    bias: Any = field(default=None, kw_only=True)
    augment_first: Any = field(default=None, kw_only=True)
    augment_second: Any = field(default=None, kw_only=True)
    alpha: AlphaEstimator | None = field(default=None, kw_only=True)
    exclude_equal: bool = field(default=False, kw_only=True, metadata=STATIC)
    pretrained: Any = field(default=None, kw_only=True)
    tile: Tile | None = field(default=None, kw_only=True, metadata=STATIC)

    def __post_init__(self) -> None:
        for name in _TOWERS:
            check_network(name, getattr(self, name))
            augment = f"augment_{name}"
            if (function := getattr(self, augment)) is not None:
                object.__setattr__(self, augment, as_pytree(augment, function))
        if self.loss_fn is clip_contrastive:  # InfoNCE in both directions
            object.__setattr__(self, "loss_fn", info_nce)
        self.check_fields()
        check_tile(self, CLIP)
        if self.bias is not None and "bias" in self.hyperparams:
            raise ValueError("`hyperparams` must not contain bias if `bias` is trainable.")

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Initializes both networks, the log inverse temperature, and the bias.

        Raises:
          ValueError: If a parameter of ``pretrained`` has an unknown name or another shape.
        """
        params, variables = {}, {}
        keys = jax.random.split(stream(key, "params"))
        for (name, network, _), tower_key in zip(self._towers(), keys):
            params[name], variables[name] = network.init(tower_key)
        if self.pretrained is not None:
            params = replace_params(params, self.pretrained)
        if "temperature" not in self.hyperparams:
            params["log_scale"] = -jnp.log(jnp.asarray(self.temperature, jnp.float32))
        if self.bias is not None:
            params["bias"] = jnp.asarray(self.bias, jnp.float32)
        return params, with_alpha(variables, self.initial_alpha())

    def network_variables(self, params: Any, model_state: Any) -> tuple[Any, Any]:
        """Returns parameters and variables of the networks ``first`` and ``second``."""
        return {name: params[name] for name in _TOWERS}, network_state(model_state)

    def batch(self, key: Key[Array, ""], examples: Batch) -> ViewBatch:
        """Draws a view of each half, or returns the half itself."""
        data, labels = split_labels(examples.data)
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise ValueError(
                f"`data` of CLIP must be pairs (first, second), got {type(data).__name__}."
            )
        keys = jax.random.split(key, (2, examples.indices.shape[0]))
        first, second = (
            half if augment is None else draw_views(augment, view_keys, half)
            for half, (_, _, augment), view_keys in zip(data, self._towers(), keys)
        )
        return ViewBatch(first, second, examples.indices, labels)

    def loss(self, params: Any, model_state: Any, batch: ViewBatch, ctx: StepContext) -> LossOutput:
        """Computes the mean over both halves of the real pairs; reports trainable scalars."""
        x, y, new_variables = self.encode_pairs(params, model_state, batch, ctx)
        learned = self.learned_hyperparams(params)
        score_loss = self._full_loss if self.tile is None else self._tiled_loss
        alpha = getattr(model_state, "alpha", None)
        loss, alpha, metrics = score_loss(x, y, batch.labels, alpha, ctx, learned)
        return loss, (with_alpha(new_variables, alpha), {**learned, **metrics})

    def encode_pairs(
        self, params: Any, model_state: Any, batch: ViewBatch, ctx: StepContext
    ) -> tuple[Float[Array, "batch dim"], Float[Array, "batch dim"], Any]:
        """Returns normalized embeddings of both halves, and variables, in training mode."""
        check_batch_size(self, ctx)
        if self.exclude_equal and batch.labels is None:
            raise ValueError("`data` must be tasks.LabelledExamples with `exclude_equal`.")
        variables = network_state(model_state)
        z, new_variables = {}, {}
        for (name, network, _), x in zip(self._towers(), batch[:2]):
            x = cast_like(params[name], x)
            z[name], new_variables[name] = network.apply(
                params[name], variables[name], x, train=True
            )
        x, y = (normalize(z[name]) for name in _TOWERS)
        return x, y, new_variables

    def losses(
        self, inputs: LossInputs, mask: Bool[Array, "anchors"], hyperparams: Mapping[str, Any]
    ) -> Float[Array, "anchors"]:
        """See :meth:`ScoreTask.losses`."""
        return super().losses(self.exclude_equal_pairs(inputs), mask, hyperparams)

    def exclude_equal_pairs(self, inputs: LossInputs) -> LossInputs:
        """Masks negatives with the label of the anchor, if ``exclude_equal`` is set."""
        if not self.exclude_equal:
            return inputs
        assert inputs.where is not None
        assert inputs.classes is not None
        return inputs._replace(where=inputs.where & ~inputs.classes.same)

    def embed_first(
        self, params: Any, model_state: Any, examples: Any, *, block_size: int = 512
    ) -> Float[Array, "batch dim"]:
        """Computes normalized embeddings of first halves in evaluation mode.

        Arguments as for :meth:`TwoViewTask.embed`, with views of ``augment_first``.
        """
        return self._embed_tower("first", params, model_state, examples, block_size)

    def embed_second(
        self, params: Any, model_state: Any, examples: Any, *, block_size: int = 512
    ) -> Float[Array, "batch dim"]:
        """Computes embeddings of second halves; arguments as for :meth:`embed_first`."""
        return self._embed_tower("second", params, model_state, examples, block_size)

    def embed(
        self, params: Any, model_state: Any, first: Any, second: Any, *, block_size: int = 512
    ) -> tuple[Float[Array, "n_first dim"], Float[Array, "n_second dim"]]:
        """Computes embeddings of both, paired or not; arguments as for :meth:`embed_first`."""
        z = self.embed_first(params, model_state, first, block_size=block_size)
        return z, self.embed_second(params, model_state, second, block_size=block_size)

    def learned_hyperparams(self, params: Any) -> dict[str, Array]:
        """Returns ``temperature`` and ``bias``, each if it is trainable, in float32."""
        scalars = {name: params[name].astype(jnp.float32) for name in params if name not in _TOWERS}
        if (log_scale := scalars.pop("log_scale", None)) is not None:
            minimum = jnp.asarray(self.min_temperature, jnp.float32)
            scalars["temperature"] = jnp.maximum(jnp.exp(-log_scale), minimum)
        return scalars

    def _towers(self) -> Iterator[tuple[str, Network, Any]]:
        for name in _TOWERS:
            yield name, getattr(self, name), getattr(self, f"augment_{name}")

    def _embed_tower(
        self, tower: str, params: Any, model_state: Any, examples: Any, block_size: int
    ) -> Float[Array, "batch dim"]:
        network, augment = getattr(self, tower), getattr(self, f"augment_{tower}")
        variables = params[tower], network_state(model_state)[tower]
        z = map_plain_views(
            lambda views: network.apply(*variables, cast_like(params[tower], views))[0],
            augment, examples, block_size,
        )  # fmt: skip
        return normalize(z)

    def _full_loss(
        self, x: Array, y: Array, labels: Any, alpha: Any, ctx: StepContext, learned: dict[str, Any]
    ) -> tuple[Array, MeasuredAlphaState | None, dict[str, Array]]:
        """Computes the loss from the scores of all anchors at once."""
        return self.score_loss(pair_inputs(x, y, labels, ctx), alpha, both_views(ctx), **learned)

    def _tiled_loss(
        self, x: Array, y: Array, labels: Any, alpha: Any, ctx: StepContext, learned: dict[str, Any]
    ) -> tuple[Array, MeasuredAlphaState | None, dict[str, Array]]:
        """Computes the loss tile by tile, and label metrics from the first anchors."""
        assert self.tile is not None
        index = jnp.arange(len(x), dtype=jnp.int32)
        inputs = first_inputs(self.tile, x, y, index, index, ctx.where, labels)
        estimates, alpha, metrics = self.alpha_and_metrics(inputs, alpha)
        ids = None
        if self.exclude_equal:
            assert labels is not None
            ids = jnp.where(labels >= 0, labels, -1 - index)  # unknown labels are distinct
        hyperparams: dict[str, Any] = {**self.hyperparams, **estimates, **learned}
        loss = by_tile(self.tile, tiled_tower_loss, fused_tower_loss)
        forward, backward = (
            loss(self.loss_fn, a, b, ids=ids, where=ctx.where, **hyperparams)
            for a, b in ((x, y), (y, x))
        )
        return (forward + backward) / 2, alpha, metrics


def pair_inputs(
    first: Float[Array, "batch dim"],
    second: Float[Array, "batch dim"],
    labels: Int[Array, "batch"] | None,
    ctx: StepContext,
) -> LossInputs:
    """Returns the scores of both halves as anchors, first halves first; padding is no negative."""
    directions = tower_scores(first, second), tower_scores(second, first)
    pos, neg, where = (jnp.concatenate(pair) for pair in zip(*directions))
    where = where & both_views(ctx).where[:, None] & ctx.where[None, :]
    classes = class_masks(None if labels is None else jnp.tile(labels, 2), labels)
    return LossInputs(pos, neg, where, classes)
