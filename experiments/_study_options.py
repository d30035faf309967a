"""Options that studies share, optimisers, and rejection of options that need labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction

from crl_jax import models, train

from ._program import flag
from ._ranges import COUNT, MAX_COUNT, NOT_NEGATIVE, POSITIVE, Range, option_group
from ._registry import LEGACY_VALUE


@option_group
class MethodOptions:
    """The training method; options that are omitted have the default of the method."""

    method: str = field(default="", metadata={"help": "The method."})


@option_group
class LossOptions:
    """The loss; options that are omitted have the default of the loss."""

    loss: str = field(default="info_nce", metadata={"help": "The contrastive loss."})


@option_group
class EncoderOptions:
    """The encoder; options that are omitted have the default of the encoder."""

    encoder: str = field(default="", metadata={"help": "The encoder."})


@option_group
class OptimizerOptions:
    """Optimiser."""

    lr: Annotated[float, POSITIVE] = 1e-3
    """Learning rate."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 1e-6
    """L2 coefficient."""
    optimizer: Literal["adam", "adamw", "lars", "sgd"] = "adam"
    """Update rule. adam and sgd add the L2 term to the gradient; adamw decouples the weight decay;
    lars scales the update of each layer, without L2 for biases and normalisation."""
    schedule: Literal["constant", "step", "linear", "cosine"] = "constant"
    """Schedule of the learning rate: step decreases it once, halfway; linear and cosine decrease it
    gradually."""
    decay: Annotated[float, NOT_NEGATIVE] = 0.0
    """Final value of the schedule, as a factor on the learning rate."""
    warm_up: Annotated[float, Range(0, 1, high_open=True)] = 0.0
    """Fraction of the training during which the learning rate increases."""
    batch_size: Annotated[int, Range(2, MAX_COUNT)] = 128
    """Number of examples per step."""
    epochs: Annotated[int, COUNT] = 30
    """Number of epochs, which the schedule spans; there is no early stopping."""
    eval_every: Annotated[int, COUNT] = 1
    """Number of epochs between two reports."""
    compute_dtype: Literal["float32", "bfloat16"] = field(
        default="float32", metadata={LEGACY_VALUE: "float32"}
    )
    """Floating-point type of the networks in training; bfloat16 halves the memory of activations.
    Parameters, statistics of a batch, losses and the evaluation are in float32."""
    remat: models.Remat = field(default="none", metadata={LEGACY_VALUE: "none"})
    """Rematerialisation, which saves memory and costs time: none stores all activations for the
    backward pass; dots stores the inputs of blocks and the results of products and convolutions,
    and recomputes the rest; full stores the inputs of blocks only."""


@option_group
class ContrastOptions(OptimizerOptions):
    """Optimiser, and memory of the scores of a batch."""

    tile: Annotated[int | Literal["fused"] | None, COUNT] = field(
        default=None, metadata={LEGACY_VALUE: None}
    )
    """Number of anchors whose scores are in memory at a time, for large batches; by default all.
    fused: none on a TPU, by kernels of the losses info_nce or clip, decoupled, debiased, hard, and
    bayesian with --bins; elsewhere 2 million scores, on GPUs 8 million."""


@option_group
class SeedOptions:
    """Seeds and search."""

    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    """First seed; sampling and splits of the data have another seed."""
    seeds: Annotated[int, Range(1, 10_000)] = 1
    """Number of seeds, trained one after the other; tables then show mean ± standard deviation."""
    sweep: UseAppendAction[tuple[str, ...]] = ()
    """Values of a hyper-parameter to try, such as lr=1e-3,3e-3; repeat the flag for a grid. The
    validation part selects the best point."""
    search_seeds: Annotated[int, Range(1, 10_000)] = 1
    """Number of seeds per point of a sweep; the score of a point is their mean."""


