"""Defaults of ``python -m experiments.recommend`` that carry to new data.

A run without ``--recipe`` and ``--config`` starts from :func:`start`: a similarity, negatives, an
optimiser and a length of training that did well in explorations on a dozen small datasets, and a
short search on validation data for the one number whose best value differs most between them. A
flag replaces the default that it names; a number that is given is not searched.
``benchmarks/defaults.py`` measures the regret of the defaults on eight of the datasets.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .._registry import resolve_flags
from ._config import TRAINING, Config, EncoderOptions, LossOptions, SamplerOptions
from ._options import DataOptions, ProtocolOptions, TrainOptions
from .fitted import BEST, TRAINED
from .objectives import OBJECTIVES
from .sampling import SAMPLERS

AUTO = "auto"
"""The default loss: a choice among several on validation data."""
_GENERIC = "bpr"
"""The loss whose defaults those of a user's own start from."""
_SEEN, _EPOCHS = 1_200_000, (16, 60)
"""Number of interactions that a training should visit, and the bounds of its epochs."""


@dataclass(frozen=True)
class Variant:
    """Part of the space that ``--tune`` searches.

    Attributes:
      settings: Values of flags that differ from the defaults.
      sweep: Values of each number that is searched.
    """

    settings: Mapping[str, Any]
    sweep: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Family:
    """Defaults of losses that are alike.

    Attributes:
      training: Embedding size and optimiser.
      sampler: Name of the sampler.
      n_neg: Number of negatives; None for that of the loss.
      n_neg_per_anchor: Number of negatives of a sampler that draws them for each anchor.
      similarity: Similarity in training; None for that of the loss.
      temperature: Temperature, if the search does not set it; None for that of the loss.
      search: Values of each number that a run without ``--sweep`` and ``--tune`` searches.
      variants: The space of ``--tune``, the most promising first.
    """

    training: TrainOptions
    sampler: str = "rns"
    n_neg: int | None = None
    n_neg_per_anchor: int = 1
    similarity: Any = None
    temperature: float | None = None
    search: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()


