"""Command-line entry of a loss."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from crl_jax import data, losses, models, samplers, tasks

from .._options import TrainOptions
from .._ranges import COUNT, COUNT_OR_NONE, Range
from .._registry import Entry, Hyperparam, count, declared

_COUNTS = {
    "n_neg": ("Unlabelled items drawn per interaction (N)", COUNT),
    "n_pos": ("Extra positives drawn per interaction (M)", COUNT_OR_NONE),
    "n_group": ("Users drawn per interaction with the same item", COUNT),
}


@dataclass(frozen=True, kw_only=True)
class Objective(Entry):
    """A loss and the settings that a run requires.

    Attributes:
      loss: ``loss(pos, neg, *, temperature, <hyperparams>, reduce_fn, …)``.
      source: The function whose signature and docstring declare the flags, if ``loss`` only adapts
        arrays to it; by default the loss.
      defaults: Defaults that differ from those of the signature, by hyper-parameter.
      settings: Further flags, which are not passed to the loss. A sweep cannot set them.
      n_neg: Default number of unlabelled items per anchor.
      n_pos: Default number of extra positives; None if the loss does not use any.
      n_group: Default number of users per anchor who interacted with the same item; None for no
        group.
      schedule: Schedule of the hyper-parameters over the training.
      sampler: Factory of the sampler that the loss prescribes, which also fixes the number of
        negatives; None if any sampler is supported.
      confidence: Factory of the confidence estimator. It receives the training part, the training
        options and the values of all flags.
      term: Factory of an auxiliary loss. It receives the values of :attr:`of_term`, keyed by the
        fields that they set.
      of_term: Flags that set only fields of the auxiliary loss. A sweep can set each.
      similarities: Required similarity in training, and the default similarity for ranking; None
        if any is supported.
      resolve_values: Computes values that depend on others, see :meth:`Entry.complete`.
    """

    loss: Callable[..., Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Hyperparam] = field(default_factory=dict)
    n_neg: int = 5
    n_pos: int | None = None
    n_group: int | None = None
    schedule: tasks.HyperparamSchedule | None = None
    sampler: Callable[[data.Interactions], samplers.Sampler] | None = None
    confidence: Callable[[data.Interactions, TrainOptions, dict[str, Any]], Any] | None = None
    term: Callable[..., tasks.AuxiliaryLoss] | None = None
    of_term: Mapping[str, Hyperparam] = field(default_factory=dict)
    similarities: tuple[models.Similarity, models.Similarity] | None = None
    resolve_values: Callable[[dict[str, Any], tuple[str, ...]], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        source = self.source or self.loss
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "hyperparams", declared(source, defaults=self.defaults))
        super().__post_init__()

    @property
    def has_temperature(self) -> bool:
        """Whether the loss divides scores by a temperature, as almost all losses do."""
        return "temperature" in self.hyperparams

    @property
    def flags(self) -> Mapping[str, Hyperparam]:
        """Counts, temperature, hyper-parameters, auxiliary-loss flags and settings."""
        found = {}
        for name, (said, limits) in _COUNTS.items():
            default = getattr(self, name)
            if default is not None:
                fixed = Range(default, default)
                found[name] = count(default, said, limits if self.sampler is None else fixed)
        return {**found, **self.hyperparams, **self.of_term, **self.settings}

    @property
    def sweepable(self) -> frozenset[str]:
        """Temperature and hyper-parameters; settings cannot differ between the runs of a sweep."""
        return super().sweepable - self.settings.keys()

    def complete(self, values: dict[str, Any], swept: tuple[str, ...]) -> dict[str, Any]:
        """See :meth:`Entry.complete`."""
        return values if self.resolve_values is None else self.resolve_values(values, swept)


def discover(taken: Collection[Callable[..., Any]]) -> dict[str, Objective]:
    """Finds the remaining losses of the library with the signature that training expects."""
    found: dict[Callable[..., Any], str] = {}
    for name, loss in vars(losses).items():
        if inspect.isfunction(loss) and loss not in (*taken, *found) and _is_of_scores(loss):
            found[loss] = name
    return {name: Objective(loss=loss) for loss, name in found.items()}


def _is_of_scores(loss: Callable[..., Any]) -> bool:
    """Whether only the positive score and the negative scores are required arguments of a loss."""
    parameters = inspect.signature(loss).parameters
    required = [name for name, p in parameters.items() if p.default is p.empty]
    return (
        required == ["pos", "neg"]
        and {"temperature", "where", "weights", "reduce_fn"} <= parameters.keys()
        and getattr(parameters["pos"].annotation, "dim_str", "") == "*batch"
    )
