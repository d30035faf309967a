"""Two networks that put the two halves of each pair next to each other."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from .._blocks import map_blocks
from .._checks import check_count, check_range
from .._pytree import STATIC, pytree_dataclass
from ..losses import clip_contrastive, info_nce, normalize, tiled_tower_loss, tower_scores
from ..models import Network
from ..train import Batch, StepContext, stream
from ..weights import MeasuredAlpha
from ._alpha import AlphaEstimator
from ._augment import as_they_are, as_tree, draw_views
from ._base import AlphaState, ScoreTask, alpha_of, of_both, variables_of
from ._labels import ANCHORS, ClassMasks, LossInputs, same_class, split_labels
from ._simclr import ViewBatch, cast_like, put

_HALVES = ("first", "second")
_Loss = tuple[Array, MeasuredAlpha | None, dict[str, Array]]


@pytree_dataclass
class CLIP(ScoreTask):
    r"""CLIP: two networks, cosines of all pairs of a batch, and a temperature that is learned.

    The data of the batches are pairs ``(first, second)``, such as images and texts, or
    :class:`LabelledExamples` ones: pairs with one label are equal, such as two captions of a
    picture. Both
    halves of each pair are anchors, the first among all second ones and the second among all first
    ones. The loss is the mean of the two directions.

    With labels the history has ``false_negatives`` and ``auc``, see :class:`SimCLR`. Neither
    changes what is learned, unless ``exclude_equal`` is set.

    Attributes:
      first: Embeds the first halves. Static.
      second: Embeds the second halves, in the same width. Static.
      temperature: Its initial value, > 0. Where ``hyperparams`` has one, that is kept instead.
      least_temperature: Where it stops falling, >= 0.
      loss_fn: ``loss(pos, neg, *, where, reduce_fn, temperature, **hyperparams)``: any contrastive
        loss of :mod:`crl_jax.losses`. Static.
      hyperparams: Hyper-parameters of the loss that are not learned.
      bias: The initial value of a bias that is learned, as
        :func:`crl_jax.losses.sigmoid_contrastive` takes it; None for a loss without. SigLIP has
        the temperature 0.1 and the bias -10.
      augment_first: A random view of a first half, see :data:`Augment`; None leaves it as it is.
      augment_second: Of a second half.
      alpha: See :class:`SimCLR`. The anchors it looks at are first halves.
      exclude_equal: Whether pairs with one label are left out of each other's negatives. Static.
      pretrained: Parameters that training starts from, or some of them by their names, such as
        ``{"second": {"backbone": ...}}`` of a :class:`crl_jax.models.BackboneWithHead`. The
        others, and all
        without it, start at random.
      tile: Anchors whose scores are held at a time; static. None holds all scores. With it memory
        is linear in the batch, also backward, and what labels say of scores is measured at so many
        of the anchors alone, but 16 at least. See :func:`crl_jax.losses.tiled_tower_loss`.

    Raises:
      ValueError: If a number is out of range, or given twice.

    References:
      Radford et al., `Learning Transferable Visual Models From Natural Language Supervision
      <https://arxiv.org/abs/2103.00020>`_, 2021, Figure 3 and section 2.5; Zhai et al., `Sigmoid
      Loss for Language Image Pre-Training <https://arxiv.org/abs/2303.15343>`_, 2023.
    """

    first: Network = field(metadata=STATIC)
    second: Network = field(metadata=STATIC)
    temperature: Any = 0.07
    least_temperature: Any = 0.01
    loss_fn: Callable[..., Array] = field(default=info_nce, metadata=STATIC)
    hyperparams: dict[str, Any] = field(default_factory=dict)
    bias: Any = field(default=None, kw_only=True)
    augment_first: Any = field(default=None, kw_only=True)
    augment_second: Any = field(default=None, kw_only=True)
    alpha: AlphaEstimator | None = field(default=None, kw_only=True)
    exclude_equal: bool = field(default=False, kw_only=True, metadata=STATIC)
    pretrained: Any = field(default=None, kw_only=True)
    tile: int | None = field(default=None, kw_only=True, metadata=STATIC)

    def __post_init__(self) -> None:
        for name in ("augment_first", "augment_second"):
            object.__setattr__(self, name, as_tree(getattr(self, name)))
        if self.loss_fn is clip_contrastive:  # which is InfoNCE in both directions
            object.__setattr__(self, "loss_fn", info_nce)
        check_range("temperature", self.temperature, 0, jnp.inf, low_open=True)
        check_range("least_temperature", self.least_temperature, 0, jnp.inf)
        if self.bias is not None and "bias" in self.hyperparams:
            raise ValueError("`hyperparams` must leave bias out where `bias` is learned.")
        if self.tile is not None:
            check_count("tile", self.tile)
        self.check_alpha()

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Of both networks, the logarithm of the temperature's inverse, and the bias.

        Raises:
          ValueError: If a parameter of ``pretrained`` is none of the networks, or of another shape.
        """
        params, rest = {}, {}
        keys = jax.random.split(stream(key, "params"))
        for (name, network, _), own in zip(self._halves(), keys):
            params[name], rest[name] = network.init(own)
        if self.pretrained is not None:
            params = put(params, self.pretrained)
        if "temperature" not in self.hyperparams:
            params["log_scale"] = -jnp.log(jnp.asarray(self.temperature, jnp.float32))
        if self.bias is not None:
            params["bias"] = jnp.asarray(self.bias, jnp.float32)
        return params, self.with_alpha(rest)

    def networks_variables(self, params: Any, model_state: Any) -> tuple[Any, Any]:
        """Parameters and other variables of both networks, ``first`` and ``second``."""
        return {name: params[name] for name in _HALVES}, variables_of(model_state)

    def batch(self, key: Key[Array, ""], examples: Batch) -> ViewBatch:
        """A view of each half, or the half as it is."""
        data, labels = split_labels(examples.data)
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise ValueError(f"`data` of Towers must be pairs (first, second), got {type(data)}.")
        keys = jax.random.split(key, (2, examples.place.shape[0]))
        first, second = (
            half if augment is None else draw_views(augment, own, half)
            for half, (_, _, augment), own in zip(data, self._halves(), keys)
        )
        return ViewBatch(first, second, examples.place, labels)

    def loss(
        self, params: Any, model_state: Any, batch: ViewBatch, ctx: StepContext
    ) -> tuple[Array, tuple[Any, dict[str, Array]]]:
        """The mean over both halves of the real pairs; what is learned of scores beside it."""
        z, rest = {}, {}
        for (name, network, _), x in zip(self._halves(), batch[:2]):
            own = params[name], variables_of(model_state)[name]
            z[name], rest[name] = network.apply(*own, cast_like(params[name], x), train=True)
        learned = self.learned(params)
        x, y = (normalize(z[name]) for name in _HALVES)
        of_scores = self._whole if self.tile is None else self._tiled
        loss, alpha, metrics = of_scores(x, y, batch.labels, alpha_of(model_state), ctx, learned)
        return loss, (rest if alpha is None else AlphaState(rest, alpha), {**learned, **metrics})

    def losses(
        self,
        scores: LossInputs,
        classes: ClassMasks | None,
        real: Bool[Array, "anchors"],
        hyperparams: Mapping[str, Any],
    ) -> Float[Array, "anchors"]:
        """The loss of each anchor."""
        if self.exclude_equal:
            assert scores.where is not None
            assert classes is not None
            scores = scores._replace(where=scores.where & ~classes.same)
        return super().losses(scores, classes, real, hyperparams)

    def embed_first(
        self, params: Any, model_state: Any, examples: Any, *, block_size: int = 512
    ) -> Float[Array, "batch dim"]:
        """Embeddings of first halves, of length 1, outside training.

        Args:
          params: Parameters of the task.
          extra: What else changes.
          examples: First halves as they are, every leaf ``[batch, ...]``; the network sees what
            ``augment_first.plain`` makes of them, if there is such.
          block_size: Examples at a time, which bounds the memory; static.
        """
        return self._in_blocks("first", params, model_state, examples, block_size)

    def embed_second(
        self, params: Any, model_state: Any, examples: Any, *, block_size: int = 512
    ) -> Float[Array, "batch dim"]:
        """Embeddings of second halves; arguments as for :meth:`embed_first`."""
        return self._in_blocks("second", params, model_state, examples, block_size)

    def embed(
        self, params: Any, model_state: Any, first: Any, second: Any, *, block_size: int = 512
    ) -> tuple[Float[Array, "n_first dim"], Float[Array, "n_second dim"]]:
        """Embeddings of both, which need not be pairs; arguments as for :meth:`embed_first`."""
        return (
            self.embed_first(params, model_state, first, block_size=block_size),
            self.embed_second(params, model_state, second, block_size=block_size),
        )

    def learned(self, params: Any) -> dict[str, Array]:
        """The hyper-parameters of the loss that are learned, in float32.

        Args:
          params: Parameters of the task.

        Returns:
          ``temperature``, where it is learned, and ``bias``, if there is one.
        """
        numbers = {name: params[name].astype(jnp.float32) for name in params if name not in _HALVES}
        if (log_scale := numbers.pop("log_scale", None)) is not None:
            least = jnp.asarray(self.least_temperature, jnp.float32)
            numbers["temperature"] = jnp.maximum(jnp.exp(-log_scale), least)
        return numbers

    def _halves(self) -> Iterator[tuple[str, Network, Any]]:
        for name in _HALVES:
            yield name, getattr(self, name), getattr(self, f"augment_{name}")

    def _in_blocks(
        self, half: str, params: Any, model_state: Any, examples: Any, block_size: int
    ) -> Float[Array, "batch dim"]:
        check_count("block_size", block_size)
        network, augment = getattr(self, half), getattr(self, f"augment_{half}")

        def of_block(examples: Any) -> Array:
            seen = cast_like(params[half], as_they_are(augment, examples))
            return network.apply(params[half], variables_of(model_state)[half], seen)[0]

        return normalize(map_blocks(of_block, examples, block_size))

    def _whole(
        self,
        x: Float[Array, "batch dim"],
        y: Float[Array, "batch dim"],
        labels: Int[Array, "batch"] | None,
        alpha: MeasuredAlpha | None,
        ctx: StepContext,
        learned: dict[str, Array],
    ) -> _Loss:
        """By the scores of all anchors at once."""
        there, back = tower_scores(x, y), tower_scores(y, x)
        pos, neg, where = (jnp.concatenate(pair) for pair in zip(there, back))
        both = of_both(ctx)
        # Fillers are nobody's negatives.
        where = where & both.where[:, None] & ctx.where[None, :]
        labels = self._checked(labels)
        classes = same_class(None if labels is None else jnp.tile(labels, 2), labels)
        return self.score_loss(LossInputs(pos, neg, where), classes, alpha, both, **learned)

    def _tiled(
        self,
        x: Float[Array, "batch dim"],
        y: Float[Array, "batch dim"],
        labels: Int[Array, "batch"] | None,
        alpha: MeasuredAlpha | None,
        ctx: StepContext,
        learned: dict[str, Array],
    ) -> _Loss:
        """By the scores of a few anchors at a time."""
        assert self.tile is not None
        labels, n = self._checked(labels), len(x)
        # What labels say is told by the anchors that lead the batch, which is in random order.
        few, place = min(n, max(self.tile, ANCHORS)), jnp.arange(n, dtype=jnp.int32)
        there = jax.lax.stop_gradient(jnp.matmul(x[:few], y.T, preferred_element_type=jnp.float32))
        where = ctx.where[:few, None] & ctx.where[None, :]
        where = where & (place[:few, None] != place[None, :])
        scores = LossInputs(jnp.diagonal(there), there, where)
        classes = same_class(None if labels is None else labels[:few], labels)
        known, alpha, metrics = self.observe(scores, classes, alpha, where)
        ids = None
        if self.exclude_equal:
            assert labels is not None
            ids = jnp.where(labels >= 0, labels, -1 - place)  # a label not known is like no other
        given: dict[str, Any] = {**self.hyperparams, **known, **learned}
        by_first, by_second = (
            tiled_tower_loss(self.loss_fn, a, b, ids=ids, where=ctx.where, rows=self.tile, **given)
            for a, b in ((x, y), (y, x))
        )
        return (by_first + by_second) / 2, alpha, metrics

    def _checked(self, labels: Array | None) -> Array | None:
        if labels is None and self.exclude_equal:
            raise ValueError("`exclude_equal` needs data that are tasks.Labelled, got others.")
        return labels