_TRAINING = TrainOptions(
    dim=128, lr=3e-3, weight_decay=0.0, l2_target="rows", schedule="cosine", decay=0.0,
    batch_size=1024, epochs=None, patience=_EPOCHS[1], eval_every=2,
)  # fmt: skip
_INNER = replace(_TRAINING, lr=5e-3, weight_decay=0.03)
_L2 = (0.01, 0.03, 0.06, 0.1, 0.17)
_MORE_L2 = (*_L2, 0.003, 0.3)
_PAIRWISE = (
    Variant({}, {"weight_decay": _MORE_L2}),
    Variant({"lr": 1.5e-3}, {"weight_decay": _MORE_L2}),
    Variant({"dim": 32}, {"weight_decay": _MORE_L2}),
)
# The propagation averages over neighbours, so that a smaller L2 penalty suffices.
_GRAPH_L2 = (0.003, 0.01, 0.03, 0.06)
_GRAPH = replace(_INNER, weight_decay=0.01)
_GRAPH_PAIRWISE = (
    Variant({}, {"weight_decay": (*_GRAPH_L2, 0.001)}),
    Variant({"layers": 2}, {"weight_decay": (*_GRAPH_L2, 0.001)}),
    Variant({"lr": 5e-3}, {"weight_decay": _GRAPH_L2}),
)
_HEAT = (0.12, 0.2, 0.35, 0.65, 1.2)
FAMILIES: Mapping[str, Family] = {
    "pairwise": Family(_INNER, search={"weight_decay": _L2}, variants=_PAIRWISE),
    "bpr": Family(_INNER, n_neg=5, search={"weight_decay": _L2}, variants=_PAIRWISE),
    "softmax": Family(
        _TRAINING,
        sampler="shared",
        n_neg=128,
        n_neg_per_anchor=5,
        similarity="cosine",
        temperature=0.3,
        search={"temperature": _HEAT},
        variants=(
            Variant({}, {"temperature": (0.07, *_HEAT)}),
            Variant(
                {"similarity": "inner", "temperature": 1.0, "min_score": -5.0, "lr": 5e-3},
                {"weight_decay": _L2},
            ),
            Variant({"dim": 256}, {"temperature": _HEAT}),
            Variant({"dim": 32}, {"temperature": _HEAT}),
            Variant({"lr": 1e-3}, {"temperature": _HEAT}),
        ),
    ),
    "softmax-inner": Family(
        _INNER,
        sampler="shared",
        n_neg=128,
        n_neg_per_anchor=5,
        search={"weight_decay": _L2},
        variants=_PAIRWISE,
    ),
    "lightgcn-pairwise": Family(
        _GRAPH, search={"weight_decay": _GRAPH_L2}, variants=_GRAPH_PAIRWISE
    ),
    "lightgcn-bpr": Family(
        _GRAPH, n_neg=5, search={"weight_decay": _GRAPH_L2}, variants=_GRAPH_PAIRWISE
    ),
    "lightgcn-softmax": Family(
        _GRAPH,
        sampler="shared",
        n_neg=128,
        n_neg_per_anchor=5,
        temperature=0.5,
        search={"temperature": (0.5, 1.0), "weight_decay": (0.001, 0.01)},
        variants=(
            Variant({}, {"temperature": (0.5, 1.0), "weight_decay": _GRAPH_L2[:2]}),
            Variant({"layers": 2}, {"temperature": (0.5, 1.0), "weight_decay": (0.001, 0.01)}),
            Variant(
                {"similarity": "cosine", "layers": 2, "min_score": -1.0, "weight_decay": 0.0},
                {"temperature": (0.12, 0.2, 0.35)},
            ),
            Variant({"lr": 5e-3}, {"weight_decay": (0.001, 0.01)}),
        ),
    ),
    "cosine": Family(
        _TRAINING, variants=(Variant({}, {"lr": (1e-3, 3e-3, 6e-3)}), Variant({"dim": 32}, {}))
    ),
}
GRAPH = "lightgcn"
_HARDNESS: Mapping[str, tuple[float, ...]] = {
    "bayesian": (0.5, 0.7, 0.9), "hard": (0.25, 0.5, 1.0),
}  # fmt: skip
"""Values of beta that ``--debias auto`` searches, by loss."""
_COSINE_HYPERPARAMS = {"min_score": -1.0, "n_pos": 0}
"""Hyper-parameters of losses of cosines."""
_LIGHTGCN = {"dim": 64, "batch_size": 2048, "lr": 1e-2}
"""Each step of LightGCN propagates over the whole graph: fewer, narrower and larger steps."""
_FIRST = 2
"""Number of losses among which ``--loss auto`` chooses without ``--tune``."""
_BLENDED = 6
"""Number of models that ``--loss auto --tune`` blends at most."""
_BLENDED_FIRST = 3
"""Number of models that a first run blends at most: a trained one, EASE and iALS."""
_MAX_GRAPH = 500_000
"""Number of interactions up to which ``--loss auto --tune`` also tries LightGCN, since each of its
steps costs a propagation over all of them."""


def start(flags: Mapping[str, str]) -> Config:
    """Returns the configuration that flags change.

    Args:
      flags: Values of the flags, by field; only the choices matter.

    Raises:
      ValueError: If a flag sets a number that ``--debias auto`` estimates.
    """
    loss = flags.get("loss") or _default_loss(flags)
    is_debiased = flags.get("debias") == AUTO
    if is_debiased and "alpha" in flags:
        raise ValueError("--debias auto measures alpha: omit --alpha.")
    family = select_family(loss, flags.get("similarity"), flags.get("encoder"))
    sampler = flags.get("sampler", family.sampler)
    n_neg = family.n_neg
    if sampler in SAMPLERS and n_neg is not None and sampler != family.sampler:
        n_neg = None if sampler == "in-batch" else family.n_neg_per_anchor
    training = family.training
    model = BEST if loss == AUTO and _is_open(flags) else TRAINED
    if flags.get("encoder") == GRAPH:
        training = replace(training, **_LIGHTGCN)
    is_searched = "sweep" not in flags and "tune" not in flags and not _has_no_search(flags)
    sweep = {} if loss == AUTO or not is_searched else {**family.search}
    if sweep and is_debiased:
        sweep |= {"beta": _HARDNESS[loss]} if loss in _HARDNESS else {}
    values: dict[str, Any] = {"n_neg": n_neg, "temperature": family.temperature}
    if family.similarity == "cosine":
        values |= _COSINE_HYPERPARAMS
    loss_flags = OBJECTIVES[loss].flags if loss in OBJECTIVES else {}
    return Config(
        source=DataOptions(valid_fraction=None),
        objective=LossOptions(
            loss=loss if loss in OBJECTIVES else _GENERIC,
            **{name: value for name, value in values.items() if name in loss_flags},
        ),
        sampling=SamplerOptions(sampler=family.sampler),
        encoding=EncoderOptions(similarity=family.similarity, model=model),
        training=training,
        protocol=ProtocolOptions(
            sweep=_sweep_flags(sweep),
            search="halving" if sweep or loss == AUTO else "grid",
            blend=_n_blended(flags, loss),
            keep=tuple(sorted(tuned_flags() & flags.keys())),
        ),
    )


