"""Methods of ``--method``: self-supervised tasks on two views of each image.

To add a method, add a :class:`Method` and an entry in :data:`METHODS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from crl_jax import data, losses, models, tasks

from .._ranges import COUNT
from .._registry import Entry, count, declared
from ..view_losses import THRESHOLDS


@dataclass(frozen=True)
class Parts:
    """Components from which a method builds its task.

    Attributes:
      backbone: Builder of the network from images to features.
      head: Widths of the projection head.
      augment: Augmentation that returns a view of an image.
      loss: Loss of ``--loss``, its hyper-parameters including the temperature, and the estimator of
        its α, as keyword arguments of :class:`crl_jax.tasks.SimCLR`.
      tile: Value of ``--tile``, for methods that take it.
      train: Training images.
    """

    backbone: Any
    head: tuple[int, ...]
    augment: Any
    loss: dict[str, Any]
    tile: int | str | None
    train: data.Images


@dataclass(frozen=True, kw_only=True)
class Method(Entry):
    """Entry of a training method.

    Attributes:
      make: Function ``make(parts, **values)`` that returns the task.
      takes_loss: Whether the method uses ``--loss``.
      takes_temperature: Whether the method uses ``--temperature``.
      takes_tile: Whether the method uses ``--tile``; others need all scores of a batch at once.
      needs_labels: Whether the method trains on labels.
      needs_all: Whether all examples must be in device memory.
    """

    make: Callable[..., Any]
    takes_loss: bool = True
    takes_temperature: bool = True
    takes_tile: bool = False
    needs_labels: bool = False
    needs_all: bool = False


def _projected(parts: Parts, head: Any = None) -> models.Network:
    head = models.Projection(parts.head) if head is None else head
    return models.Network(models.BackboneWithHead(parts.backbone, head))


def _simclr(parts: Parts) -> Any:
    return tasks.SimCLR(_projected(parts), parts.augment, **parts.loss, tile=parts.tile)


def _attention(parts: Parts, positive_views: int, **scales: float) -> Any:
    hyperparams = {**_temperature(parts), **scales}
    return tasks.MultiView(
        _projected(parts), parts.augment, hyperparams, n_positives=positive_views
    )


def _direct(parts: Parts, first_features: int) -> Any:
    if first_features > (n_features := parts.backbone.n_features):
        raise ValueError(
            f"--first-features must be at most the {n_features} features of the encoder, "
            f"got {first_features}."
        )
    network = _projected(parts, models.FeatureSlice(first_features))
    return tasks.SimCLR(network, parts.augment, **parts.loss, tile=parts.tile)


def _moco(parts: Parts, queue: int, momentum: float) -> Any:
    return tasks.MoCo(
        _projected(parts), parts.augment, momentum=momentum, dim=parts.head[-1], queue=queue,
        **parts.loss,
    )  # fmt: skip


def _memory_bank(parts: Parts, momentum: float, n_neg: int) -> Any:
    return tasks.MemoryBank(
        _projected(parts), parts.augment, momentum=momentum, dim=parts.head[-1], n_neg=n_neg,
        n_examples=len(parts.train), **parts.loss,
    )  # fmt: skip


def _prototypes(
    parts: Parts, queue: int, momentum: float, clusters: int, warm_up_epochs: int
) -> Any:
    part = parts.train
    images = tasks.LabelledExamples(jnp.asarray(part.images), jnp.asarray(part.labels))
    return tasks.PCL(
        _projected(parts), parts.augment, momentum=momentum, dim=parts.head[-1], queue=queue,
        data=images, clusters=(clusters,), warm_up=warm_up_epochs, **parts.loss,
    )  # fmt: skip


def _byol(parts: Parts, momentum: float) -> Any:
    predictor = models.Projection(parts.head, n_in=parts.head[-1])
    return tasks.BYOL(
        _projected(parts), parts.augment, models.Network(predictor), momentum=momentum
    )


def _glofnd(parts: Parts, warm_up_epochs: int, **values: Any) -> Any:
    return tasks.GloFND(
        _projected(parts), parts.augment, n_examples=len(parts.train.images),
        warm_up=warm_up_epochs, **parts.loss, **values,
    )  # fmt: skip


def _sogclr(parts: Parts, warm_up_epochs: int, **values: Any) -> Any:
    return tasks.SogCLR(
        _projected(parts), parts.augment, _temperature(parts), n_examples=len(parts.train.images),
        warm_up=warm_up_epochs, **values,
    )  # fmt: skip


def _temperature(parts: Parts) -> dict[str, Any]:
    return {"temperature": parts.loss["hyperparams"]["temperature"]}


def _by_labels(task: Callable[..., Any]) -> Callable[[Parts], Any]:
    """Returns the ``make`` of a task with labels and its own loss."""

    def make(parts: Parts) -> Any:
        return task(_projected(parts), parts.augment, _temperature(parts))

    return make


_MOCO = declared(tasks.MoCo, "queue", "momentum", defaults={"momentum": 0.99}, sweeps=False)

METHODS: Mapping[str, Method] = {
    "simclr": Method(source=tasks.SimCLR, make=_simclr, takes_tile=True),
    "moco": Method(source=tasks.MoCo, hyperparams=_MOCO, make=_moco),
    "memory-bank": Method(
        source=tasks.MemoryBank,
        hyperparams=declared(tasks.MemoryBank, "momentum", "n_neg", sweeps=False),
        make=_memory_bank,
    ),
    "byol": Method(
        source=tasks.BYOL,
        hyperparams=declared(tasks.BYOL, "momentum", defaults={"momentum": 0.99}, sweeps=False),
        make=_byol,
        takes_loss=False,
        takes_temperature=False,
    ),
    "directclr": Method(
        help="SimCLR on the first features, without a head",
        hyperparams={"first_features": count(64, "Features that the loss sees", COUNT)},
        make=_direct,
        takes_tile=True,
    ),
    "attention_nce": Method(
        help="AttentionNCE: attention over several positive views and over negatives",
        hyperparams={
            "positive_views": count(4, "Number of positive views per image", COUNT),
            **declared(losses.attention_contrastive, "pos_scale", "neg_scale", sweeps=False),
        },
        make=_attention,
        takes_loss=False,
    ),
    "glofnd": Method(source=tasks.GloFND, hyperparams=THRESHOLDS, make=_glofnd),
    "sogclr": Method(
        source=tasks.SogCLR,
        hyperparams={
            **THRESHOLDS,
            **declared(tasks.SogCLR, "gamma", "false_negative_share", sweeps=False),
        },
        make=_sogclr,
        takes_loss=False,
    ),
    "protonce": Method(
        source=tasks.PCL,
        needs_all=True,
        hyperparams={
            **_MOCO,
            "clusters": count(100, "Number of clusters"),
            "warm_up_epochs": count(20, "Number of epochs before the first clustering"),
        },
        make=_prototypes,
    ),
    "supcon": Method(
        source=tasks.SupCon, make=_by_labels(tasks.SupCon), takes_loss=False, needs_labels=True
    ),
    "oracle": Method(
        source=tasks.SupervisedOracle,
        make=_by_labels(tasks.SupervisedOracle),
        takes_loss=False,
        needs_labels=True,
    ),
}
