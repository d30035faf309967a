"""What a run keeps for use: trained networks, in ``encoder.npz`` beside its configuration."""

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
from ._program import program
from ._schema import Schema
from ._screen import output, plain

ENCODER = "encoder.npz"
_BLOCK = 250
"""Examples that are encoded at a time."""

C = TypeVar("C")
E = TypeVar("E", bound="EmbedOptions")


@dataclass(frozen=True)
class EmbedOptions:
    """What is embedded."""

    run: Path
    """Run directory."""
    out: Path = Path("features.npz")
    """The file that is written."""


def parse_embed(kind: type[E], command: str, description: str, arguments: list[str]) -> E:
    """Parses the flags of ``embed`` of a command."""
    return tyro.cli(
        kind, prog=f"{program(command)} embed", description=description, args=arguments,
        config=(tyro.conf.FlagConversionOff,),
    )  # fmt: skip


@dataclass(frozen=True)
class SavedEncoder(Generic[C]):
    """What a run has kept.

    Attributes:
      folder: The run directory.
      config: Its configuration.
      told: What was told of the networks beside their variables.
    """

    folder: Path
    config: C
    told: dict[str, Any]

    @property
    def path(self) -> Path:
        """The file of the networks."""
        return self.folder / ENCODER

    def variables(self, init: Callable[..., tuple[Any, Any]]) -> tuple[Any, Any]:
        """Parameters and other variables, as ``init(key)`` makes them.

        Raises:
          ValueError: If the file holds others.
        """
        like: Any = dict(zip(("params", "rest"), jax.eval_shape(init, jax.random.key(0))))
        stored, _ = train.load_checkpoint(self.path, like)
        return jax.tree.map(jnp.asarray, (stored["params"], stored["rest"]))


@dataclass(frozen=True)
class TrainedNetwork(Generic[C]):
    """The backbone that a run learned, for examples like those it learned from.

    Attributes:
      config: The configuration of the run.
      network: From views to features.
      variables: Its parameters, and its other variables.
    """

    config: C
    network: models.Network
    variables: tuple[Any, Any]


def save_encoder(folder: Path, params: Any, rest: Any, **told: Any) -> None:
    """Writes parameters and other variables of networks, and what is told of them, JSON."""
    tree = jax.device_get({"params": params, "rest": rest})
    train.save_checkpoint(folder / ENCODER, tree, told)


def save_backbone(folder: Path, learned: Learned, **told: Any) -> None:
    """Writes the backbone of what was learned, without the head."""
    params, rest = learned.task.network_variables(learned.params, learned.model_state)
    save_encoder(folder, params["backbone"], rest["backbone"], **told)


def open_encoder(folder: Path, schema: Schema[C]) -> SavedEncoder[C]:
    """What the run of a command has kept.

    Raises:
      ValueError: If there is no trained network in ``folder``, or it is damaged.
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
    """Augmentation of a task that only embeds: the example as it is."""
    del key
    return example


def encode(
    network: models.Network, variables: tuple[Any, Any], examples: Any, augment: Any = None
) -> np.ndarray:
    """What a network makes of examples on the host, outside training.

    Args:
      network: The network.
      variables: Its parameters, and its other variables.
      examples: Every leaf ``[n, ...]``, n >= 1.
      augment: The network sees what its ``plain`` makes of them; None leaves them as they are.
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
    """Writes features ``[n, dim]`` and arrays beside them, atomically, and says so.

    Args:
      path: The file.
      unit: What they are of, such as ``"images"``.
      features: The features.
      more: Further arrays by name.
    """
    rundir.write_arrays(path, features=features, **more)
    n, dim = features.shape
    output().print(f"{n:,} {unit}, {dim} features each, in {plain(path)}")
