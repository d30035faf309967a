"""What a run trains: the task of the flags, its optimiser, and what each report measures."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, metrics, tasks, train

from .._mesh import mesh_of
from .._registry import settle
from .._study import Run
from .._study_options import optimizer_of
from ._config import Config
from ._judge import neighbours, represent
from ._problem import Problem, evenly, labelled
from ._views import make_views
from .encoders import make_backbone
from .losses import LOSSES
from .methods import METHODS, Parts

_BANK, _QUERIES = 5000, 2000
"""Images that vote, and that are asked, in the accuracy of each report."""


def fit(
    config: Config,
    problem: Problem,
    run: Run,
    checkpoints: Path,
    on_entry: Callable[[dict[str, Any]], None],
) -> train.Fitted:
    """One training, which goes on from its checkpoint if there is one."""
    options, output = config.training, config.output
    part = problem.learn if run.phase == "search" else problem.train
    name = f"{run.phase}-{run.index}.npz"
    return train.fit(
        task_of(config, part, run.numbers),
        optimizer_of(options, run.numbers),
        train.ArrayBatches(tasks.Labelled(jnp.asarray(part.images), jnp.asarray(part.labels))),
        train.StepPlan(options.batch_size, mesh=mesh_of(output.mesh)),
        epochs=options.epochs,
        seeds=run.seed,
        eval_every=options.eval_every,
        hooks=[
            train.Validate(_accuracy(config, problem, run.phase)),
            train.Checkpoint(checkpoints / name, output.checkpoint_seconds),
            train.Progress(on_entry),
        ],
    )


def task_of(config: Config, part: data.Images, numbers: dict[str, float]) -> Any:
    """The task that trains on ``part``, with the numbers of a sweep in place of the flags'.

    Raises:
      ValueError: If flags contradict each other or do not suit the images.
    """
    chosen, options = METHODS[config.method.method], config.training
    swept = tuple(numbers)
    of_method = settle("method", config.method, METHODS, swept)
    of_loss: dict[str, Any] = settle("loss", config.objective, LOSSES, swept) | numbers
    entry = LOSSES[config.objective.loss]
    hyperparams: dict[str, Any] = {name: of_loss[name] for name in entry.hyperparams}
    hyperparams["temperature"] = numbers.get("temperature", options.temperature)
    backbone = make_backbone(config.encoding, part.images.shape[-1])
    alpha = _ALPHA[of_loss.get("alpha_from", "given")]
    if alpha is not None:
        del hyperparams["alpha"]
    parts = Parts(
        backbone, backbone.n_features, options.head, make_views(config.views), entry.loss,
        hyperparams, None if alpha is None else alpha(), part,
    )  # fmt: skip
    return chosen.make(parts, **of_method)


def trace_step(config: Config, part: data.Images, numbers: dict[str, float]) -> Any:
    """Looks through a step of what trains on ``part``, without computing anything.

    Returns:
      The task, and the shape of its loss.

    Raises:
      ValueError: If flags contradict each other or do not suit the images.
    """
    task, n = task_of(config, part, numbers), config.training.batch_size

    def step(images: Any, labels: Any) -> Any:
        key, zero = jax.random.key(0), jnp.float32(0)
        params, extra = task.init(key)
        extra = task.start_epoch(key, params, extra, jnp.int32(0))
        place = jnp.arange(n, dtype=jnp.int32)
        batch = task.batch(key, train.Examples(place, tasks.Labelled(images, labels)))
        moment = train.Moment(key, jnp.int32(0), zero, jnp.ones(n, bool), jnp.float32(n))
        return task.loss(params, extra, batch, moment)[0]

    some = part.take(slice(n))
    return task, jax.eval_shape(step, some.images, some.labels)


_ALPHA = {"given": None, "labels": tasks.AlphaByLabels, "views": tasks.AlphaByViews}


def _accuracy(config: Config, problem: Problem, phase: str) -> Any:
    """What each report measures: accuracy of kNN on the validation part, or among what is learned.

    In the final training there is no other part; each image is then left out of its own vote.
    """
    protocol = config.protocol
    rng = np.random.default_rng(protocol.seed)
    part = labelled(problem.learn if phase == "search" else problem.train)
    bank = part.take(evenly(part.labels, min(_BANK, len(part)), rng))
    asked = problem.valid if phase == "search" else bank
    asked = asked.take(slice(_QUERIES))
    arrays = [bank.images, bank.labels, asked.images, asked.labels]
    measure = _valid_knn if phase == "search" else _train_knn
    return jax.tree_util.Partial(
        partial(measure, len(bank.classes), neighbours(protocol.neighbours, len(bank))),
        protocol.knn_temperature, *map(jnp.asarray, arrays),
    )  # fmt: skip


def _valid_knn(
    n_classes: int, k: int, temperature: Any, bank: Any, labels: Any, queries: Any, own: Any,
    task: Any, params: Any, extra: Any,
) -> dict[str, Any]:  # fmt: skip
    found = [represent(task, params, extra, images) for images in (queries, bank)]
    accuracy = metrics.knn_accuracy(
        found[0], own, found[1], labels, n_classes=n_classes, k=k, temperature=temperature
    )
    return {"valid_knn": accuracy}


def _train_knn(
    n_classes: int, k: int, temperature: Any, bank: Any, labels: Any, queries: Any, own: Any,
    task: Any, params: Any, extra: Any,
) -> dict[str, Any]:  # fmt: skip
    found = represent(task, params, extra, bank)
    n = len(queries)
    accuracy = metrics.knn_accuracy(
        found[:n], own, found, labels, n_classes=n_classes, k=k, temperature=temperature,
        leave_out=jnp.arange(n, dtype=jnp.int32),
    )  # fmt: skip
    return {"train_knn": accuracy}
