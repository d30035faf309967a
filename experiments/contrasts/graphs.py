"""Contrasts between two views of the interaction graph."""

from dataclasses import replace
from typing import Any

from crl_jax import data, models, tasks

from .._ranges import COUNT, Range
from .._registry import Hyperparam, count, declared, words
from ._entry import ContrastEntry, Made

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
) -> Made:
    changes = _AUGMENTATIONS[augmentation](augmentation_rate)
    if "edge_dropout" in changes:
        encoder = replace(
            encoder, graph=models.InteractionGraph.from_interactions(log, droppable=True)
        )
    view = replace(encoder, renormalize=True, **changes)
    return encoder, tasks.GraphContrast(first=view, second=view, **settings)


def _neighbours_alone(encoder: models.LightGCN) -> models.LightGCN:
    """Excludes the input embeddings and weights all propagation layers equally."""
    n_layers = len(encoder.layer_weights) - 1
    return replace(encoder, layer_weights=(0.0, *(1 / n_layers,) * n_layers))


def _simgcl(
    log: data.Interactions, encoder: models.LightGCN, settings: dict[str, Any], *, noise: float
) -> Made:
    encoder = _neighbours_alone(encoder)
    view = replace(encoder, noise=noise)
    return encoder, tasks.GraphContrast(first=view, second=view, **settings)


def _xsimgcl(
    log: data.Interactions,
    encoder: models.LightGCN,
    settings: dict[str, Any],
    *,
    noise: float,
    contrast_layer: int,
) -> Made:
    encoder = replace(_neighbours_alone(encoder), noise=noise)
    return encoder, tasks.LayerContrast(layer=contrast_layer, **settings)


def _lightgcl(
    log: data.Interactions, encoder: models.LightGCN, settings: dict[str, Any], *, rank: int
) -> Made:
    return encoder, tasks.SpectralContrast.from_interactions(log, rank, **settings)


SGL = ContrastEntry(
    help="two graphs with random dropout",
    hyperparams={
        "augmentation": words(
            "edge-dropout",
            "Dropout of a view: of interactions, of users and items, or of interactions resampled "
            "for each layer",
            tuple(_AUGMENTATIONS),
        ),
        "augmentation_rate": Hyperparam(
            0.1, "Dropout rate of a view", Range(0, 1, high_open=True), sweeps=False
        ),
    },
    make=_sgl,
)
SIMGCL = ContrastEntry(
    help="two encodings with noise on their layers",
    hyperparams=_NOISE,
    make=_simgcl,
    weight=0.5,
)
XSIMGCL = ContrastEntry(
    help="an encoding with noise, and one of its layers",
    hyperparams={
        "noise": replace(_NOISE["noise"], default=0.2),
        **declared(tasks.LayerContrast, "layer", flags={"layer": "contrast_layer"}),
    },
    make=_xsimgcl,
    weight=0.2,
    temperature=0.15,
)
LIGHTGCL = ContrastEntry(
    help="the graph, and its first singular vectors",
    hyperparams={"rank": count(5, "Number of singular vectors", COUNT)},
    make=_lightgcl,
    weight=0.2,
)
