"""Registries of contrastive auxiliary losses and of their loss functions by command-line name.

A new contrast requires a :class:`ContrastEntry` in :data:`CONTRASTS`; a new loss function, a
:class:`LossEntry` in :data:`LOSSES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from crl_jax import data, losses, models, tasks

from .._ranges import COUNT, MAX_COUNT, POSITIVE, Range
from .._registry import Entry, Hyperparam, Registry, count, declared, resolve_flags, words
from ._options import ContrastOptions

_WEIGHT = declared(tasks.ContrastiveAuxiliaryLoss, "weight")["weight"]
_TEMPERATURE = Hyperparam(
    None, "Temperature of the contrast, the divisor of its cosines", POSITIVE, field="temperature"
)
EncoderAndLoss = tuple[models.LightGCN, tasks.ContrastiveAuxiliaryLoss]
"""The encoder for ranking and the auxiliary loss."""


@dataclass(frozen=True, kw_only=True)
class ContrastEntry(Entry):
    """A method that creates two views of users and items.

    Attributes:
      make: ``make(log, encoder, settings, **values)``, which returns :data:`EncoderAndLoss` for
        training on ``log``. It receives the encoder of ``--encoder``, the weight and the loss
        function of the auxiliary loss, keyed by field name, and the values of the entry's own
        flags. None for no contrast.
      weight: Default of ``--contrast-weight``, the published value on Yelp2018.
      temperature: Default of ``--contrast-temperature``, likewise.
    """

    make: Callable[..., EncoderAndLoss] | None
    weight: float = 0.1
    temperature: float = 0.2

    @property
    def flags(self) -> Mapping[str, Hyperparam]:
        """Weight, temperature and the entry's own flags. A sweep cannot set the latter."""
        if self.make is None:
            return {}
        shared = {
            "contrast_weight": replace(_WEIGHT, default=self.weight, field="weight"),
            "contrast_temperature": replace(_TEMPERATURE, default=self.temperature),
        }
        return {**shared, **self.hyperparams}


@dataclass(frozen=True, kw_only=True)
class LossEntry(Entry):
    """A loss function for contrasts; its flags are named ``contrast_NAME``.

    The positive of a row is the same row in the other view; all other rows there are negatives.

    Attributes:
      loss: ``loss(pos, neg, *, temperature, where, reduce_fn, …)``.
    """

    loss: Callable[..., Any]

    def __post_init__(self) -> None:
        # The other rows are rarely false negatives.
        own = declared(self.loss, defaults={"tau_plus": 0.01})
        own.pop("temperature", None)  # set by the contrast, which has its own default
        hyperparams = {
            f"contrast_{name}": replace(
                hyperparam, help=f"{hyperparam.help}; of the contrast", field=name
            )
            for name, hyperparam in own.items()
        }
        object.__setattr__(self, "hyperparams", hyperparams)
        object.__setattr__(self, "source", self.loss)
        super().__post_init__()


_NOISE = declared(models.LightGCN, "noise", defaults={"noise": 0.1}, sweeps=False)
_AUGMENTATIONS = {
    "edge-dropout": lambda rate: {"edge_dropout": rate},
    "node-dropout": lambda rate: {"node_dropout": rate},
    "random-walk": lambda rate: {"edge_dropout": rate, "walk": True},
}


def _sgl(
    log: data.Interactions,
    encoder: models.LightGCN,
    settings: dict[str, Any],
    *,
    augmentation: str,
    augmentation_rate: float,
) -> EncoderAndLoss:
    changes = _AUGMENTATIONS[augmentation](augmentation_rate)
    if "edge_dropout" in changes:
        encoder = replace(
            encoder, graph=models.InteractionGraph.from_interactions(log, droppable=True)
        )
    view = replace(encoder, renormalize=True, **changes)
    return encoder, tasks.GraphContrast(first=view, second=view, **settings)


def _drop_input_layer(encoder: models.LightGCN) -> models.LightGCN:
    """Excludes the input embeddings and weights all propagation layers equally."""
    n_layers = len(encoder.layer_weights) - 1
    return replace(encoder, layer_weights=(0.0, *(1 / n_layers,) * n_layers))


def _simgcl(
    log: data.Interactions, encoder: models.LightGCN, settings: dict[str, Any], *, noise: float
) -> EncoderAndLoss:
    encoder = _drop_input_layer(encoder)
    view = replace(encoder, noise=noise)
    return encoder, tasks.GraphContrast(first=view, second=view, **settings)


def _xsimgcl(
    log: data.Interactions,
    encoder: models.LightGCN,
    settings: dict[str, Any],
    *,
    noise: float,
    contrast_layer: int,
) -> EncoderAndLoss:
    encoder = replace(_drop_input_layer(encoder), noise=noise)
    return encoder, tasks.LayerContrast(layer=contrast_layer, **settings)


def _lightgcl(
    log: data.Interactions, encoder: models.LightGCN, settings: dict[str, Any], *, rank: int
) -> EncoderAndLoss:
    return encoder, tasks.SpectralContrast.from_interactions(log, rank, **settings)


def _ncl(
    log: data.Interactions,
    encoder: models.LightGCN,
    settings: dict[str, Any],
    *,
    contrast_layer: int,
    contrast_warm_up: int,
    **prototype_options: Any,
) -> EncoderAndLoss:
    del log
    return encoder, tasks.NeighborContrast(
        layer=contrast_layer, warm_up=contrast_warm_up, **prototype_options, **settings
    )


