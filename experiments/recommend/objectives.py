"""Registry of losses by command-line name.

A loss of :mod:`crl_jax.losses` is discovered automatically if it takes a score per anchor and one
per negative, and its hyper-parameters have defaults. A loss that needs more, or another name,
requires an :class:`Objective` in :data:`OBJECTIVES`.
"""

import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp

from crl_jax import data, hyperparams, losses, models, samplers, stats, tasks, weights

from .._ranges import COUNT, COUNT_OR_NONE, POSITIVE, Range
from .._registry import Entry, Hyperparam, Registry, count, declared, resolve_flags, words
from ._options import EncoderOptions, LossOptions, TrainOptions

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
      term: Factory of an auxiliary loss. It receives the values of :attr:`term_flags`, keyed by the
        fields that they set.
      term_flags: Flags that set only fields of the auxiliary loss. A sweep can set each.
      similarity: Default similarity of users and items in training.
      similarities: Required similarity in training, and the default similarity for ranking; None
        if any is supported.
      start: Name of the defaults that a training with this loss starts from, a key of
        :data:`experiments.recommend.start.FAMILIES`.
      candidates: Losses among which validation data choose; empty for a single loss.
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
    term_flags: Mapping[str, Hyperparam] = field(default_factory=dict)
    similarity: models.Similarity = "inner"
    similarities: tuple[models.Similarity, models.Similarity] | None = None
    start: str = "pairwise"
    candidates: tuple[str, ...] = ()
    resolve_values: Callable[[dict[str, Any], tuple[str, ...]], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        source = self.source or self.loss
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "hyperparams", declared(source, defaults=self.defaults))
        super().__post_init__()

    @property
    def flags(self) -> Mapping[str, Hyperparam]:
        """Counts, temperature, hyper-parameters, auxiliary-loss flags and settings."""
        if self.candidates:
            return {}
        counts = {}
        for name, (help_text, limits) in _COUNTS.items():
            default = getattr(self, name)
            if default is not None:
                fixed = Range(default, default)
                counts[name] = count(default, help_text, limits if self.sampler is None else fixed)
        return {**counts, **self.hyperparams, **self.term_flags, **self.settings}

    @property
    def sweepable(self) -> frozenset[str]:
        """Temperature and hyper-parameters; settings cannot differ between the runs of a sweep."""
        return super().sweepable - self.settings.keys()

    def complete(self, values: dict[str, Any], swept: tuple[str, ...]) -> dict[str, Any]:
        """See :meth:`Entry.complete`."""
        return values if self.resolve_values is None else self.resolve_values(values, swept)


def discover(taken: Collection[Callable[..., Any]]) -> dict[str, Objective]:
    """Finds the remaining losses of the library with the signature that training expects."""
    names: dict[Callable[..., Any], str] = {}
    for name, loss in vars(losses).items():
        if inspect.isfunction(loss) and loss not in (*taken, *names) and _is_score_loss(loss):
            names[loss] = name
    return {name: Objective(loss=loss) for loss, name in names.items()}


def _is_score_loss(loss: Callable[..., Any]) -> bool:
    """Whether only the positive score and the negative scores are required arguments of a loss."""
    parameters = inspect.signature(loss).parameters
    required = [name for name, p in parameters.items() if p.default is p.empty]
    return (
        required == ["pos", "neg"]
        and {"temperature", "where", "weights", "reduce_fn"} <= parameters.keys()
        and getattr(parameters["pos"].annotation, "dim_str", "") == "*batch"
    )


@losses.per_anchor_loss
def group_bpr(pos: Any, neg: Any, *, rho: Any, **rest: Any) -> Any:
    """GBPR on the array used in training, with the positive's score first and its group's after."""
    return losses.gbpr(pos[:, 0], neg, group=pos[:, 1:], rho=rho, **rest)


@losses.per_anchor_loss
def likely_and_unpopular(pos: Any, neg: Any, *, balance: Any, **rest: Any) -> Any:
    """MPR with two negatives, of which the first is likely to be liked."""
    return losses.mpr(pos, neg[:, 1:], likely=neg[:, 0], balance=balance, **rest)


