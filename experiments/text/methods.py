"""The methods of ``--method``: how an encoder is pre-trained.

A new one is a :class:`Method` and a line in :data:`METHODS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crl_jax import models, tasks

from .._ranges import COUNT, POSITIVE
from .._registry import Entry, Hyperparam


@dataclass(frozen=True)
class Parts:
    """What a method puts together.

    Attributes:
      network: Makes embeddings of texts.
      table: What the network sees of each text.
      labelled: Places of the texts with labels, and their labels.
      loss: The loss of ``--loss``, its hyper-parameters with the temperature, and what measures its
        α, as :class:`crl_jax.tasks.SimCLR` takes them.
      pretrained: Parameters to start from; None for random ones.
    """

    network: models.Network
    table: Any
    labelled: tasks.LabelledExamples
    loss: dict[str, Any]
    pretrained: Any


@dataclass(frozen=True, kw_only=True)
class Method(Entry):
    """How an encoder is pre-trained.

    Attributes:
      make: ``make(parts)``: the task; None for no pre-training.
      needs_labels: Whether it learns from labels, and so from the texts that have some.
    """

    make: Callable[[Parts], Any] | None
    needs_labels: bool = False


def _triplets(parts: Parts) -> Any:
    return tasks.ClassTriplets(
        parts.network, parts.table, **parts.loss, pool=tasks.ClassPool.from_labels(parts.labelled),
        pretrained=parts.pretrained,
    )  # fmt: skip


def _dropout(parts: Parts) -> Any:
    return tasks.SimCLR(parts.network, parts.table, **parts.loss, pretrained=parts.pretrained)


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
    ),
    "none": Method(help="no pre-training", make=None),
}  # fmt: skip