@option_group
class OutputOptions:
    """Output and devices."""

    out: Path | None = None
    """Run directory; by default a new one in runs, named after command, loss and time."""
    resume: Path | None = None
    """Resume the run in this directory, with its configuration."""
    checkpoint_seconds: Annotated[float, NOT_NEGATIVE] = 30.0
    """Minimum number of seconds between two checkpoints."""
    log: Literal["none", "tensorboard", "wandb"] = "none"
    """Also log the history to TensorBoard, in the folder tensorboard of the run directory, or to
    Weights & Biases, in the project crl_jax."""
    device: Literal["any", "cpu", "gpu", "tpu"] = "any"
    """Fail unless this kind of device is available."""
    mesh: str | None = None
    """Mesh of several devices, such as data=4: batches are sharded over them. A run can be resumed
    on another number of devices, unless it also searches models that are fitted on the host."""
    processes: str | None = field(default=None, metadata={LEGACY_VALUE: None})
    """Train with several processes: auto to detect the cluster, or INDEX/COUNT@HOST:PORT with the
    address of the first process, such as 0/2@localhost:1234. All processes must see the same
    files."""


RULES: dict[str, train.Rule] = {
    "adam": train.adam_l2,
    "adamw": train.adamw,
    "adagrad": train.adagrad_l2,
    "rowwise-adagrad": train.rowwise_adagrad_l2,
    "lars": train.lars,
    "sgd": train.sgd_l2,
}
SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "constant": train.constant,
    "step": train.step_decay,
    "linear": train.linear,
    "cosine": train.cosine,
}
NUMBERS = ("lr", "weight_decay", "decay", "warm_up")
"""Names of the options that a sweep can set."""


def make_optimizer(options: OptimizerOptions, numbers: dict[str, float]) -> train.Optimizer:
    """Returns the optimiser; values of a sweep override those of the flags."""
    values: dict[str, Any] = {name: numbers.get(name, getattr(options, name)) for name in NUMBERS}
    return train.Optimizer(
        learning_rate=values["lr"], weight_decay=values["weight_decay"], decay=values["decay"],
        warm_up=values["warm_up"], schedule=SCHEDULES[options.schedule],
        rule=RULES[options.optimizer],
    )  # fmt: skip


def check_search(protocol: SeedOptions, is_searched: bool = False) -> None:
    """Checks that seeds are 32-bit numbers, and that seeds of a search have a search.

    Args:
      protocol: The options.
      is_searched: Whether there is a search without a sweep.

    Raises:
      ValueError: If they are not, or it has none.
    """
    seed, seeds = protocol.seed, protocol.seeds
    if seed + seeds > 2**32:
        raise ValueError(
            f"the last of the seeds must be below 2^32, got --seed {seed} --seeds {seeds}."
        )
    search_seeds = protocol.search_seeds
    if search_seeds > 1 and not protocol.sweep and not is_searched:
        raise ValueError(f"--search-seeds {search_seeds} averages over what --sweep tries: add it.")


OMIT_ADVICE = "leave it out"


def refuse_labels(
    config: Any, unit: str, requests: Mapping[str, tuple[bool, str]], but: Sequence[str] = ()
) -> None:
    """Rejects flags that need labels, for examples without labels.

    Args:
      config: Configuration with the options of the k-nearest-neighbour classifier.
      unit: Plural noun for the examples.
      requests: Further flags: whether each was given, and the advice of the error message.
      but: Further options of the evaluation that need labels.

    Raises:
      ValueError: If a flag was given.
    """
    source, protocol, default = config.source, config.protocol, type(config.protocol)()
    requests = {
        **requests,
        "--valid-fraction": (source.valid_fraction is not None, OMIT_ADVICE),
        "--alpha-from labels": (
            config.objective.alpha_from == "labels", "--alpha-from views needs none"
        ),
        "--sweep": (bool(protocol.sweep), f"{OMIT_ADVICE}: nothing decides it"),
    }  # fmt: skip
    for name in ("neighbours", "knn_temperature", *but):
        requests[flag(name)] = (getattr(protocol, name) != getattr(default, name), OMIT_ADVICE)
    for name, (is_set, advice) in requests.items():
        if is_set:
            raise ValueError(
                f"{name} needs labels, and the {unit} of {source.data} have none; {advice}."
            )