def popularity_mixture(log: data.Interactions) -> samplers.MixedSampler:
    """Returns a sampler of one negative by popularity and one by inverse popularity."""
    counts = jnp.asarray(log.item_counts, jnp.float32)
    return samplers.MixedSampler(
        (samplers.PNS.from_interactions(log), samplers.PNS(1 / (1 + counts)))
    )


def ramp(progress: Any, hyperparams: dict[str, Any]) -> dict[str, Any]:
    """Increases the drop rate linearly during the first fifth of the training."""
    rate = weights.ramp_drop_rate(progress, drop_rate=hyperparams["drop_rate"], until=0.2)
    return {**hyperparams, "drop_rate": rate}


def _choose_distribution(values: dict[str, Any], swept: tuple[str, ...]) -> dict[str, Any]:
    """Resolves the score distribution: a scale implies the one that is parameterised by it.

    Without a scale, variance-gamma uses the variance of the initial values.
    """
    scale = values["distribution_scale"]
    distribution = values["score_distribution"] or (
        "smoothed" if scale is None else "variance-gamma"
    )
    if distribution == "smoothed" and scale is not None:
        raise ValueError(
            "--score-distribution smoothed has no --distribution-scale: it is estimated from the "
            "scores."
        )
    if distribution == "variance-gamma" and scale is None and "init_scale" in swept:
        raise ValueError(
            "--score-distribution variance-gamma needs --distribution-scale if init_scale is swept."
        )
    return {**values, "score_distribution": distribution}


def _confidence(
    log: data.Interactions, training: TrainOptions, values: dict[str, Any]
) -> tasks.ConfidenceEM:
    distribution: stats.Distribution = stats.SmoothedEmpirical()
    if values["score_distribution"] == "variance-gamma":
        scale = values["distribution_scale"]
        initial_variance = _initial_variance(log, training)
        distribution = stats.VarianceGamma(
            training.dim, initial_variance if scale is None else scale
        )
    prior = weights.credibility_prior(log.item_counts)
    return tasks.ConfidenceEM(
        prior, distribution, rule=values["confidence_rule"], every=values["confidence_every"]
    )


def _initial_variance(log: data.Interactions, training: TrainOptions) -> float:
    """Returns the λ for which products of N(0, λ) match those of the initial values.

    Xavier initialisation has the variance 2 / (rows + width), which differs between users and
    items; λ is the geometric mean of the two.
    """
    table_variances = (2 / (n + training.dim) for n in (log.n_users, log.n_items))
    return training.init_scale**2 * math.sqrt(math.prod(table_variances))


