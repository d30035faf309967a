"""SimCLR and CLIP with a state per example: false-negative thresholds and denominators."""

from collections.abc import Callable
from dataclasses import field
from functools import reduce
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..losses import global_contrastive, update_log_mean
from ..train import LossOutput, StepContext, stream
from ..weights import MeasuredAlphaState, update_threshold
from ._clip import CLIP, pair_inputs
from ._score_task import LossInputs, check_n_examples
from ._simclr import SimCLR, view_inputs
from ._views import ViewBatch, both_views, check_batch_size, network_state


class ExampleState(NamedTuple):
    """Model state of :class:`GloFND`, :class:`SogCLR` and :class:`SogCLIP`.

    Attributes:
      network_state: Non-trainable variables of the network.
      thresholds: Score above which the negatives of an example are considered false,
        ``[n_examples]``; NaN before the first update.
      log_means: Log of the moving average of the denominator of each example, ``[n_examples]``;
        -inf before the first update. None for :class:`GloFND`. :class:`SogCLIP` has states of first
        halves, then of second halves.
      alpha: Running estimate of α, or None.
    """

    network_state: Any
    thresholds: Float[Array, "n_examples"]
    log_means: Float[Array, "n_examples"] | None = None
    alpha: MeasuredAlphaState | None = None


@pytree_dataclass
class GloFND(SimCLR):
    """GloFND: SimCLR without the negatives that a learned threshold per example finds to be false.

    The threshold of an example converges to the score that a given share of all other examples
    exceed, in the whole dataset instead of a batch: see :func:`crl_jax.weights.update_threshold`.
    Negatives above it are masked, after the warm-up. Both views of an example share a threshold.

    The history reports ``removed``, the fraction of negatives that are masked; with labels,
    ``false_negatives`` is the share among the remaining ones.

    Differs from the published code in the updates of the thresholds, and in that losses that sum
    over the negatives, such as InfoNCE, are not rescaled to the number before masking.

    Precision: that of :func:`crl_jax.losses.view_scores`.

    Attributes:
      n_examples: Number of examples in the data. Static.
      false_negative_share: Share of false negatives in [0, 1) that the thresholds target; 0
        masks none.
      threshold_rate: Learning rate of the thresholds, >= 0, in units of scores.
      warm_up: Number of epochs before the first update, >= 0. Scores of an untrained encoder say
        little about classes.

    The other attributes are those of :class:`SimCLR`.

    References:
      Balmaseda et al., `Discovering Global False Negatives On the Fly for Self-supervised
      Contrastive Learning <https://arxiv.org/abs/2502.20612>`_, 2025, algorithm 1.
    """

    n_examples: Annotated[int, Range(1)] = field(kw_only=True, metadata=STATIC)
    false_negative_share: Annotated[Any, Range(0, 1, high_open=True)] = field(
        default=0.01, kw_only=True
    )
    threshold_rate: Annotated[Any, Range(0)] = field(default=1.0, kw_only=True)
    warm_up: Annotated[Any, Range(0)] = field(default=20, kw_only=True)

    def check_data(self, data: Any) -> None:
        """Raises ``ValueError`` for another number of examples."""
        super().check_data(data)
        check_n_examples(self.n_examples, data)

    def init(self, key: Key[Array, ""]) -> tuple[Any, ExampleState]:
        """Initializes the network; no example has a threshold."""
        params, variables = self.init_network(stream(key, "params"))
        thresholds = jnp.full(self.n_examples, jnp.nan, jnp.float32)
        return params, ExampleState(variables, thresholds, None, self.initial_alpha())

    def loss(
        self, params: Any, model_state: ExampleState, batch: ViewBatch, ctx: StepContext
    ) -> LossOutput:
        """Computes the mean over both views of the real examples."""
        check_batch_size(self, ctx)
        (first, second), variables = self.encode_views(
            params, model_state, batch.first, batch.second
        )
        inputs = view_inputs(first, second, batch.labels, ctx)
        assert batch.indices is not None
        # Padding is dropped, as its index lies beyond the data.
        index = jnp.where(ctx.where, batch.indices, self.n_examples)
        inputs, thresholds, removed = mask_false_negatives(
            self, inputs, model_state.thresholds, index, ctx.epoch
        )
        log_means, learned = self._update(inputs, model_state, index)
        loss, alpha, metrics = self.score_loss(
            inputs, model_state.alpha, both_views(ctx), **learned
        )
        state = ExampleState(variables, thresholds, log_means, alpha)
        return loss, (state, {**metrics, "removed": removed})

    def _update(
        self, inputs: LossInputs, model_state: ExampleState, index: Int[Array, "batch"]
    ) -> tuple[Float[Array, "n_examples"] | None, dict[str, Array]]:
        """Returns the updated denominators, and the arguments of the loss that they add."""
        del inputs, index
        return model_state.log_means, {}


