"""Base class of tasks whose loss is a function of scores."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..train import StepContext, Task
from ..weights import MeasuredAlpha, init_measured_alpha, measured_alpha
from ._alpha import AlphaEstimator, AlphaFromLabels, AlphaState
from ._labels import LabelledExamples, LossInputs, known_labels, label_metrics


class ScoreTask(Task):
    """Task with a loss of scores. Its subclasses are dataclasses with these fields.

    Attributes:
      hyperparams: Hyper-parameters of the loss, such as its temperature.
      loss_fn: ``loss(pos, neg, *, where, reduce_fn, **hyperparams)``, for instance
        :func:`crl_jax.losses.bayesian_contrastive`. Static.
      alpha: Estimator of the loss's ``alpha``: :class:`AlphaFromLabels` or
        :class:`AlphaFromViews`. None uses ``hyperparams``.
      needs_labels: Class variable: whether the loss uses labels.
    """

    hyperparams: dict[str, Any]
    loss_fn: Callable[..., Array]
    alpha: AlphaEstimator | None
    needs_labels: ClassVar[bool] = False

    def check_fields(self) -> None:
        """Raises ``ValueError`` if a field has the wrong type, or α is set twice."""
        kinds = {
            "hyperparams": (Mapping, "a dictionary of the loss's arguments"),
            "loss_fn": (Callable, "a function of scores, such as losses.info_nce"),
            "alpha": (
                AlphaEstimator | None,
                "an estimator, such as tasks.AlphaFromLabels(); a number belongs in `hyperparams`",
            ),
        }
        for name, (kind, description) in kinds.items():
            if not isinstance(value := getattr(self, name), kind):
                raise ValueError(f"`{name}` must be {description}, got {value!r:.100}.")
        if self.alpha is not None and "alpha" in self.hyperparams:
            raise ValueError("`hyperparams` must not contain alpha if `alpha` estimates it.")

    def check_data(self, data: Any) -> None:
        """Raises ``ValueError`` if labels are needed, but missing or all of one class."""
        if self.needs_labels or isinstance(self.alpha, AlphaFromLabels):
            user = type(self).__name__ if self.needs_labels else "AlphaFromLabels"
            if not isinstance(data, LabelledExamples):
                raise ValueError(
                    f"`data` of {user} must be tasks.LabelledExamples, got {type(data).__name__}."
                )
            labels = known_labels(data)
            if 0 < len(labels) == len(data.labels) and (labels == labels[0]).all():
                raise ValueError(
                    f"`data` of {user} must have two classes or more, got only class {labels[0]}: "
                    "there are no negatives."
                )

    def score_loss(
        self, inputs: LossInputs, alpha: MeasuredAlpha | None, ctx: StepContext, **learned: Array
    ) -> tuple[Array, MeasuredAlpha | None, dict[str, Array]]:
        """Returns the mean loss of the scores, the updated estimate of α, and metrics.

        ``learned`` are trainable hyper-parameters, in addition to those of the task.
        """
        where = jnp.broadcast_to(ctx.where[:, None], inputs.neg.shape)
        where = where if inputs.where is None else where & inputs.where
        estimates, alpha, metrics = self.alpha_and_metrics(inputs._replace(where=where), alpha)
        hyperparams = {**self.hyperparams, **estimates, **learned}
        return ctx.mean(self.losses(inputs, ctx.where, hyperparams)), alpha, metrics

    def alpha_and_metrics(
        self, inputs: LossInputs, alpha: MeasuredAlpha | None
    ) -> tuple[dict[str, Array], MeasuredAlpha | None, dict[str, Array]]:
        """Returns the hyper-parameter α of this step, the updated estimate, and metrics."""
        estimates = {}
        if self.alpha is not None:
            assert alpha is not None
            estimates = {"alpha": measured_alpha(alpha)}
            alpha = self.alpha.update(alpha, inputs, self.hyperparams.get("tau_plus", 0.0))
        return estimates, alpha, {**estimates, **label_metrics(inputs)}

    def losses(
        self, inputs: LossInputs, mask: Bool[Array, "anchors"], hyperparams: Mapping[str, Any]
    ) -> Float[Array, "anchors"]:
        """Returns the loss of each anchor; subclasses may use ``inputs.classes``.

        Args:
          inputs: Scores of the anchors.
          mask: False for padding.
          hyperparams: All hyper-parameters of the loss.
        """
        del mask
        masks = {} if inputs.where is None else {"where": inputs.where}
        return self.loss_fn(inputs.pos, inputs.neg, reduce_fn=None, **masks, **hyperparams)


def init_model_state(task: ScoreTask, variables: Any) -> Any:
    """Adds the initial estimate of α to the variables of the network, if it is estimated."""
    return with_alpha(variables, None if task.alpha is None else init_measured_alpha())


def with_alpha(variables: Any, alpha: MeasuredAlpha | None) -> Any:
    """Adds an estimate of α to the variables of the network."""
    return variables if alpha is None else AlphaState(variables, alpha)