CONTRASTS: Mapping[str, ContrastEntry] = {
    "none": ContrastEntry(help="no such term", make=None),
    "sgl": ContrastEntry(
        help="two graphs with random dropout",
        hyperparams={
            "augmentation": words(
                "edge-dropout",
                "Dropout of a view: of interactions, of users and items, or of interactions "
                "resampled for each layer",
                tuple(_AUGMENTATIONS),
            ),
            "augmentation_rate": Hyperparam(
                0.1, "Dropout rate of a view", Range(0, 1, high_open=True), sweeps=False
            ),
        },
        make=_sgl,
    ),
    "simgcl": ContrastEntry(
        help="two encodings with noise on their layers",
        hyperparams=_NOISE,
        make=_simgcl,
        weight=0.5,
    ),
    "xsimgcl": ContrastEntry(
        help="an encoding with noise, and one of its layers",
        hyperparams={
            "noise": replace(_NOISE["noise"], default=0.2),
            **declared(tasks.LayerContrast, "layer", flags={"layer": "contrast_layer"}),
        },
        make=_xsimgcl,
        weight=0.2,
        temperature=0.15,
    ),
    "lightgcl": ContrastEntry(
        help="the graph, and its first singular vectors",
        hyperparams={"rank": count(5, "Number of singular vectors", COUNT)},
        make=_lightgcl,
        weight=0.2,
    ),
    "ncl": ContrastEntry(
        help="an even layer, and the input embeddings; also contrasts these with centroids",
        hyperparams={
            **declared(
                tasks.NeighborContrast,
                "layer",
                "prototype_weight",
                "clusters",
                flags={"layer": "contrast_layer"},
                sweeps=False,
            ),
            "contrast_warm_up": count(
                20, "Number of epochs before the first clustering", Range(0, MAX_COUNT)
            ),
        },
        make=_ncl,
        weight=0.004,
        temperature=0.05,
    ),
}


LOSSES = Registry(
    {
        "info_nce": LossEntry(loss=losses.info_nce),
        "debiased": LossEntry(loss=losses.debiased_contrastive),
        "hard": LossEntry(loss=losses.hard_contrastive),
        "bayesian": LossEntry(loss=losses.bayesian_contrastive),
        "decoupled": LossEntry(loss=losses.decoupled_contrastive),
    },
    make=lambda loss: LossEntry(loss=loss),
)
_GRAPHS = ("lightgcn",)
"""Encoders with layers that can be contrasted."""


def resolve_contrast_flags(
    options: ContrastOptions, encoder: str, swept: tuple[str, ...]
) -> dict[str, Any]:
    """Returns the flag values of the chosen contrast and of its loss function.

    Args:
      options: The flags.
      encoder: The name of the encoder.
      swept: Names of the numbers set by a sweep.

    Raises:
      ValueError: If a flag is not supported by the contrast or its loss function, or the encoder
        has no layers to contrast.
    """
    values = resolve_flags("contrast", options, CONTRASTS, swept)
    values |= resolve_flags("contrast_loss", options, LOSSES, swept)
    if options.contrast == "none":
        if options.contrast_loss != "info_nce":
            raise ValueError(f"--contrast-loss {options.contrast_loss} needs a --contrast.")
    elif encoder not in _GRAPHS:
        raise ValueError(
            f"--contrast {options.contrast} needs --encoder {' or '.join(_GRAPHS)}, got {encoder}."
        )
    return values


def resolve_contrast(
    options: ContrastOptions,
    log: data.Interactions,
    encoder: models.Encoder,
    swept: tuple[str, ...],
) -> tuple[models.Encoder, tasks.AuxiliaryLoss | None]:
    """Creates the chosen contrast for training on ``log``.

    Returns:
      The encoder for ranking and the auxiliary loss; the given encoder and None for no contrast.

    Raises:
      ValueError: If a number is invalid for the data.
    """
    entry, loss_entry = CONTRASTS[options.contrast], LOSSES[options.contrast_loss]
    if entry.make is None:
        return encoder, None
    assert isinstance(encoder, models.LightGCN)
    own = resolve_flags("contrast", options, CONTRASTS, swept)
    numbers = resolve_flags("contrast_loss", options, LOSSES, swept)
    hyperparams = {hyperparam.field: numbers[name] for name, hyperparam in loss_entry.flags.items()}
    settings = {
        "weight": own.pop("contrast_weight"),
        "hyperparams": {"temperature": own.pop("contrast_temperature"), **hyperparams},
        "loss_fn": loss_entry.loss,
    }
    encoder, auxiliary_loss = entry.make(log, encoder, settings, **own)
    auxiliary_loss.check(encoder)
    return encoder, auxiliary_loss


def swept_fields(options: ContrastOptions, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Maps the swept ``numbers`` that are flags of the contrast to sweep field names."""
    flags = {**CONTRASTS[options.contrast].flags, **LOSSES[options.contrast_loss].flags}
    fields = {}
    for name, hyperparam in flags.items():
        if name in numbers:
            part = "" if hyperparam.field == "weight" else "hyperparams."
            fields[f"task.auxiliary_loss.{part}{hyperparam.field}"] = numbers[name]
    return fields
