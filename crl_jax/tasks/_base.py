"""What tasks share whose loss is one of scores: hyper-parameters, labels, and a measured α."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..train import StepContext, Task
from ..weights import MeasuredAlpha, init_measured_alpha, measured_alpha
from ._alpha import AlphaEstimator
from ._labels import ClassMasks, LossInputs, label_metrics


class AlphaState(NamedTuple):
    """What changes besides the parameters where the α of the loss is measured.

    Attributes:
      rest: Other variables of the network.
      alpha: The running measurement.
    """

    rest: Any
    alpha: MeasuredAlpha


class ScoreTask(Task):
    """A task with a loss of scores. Its subclasses are dataclasses and have these fields.

    Attributes:
      hyperparams: Hyper-parameters of the loss, such as its temperature.
      loss_fn: ``loss(pos, neg, *, where, reduce_fn, **hyperparams)``, for instance
        :func:`crl_jax.losses.bayesian_contrastive`. Static.
      alpha: Measures the ``alpha`` of the loss: :class:`AlphaFromLabels` or
        :class:`AlphaFromViews`.
        None leaves it to ``hyperparams``.
    """

    hyperparams: dict[str, Any]
    loss_fn: Callable[..., Array]
    alpha: AlphaEstimator | None

    def check_alpha(self) -> None:
        """Raises ``ValueError`` if α is measured and given."""
        given = isinstance(self.hyperparams, Mapping) and "alpha" in self.hyperparams
        if isinstance(self.alpha, AlphaEstimator) and given:
            raise ValueError("`hyperparams` must leave alpha out where `alpha` measures it.")

    def with_alpha(self, rest: Any) -> Any:
        """What changes besides the parameters, at the start: with α if it is measured."""
        return rest if self.alpha is None else AlphaState(rest, init_measured_alpha())

    def score_loss(
        self,
        scores: LossInputs,
        classes: ClassMasks | None,
        alpha: MeasuredAlpha | None,
        ctx: StepContext,
        **learned: Array,
    ) -> tuple[Array, MeasuredAlpha | None, dict[str, Array]]:
        """The mean loss of the scores, the measurement of α after them, and metrics.

        ``learned`` are hyper-parameters that are learned: they join those of the task.
        """
        where = jnp.broadcast_to(ctx.where[:, None], scores.neg.shape)
        where = where if scores.where is None else where & scores.where
        known, alpha, metrics = self.observe(scores, classes, alpha, where)
        hyperparams = {**self.hyperparams, **known, **learned}
        losses = self.losses(scores, classes, ctx.where, hyperparams)
        return ctx.mean(losses), alpha, metrics

    def observe(
        self,
        scores: LossInputs,
        classes: ClassMasks | None,
        alpha: MeasuredAlpha | None,
        where: Bool[Array, "anchors keys"],
    ) -> tuple[dict[str, Array], MeasuredAlpha | None, dict[str, Array]]:
        """What is known of α before these scores, its measurement after them, and metrics."""
        known = {}
        if self.alpha is not None:
            assert alpha is not None
            known = {"alpha": measured_alpha(alpha)}
            tau_plus = self.hyperparams.get("tau_plus", 0.0)
            alpha = self.alpha.after(alpha, scores, classes, where, tau_plus)
        return known, alpha, {**known, **label_metrics(scores, classes, where)}

    def losses(
        self,
        scores: LossInputs,
        classes: ClassMasks | None,
        real: Bool[Array, "anchors"],
        hyperparams: Mapping[str, Any],
    ) -> Float[Array, "anchors"]:
        """The loss of each anchor; here labels play no part in it."""
        del classes, real
        masked = {} if scores.where is None else {"where": scores.where}
        return self.loss_fn(scores.pos, scores.neg, reduce_fn=None, **masked, **hyperparams)


def variables_of(model_state: Any) -> Any:
    """The other variables of the network, from what changes besides the parameters."""
    return model_state.rest if isinstance(model_state, AlphaState) else model_state


def alpha_of(model_state: Any) -> MeasuredAlpha | None:
    """The measurement of α; None without one."""
    return model_state.alpha if isinstance(model_state, AlphaState) else None


def of_both(ctx: StepContext) -> StepContext:
    """Of a loss whose anchors are both views, or both halves, of each example."""
    return ctx._replace(where=jnp.tile(ctx.where, 2), n=2 * ctx.n)