@pytree_dataclass
class SogCLR(GloFND):
    r"""SogCLR: SimCLR with a moving average of the denominator of each example.

    The loss is :func:`crl_jax.losses.global_contrastive` of both views, whose averages
    :func:`crl_jax.losses.update_log_mean` updates; the state of an example is the mean of both.
    Batches may be small: the published training on ImageNet uses 256 examples.

    With a positive ``false_negative_share``, false negatives are masked as by :class:`GloFND`.

    Attributes:
      gamma: Weight of the current step in the moving average, in (0, 1].
      hyperparams: Hyper-parameters of the loss: its temperature.
      loss_fn: ``loss(pos, neg, *, log_mean, where, reduce_fn, **hyperparams)``. Static.
      false_negative_share: Share of false negatives in [0, 1) that the thresholds target; 0, the
        default, masks none.

    The other attributes are those of :class:`GloFND`.

    References:
      Yuan et al., `Provable Stochastic Optimization for Global Contrastive Learning: Small Batch
      Does Not Harm Performance <https://arxiv.org/abs/2202.12387>`_, 2022, algorithm 1.
    """

    loss_fn: Callable[..., Array] = field(default=global_contrastive, metadata=STATIC)
    false_negative_share: Annotated[Any, Range(0, 1, high_open=True)] = field(
        default=0.0, kw_only=True
    )
    gamma: Annotated[Any, Range(0, 1, low_open=True)] = field(default=0.9, kw_only=True)

    def init(self, key: Key[Array, ""]) -> tuple[Any, ExampleState]:
        """Initializes the network; no example has a threshold or a moving average."""
        params, model_state = super().init(key)
        log_means = jnp.full(self.n_examples, -jnp.inf, jnp.float32)
        return params, model_state._replace(log_means=log_means)

    def _update(
        self, inputs: LossInputs, model_state: ExampleState, index: Int[Array, "batch"]
    ) -> tuple[Float[Array, "n_examples"], dict[str, Array]]:
        assert model_state.log_means is not None
        temperature = self.hyperparams.get("temperature", 1.0)
        log_means, log_mean = update_denominators(
            self, inputs, model_state.log_means, index, temperature
        )
        return log_means, {"log_mean": log_mean}


@pytree_dataclass
class SogCLIP(CLIP):
    """SogCLR of pairs: CLIP with a moving average of the denominator of each half of each pair.

    With a positive ``false_negative_share``, false negatives are masked as by :class:`GloFND`; each
    half has its own threshold. The averages assume a constant temperature: keep it in
    ``hyperparams``, or let it change slowly.

    Precision: that of :func:`crl_jax.losses.tower_scores`.

    Attributes:
      n_examples: Number of pairs in the data. Static.
      gamma: Weight of the current step in the moving average, in (0, 1].
      false_negative_share: Share of false negatives in [0, 1) that the thresholds target; 0 masks
        none.
      threshold_rate: See :class:`GloFND`.
      warm_up: See :class:`GloFND`.
      loss_fn: See :class:`SogCLR`. Static.

    The other attributes are those of :class:`CLIP`, of which ``tile`` must be None.

    References:
      Yuan et al., `Provable Stochastic Optimization for Global Contrastive Learning: Small Batch
      Does Not Harm Performance <https://arxiv.org/abs/2202.12387>`_, 2022, the bimodal loss.
    """

    loss_fn: Callable[..., Array] = field(default=global_contrastive, metadata=STATIC)
    n_examples: Annotated[int, Range(1)] = field(kw_only=True, metadata=STATIC)
    gamma: Annotated[Any, Range(0, 1, low_open=True)] = field(default=0.9, kw_only=True)
    false_negative_share: Annotated[Any, Range(0, 1, high_open=True)] = field(
        default=0.0, kw_only=True
    )
    threshold_rate: Annotated[Any, Range(0)] = field(default=1.0, kw_only=True)
    warm_up: Annotated[Any, Range(0)] = field(default=20, kw_only=True)

    def check_data(self, data: Any) -> None:
        """Raises ``ValueError`` for another number of pairs."""
        super().check_data(data)
        check_n_examples(self.n_examples, data)

    def init(self, key: Key[Array, ""]) -> tuple[Any, ExampleState]:
        """Initializes as :class:`CLIP`; the states of second halves follow those of first ones."""
        params, variables = super().init(key)
        n = 2 * self.n_examples
        states = jnp.full(n, jnp.nan, jnp.float32), jnp.full(n, -jnp.inf, jnp.float32)
        return params, ExampleState(network_state(variables), *states, self.initial_alpha())

    def loss(
        self, params: Any, model_state: ExampleState, batch: ViewBatch, ctx: StepContext
    ) -> LossOutput:
        """Computes the mean over both halves of the real pairs; reports trainable scalars."""
        x, y, variables = self.encode_pairs(params, model_state, batch, ctx)
        learned = self.learned_hyperparams(params)
        inputs = self.exclude_equal_pairs(pair_inputs(x, y, batch.labels, ctx))
        both = both_views(ctx)
        assert batch.indices is not None
        assert model_state.log_means is not None
        index = jnp.concatenate([batch.indices, self.n_examples + batch.indices])
        index = jnp.where(both.where, index, 2 * self.n_examples)
        inputs, thresholds, removed = mask_false_negatives(
            self, inputs, model_state.thresholds, index, ctx.epoch
        )
        temperature = {**self.hyperparams, **learned}["temperature"]
        log_means, log_mean = update_denominators(
            self, inputs, model_state.log_means, index, temperature
        )
        loss, alpha, metrics = self.score_loss(
            inputs, model_state.alpha, both, **learned, log_mean=log_mean
        )
        state = ExampleState(variables, thresholds, log_means, alpha)
        return loss, (state, {**learned, **metrics, "removed": removed})


