"""Base class of tasks whose loss is a function of scores, with class labels and running α."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._hyperparams import Range, check_hyperparams
from .._pytree import STATIC, pytree_dataclass
from ..train import LossOutput, StepContext, Task
from ..weights import (
    MeasuredAlphaState,
    estimate_alpha,
    init_measured_alpha,
    measured_alpha,
    update_measured_alpha,
)

# Number of anchors per step whose AUC is computed. Sorting every row of scores costs more than
# the loss, and the running mean over steps soon covers the other anchors.
AUC_ANCHORS = 16


@pytree_dataclass(eq=False)
class LabelledExamples:
    """Examples with class labels: the data of batches that have labels.

    Attributes:
      examples: Every leaf ``[n, ...]``.
      labels: Class of each example, integers ``[n]``; negative where unknown.

    Raises:
      ValueError: If ``labels`` is not a vector of one integer per example.

    >>> LabelledExamples(np.ones((3, 2)), [0.5, 1.0, 2.0])
    Traceback (most recent call last):
    ValueError: `labels` must be integers, got float64.
    """

    examples: Any
    labels: Any

    def __post_init__(self) -> None:
        if not isinstance(self.labels, jax.Array | np.ndarray):
            object.__setattr__(self, "labels", np.asarray(self.labels))
        dtype, shape = self.labels.dtype, self.labels.shape
        if not (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_)):
            raise ValueError(f"`labels` must be integers, got {dtype}.")
        n = n_examples(self.examples)
        if len(shape) != 1 or shape[0] != n:
            raise ValueError(f"`labels` must have shape ({n},), one per example, got {shape}.")


class ClassMasks(NamedTuple):
    """Masks of the pairs of anchors and keys by class.

    Attributes:
      same: Pairs known to share a class, ``[anchors, keys]``.
      known: Pairs in which both classes are known, ``[anchors, keys]``.
    """

    same: Bool[Array, "anchors keys"]
    known: Bool[Array, "anchors keys"]


class LossInputs(NamedTuple):
    """Scores of a batch and their masks.

    Attributes:
      pos: Score of each anchor with its positive, ``[anchors]``, or with several of them,
        ``[anchors, positives]``.
      neg: Scores with all keys, ``[anchors, keys]``.
      where: Mask of the keys that are negatives, ``[anchors, keys]``; None for all.
      classes: Masks by class; None without labels.
    """

    pos: Float[Array, "anchors *positives"]
    neg: Float[Array, "anchors keys"]
    where: Bool[Array, "anchors keys"] | None = None
    classes: ClassMasks | None = None


def n_examples(examples: Any) -> int:
    """Returns the length of the leading axis, or 0 without arrays."""
    return next((leaf.shape[0] for leaf in jax.tree.leaves(examples) if np.ndim(leaf)), 0)


def split_labels(data: Any) -> tuple[Any, Int[Array, "batch"] | None]:
    """Returns the examples, and their labels or None."""
    if not isinstance(data, LabelledExamples):
        return data, None
    return data.examples, jnp.asarray(data.labels).astype(jnp.int32)


def check_n_examples(expected: int, data: Any) -> None:
    """Raises ``ValueError`` if a task is for another number of examples than ``data`` has."""
    n = n_examples(split_labels(data)[0])
    if n != expected:
        raise ValueError(f"`n_examples` must be the number of examples {n}, got {expected}.")


def class_masks(
    anchor_labels: Int[Array, "anchors"] | None, key_labels: Int[Array, "keys"] | None
) -> ClassMasks | None:
    """Compares the labels of anchors and keys; None without labels."""
    if anchor_labels is None or key_labels is None:
        return None
    known = (anchor_labels >= 0)[:, None] & (key_labels >= 0)[None, :]
    return ClassMasks(known & (anchor_labels[:, None] == key_labels[None, :]), known)


_Auc = tuple[Float[Array, ""], Bool[Array, ""]]  # and whether it is defined


def label_auc(inputs: LossInputs) -> _Auc:
    """AUC of keys of the anchor's class against the others, and whether it is defined.

    The mean over the first anchors of the batch, which is in random order.
    """
    assert inputs.where is not None
    assert inputs.classes is not None
    neg, where, same, known = (x[:AUC_ANCHORS] for x in (inputs.neg, inputs.where, *inputs.classes))
    pos, other = where & same, where & known & ~same
    auc = estimate_alpha(neg, neg, where_pos=pos, where_neg=other)
    return auc, jnp.any(jnp.any(pos, axis=1) & jnp.any(other, axis=1))


class AlphaState(NamedTuple):
    r"""Model state of a task that measures :math:`\alpha`.

    Attributes:
      network_state: Non-trainable variables of the network.
      alpha: Running estimate.
    """

    network_state: Any
    alpha: MeasuredAlphaState


@dataclass(frozen=True)
class AlphaEstimator(ABC):
    r"""Estimator of :math:`\alpha` from the scores of a training, as a running mean over steps.

    Each step uses the estimate of the steps before it, 0.5 in the first. The estimate is part of
    ``model_state``; the loss treats it as a constant.

    Attributes:
      decay: Decay of the running mean, in [0, 1).
      rule: Conversion of an AUC to :math:`\alpha`: ``"auc"`` or ``"model"``, see
        :func:`crl_jax.weights.estimate_alpha`. Static.
    """

    decay: Annotated[Any, Range(0, 1, high_open=True)] = 0.99
    rule: Literal["auc", "model"] = field(default="auc", metadata=STATIC)

    def update(
        self, state: MeasuredAlphaState, inputs: LossInputs, tau_plus: Any
    ) -> MeasuredAlphaState:
        """Returns the running mean after one more step; arguments as for :meth:`measure`."""
        auc, defined = self.measure(inputs, tau_plus)
        if self.rule == "model":
            auc = jnp.minimum(0.5 + 1.5 * (auc - 0.5), 1)
        estimate = jnp.where(defined, auc, jnp.nan)
        decay = jnp.asarray(self.decay, jnp.float32)
        return update_measured_alpha(state, estimate, decay=decay)

    @abstractmethod
    def measure(self, inputs: LossInputs, tau_plus: Any) -> _Auc:
        """Returns the AUC of the scores of a step, and whether it is defined.

        Args:
          inputs: Scores, with a mask of the negatives of real anchors.
          tau_plus: Class prior of the loss.
        """


@pytree_dataclass
class AlphaFromLabels(AlphaEstimator):
    r"""Supervised estimator: AUC of keys of the anchor's class against keys of other classes.

    Computed in each step from the scores that the loss sees, without the anchor's own second view.
    The published code computes the AUC of features before the head, of a batch of images with all
    others, every 20 epochs.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.14 and 6.21.
    """

    def measure(self, inputs: LossInputs, tau_plus: Any) -> _Auc:
        """See :meth:`AlphaEstimator.measure`."""
        if inputs.classes is None:
            raise ValueError(
                "`data` must be tasks.LabelledExamples with `AlphaFromLabels`, got no labels."
            )
        return label_auc(inputs)


@pytree_dataclass
class AlphaFromViews(AlphaEstimator):
    r"""Unsupervised estimator: AUC of the anchor's other view against unlabelled samples.

    A share :math:`\tau^+` of the samples belongs to the anchor's class and wins half of the time:

    .. math:: \mathrm{AUC} = \frac{\mathrm{AUC}_u - \tau^+/2}{1 - \tau^+}

    with :math:`\mathrm{AUC}_u` against all samples. The other view replaces a sample of the
    class. As two views of one example score higher than that, the estimate is *biased upwards*,
    and close to 1 for an encoder that separates examples.
    """

    def measure(self, inputs: LossInputs, tau_plus: Any) -> _Auc:
        """See :meth:`AlphaEstimator.measure`."""
        assert inputs.where is not None
        pos, neg, where = (x[:AUC_ANCHORS] for x in (inputs.pos, inputs.neg, inputs.where))
        auc = estimate_alpha(pos.reshape(len(pos), -1), neg, where_neg=where)
        tau_plus = jnp.asarray(tau_plus, auc.dtype)
        return jnp.clip((auc - tau_plus / 2) / (1 - tau_plus), 0.5, 1), jnp.any(where)


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
        """Raises ``ValueError`` if a field has the wrong type or range, or α is set twice."""
        estimator = "tasks.AlphaFromLabels(); a number belongs in `hyperparams`"
        kinds: dict[str, tuple[Any, str]] = {
            "hyperparams": (Mapping, "a dictionary of the loss's arguments"),
            "loss_fn": (Callable, "a function of scores, such as losses.info_nce"),
            "alpha": (AlphaEstimator | None, f"an estimator, such as {estimator}"),
        }
        for name, (kind, description) in kinds.items():
            if not isinstance(value := getattr(self, name), kind):
                raise ValueError(f"`{name}` must be {description}, got {value!r:.100}.")
        if self.alpha is not None and "alpha" in self.hyperparams:
            raise ValueError("`hyperparams` must not contain alpha if `alpha` estimates it.")
        check_hyperparams(self.loss_fn, self.hyperparams)

    def check_data(self, data: Any) -> None:
        """Raises ``ValueError`` if labels are needed, but missing or all of one class."""
        if self.needs_labels or isinstance(self.alpha, AlphaFromLabels):
            user = type(self).__name__ if self.needs_labels else "AlphaFromLabels"
            if not isinstance(data, LabelledExamples):
                raise ValueError(
                    f"`data` of {user} must be tasks.LabelledExamples, got {type(data).__name__}."
                )
            labels = np.asarray(data.labels)
            if labels.size and labels[0] >= 0 and (labels == labels[0]).all():
                raise ValueError(
                    f"`data` of {user} must have two classes or more, got only class {labels[0]}: "
                    "there are no negatives."
                )

    def initial_alpha(self) -> MeasuredAlphaState | None:
        """Returns the estimate of α before the first step; None without an estimator."""
        return None if self.alpha is None else init_measured_alpha()

    def score_loss(
        self,
        inputs: LossInputs,
        alpha: MeasuredAlphaState | None,
        ctx: StepContext,
        **learned: Array,
    ) -> tuple[Array, MeasuredAlphaState | None, dict[str, Array]]:
        """Returns the mean loss of the scores, the updated estimate of α, and metrics.

        ``learned`` are trainable hyper-parameters, in addition to those of the task.
        """
        where = jnp.broadcast_to(ctx.where[:, None], inputs.neg.shape)
        where = where if inputs.where is None else where & inputs.where
        estimates, alpha, metrics = self.alpha_and_metrics(inputs._replace(where=where), alpha)
        hyperparams = {**self.hyperparams, **estimates, **learned}
        return ctx.mean(self.losses(inputs, ctx.where, hyperparams)), alpha, metrics

    def state_loss(
        self, inputs: LossInputs, model_state: Any, variables: Any, ctx: StepContext
    ) -> LossOutput:
        """Returns the loss of the scores and the model state with new variables of the network."""
        loss, alpha, metrics = self.score_loss(inputs, getattr(model_state, "alpha", None), ctx)
        return loss, (with_alpha(variables, alpha), metrics)

    def alpha_and_metrics(
        self, inputs: LossInputs, alpha: MeasuredAlphaState | None
    ) -> tuple[dict[str, Array], MeasuredAlphaState | None, dict[str, Array]]:
        """Returns the hyper-parameter α of this step, the updated estimate, and metrics."""
        estimates = {}
        if self.alpha is not None:
            assert alpha is not None
            estimates = {"alpha": measured_alpha(alpha)}
            alpha = self.alpha.update(alpha, inputs, self.hyperparams.get("tau_plus", 0.0))
        return estimates, alpha, {**estimates, **self.label_metrics(inputs)}

    def label_metrics(self, inputs: LossInputs) -> dict[str, Float[Array, ""]]:
        """Returns ``false_negatives``, their share of the negatives, and ``auc``, if labelled."""
        if inputs.classes is None:
            return {}
        assert inputs.where is not None
        known = inputs.where & inputs.classes.known
        share = jnp.sum(known & inputs.classes.same) / jnp.maximum(jnp.sum(known), 1)
        return {"false_negatives": share.astype(jnp.float32), "auc": label_auc(inputs)[0]}

    def losses(
        self, inputs: LossInputs, mask: Bool[Array, "anchors"], hyperparams: Mapping[str, Any]
    ) -> Float[Array, "anchors"]:
        """Returns the loss of each anchor; subclasses may use ``inputs.classes``.

        Args:
          inputs: Scores of the anchors.
          mask: False for padding.
          hyperparams: All hyper-parameters of the loss.
        """
        masks = {} if inputs.where is None else {"where": inputs.where}
        return self.loss_fn(inputs.pos, inputs.neg, reduce_fn=None, **masks, **hyperparams)


def with_alpha(variables: Any, alpha: MeasuredAlphaState | None) -> Any:
    """Adds an estimate of α to the variables of the network."""
    return variables if alpha is None else AlphaState(variables, alpha)