# Unlike cosines, inner products are unbounded below; few of those seen in training are lower.
_INNER = {"min_score": -5.0}
_COSINES: Mapping[str, Any] = {
    "defaults": {"temperature": 0.2}, "n_neg": 50, "similarity": "cosine",
}  # fmt: skip
"""Settings of softmax losses that are published for cosines."""
_EXPLICIT: Mapping[str, Objective] = {
    "bpr": Objective(loss=losses.bpr, n_neg=1, start="bpr"),
    "bce": Objective(loss=losses.bce, n_neg=1, start="bpr"),
    "auto": Objective(
        help="the better of info_nce and bpr on validation data; with --tune, the best of these "
        "and bsl, debiased, hard, dpl and bayesian",
        loss=losses.info_nce,
        start="softmax",
        candidates=("info_nce", "bpr", "bsl", "debiased", "hard", "dpl", "bayesian"),
    ),
    "info_nce": Objective(loss=losses.info_nce, start="softmax"),
    "debiased": Objective(
        loss=losses.debiased_contrastive,
        defaults={**_INNER, "tau_plus": None},
        n_pos=5,
        start="softmax",
    ),
    "hard": Objective(
        loss=losses.hard_contrastive,
        defaults={**_INNER, "tau_plus": None},
        n_pos=5,
        start="softmax",
    ),
    "bayesian": Objective(
        loss=losses.bayesian_contrastive, defaults={"tau_plus": None}, start="softmax"
    ),
    "bsl": Objective(loss=losses.bilateral_softmax, n_pos=0, start="softmax", **_COSINES),
    "adnce": Objective(loss=losses.adjusted_contrastive, start="softmax", **_COSINES),
    "corrected": Objective(
        loss=losses.corrected_contrastive,
        defaults={"temperature": 0.2, "tau_plus": None},
        n_neg=50,
        n_pos=5,
        similarity="cosine",
        start="softmax",
    ),
    "attention": Objective(loss=losses.attention_contrastive, n_pos=3, start="cosine", **_COSINES),
    "info_nce_plus": Objective(loss=losses.info_nce_plus, start="softmax", **_COSINES),
    "debiased_ccl": Objective(
        loss=losses.debiased_cosine_contrastive,
        defaults={"tau_plus": None},
        n_neg=50,
        n_pos=5,
        similarity="cosine",
        start="cosine",
    ),
    "ccl": Objective(loss=losses.cosine_contrastive, n_neg=50, similarity="cosine", start="cosine"),
    "dpl": Objective(loss=losses.debiased_pairwise, defaults={"tau_plus": None}, n_pos=5),
    "varbpr": Objective(
        loss=losses.variational_bpr,
        # The prior published for MovieLens: negatives with a high score weigh more.
        defaults={"neg_hardness": 1.0},
        n_neg=4,
        n_pos=1,
    ),
    "psl": Objective(loss=losses.pairwise_softmax, start="softmax"),
    "sl_at_k": Objective(loss=losses.softmax_at_k, n_pos=0, start="softmax"),
    "lambda_at_k": Objective(loss=losses.lambda_loss_at_k, n_neg=100),
    "adversarial": Objective(loss=losses.adversarial_contrastive, start="softmax"),
    "bprac": Objective(
        help="BPR with each interaction weighted by its confidence, by EM",
        loss=losses.bpr,
        n_neg=1,
        settings={
            "score_distribution": words(
                None,
                "Distribution of the scores: estimated from them (smoothed, the default) or in "
                "closed form",
                ("variance-gamma", "smoothed"),
            ),
            "distribution_scale": Hyperparam(
                None,
                "Variance of the embeddings' coordinates that the closed form assumes; by default "
                "that of the initial values",
                POSITIVE,
            ),
            **declared(tasks.ConfidenceEM, "rule", flags={"rule": "confidence_rule"}),
            "confidence_every": count(
                int(tasks.ConfidenceEM.every), "Epochs between expectation steps"
            ),
        },
        confidence=_confidence,
        resolve_values=_choose_distribution,
    ),
    "gbpr": Objective(loss=group_bpr, source=losses.gbpr, n_neg=1, n_group=3),
    "mpr": Objective(
        loss=likely_and_unpopular, source=losses.mpr, n_neg=2, n_pos=2, sampler=popularity_mixture
    ),
    "truncated_bce": Objective(loss=losses.truncated_bce, n_neg=1, schedule=ramp),
    "truncated_bpr": Objective(loss=losses.truncated_bpr, n_neg=1, schedule=ramp),
    "reweighted_bce": Objective(loss=losses.reweighted_bce, n_neg=1),
    "reweighted_bpr": Objective(loss=losses.reweighted_bpr, n_neg=1),
    "directau": Objective(
        help="alignment of positives, uniformity of users and of items (DirectAU)",
        loss=tasks.align_positives,
        n_neg=1,
        # A placeholder: training always draws negatives, which the loss ignores.
        sampler=lambda log: samplers.RNS(),
        term=tasks.Uniformity,
        term_flags=declared(tasks.Uniformity, "weight", flags={"weight": "gamma"}),
        similarities=("cosine", "inner"),
        start="cosine",
    ),
}
OBJECTIVES = Registry(
    {**_EXPLICIT, **discover({entry.loss for entry in _EXPLICIT.values()})},
    make=lambda loss: Objective(loss=loss),
)