def mask_false_negatives(
    task: GloFND | SogCLIP,
    inputs: LossInputs,
    thresholds: Float[Array, "n_states"],
    index: Int[Array, "batch"],
    epoch: Int[Array, ""],
) -> tuple[LossInputs, Float[Array, "n_states"], Float[Array, ""]]:
    """Masks negatives above the thresholds of the anchors, after an update of these.

    Args:
      task: Settings of the thresholds.
      inputs: Scores of the anchors, whose number is a multiple of ``batch``.
      thresholds: States of the task.
      index: States of the anchors, in which all views of an example share one: those of the first
        ``batch`` anchors, of the next, and so on. Beyond the states for padding.
      epoch: Number of completed epochs.

    Returns:
      The inputs with the other negatives, the new states, and the fraction of masked negatives.
    """
    assert inputs.where is not None
    n_views = len(inputs.neg) // len(index)
    neg, where = (  # the negatives of all views of an example, side by side
        jnp.concatenate(jnp.split(x, n_views), axis=1) for x in (inputs.neg, inputs.where)
    )
    old = thresholds.at[index].get(mode="fill", fill_value=jnp.nan)
    share = jnp.asarray(task.false_negative_share, jnp.float32)
    rate = jnp.asarray(task.threshold_rate, jnp.float32)
    warmed_up = epoch.astype(jnp.float32) >= jnp.asarray(task.warm_up, jnp.float32)
    active = warmed_up & (share > 0)
    new = jax.lax.cond(
        active,
        lambda: update_threshold(old, neg, share=share, learning_rate=rate, where=where),
        lambda: old,
    )
    used = jnp.where(active, new, jnp.nan)  # which no score exceeds
    retained = inputs.where & ~(inputs.neg > jnp.tile(used, n_views)[:, None])
    removed = 1 - jnp.sum(retained) / jnp.maximum(jnp.sum(inputs.where), 1)
    thresholds = thresholds.at[index].set(new, mode="drop")
    return inputs._replace(where=retained), thresholds, removed.astype(jnp.float32)


def update_denominators(
    task: SogCLR | SogCLIP,
    inputs: LossInputs,
    log_means: Float[Array, "n_states"],
    index: Int[Array, "batch"],
    temperature: Any,
) -> tuple[Float[Array, "n_states"], Float[Array, "anchors"]]:
    """Returns the new moving averages, and those of the anchors for the loss.

    Arguments are those of :func:`mask_false_negatives`; the state of several views is their mean.
    """
    n_views = len(inputs.neg) // len(index)
    old = log_means.at[index].get(mode="fill", fill_value=-jnp.inf)
    new = update_log_mean(
        jnp.tile(old, n_views), inputs.neg, gamma=jnp.asarray(task.gamma, jnp.float32),
        temperature=temperature, where=inputs.where,
    )  # fmt: skip
    mean = reduce(jnp.logaddexp, jnp.split(new, n_views)) - jnp.log(float(n_views))
    # An anchor that never had a negative has -inf, and the loss 0.
    anchor_means = jnp.where(jnp.isneginf(new), 0, new)
    return log_means.at[index].set(mean, mode="drop"), anchor_means
