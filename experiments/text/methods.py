"""Pre-training methods of ``--method``.

To add a method, add a :class:`Method` and an entry in :data:`METHODS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crl_jax import models, tasks

from .._ranges import COUNT, POSITIVE
from .._registry import Entry, Hyperparam
from ._host import HostTriplets, TokenRows


@dataclass(frozen=True)
class Parts:
    """Components from which a method builds its task.

    Attributes:
      network: Network that computes text embeddings.
      table: Augmentation that returns the tokens of a text.
      labelled: Indices or tokens of the labelled texts, and their labels.
      loss: Loss of ``--loss``, its hyper-parameters including the temperature, and the estimator of
        its α, as keyword arguments of :class:`crl_jax.tasks.SimCLR`.
      pretrained: Parameters to start from; None for random ones.
      tile: Value of ``--tile``, for methods that take it.
    """

    network: models.Network
    table: Any
    labelled: tasks.LabelledExamples
    loss: dict[str, Any]
    pretrained: Any
    tile: int | str | None


@dataclass(frozen=True, kw_only=True)
class Method(Entry):
    """Entry of a pre-training method.

    Attributes:
      make: Function ``make(parts)`` that returns the task; None for no pre-training.
      needs_labels: Whether the method trains on labels, and so only on the labelled texts.
      takes_tile: Whether the method uses ``--tile``; others need all scores of a batch at once.
    """

    make: Callable[[Parts], Any] | None
    needs_labels: bool = False
    takes_tile: bool = False


def _triplets(parts: Parts) -> Any:
    make, examples = tasks.ClassTriplets, parts.labelled
    if isinstance(parts.table, TokenRows):
        make, examples = HostTriplets, tasks.LabelledExamples(examples.labels, examples.labels)
    return make(
        parts.network, parts.table, **parts.loss, pool=tasks.ClassPool.from_labels(examples),
        pretrained=parts.pretrained,
    )  # fmt: skip


def _dropout(parts: Parts) -> Any:
    return tasks.SimCLR(
        parts.network, parts.table, **parts.loss, pretrained=parts.pretrained, tile=parts.tile
    )


def _temperature(default: float) -> Hyperparam:
    return Hyperparam(default, "Divides all cosines", POSITIVE)


METHODS: Mapping[str, Method] = {
    "triplets": Method(
        help="each text against one of its class and those of other classes, by labels",
        hyperparams={
            "temperature": _temperature(0.07),
            "draws": Hyperparam(
                None, "Texts drawn in an epoch, with replacement; by default each comes once",
                COUNT, int, sweeps=False,
            ),
        },
        make=_triplets,
        needs_labels=True,
    ),
    "dropout": Method(
        help="two dropouts of each text against the other texts of the batch (SimCSE)",
        hyperparams={"temperature": _temperature(0.05)},
        make=_dropout,
        takes_tile=True,
    ),
    "none": Method(help="no pre-training", make=None),
}  # fmt: skip