@functools.cache
def _bind(loss: Callable[..., Any], options: tuple[tuple[str, str], ...]) -> Callable[..., Any]:
    """Returns one function per set of options, so that trainings share their programs."""
    return functools.partial(loss, **dict(options))


@dataclass(frozen=True)
class ResolvedObjective:
    """A loss with the values of its flags.

    Attributes:
      entry: The loss.
      values: Flag values, keyed by flag name.
    """

    entry: Objective
    values: Mapping[str, Any]

    @property
    def loss(self) -> Callable[..., Any]:
        """The loss, with its static options bound."""
        chosen = tuple(self.choices.items())
        return _bind(self.entry.loss, chosen) if chosen else self.entry.loss

    @property
    def choices(self) -> dict[str, str]:
        """Static options of the loss, which are words."""
        values = {name: self.values[name] for name in self.entry.hyperparams}
        return {name: value for name, value in values.items() if isinstance(value, str)}

    @property
    def hyperparams(self) -> dict[str, float]:
        """Numbers passed to the loss.

        A sweep replaces those whose default depends on the data.
        """
        values = {n: self.values[n] for n in self.entry.hyperparams if n not in self.choices}
        own = hyperparams(self.entry.source)
        return {n: own[n].default if value is None else value for n, value in values.items()}

    def count(self, name: str) -> int:
        """Returns the number of ``n_neg``, ``n_pos`` or ``n_group`` drawn; 0 if not supported."""
        return self.values.get(name, 0)

    @property
    def sampler(self) -> Callable[[data.Interactions], samplers.Sampler] | None:
        """Factory of the sampler that the loss prescribes; None if any sampler is supported."""
        return self.entry.sampler

    @property
    def term(self) -> tasks.AuxiliaryLoss | None:
        """Auxiliary loss that belongs to this loss; None if there is none."""
        term_flags = self.entry.term_flags.items()
        if self.entry.term is None:
            return None
        return self.entry.term(
            **{hyperparam.field or name: self.values[name] for name, hyperparam in term_flags}
        )

    def swept_fields(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Maps the swept ``numbers`` of the loss and its auxiliary loss to sweep field names."""
        fields = {f"task.hyperparams.{n}": numbers[n] for n in self.hyperparams if n in numbers}
        term_flags = self.entry.term_flags.items()
        return fields | {
            f"task.auxiliary_loss.{hyperparam.field or n}": numbers[n]
            for n, hyperparam in term_flags
            if n in numbers
        }

    def resolve_similarity(self, options: EncoderOptions) -> EncoderOptions:
        """Resolves the similarity in the encoder's flags, which the loss may constrain.

        Raises:
          ValueError: If the given similarity differs from the one that the loss requires.
        """
        if self.entry.similarities is None:
            return replace(options, similarity=options.similarity or self.entry.similarity)
        similarity, ranks = self.entry.similarities
        if options.similarity not in (None, similarity):
            raise ValueError(
                f"--similarity {options.similarity}: this loss needs --similarity {similarity}."
            )
        ranks = options.serve_similarity or ranks
        return replace(options, similarity=similarity, serve_similarity=ranks)

    def confidence(self, log: data.Interactions, training: TrainOptions) -> Any:
        """Creates the confidence estimator for a training part; None if the loss has none."""
        make = self.entry.confidence
        return None if make is None else make(log, training, dict(self.values))


def resolve(options: LossOptions, swept: tuple[str, ...] = ()) -> ResolvedObjective:
    """Fills in the defaults of the chosen loss.

    Args:
      options: The flags.
      swept: Names of the numbers set by a sweep.

    Raises:
      ValueError: If a flag is not supported by the loss, or flags contradict each other.
    """
    return ResolvedObjective(
        OBJECTIVES[options.loss], resolve_flags("loss", options, OBJECTIVES, swept)
    )
