"""Stored outcomes of trainings, which targets share and from which commands resume."""

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import __version__, train

from .._rundir import lock_file, write_json
from .._schema import to_json
from ..images._config import Config
from ..images._problem import Problem as ImageProblem
from ..images._study import Images
from ..text._config import Config as TextConfig
from .methods import Method, Problem
from .outcomes import Outcome

# Format versions of stored outcomes; other versions are not read.
_RANKING_FORMAT, _IMAGE_FORMAT, _TEXT_FORMAT = 4, 2, 1
_SECTIONS = ("views", "method", "objective", "encoding", "training", "protocol")


def run_once(path: Path, label: str, train: Callable[[Path], Outcome]) -> Outcome:
    """Returns the outcome stored at ``path``, or trains and stores it.

    If another process is running the same training, the function waits for it.

    Args:
      path: Path of the outcome, which identifies all that it depends on.
      label: Name of the outcome: the same training may be in several tables under several names.
      train: Returns the outcome, given a folder for checkpoints. A training that was killed resumes
        from them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock_file(path.with_suffix(".lock")):
        if path.exists():
            return Outcome(**{**json.loads(path.read_text()), "label": label})
        checkpoints = path.with_suffix("")
        checkpoints.mkdir(exist_ok=True)
        outcome = train(checkpoints)
        write_json(path, dataclasses.asdict(outcome))
        shutil.rmtree(checkpoints)
        return outcome


def ranking_path(
    method: Method,
    problem: Problem,
    setting: str,
    seeds: tuple[int, ...],
    epochs: int,
    folder: Path,
) -> Path:
    """Returns the path of the outcome of a method, for one version of JAX."""
    content = [
        __version__, _RANKING_FORMAT, setting, list(seeds), epochs,
        problem.train.fingerprint(), problem.test.fingerprint(),
        *_describe(method.sampler(problem)),
        computation_hashes(method),
        method.hyperparams, method.n_neg, method.n_pos, method.draw,
        *changed_settings(method, problem),
    ]  # fmt: skip
    return folder / f"{setting}-{_hash(json.dumps(content).encode())[:16]}.json"


def image_path(config: Config, problem: ImageProblem, folder: Path) -> Path:
    """Returns the path of the outcome of a configuration with all defaults."""
    task = Images().task(config, problem, "final", {})
    stored, images = to_json(config), (problem.train, problem.test)
    content = [
        __version__, _IMAGE_FORMAT, {name: stored[name] for name in _SECTIONS},
        str(jax.eval_shape(task.init, jax.random.key(0))),
        *(_hash(np.asarray(part.images).tobytes() + part.labels.tobytes()) for part in images),
    ]  # fmt: skip
    return folder / f"images-{_hash(json.dumps(content, sort_keys=True).encode())[:16]}.json"


def text_path(config: TextConfig, folder: Path) -> Path:
    """Returns the path of the outcome of a configuration with all defaults on texts."""
    stored = to_json(config)
    files = sorted(Path(config.source.data).parent.glob(f"{Path(config.source.data).name}*"))
    files += [path for folder in files if folder.is_dir() for path in sorted(folder.iterdir())]
    content = [
        __version__, _TEXT_FORMAT, {name: x for name, x in stored.items() if name != "output"},
        *(_hash(path.read_bytes()) for path in files if path.is_file()),
    ]  # fmt: skip
    return folder / f"texts-{_hash(json.dumps(content, sort_keys=True).encode())[:16]}.json"


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def computation_hashes(method: Method) -> list[str]:
    """Returns hashes of the loss and the schedule, so that a changed formula has another key."""
    width = 1 + method.n_pos + method.n_group
    pos = jax.ShapeDtypeStruct((2, width) if width > 1 else (2,), jnp.float32)
    neg = jax.ShapeDtypeStruct((2, method.n_neg), jnp.float32)
    loss = partial(method.loss, reduce_fn=None, **method.hyperparams)
    hashes = [train.computation_hash(loss, pos, neg)]
    if method.schedule is not None:
        number = jax.ShapeDtypeStruct((), jnp.float32)
        numbers = dict.fromkeys(method.hyperparams, number)
        hashes.append(train.computation_hash(method.schedule, number, numbers))
    return hashes


def _describe(tree: Any) -> tuple[str, list[str]]:
    """Returns an identifier of a pytree, with hashes of its arrays."""
    leaves, structure = jax.tree.flatten(tree)
    hashes = [_hash(np.asarray(leaf).tobytes()) for leaf in leaves]
    return re.sub(r" at 0x[0-9a-f]+", "", str(structure)), hashes


def changed_settings(method: Method, problem: Problem) -> list[Any]:
    """Returns the non-default settings of a method other than loss and sampler."""
    plain = Method(method.label)
    changed: dict[str, Any] = {
        name: str(getattr(method, name))
        for name in ("n_group", "axis", "anchors", "rate")
        if getattr(method, name) != getattr(plain, name)
    }
    for name in ("recipe", "minibatch"):
        if getattr(method, name) != getattr(plain, name):
            # The number of epochs is a separate part of the key.
            changed[name] = str(dataclasses.replace(getattr(method, name), epochs=0))
    if method.confidence is not None:
        changed["confidence"] = _describe(method.confidence(problem))
    return [changed] if changed else []
