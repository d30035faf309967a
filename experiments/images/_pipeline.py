"""The runs of a configuration without the screen: search, choice, final trainings, judging."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, metrics, tasks, train, weights

from .._mesh import mesh_of
from .._registry import settle
from .._summary import over_seeds
from ._config import SCHEMA, Config
from ._judge import Learned, judge, neighbours, represent
from ._problem import Problem, evenly, labelled
from ._truth import judge_weights
from ._views import make_views
from .encoders import make_backbone
from .losses import LOSSES
from .methods import METHODS, Parts

_BANK, _QUERIES = 5000, 2000
"""Images that vote, and that are asked, in the accuracy of each report."""
_LAST = 3
"""Reports whose mean is the score of a run: the last."""
_RULES = {
    "adam": train.adam_l2, "adamw": train.adamw, "lars": train.lars, "sgd": train.sgd_l2,
}  # fmt: skip
_SCHEDULES = {"constant": train.constant, "step": train.step_decay, "cosine": train.cosine}
OnEntry = Callable[["Run", dict[str, Any]], None]
"""``on_entry(run, entry)``, called with each entry of the history of a run."""


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
      phase: ``"search"`` or ``"final"``.
      index: How many of the phase come before it.
      of: How many the phase has.
      seed: The seed of all its randomness.
      numbers: What a sweep sets, by name.
    """

    phase: str
    index: int
    of: int
    seed: int
    numbers: dict[str, float]

    @property
    def name(self) -> str:
        """Such as ``search 2/6``."""
        return f"{self.phase} {self.index + 1}/{self.of}" if self.of > 1 else self.phase


@dataclass(frozen=True)
class Outcome:
    """What a configuration comes to.

    Attributes:
      points: The numbers tried, one dictionary per grid point.
      choice: The choice among them.
      per_seed: Test metrics of every seed.
      learned: What the first seed learned.
    """

    points: list[dict[str, float]]
    choice: train.Choice
    per_seed: list[dict[str, float]]
    learned: Learned


def search(
    config: Config, problem: Problem, checkpoints: Path, on_entry: OnEntry
) -> tuple[list[dict[str, float]], train.Choice]:
    """Tries the points of the sweep, and chooses by the validation part.

    The score of a run is the mean of its last three reports; that of a point, the mean over seeds.
    """
    protocol, epochs = config.protocol, config.training.epochs
    axes = SCHEMA.sweep(protocol.sweep, config)
    if not axes:
        return [{}], train.Choice(0, epochs, np.nan, np.array([np.nan]), np.array([epochs]))
    grid = train.grid(axes, range(protocol.seed, protocol.seed + protocol.search_seeds))
    seeds, numbers = grid.pop("seeds"), grid
    scores = []
    for i, seed in enumerate(seeds):
        own = {name: float(values[i]) for name, values in numbers.items()}
        run = Run("search", i, len(seeds), int(seed), own)
        fitted = fit(config, problem, run, checkpoints, partial(on_entry, run))
        last = [entry["valid_knn"][0] for entry in fitted.history[-_LAST:]]
        scores.append(float(np.mean(last)))
    of_points = np.array(scores).reshape(-1, protocol.search_seeds)
    means = of_points.mean(axis=1)
    if not np.isfinite(means).any():
        raise train.TrainingDiverged("No run of the search came to a finite validation score.")
    best = int(np.nanargmax(means))
    points = [
        {name: float(values[i]) for name, values in numbers.items()}
        for i in range(0, len(seeds), protocol.search_seeds)
    ]
    reached = np.full(len(points), epochs)
    return points, train.Choice(best, epochs, float(means[best]), means, reached)


def learn(
    config: Config, problem: Problem, point: dict[str, float], index: int, checkpoints: Path,
    on_entry: OnEntry,
) -> Learned:  # fmt: skip
    """The final training with one of the seeds, at a point of the sweep."""
    protocol = config.protocol
    run = Run("final", index, protocol.seeds, protocol.seed + index, point)
    fitted = fit(config, problem, run, checkpoints, partial(on_entry, run))
    task = task_of(config, problem.train, point)
    extra = jax.tree.map(lambda leaf: leaf[0], fitted.state.extra)
    return Learned(task, fitted.run(), extra)


class Judged(NamedTuple):
    """What one seed's training comes to.

    Attributes:
      metrics: Test metrics.
      right: Whether the linear classifier finds the class of each labelled test image.
      calibration: How true the posterior of the loss is; None if it has none.
    """

    metrics: dict[str, float]
    right: np.ndarray
    calibration: weights.Calibration | None


def judged(
    config: Config, problem: Problem, learned: Learned, seed: int, on_stage: Callable[[str], None]
) -> Judged:
    """Test metrics of what one seed learned, those of the weights of its loss among them."""
    on_stage(f"judging seed {seed}")
    found = judge(config.protocol, problem.labelled, problem.test, learned, seed)
    entry = LOSSES[config.objective.loss]
    if entry.weigh is None or not METHODS[config.method.method].takes_loss:
        return Judged(*found, None)
    truth = judge_weights(entry, learned, problem.test, seed)
    return Judged(found.metrics | truth.metrics, found.right, truth.calibration)


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
    task = task_of(config, part, run.numbers)
    optimizer = train.Optimizer(
        learning_rate=run.numbers.get("lr", options.lr),
        weight_decay=run.numbers.get("weight_decay", options.weight_decay),
        decay=run.numbers.get("decay", options.decay),
        warm_up=run.numbers.get("warm_up", options.warm_up),
        schedule=_SCHEDULES[options.schedule],
        rule=_RULES[options.optimizer],
    )
    name = f"{run.phase}-{run.index}.npz"
    return train.fit(
        task,
        optimizer,
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


def summary(outcome: Outcome, history: list[dict[str, Any]]) -> dict[str, Any]:
    """What ``metrics.json`` holds.

    Returns:
      By name, the mean of each metric over the seeds, and, of several, the standard deviation as
      ``NAME_std``; under ``chosen`` the ``point`` of the sweep by name and, of a sweep, its
      ``valid_knn``; and the ``seconds`` that training took.
    """
    per_seed, choice = outcome.per_seed, outcome.choice
    found: dict[str, Any] = over_seeds(per_seed)
    chosen: dict[str, Any] = {"point": outcome.points[choice.point]}
    if not np.isnan(choice.score):
        chosen["valid_knn"] = choice.score
    found["chosen"] = chosen
    last = {(entry["phase"], entry["run"]): entry["seconds"] for entry in history}
    return found | {"seconds": round(sum(last.values()), 3)}
