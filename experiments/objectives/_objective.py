"""A loss on the command line."""

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
    "n_group": ("Users drawn per interaction who took the same item", COUNT),
}


@dataclass(frozen=True, kw_only=True)
class Objective(Entry):
    """A loss and what a run needs to know of it.

    Attributes:
      loss: ``loss(pos, neg, *, temperature, <hyperparams>, reduce_fn, …)``.
      source: The function whose signature and docstring declare the flags, if ``loss`` only adapts
        arrays to it; by default the loss.
      defaults: Defaults that differ from those of the signature, by hyper-parameter.
      settings: Further flags, which do not go to the loss. A sweep cannot set them.
      n_neg: Default number of unlabelled items per anchor.
      n_pos: Default number of extra positives; None if it has no use for any.
      n_group: Default number of users per anchor who took the same item; None for no group.
      schedule: How the hyper-parameters change along the training.
      sampler: Makes the negatives that the loss is about; None if any will do. It also fixes how
        many are drawn.
      confidence: Makes the estimator of confidence from a training part, how it is trained and
        the values of all flags.
      term: Makes a further term from the values of :attr:`of_term`, by the fields that they set.
      of_term: Flags that set numbers of the term, and no others. A sweep can set each.
      similarities: What a score must be in training, and what ranks unless it is told; None if
        any will do.
      settled: Works out the values that depend on others, see :meth:`Entry.complete`.
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
    settled: Callable[[dict[str, Any], tuple[str, ...]], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        source = self.source or self.loss
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "hyperparams", declared(source, defaults=self.defaults))
        super().__post_init__()

    @property
    def has_temperature(self) -> bool:
        """Whether the loss divides scores by a temperature, as nearly every one does."""
        return "temperature" in self.hyperparams

    @property
    def flags(self) -> Mapping[str, Hyperparam]:
        """Counts, temperature, hyper-parameters, numbers of the term and settings."""
        found = {}
        for name, (said, limits) in _COUNTS.items():
            default = getattr(self, name)
            if default is not None:
                fixed = Range(default, default)
                found[name] = count(default, said, limits if self.sampler is None else fixed)
        return {**found, **self.hyperparams, **self.of_term, **self.settings}

    @property
    def sweepable(self) -> frozenset[str]:
        """Temperature and hyper-parameters: no run has settings of its own."""
        return super().sweepable - self.settings.keys()

    def complete(self, values: dict[str, Any], swept: tuple[str, ...]) -> dict[str, Any]:
        """See :meth:`Entry.complete`."""
        return values if self.settled is None else self.settled(values, swept)


def discover(taken: Collection[Callable[..., Any]]) -> dict[str, Objective]:
    """Finds the other losses of the library that score pairs as the command trains them."""
    found: dict[Callable[..., Any], str] = {}
    for name, loss in vars(losses).items():
        if inspect.isfunction(loss) and loss not in (*taken, *found) and _is_of_scores(loss):
            found[loss] = name
    return {name: Objective(loss=loss) for loss, name in found.items()}


def _is_of_scores(loss: Callable[..., Any]) -> bool:
    """Whether a loss takes a positive's score, the negatives' scores, and nothing else for sure."""
    parameters = inspect.signature(loss).parameters
    required = [name for name, p in parameters.items() if p.default is p.empty]
    return (
        required == ["pos", "neg"]
        and {"temperature", "where", "weights", "reduce_fn"} <= parameters.keys()
        and getattr(parameters["pos"].annotation, "dim_str", "") == "*batch"
    )
