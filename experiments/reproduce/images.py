"""Tables on images in chapter 6: contrastive losses and the effect of their hyper-parameters."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from .._progress import TrainingStatus, display
from .._study import Run
from .._trained_model import evenly_spaced
from ..configs.cifar10_small import small
from ..configs.resnet50 import DATASETS, LOSSES, published
from ..images._config import Config
from ..images._problem import Problem, load_problem
from ..images._study import Images
from .cost import start_and_epoch
from .data import image_sets, image_source
from .outcomes import Outcome, ReportedMetrics
from .store import image_path, run_once
from .tables import Group, choose, make_table, note_on_seeds
from .tables import published as published_numbers
from .targets import Job, Options, Target
from .training import train_study

_NAMES = {"simclr": "info_nce", "dcl": "dcl", "hcl": "hcl", "bcl": "bcl"}
"""The names of the losses in the published tables."""
_OPTIMUM = (
    "linear: accuracy of a linear classifier that is fitted to convergence on the features of "
    "unaugmented images"
)
_COMPARED = "Rows are compared with the first of their group by image, averaged over seeds."
_NOTES = {
    "published": (
        "linear_augmented: accuracy of a linear classifier that is trained on features of random "
        f"views for 100 epochs, as published. {_OPTIMUM}. {_COMPARED}",
    ),
    "small": (
        f"{_OPTIMUM}; the published one is trained on features of random views. {_COMPARED}",
    ),
}
_TIMING_NOTES = (
    "Nothing is trained to the end: seconds_per_epoch is the number of steps of an epoch times the "
    "seconds of a step, the least of several epochs of two steps. A repetition times all rows, "
    "and counts as a seed.",
)
_AUGMENTED = "linear_augmented"
_STEPS, _EPOCHS = 2, 4


@dataclass(frozen=True)
class Line:
    """A row of a table.

    Attributes:
      label: Its name.
      loss: Its loss.
      published: Its name in the published table.
      changes: Changed values, by section of the configuration.
    """

    label: str
    loss: str
    published: str
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def configure(self, config: Config) -> Config:
        """Returns the configuration of the loss with the changed values."""
        return _with_changes(config, **self.changes)


def _with_changes(config: Config, **sections: Mapping[str, Any]) -> Config:
    changed = {name: replace(getattr(config, name), **values) for name, values in sections.items()}
    return replace(config, **changed)


def _numbers_of_negatives(*numbers: int) -> dict[str, list[Line]]:
    return {
        f", N={n}": [
            Line(loss, loss, f"{_NAMES[loss]}|N={n}", {"training": {"batch_size": n // 2 + 1}})
            for loss in LOSSES
        ]
        for n in numbers
    }


def _values(name: str, *values: float) -> dict[str, list[Line]]:
    """Returns BCL with different values of a hyper-parameter."""
    return {
        "": [
            Line(f"bcl, {name}={x}", "bcl", f"bcl|{name}={x}", {"objective": {name: x}})
            for x in values
        ]
    }


@dataclass(frozen=True, kw_only=True)
class ImageTable:
    """Callable that trains the rows of a table on images and writes it.

    Attributes:
      datasets: Datasets of the published table.
      groups: Rows of each group, by suffix of its name.
      timed: Whether the rows are timed for a few steps instead of trained.
      reported: Reported metrics. At the published scale, those named ``linear`` are preceded by
        those of the published protocol, next to the published results.
    """

    groups: Mapping[str, Sequence[Line]]
    datasets: tuple[str, ...]
    timed: bool = False
    reported: ReportedMetrics = ReportedMetrics(("linear", "knn"), "linear", "images")

    def __call__(self, job: Job) -> None:
        """Trains the rows, prints the table and writes the completed part after each group."""
        options = job.options
        job = job._replace(title=f"{job.title}, {options.scale} scale")
        make_table(
            (list(self._groups(dataset, job)) for dataset in image_sets(options, self.datasets)),
            job,
            path=options.out / f"{options.target}-{options.scale}",
            title=lambda _: job.title,
            notes=lambda _: [_training_note(options), *self._notes(options)],
            reported=self._reported(options),
            estimate="" if self.timed else "least",
        )

    def _notes(self, options: Options) -> Sequence[str]:
        return _TIMING_NOTES if self.timed else _NOTES[options.scale]

    def _reported(self, options: Options) -> ReportedMetrics:
        own = self.reported
        if options.scale == "small" or not own.main.startswith("linear"):
            return own
        protocol = tuple(_as_published(name) for name in own.metrics if name.startswith("linear"))
        return replace(own, metrics=(*protocol, *own.metrics), main=_as_published(own.main))

    def _groups(self, dataset: str, job: Job) -> Iterator[Group]:
        options = job.options
        known = published_numbers(job.number, dataset, "resnet50")
        if options.scale != "small":
            known = {
                method: {_as_published(name): value for name, value in results.items()}
                for method, results in known.items()
            }
        shared = {
            "source": {"data": image_source(options, dataset)},
            "protocol": {"seeds": options.seeds},
            "training": {"epochs": options.epochs} if options.epochs else {},
        }
        base = small if options.scale == "small" else published
        problem = None
        for suffix, lines in self.groups.items():
            chosen = choose({line.label: line for line in lines}, options.methods)
            trainings = []
            for line in chosen:
                config = _with_changes(line.configure(base(dataset, line.loss)), **shared)
                problem = problem or load_problem(config.source, job.console.print)
                trainings.append((line.label, Images().prepare(config, problem), problem))
            encoder = f"{trainings[0][1].encoding.encoder}{suffix}"
            runs = options.out / "runs"
            yield Group(
                dataset,
                encoder,
                title=f"{job.title}, {dataset}, {encoder}",
                published=[known.get(line.published, {}) for line in chosen],
                times=[
                    (label, partial(_seconds, config, problem, runs))
                    for label, config, problem in trainings
                ],
                train=partial(_time_all, trainings, options.seeds)
                if self.timed
                else partial(_train_all, dataset + suffix, trainings, runs, job.console),
            )


def _as_published(metric: str) -> str:
    """Returns the metric of the classifier of the published protocol."""
    return metric.replace("linear", _AUGMENTED)


def _train_all(
    name: str, trainings: Sequence[tuple[str, Config, Problem]], runs: Path, console: Console
) -> list[Outcome]:
    return [
        run_once(
            image_path(config, problem, runs),
            label,
            partial(_train, f"{name}, {label}", label, config, problem, console),
        )
        for label, config, problem in trainings
    ]


def _time_all(trainings: Sequence[tuple[str, Config, Problem]], repetitions: int) -> list[Outcome]:
    """Returns outcomes with the metric ``seconds_per_epoch``, measured alternately."""
    measurements: dict[str, list[dict[str, float]]] = {label: [] for label, *_ in trainings}
    for _ in range(repetitions):
        for label, config, problem in trainings:
            steps = -(-len(problem.train) // config.training.batch_size)
            measurements[label].append({"seconds_per_epoch": steps * measure(config, problem)[1]})
    return [Outcome(label, per_seed, [], [], {}) for label, per_seed in measurements.items()]


def _train(
    name: str, label: str, config: Config, problem: Problem, console: Console, checkpoints: Path
) -> Outcome:
    """Trains and evaluates all seeds of a configuration."""
    statuses = TrainingStatus(("train_knn",), {"final": len(problem.train)}, "images")
    history: list[dict[str, Any]] = []
    with display(console) as screen:

        def on_entry(run: Run, entry: dict[str, Any]) -> None:
            history.append({"run": run.index, **entry})
            status = statuses.format("final", entry, run.index)
            epochs = config.training.epochs
            screen.advance(f"{name}, seed {run.seed}", entry["epoch"], epochs, status)

        return train_study(Images(), config, problem, label, checkpoints, on_entry, history)


def _seconds(config: Config, problem: Problem, runs: Path) -> float:
    """Returns a lower bound on the training time, without reports and evaluation."""
    if image_path(config, problem, runs).exists():
        return 0.0
    options = config.training
    start, step = measure(config, problem)
    steps = options.epochs * -(-len(problem.train) // options.batch_size)
    return start + config.protocol.seeds * steps * step


def measure(config: Config, problem: Problem) -> tuple[float, float]:
    """Returns the seconds until the first epoch, which is mostly compilation, and per step."""
    # Evenly spaced, since estimates of alpha need several classes and files may be in their order.
    part = problem.train.take(
        evenly_spaced(len(problem.train), _STEPS * config.training.batch_size)
    )
    short = replace(config.training, epochs=_EPOCHS, eval_every=1)
    entries: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        Images().fit(
            replace(config, training=short), replace(problem, train=part),
            Run("final", 0, 1, config.protocol.seed, {}), Path(folder), entries.append,
        )  # fmt: skip
    start, epoch = start_and_epoch(entries)
    return start, epoch / -(-len(part) // config.training.batch_size)


def _training_note(options: Options) -> str:
    config = (small if options.scale == "small" else published)("cifar10", "simclr")
    training, images = config.training, config.source.train_images
    data = f"{images:,} images of each dataset" if images else "all training images"
    return (
        f"{note_on_seeds(options.seeds)} "
        f"{config.encoding.encoder} on {data}, {options.epochs or training.epochs} epochs of Adam, "
        f"t = {training.temperature:g}, batches of {training.batch_size} unless N is given."
    )


def _target(title: str, datasets: tuple[str, ...] = tuple(DATASETS), **table: Any) -> Target:
    is_timed = table.get("timed", False)
    return Target(
        title=title,
        load=lambda options, console: [],
        make=ImageTable(datasets=datasets, **table),
        data=f"a folder of {', '.join(datasets)}; --datasets downloads missing ones",
        flags=("datasets", "methods", "scale", *([] if is_timed else ["estimate"])),
        settings=("published",),
    )


TARGETS = {
    "table-6.4": _target(
        "contrastive losses on images",
        groups={"": [Line(loss, loss, _NAMES[loss]) for loss in LOSSES]},
    ),
    "table-6.5": _target(
        "the number of negatives",
        datasets=("cifar10", "stl10"),
        groups=_numbers_of_negatives(30, 62, 126, 254, 510),
    ),
    "table-6.6": _target(
        "the hardness of BCL",
        datasets=("cifar10", "stl10"),
        groups=_values("beta", 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    ),
    "table-6.7": _target(
        "the prior of BCL",
        datasets=("tiny-imagenet",),
        groups=_values("tau_plus", 0.001, 0.005, 0.01),
        reported=ReportedMetrics(("linear", "linear_top5", "knn"), "linear", "images"),
    ),
    "table-6.8": _target(
        "seconds per epoch",
        groups={"": [Line(loss, loss, _NAMES[loss]) for loss in ("simclr", "bcl")]},
        timed=True,
        reported=ReportedMetrics(("seconds_per_epoch",), "seconds_per_epoch", None),
    ),
}