def _n_blended(flags: Mapping[str, str], loss: str) -> int:
    """Returns the maximum number of models of a blend."""
    if loss != AUTO or flags.get("encoder", GRAPH) not in ("mf", GRAPH):
        return 1
    if "tune" in flags:
        return _BLENDED
    is_first_run = _is_open({name: x for name, x in flags.items() if name != "encoder"})
    return _BLENDED_FIRST if is_first_run else 1


def model_kind(config: Config) -> tuple[str, str]:
    """Returns the kind of a configuration's model, of which a blend has one: loss and encoder."""
    name = OBJECTIVES[config.objective.loss].start
    return "pairwise" if name == "bpr" else name, config.encoding.encoder


def _is_open(flags: Mapping[str, str]) -> bool:
    """Whether no flag belongs to a training, so that a baseline may be chosen."""
    training_flags = {
        option.name for section in TRAINING for option in fields(getattr(Config(), section))
    }
    # A resumed run has its own configuration: the other flags only say where it goes on.
    return "resume" in flags or not (training_flags | {"mesh", "processes"}) & flags.keys()


def _default_loss(flags: Mapping[str, str]) -> str:
    """Returns the loss of flags that name none: a choice, unless they are flags of one loss."""
    entry_flags = {name for entry in OBJECTIVES.values() for name in entry.flags}
    entry_flags |= {name for entry in SAMPLERS.values() for name in entry.flags}
    if "sampler" in flags and flags["sampler"] not in ("shared", "in-batch"):
        return "bpr"
    if (entry_flags | {"sampler", "similarity", "contrast", "sweep"}) & flags.keys():
        return "info_nce"
    return "info_nce" if _has_no_search(flags) else AUTO


def _has_no_search(flags: Mapping[str, str]) -> bool:
    return any(_is_zero(flags.get(name, "")) for name in ("tune", "valid_fraction"))


def tuned_flags() -> set[str]:
    """Returns the names of all flags that ``--tune`` may set."""
    variants = [each for family in FAMILIES.values() for each in family.variants]
    return {"encoder"} | {name for each in variants for name in (*each.settings, *each.sweep)}


def spaces(
    config: Config, n_interactions: int | None = None
) -> list[tuple[Config, dict[str, Any]]]:
    """Returns configurations whose sweeps span what ``--tune`` searches, and how they differ.

    Numbers that the flags set, :attr:`ProtocolOptions.keep`, are not searched.

    Args:
      config: The configuration with the flags.
      n_interactions: Number of training interactions, which limits the encoders that are tried;
        None for no limit.
    """
    objective = OBJECTIVES[config.objective.loss]
    if not objective.candidates:
        return _variants(config) or [(config, {})]
    first, other_losses = objective.candidates[:_FIRST], objective.candidates[_FIRST:]
    searches = [_loss_space(config, loss) for loss in first]
    if not config.protocol.tune:
        return searches
    if may_change_encoder(config) and (n_interactions or 0) <= _MAX_GRAPH:
        searches += [_loss_space(config, loss, GRAPH) for loss in first]
    searches += [_loss_space(config, loss) for loss in other_losses]
    for loss in first:
        variants = _variants(config_for_loss(config, loss))[1:]
        searches += [(variant, {"loss": loss, **settings}) for variant, settings in variants]
    return searches


def _loss_space(
    config: Config, loss: str, encoder: str | None = None
) -> tuple[Config, dict[str, Any]]:
    """Returns the short search of one loss of ``--loss auto``, and what distinguishes it."""
    own = config_for_loss(config, loss, encoder)
    similarity = config.encoding.similarity if "similarity" in config.protocol.keep else None
    family = select_family(loss, similarity, own.encoding.encoder)
    names = {"loss": loss} if encoder is None else {"loss": loss, "encoder": encoder}
    return _with_sweep(own, family.search), names


def may_change_encoder(config: Config) -> bool:
    """Whether no flag needs the default encoder, so that a search may try other models."""
    is_default = config.encoding.encoder == EncoderOptions().encoder
    return is_default and "encoder" not in config.protocol.keep and may_add_models(config)


