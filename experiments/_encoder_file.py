"""Saving and loading of trained networks, in ``encoder.npz`` of a run directory."""

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
from ._learned import Learned
from ._option_group import option_group
from ._program import program
from ._schema import Schema
from ._screen import output, plain

ENCODER = "encoder.npz"
_BLOCK = 250
"""Number of examples per encoding batch."""

C = TypeVar("C")
E = TypeVar("E", bound="EmbedOptions")


@option_group
class EmbedOptions:
    """Options of ``embed``."""

    run: Path
    """Run directory of a finished training."""
    out: Path = Path("features.npz")
    """Output file for the features."""


def parse_embed(kind: type[E], command: str, description: str, arguments: list[str]) -> E:
    """Parses the flags of the ``embed`` subcommand of a command."""
    return tyro.cli(
        kind, prog=f"{program(command)} embed", description=description, args=arguments,
        config=(tyro.conf.FlagConversionOff,),
    )  # fmt: skip


@dataclass(frozen=True)
class SavedEncoder(Generic[C]):
    """Saved networks of a run.

    Attributes:
      folder: The run directory.
      config: Its configuration.
      told: Metadata of the networks, stored with their variables.
    """

    folder: Path
    config: C
    told: dict[str, Any]

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


def save_encoder(folder: Path, params: Any, rest: Any, **told: Any) -> None:
    """Saves parameters and other variables of networks, with metadata as JSON."""
    tree = jax.device_get({"params": params, "rest": rest})
    train.save_checkpoint(folder / ENCODER, tree, told)


def save_backbone(folder: Path, learned: Learned, **told: Any) -> None:
    """Saves the backbone of a trained model, without the projection head."""
    params, rest = learned.task.network_variables(learned.params, learned.model_state)
    save_encoder(folder, params["backbone"], rest["backbone"], **told)


def open_encoder(folder: Path, schema: Schema[C]) -> SavedEncoder[C]:
    """Opens the saved networks of a run.

    Raises:
      ValueError: If ``folder`` has no trained network, or its file is corrupt.
    """
    config, path = rundir.open_run(folder, schema), folder / ENCODER
    try:
        _, told = train.load_checkpoint(path)
    except FileNotFoundError:
        why = "its training is not finished"
        if (folder / rundir.METRICS).exists():
            why = "it was made before encoders were kept; train again"
        raise ValueError(f"{folder} has no {ENCODER}: {why}.") from None
    return SavedEncoder(folder, config, told)


def _unchanged(key: Any, example: Any) -> Any:
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
    task = tasks.SimCLR(network, _unchanged if augment is None else augment)
    n = len(jax.tree.leaves(examples)[0])
    blocks = (
        jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i : i + _BLOCK]), examples)
        for i in range(0, n, _BLOCK)
    )
    return np.concatenate([np.asarray(_encode(task, *variables, block)) for block in blocks])


@train.jit
def _encode(task: tasks.SimCLR, params: Any, rest: Any, examples: Any) -> Any:
    return task.embed(params, rest, examples)


def write_features(path: Path, unit: str, features: np.ndarray, **more: Any) -> None:
    """Writes features ``[n, dim]`` and further arrays atomically, and prints a summary.

    Args:
      path: The output file.
      unit: Plural noun for the examples, such as ``"images"``.
      features: The features.
      more: Further arrays by name.
    """
    rundir.write_arrays(path, features=features, **more)
    n, dim = features.shape
    output().print(f"{n:,} {unit}, {dim} features each, in {plain(path)}")
