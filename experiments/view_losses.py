"""Contrastive losses of ``--loss``: two views of an example are positives, others negatives.

To add a loss, add a :class:`LossEntry` to :data:`LOSSES`. Losses of two views also apply to pairs
of images and texts, whose other losses are in :data:`PAIR_LOSSES`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from crl_jax import losses, summary, tasks, weights

from ._ranges import FINITE, Range
from ._registry import Entry, Hyperparam, Registry, count, declared, resolve_flags, words

ALPHA: Mapping[str, type[tasks.AlphaEstimator] | None] = {
    "given": None, "labels": tasks.AlphaFromLabels, "views": tasks.AlphaFromViews,
}  # fmt: skip
"""Estimators of the α of a loss, by the value of ``--alpha-from``; None if α is given."""

UNKNOWN_SHARE = 0.01
"""Default τ⁺ if the examples have no classes."""

UNKNOWN_HARDNESS = 0.9
"""Default β of the Bayesian loss of images without classes, and of graphs and pairs."""

THRESHOLDS = {
    **declared(tasks.GloFND, "false_negative_share", "threshold_rate", sweeps=False),
    "warm_up_epochs": count(20, "Number of epochs before the first update of the thresholds"),
}
"""Flags of the learned thresholds of false negatives."""

Weigh = Callable[[Any, Mapping[str, Any], Any], Any]


@dataclass(frozen=True, kw_only=True)
class LossEntry(Entry):
    """Contrastive loss on two views.

    Attributes:
      loss: ``loss(pos, neg, *, temperature, where, reduce_fn, …)``.
      defaults: Defaults that differ from those of the signature, by hyper-parameter.
      notes: Sentences appended to help texts, by hyper-parameter.
      settings: Further flags, which are not passed to the loss.
      weigh: ``weigh(neg, hyperparams, where)`` returns the weights that the loss assigns to its
        negatives; None for uniform weights, apart from a debiasing term.
      is_fused: Whether :func:`crl_jax.losses.fused_view_loss` has kernels of the loss.
    """

    loss: Callable[..., Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Hyperparam] = field(default_factory=dict)
    weigh: Weigh | None = None
    is_fused: bool = False

    def __post_init__(self) -> None:
        hyperparams = declared(self.loss, defaults=self.defaults)
        for name in ("temperature", *self.settings):  # these have flags already
            hyperparams.pop(name, None)
        for name, note in self.notes.items():
            hyperparams[name] = replace(hyperparams[name], help=f"{hyperparams[name].help}; {note}")
        object.__setattr__(self, "hyperparams", hyperparams)
        object.__setattr__(self, "source", self.loss)
        super().__post_init__()

    @property
    def flags(self) -> Mapping[str, Hyperparam]:
        """Hyper-parameters of the loss, and further settings."""
        return {**self.hyperparams, **self.settings}

    def check(self, values: Mapping[str, Any], given: Collection[str]) -> None:
        """Rejects a given α together with an estimated one."""
        source = values.get("alpha_from", "given")
        if source != "given" and "alpha" in given:
            raise ValueError(f"--alpha-from {source} measures what --alpha would say.")


def _hard(neg: Any, hyperparams: Mapping[str, Any], where: Any) -> Any:
    return weights.hard_weights(
        neg, beta=hyperparams["beta"], temperature=hyperparams["temperature"], where=where
    )


def _adjusted(neg: Any, hyperparams: Mapping[str, Any], where: Any) -> Any:
    return weights.gaussian_weights(
        neg, mu=hyperparams["mu"], sigma=hyperparams["sigma"], where=where
    )


def _bayesian(neg: Any, hyperparams: Mapping[str, Any], where: Any) -> Any:
    selected = {name: hyperparams[name] for name in ("tau_plus", "alpha", "beta")}
    return weights.bayesian_weights(neg, **selected, where=where)


_UNKNOWN = {"tau_plus": None}
_NOTES = {"tau_plus": f"by default 1 / number of classes, or {UNKNOWN_SHARE} where there are none"}

LOSSES = Registry(
    {
        "info_nce": LossEntry(loss=losses.info_nce, is_fused=True),
        "debiased": LossEntry(
            loss=losses.debiased_contrastive, defaults=_UNKNOWN, notes=_NOTES, is_fused=True
        ),
        "hard": LossEntry(
            loss=losses.hard_contrastive,
            defaults={**_UNKNOWN, "beta": 1.0},
            notes=_NOTES,
            weigh=_hard,
            is_fused=True,
        ),
        "bayesian": LossEntry(
            loss=losses.bayesian_contrastive,
            defaults={**_UNKNOWN, "beta": UNKNOWN_HARDNESS},
            notes={**_NOTES, "beta": "the published rule is 1 - 1 / number of classes"},
            settings={
                "alpha_from": words(
                    "given",
                    "Where alpha comes from: --alpha; labels of the batch, as published; or the "
                    "two views, without labels",
                    tuple(ALPHA),
                ),
                "bins": Hyperparam(
                    None,
                    "Number of histogram bins of approximate ranks, for thousands of negatives; by "
                    "default ranks are exact",
                    Range(1, 2**16),
                    int,
                    sweeps=False,
                    was_missing=True,
                ),
            },
            weigh=_bayesian,
            is_fused=True,
        ),
        "decoupled": LossEntry(loss=losses.decoupled_contrastive, is_fused=True),
        "adnce": LossEntry(loss=losses.adjusted_contrastive, weigh=_adjusted),
        "info_nce_plus": LossEntry(loss=losses.info_nce_plus),
    },
    make=lambda loss: LossEntry(loss=loss),
)


_BAYESIAN = LOSSES["bayesian"]
IMAGE_LOSSES = Registry(
    {
        **LOSSES,
        "bayesian": replace(
            _BAYESIAN,
            defaults={**_BAYESIAN.defaults, "beta": None},
            notes={
                **_NOTES,
                "beta": "by default the published rule 1 - 1 / number of classes, at least 0.5, or "
                f"{UNKNOWN_HARDNESS} where there are none",
            },
        ),
    },
    make=lambda loss: LossEntry(loss=loss),
)
"""Losses of images."""
TEXT_LOSSES = Registry(
    {
        **LOSSES,
        # Texts of one class share few words, so ranks are uninformative at first. With harder
        # negatives, the features of an encoder trained from scratch collapse to one point.
        "bayesian": replace(_BAYESIAN, defaults={**_BAYESIAN.defaults, "beta": 0.5}),
    },
    make=lambda loss: LossEntry(loss=loss),
)
"""Losses of texts."""


@dataclass(frozen=True, kw_only=True)
class PairLoss(LossEntry):
    """Loss that contrasts matching pairs of an image and a text with the others of the batch.

    Attributes:
      temperature: Default initial temperature.
      least_temperature: Default lower bound of the learned temperature.
      has_states: Whether the loss has a state per pair, see :class:`crl_jax.tasks.SogCLIP`.
    """

    temperature: float = 0.07
    least_temperature: float = 0.01
    has_states: bool = False


_PAIR_NOTES = {
    "tau_plus": "by default that of the training part by its groups of equal images or texts, or "
    f"{UNKNOWN_SHARE} where there are none"
}


def _pair_loss(name: str, help: str = "") -> PairLoss:
    """Returns the entry of a two-view loss, applied to pairs."""
    entry = LOSSES[name]
    return PairLoss(
        help=help or entry.help, loss=entry.loss, defaults=entry.defaults, settings=entry.settings,
        notes=_PAIR_NOTES if "tau_plus" in entry.hyperparams else {}, weigh=entry.weigh,
        is_fused=entry.is_fused,
    )  # fmt: skip


PAIR_LOSSES = Registry(
    {
        "clip": _pair_loss("info_nce", summary(losses.clip_contrastive)),
        "siglip": PairLoss(
            loss=losses.sigmoid_contrastive,
            settings={"bias": Hyperparam(-10.0, "Initial value of the learned bias", FINITE)},
            temperature=0.1,
            least_temperature=0.0,
        ),
        **{name: _pair_loss(name) for name in LOSSES if name != "info_nce"},
        "sogclip": PairLoss(
            help=summary(tasks.SogCLIP),
            loss=losses.global_contrastive,
            settings={
                **THRESHOLDS,
                **declared(tasks.SogCLIP, "gamma", "false_negative_share", sweeps=False),
            },
            has_states=True,
        ),
    },
    make=lambda loss: PairLoss(loss=loss),
)
"""Losses of pairs of images and texts."""


def default_tau_plus(n_classes: int) -> float:
    """Returns τ⁺ of balanced classes, or :data:`UNKNOWN_SHARE` without classes."""
    return 1 / n_classes if n_classes else UNKNOWN_SHARE


def default_beta(n_classes: int) -> float:
    """Returns β = 1 - 1/C of C classes, at least 0.5, or :data:`UNKNOWN_HARDNESS` without classes.

    "Contrastive Learning for Personalized Recommendation", section 6.6.4.
    """
    return max(0.5, 1 - 1 / n_classes) if n_classes else UNKNOWN_HARDNESS


def complete_loss(values: Mapping[str, Any], defaults: Mapping[str, float]) -> dict[str, Any]:
    """Replaces hyper-parameters that are None by defaults of the data; removes an estimated α."""
    is_given = values.get("alpha_from", "given") == "given"
    used = {name: value for name, value in values.items() if name != "alpha" or is_given}
    return used | {name: x for name, x in defaults.items() if name in used and used[name] is None}


def loss_arguments(
    options: Any,
    temperature: float,
    numbers: dict[str, float],
    entries: Mapping[str, LossEntry] = LOSSES,
) -> dict[str, Any]:
    """Returns ``loss_fn``, ``hyperparams`` and ``alpha`` of tasks such as SimCLR.

    Args:
      options: The flags of the loss.
      temperature: Value of ``--temperature``.
      numbers: Values of a sweep, which override those of the flags.
      entries: The available losses.
    """
    entry = entries[options.loss]
    values: dict[str, Any] = resolve_flags("loss", options, entries, tuple(numbers)) | numbers
    hyperparams = {name: values[name] for name in entry.hyperparams}
    hyperparams["temperature"] = numbers.get("temperature", temperature)
    alpha = ALPHA[values.get("alpha_from", "given")]
    if alpha is not None:
        del hyperparams["alpha"]
    bins = values.get("bins")
    loss = entry.loss if bins is None else _with_bins(entry.loss, bins)
    return {"loss_fn": loss, "hyperparams": hyperparams, "alpha": alpha and alpha()}


@cache  # tasks of several seeds are compiled once if their losses are one object
def _with_bins(loss: Callable[..., Any], bins: int) -> Callable[..., Any]:
    return partial(loss, bins=bins)


def check_tile(
    config: Any, entries: Mapping[str, LossEntry] = LOSSES, untiled: str | None = None
) -> None:
    """Raises ``ValueError`` if ``--tile`` is given and cannot be used.

    Args:
      config: The configuration of a run.
      entries: The available losses.
      untiled: Flag of the chosen method or loss, if it needs all scores of a batch at once.
    """
    tile, name = config.training.tile, config.objective.loss
    if tile is None:
        return
    if untiled is not None:
        raise ValueError(f"{untiled} has no --tile.")
    if tile != "fused":
        return
    if config.output.mesh is not None:
        raise ValueError("--tile fused is for one device: give a number with --mesh.")
    if not (entry := entries[name]).is_fused:
        fused = ", ".join(each for each, candidate in entries.items() if candidate.is_fused)
        raise ValueError(f"--tile fused is for --loss {fused}, got {name}.")
    if "bins" in entry.settings and config.objective.bins is None:
        raise ValueError(f"--tile fused with --loss {name} needs --bins, such as 128.")


def describe_loss(
    options: Any, swept: tuple[str, ...], entries: Mapping[str, LossEntry] = LOSSES
) -> str:
    """Returns the name of the loss and its hyper-parameters, except for swept ones."""
    values = resolve_flags("loss", options, entries, swept)
    if values.get("alpha_from", "given") != "given":
        del values["alpha"]  # estimated during training
    shown = (
        f"{name}={value if isinstance(value, str) else format(value, 'g')}"
        for name, value in values.items()
        if name not in swept and value is not None
    )
    return " ".join([options.loss, *shown])
