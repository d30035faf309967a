"""Saving and loading of trained networks, in ``encoder.npz`` of a run directory, and ``embed``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from crl_jax import models, tasks, train

from . import _rundir as rundir
from ._program import program
from ._ranges import option_group, parse_flags
from ._schema import Schema
from ._screen import output, plain
from ._trained_model import BLOCK, TrainedModel

ENCODER = "encoder.npz"

C = TypeVar("C")
E = TypeVar("E", bound="EmbedOptions")


@option_group
class EmbedOptions:
    """Options of ``embed``."""

    run: Path
    """Run directory of a finished training."""
    out: Path = Path("features.npz")
    """Output file for the features."""

    def check(self) -> None:
        """Raises ``ValueError`` if flags contradict each other."""


def embed_command(
    kind: type[E], command: str, description: str, load: Callable[[Path], Any],
    embed: Callable[[E, Any], tuple[str, dict[str, Any]]],
) -> Callable[[list[str]], None]:  # fmt: skip
    """Returns the ``embed`` subcommand of a command, which writes the features of examples.

    Args:
      kind: Options of the subcommand.
      command: The command.
      description: Help text.
      load: Loads the encoder of a run directory.
      embed: Function ``embed(options, encoder)`` that returns the plural noun for the examples,
        such as ``"images"``, and the arrays to write, including their ``features [n, dim]``.
    """

    def main(arguments: list[str]) -> None:
        options = parse_flags(
            kind, f"{program(command)} embed", description, arguments,
            (tyro.conf.FlagConversionOff,),
        )  # fmt: skip
        options.check()
        rundir.make_out_for(options.out)
        unit, arrays = embed(options, load(options.run))
        rundir.write_arrays(options.out, **arrays)
        n, dim = arrays["features"].shape
        output().print(f"{n:,} {unit}, {dim} features each, in {plain(options.out)}")

    return main


def label_arrays(split: Any) -> dict[str, np.ndarray]:
    """Returns the labels of all examples of a split, its classes, and the part of each example."""
    parts = dict(split.parts())
    return {
        "labels": np.concatenate([part.labels for part in parts.values()]),
        "classes": np.array(split.train.classes, np.str_),
        "part": np.repeat(list(parts), [len(part) for part in parts.values()]),
    }


def check_input(source: str, template: str, size: int, expected: int, run: Path) -> None:
    """Raises ``ValueError`` unless examples have the size that the encoder of a run expects.

    The message names the flag ``source`` and the size, by ``template="nodes of {} features"``.
    """
    if size != expected:
        description = template.format(size)
        raise ValueError(f"{source} has {description}: the encoder of {run} takes {expected}.")


@dataclass(frozen=True)
class SavedEncoder(Generic[C]):
    """Saved networks of a run.

    Attributes:
      folder: The run directory.
      config: Its configuration.
      metadata: Metadata of the networks, stored with their variables.
    """

    folder: Path
    config: C
    metadata: dict[str, Any]

    @property
    def path(self) -> Path:
        """Path of the file with the networks."""
        return self.folder / ENCODER

    def variables(self, init: Callable[..., tuple[Any, Any]]) -> tuple[Any, Any]:
        """Returns parameters and other variables, with the structure that ``init(key)`` returns.

        Raises:
          ValueError: If the file has variables of another structure.
        """
        like: Any = dict(zip(("params", "rest"), jax.eval_shape(init, jax.random.key(0))))
        stored, _ = train.load_checkpoint(self.path, like)
        return jax.tree.map(jnp.asarray, (stored["params"], stored["rest"]))


@dataclass(frozen=True)
class TrainedNetwork(Generic[C]):
    """Trained backbone of a run.

    Attributes:
      config: The configuration of the run.
      network: Network that maps views to features.
      variables: Its parameters, and its other variables.
    """

    config: C
    network: models.Network
    variables: tuple[Any, Any]


def save_encoder(folder: Path, params: Any, rest: Any, **metadata: Any) -> None:
    """Saves parameters and other variables of networks, with metadata as JSON."""
    tree = jax.device_get({"params": params, "rest": rest})
    train.save_checkpoint(folder / ENCODER, tree, metadata)


def save_backbone(folder: Path, learned: TrainedModel, **metadata: Any) -> None:
    """Saves the backbone of a trained model, without the projection head."""
    params, rest = learned.task.network_variables(learned.params, learned.model_state)
    save_encoder(folder, params["backbone"], rest["backbone"], **metadata)


def open_encoder(folder: Path, schema: Schema[C]) -> SavedEncoder[C]:
    """Opens the saved networks of a run.

    Raises:
      ValueError: If ``folder`` has no trained network, or its file is corrupt.
    """
    config, path = rundir.open_run(folder, schema), folder / ENCODER
    try:
        _, metadata = train.load_checkpoint(path)
    except FileNotFoundError:
        reason = "its training is not finished"
        if (folder / rundir.METRICS).exists():
            reason = "it was made before encoders were kept; train again"
        raise ValueError(f"{folder} has no {ENCODER}: {reason}.") from None
    return SavedEncoder(folder, config, metadata)


def _identity(key: Any, example: Any) -> Any:
    """Identity augmentation, for a task that only embeds."""
    del key
    return example


def encode(
    network: models.Network, variables: tuple[Any, Any], examples: Any, augment: Any = None
) -> np.ndarray:
    """Computes the features of examples in host memory, outside training.

    Args:
      network: The network.
      variables: Its parameters, and its other variables.
      examples: Pytree with leaves ``[n, ...]``, n >= 1.
      augment: Its method ``plain`` preprocesses the examples; None passes them unchanged.
    """
    task = tasks.SimCLR(network, _identity if augment is None else augment)
    n = len(jax.tree.leaves(examples)[0])
    blocks = (
        jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i : i + BLOCK]), examples)
        for i in range(0, n, BLOCK)
    )
    return np.concatenate([np.asarray(_encode(task, *variables, block)) for block in blocks])


@train.jit
def _encode(task: tasks.SimCLR, params: Any, rest: Any, examples: Any) -> Any:
    return task.embed(params, rest, examples)
