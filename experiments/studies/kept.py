"""Outcomes of trainings on disk, so that targets share them and commands can resume."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import __version__, train

from .._locks import hold
from .._rundir import write_json
from .methods import Method, World
from .outcomes import Outcome
from .training import OnEpoch, train_minibatch, train_published

# Format version of a stored outcome; other versions are not read.
_FORM = 4


def run_once(
    method: Method,
    world: World,
    setting: str,
    seeds: tuple[int, ...],
    epochs: int,
    folder: Path,
    watch: Callable[[], OnEpoch],
) -> Outcome:
    """Trains a method, or reads the outcome stored by an earlier command in the same folder.

    Args:
      method: The method.
      world: The data.
      setting: ``"published"`` or ``"minibatch"``.
      seeds: The seeds.
      epochs: Number of epochs of the training.
      folder: Folder of the stored outcomes, keyed by all that they depend on, for one version of
        JAX. A training that was killed resumes from its checkpoint; if another process is running
        the same training, the function waits for it.
      watch: Called at the start of a training, but not for a stored outcome; the returned function
        is called with each entry of the history.
    """
    path = path_of(method, world, setting, seeds, epochs, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with hold(path.with_suffix(".lock")):  # another command may be running the same training
        if path.exists():
            # The same training may appear in several tables under several names.
            return Outcome(**{**json.loads(path.read_text()), "label": method.label})
        runner = train_published if setting == "published" else train_minibatch
        checkpoint = path.with_suffix(".npz")
        outcome = runner(method, world, seeds, epochs, checkpoint=checkpoint, on_epoch=watch())
        write_json(path, dataclasses.asdict(outcome))
        for left in folder.glob(f"{path.stem}.*npz"):
            left.unlink()
        return outcome


def path_of(
    method: Method, world: World, setting: str, seeds: tuple[int, ...], epochs: int, folder: Path
) -> Path:
    """Returns the path at which :func:`run_once` stores the outcome."""
    knows = [
        __version__, _FORM, setting, list(seeds), epochs,
        world.train.fingerprint(), world.test.fingerprint(),
        *_describe(method.sampler(world)),
        _computed(method), method.hyperparams, method.n_neg, method.n_pos, method.draw,
        *_further(method, world),
    ]  # fmt: skip
    name = hashlib.sha256(json.dumps(knows).encode()).hexdigest()[:16]
    return folder / f"{setting}-{name}.json"


def _computed(method: Method) -> list[str]:
    """Returns hashes of the loss and the schedule, so that a changed formula has another key."""
    ahead = 1 + method.n_pos + method.n_group
    pos = jax.ShapeDtypeStruct((2, ahead) if ahead > 1 else (2,), jnp.float32)
    neg = jax.ShapeDtypeStruct((2, method.n_neg), jnp.float32)
    loss = partial(method.loss, reduce_fn=None, **method.hyperparams)
    found = [train.computation_hash(loss, pos, neg)]
    if method.schedule is not None:
        number = jax.ShapeDtypeStruct((), jnp.float32)
        numbers = dict.fromkeys(method.hyperparams, number)
        found.append(train.computation_hash(method.schedule, number, numbers))
    return found


def _describe(tree: Any) -> tuple[str, list[str]]:
    """Returns an identifier of a pytree, with hashes of its arrays."""
    leaves, structure = jax.tree.flatten(tree)
    hashes = [hashlib.sha256(np.asarray(leaf).tobytes()).hexdigest() for leaf in leaves]
    return re.sub(r" at 0x[0-9a-f]+", "", str(structure)), hashes


def _further(method: Method, world: World) -> list[Any]:
    """Returns the non-default settings of a method other than loss and sampler."""
    plain = Method(method.label)
    names = ("n_group", "axis", "anchors", "rate")
    found: dict[str, Any] = {
        name: str(getattr(method, name))
        for name in names
        if getattr(method, name) != getattr(plain, name)
    }
    if method.recipe != plain.recipe:
        # The number of epochs is a separate part of the key.
        found["recipe"] = str(dataclasses.replace(method.recipe, epochs=0))
    if method.minibatch != plain.minibatch:
        found["minibatch"] = str(dataclasses.replace(method.minibatch, epochs=0))
    if method.confidence is not None:
        found["confidence"] = _describe(method.confidence(world))
    return [found] if found else []