def may_add_models(config: Config) -> bool:
    """Whether a blend may add models, since no flag but ``--encoder`` says how one is made."""
    before = start({"loss": AUTO})
    same = {name: getattr(before.encoding, name) for name in ("encoder", "model", "similarity")}
    training, default = config.training, before.training
    return (
        replace(config.encoding, **same) == before.encoding
        and config.contrasting == before.contrasting
        and training.optimizer_mode == default.optimizer_mode
        and training.batches == default.batches
        and config.output.mesh is None
    )


def _variants(config: Config) -> list[tuple[Config, dict[str, Any]]]:
    """Returns the variants of a loss that change no number that a flag sets."""
    encoding = config.encoding
    variants = select_family(config.objective.loss, encoding.similarity, encoding.encoder).variants
    return [
        (_with_sweep(_with_settings(config, each.settings), each.sweep), dict(each.settings))
        for each in variants
        if not each.settings.keys() & {*config.protocol.keep}
    ]


def _with_sweep(config: Config, values: Mapping[str, tuple[float, ...]]) -> Config:
    values = {name: grid for name, grid in values.items() if name not in config.protocol.keep}
    objective = config.objective
    if "temperature" in values:
        objective = replace(objective, temperature=None)
    protocol = replace(config.protocol, sweep=_sweep_flags(values))
    return replace(config, objective=objective, protocol=protocol)


def _sweep_flags(values: Mapping[str, tuple[float, ...]]) -> tuple[str, ...]:
    return tuple(f"{name}={','.join(map(str, grid))}" for name, grid in values.items())


def _with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Returns the configuration with other values of flags, by field."""
    loss_flags = OBJECTIVES[config.objective.loss].flags
    for section in ("objective", "encoding", "training"):
        options = getattr(config, section)
        own = {
            name: value
            for name, value in settings.items()
            if hasattr(options, name) and (section != "objective" or name in loss_flags)
        }
        config = replace(config, **{section: replace(options, **own)})
    return config


def config_for_loss(config: Config, loss: str, encoder: str | None = None) -> Config:
    """Returns the configuration of one of the losses of ``--loss auto``: its own defaults.

    Flags that differ from the defaults of ``--loss auto`` remain.

    Args:
      config: The configuration with the flags.
      loss: Name of the loss.
      encoder: Name of another encoder than that of the flags; None for that one.

    Raises:
      ValueError: If a hyper-parameter of a loss is given.
    """
    resolve_flags("loss", config.objective, OBJECTIVES)
    before = start({"loss": AUTO, "encoder": config.encoding.encoder})
    encoder = encoder or config.encoding.encoder
    chosen = {"encoder": encoder}
    if config.sampling.sampler != before.sampling.sampler:
        chosen["sampler"] = config.sampling.sampler
    if "similarity" in config.protocol.keep:
        chosen["similarity"] = str(config.encoding.similarity)
    own = start({"loss": loss, **chosen})
    sections = {}
    for section in ("sampling", "encoding", "contrasting", "training"):
        options, default = getattr(config, section), getattr(before, section)
        changed = {
            name: value
            for name, value in vars(options).items()
            if value != getattr(default, name) or name in config.protocol.keep
        }
        sections[section] = replace(getattr(own, section), **changed)
    sections["encoding"] = replace(sections["encoding"], encoder=encoder)
    return replace(config, objective=own.objective, **sections)


def select_family(loss: str, similarity: str | None, encoder: str | None) -> Family:
    """Returns the defaults of a loss, with the similarity and the encoder that are given, if any.

    Softmax losses take cosines with matrix factorisation, and inner products with LightGCN unless
    the loss is defined for cosines.
    """
    objective = OBJECTIVES.get(loss)
    name = "pairwise" if objective is None else objective.start
    if encoder == GRAPH:
        if name in ("pairwise", "bpr"):
            return FAMILIES[f"lightgcn-{name}"]
        cosines = similarity or (objective.similarity if objective else None)
        if name == "softmax" and cosines != "cosine":
            return FAMILIES["lightgcn-softmax"]
    return FAMILIES["softmax-inner" if (name, similarity) == ("softmax", "inner") else name]


def default_epochs(n_interactions: int) -> int:
    """Returns the number of epochs: that of 1.2 million interactions, but between 16 and 60.

    It is even, since a last validation after a single epoch would need a further compilation.
    """
    return min(max(2 * math.ceil(_SEEN / n_interactions / 2), _EPOCHS[0]), _EPOCHS[1])


def default_batch_size(encoder: str) -> int:
    """Returns the batch size that the default learning rates are for."""
    return int(_LIGHTGCN["batch_size"] if encoder == GRAPH else _TRAINING.batch_size)


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False
