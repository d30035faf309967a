"""Flags that studies share: optimiser, seeds and search, and where results go."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction

from crl_jax import train

from ._optimizers import RULES, SCHEDULES
from ._ranges import COUNT, MOST, NOT_NEGATIVE, POSITIVE, Range
from ._schema import check_seeds


@dataclass(frozen=True)
class MethodOptions:
    """The method. Numbers left out take the method's own default."""

    method: str = field(default="", metadata={"help": "The method."})


@dataclass(frozen=True)
class LossOptions:
    """The loss. Numbers left out take the loss's own default."""

    loss: str = field(default="info_nce", metadata={"help": "The contrastive loss."})


@dataclass(frozen=True)
class EncoderOptions:
    """The encoder. Numbers left out take the encoder's own default."""

    encoder: str = field(default="", metadata={"help": "The encoder."})


@dataclass(frozen=True)
class OptimizerOptions:
    """Optimiser."""

    lr: Annotated[float, POSITIVE] = 1e-3
    """Learning rate."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 1e-6
    """L2 coefficient."""
    optimizer: Literal["adam", "adamw", "lars", "sgd"] = "adam"
    """adam and sgd add the L2 term to the gradient; adamw decays the weights apart; lars scales the
    steps of each layer, and spares biases and normalisation."""
    schedule: Literal["constant", "step", "linear", "cosine"] = "constant"
    """Course of the learning rate: step goes down halfway, linear and cosine bit by bit."""
    decay: Annotated[float, NOT_NEGATIVE] = 0.0
    """Factor on the learning rate that the schedule goes down to."""
    warm_up: Annotated[float, Range(0, 1, high_open=True)] = 0.0
    """Share of the training in which the learning rate rises."""
    batch_size: Annotated[int, Range(2, MOST)] = 128
    """Examples per step."""
    epochs: Annotated[int, COUNT] = 30
    """Length of the training, which the schedule spans. No run ends earlier."""
    eval_every: Annotated[int, COUNT] = 1
    """Epochs between two measurements."""


@dataclass(frozen=True)
class SeedOptions:
    """Seeds and search."""

    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    """First seed. The draws of the data have their own."""
    seeds: Annotated[int, Range(1, 10_000)] = 1
    """Number of seeds, trained one after the other; tables then show mean ± standard deviation."""
    sweep: UseAppendAction[tuple[str, ...]] = ()
    """Values of a number to try, such as lr=1e-3,3e-3; repeat for a grid, which is decided on the
    validation part."""
    search_seeds: Annotated[int, Range(1, 10_000)] = 1
    """Number of seeds that every point of a sweep is tried with; its score is their mean."""


@dataclass(frozen=True)
class OutputOptions:
    """Where results go and what computes them."""

    out: Path | None = None
    """Run directory; by default a new one in runs, named by command, objective and time."""
    resume: Path | None = None
    """Go on with the run in this directory, with its configuration."""
    checkpoint_seconds: Annotated[float, NOT_NEGATIVE] = 30.0
    """Least time between two checkpoints."""
    log: Literal["none", "tensorboard", "wandb"] = "none"
    """Also log the history to TensorBoard, in the folder tensorboard of the run directory, or to
    Weights & Biases, in the project crl_jax."""
    device: Literal["any", "cpu", "gpu", "tpu"] = "any"
    """Fail unless this kind of device is there."""
    mesh: str | None = None
    """Several devices, such as data=4: batches are spread over them. A run goes on with other
    devices too."""


NUMBERS = ("lr", "weight_decay", "decay", "warm_up")
"""Those that a sweep can set."""


def optimizer_of(options: OptimizerOptions, numbers: dict[str, float]) -> train.Optimizer:
    """The optimiser, with the numbers of a sweep in place of the flags'."""
    own: dict[str, Any] = {name: numbers.get(name, getattr(options, name)) for name in NUMBERS}
    return train.Optimizer(
        learning_rate=own["lr"], weight_decay=own["weight_decay"], decay=own["decay"],
        warm_up=own["warm_up"], schedule=SCHEDULES[options.schedule], rule=RULES[options.optimizer],
    )  # fmt: skip


def check_search(protocol: SeedOptions) -> None:
    """Refuses seeds that are no 32-bit numbers, and seeds of a search that is none.

    Raises:
      ValueError: If there are such.
    """
    check_seeds(protocol.seed, protocol.seeds)
    searched = protocol.search_seeds
    if searched > 1 and not protocol.sweep:
        raise ValueError(f"--search-seeds {searched} averages over what --sweep tries: add it.")
