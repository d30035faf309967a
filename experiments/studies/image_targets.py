"""Targets for tables about images: contrastive losses and the effect of their hyper-parameters."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from .._progress import TrainingStatus, display
from .._study import Run
from ..images._config import Config
from ..images._problem import Problem, load_problem
from ..images._study import Images
from ..images.recipes import DATASETS, LOSSES, published, small
from .image_cost import Training, announce
from .kept_images import run_once
from .outcomes import Outcome, Reported
from .published import published as published_numbers
from .tables import Group, compare, rich_table, write_table
from .targets import Options, Reproduction, alone

_ACCURACY = Reported(("linear", "knn"), "linear", "images")
_NAMES = {"simclr": "info_nce", "dcl": "dcl", "hcl": "hcl", "bcl": "bcl"}
"""The names of the losses in the published tables."""
_NOTES = (
    "linear: the accuracy of a linear classifier that is fitted to its optimum on the features of "
    "images as they are; the published one is trained on features of random views. Rows are "
    "compared with the first of their group, image by image, each averaged over seeds.",
)


@dataclass(frozen=True)
class Line:
    """A row of a table.

    Attributes:
      label: Its name.
      published: Its name in the published table.
      config: Configuration of its training.
    """

    label: str
    published: str
    config: Config


Groups = Callable[[Callable[[str], Config]], Iterator[tuple[str, list[Line]]]]
"""``groups(of)``: the name suffix and the rows of each group, from the configuration of each
loss."""


def _with(config: Config, section: str, **numbers: Any) -> Config:
    return replace(config, **{section: replace(getattr(config, section), **numbers)})


def _losses(of: Callable[[str], Config]) -> Iterator[tuple[str, list[Line]]]:
    yield "", [Line(loss, _NAMES[loss], of(loss)) for loss in LOSSES]


def _negatives(*numbers: int) -> Groups:
    """Returns groups with all losses, for each number of negatives."""

    def groups(of: Callable[[str], Config]) -> Iterator[tuple[str, list[Line]]]:
        for n in numbers:
            lines = []
            for loss in LOSSES:
                config = _with(of(loss), "training", batch_size=n // 2 + 1)
                lines.append(Line(loss, f"{_NAMES[loss]}|N={n}", config))
            yield f", N={n}", lines

    return groups


def _hardness(of: Callable[[str], Config]) -> Iterator[tuple[str, list[Line]]]:
    yield (
        "",
        [
            Line(f"bcl, beta={beta}", f"bcl|beta={beta}", _with(of("bcl"), "objective", beta=beta))
            for beta in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
        ],
    )


def _priors(of: Callable[[str], Config]) -> Iterator[tuple[str, list[Line]]]:
    yield "", [
        Line(
            f"bcl, tau_plus={tau}", f"bcl|tau_plus={tau}",
            _with(of("bcl"), "objective", tau_plus=tau),
        )
        for tau in (0.001, 0.005, 0.01)
    ]  # fmt: skip


def _cost(of: Callable[[str], Config]) -> Iterator[tuple[str, list[Line]]]:
    yield "", [Line(loss, _NAMES[loss], of(loss)) for loss in ("simclr", "bcl")]


@dataclass(frozen=True, kw_only=True)
class ImageTarget(Reproduction):
    """A table about images.

    Attributes:
      number: Number of the dissertation's table.
      datasets: Datasets of the published table.
      groups: See :data:`Groups`.
      small_groups: Groups at small scale; by default all.
      reported: Reported metrics.
    """

    number: str
    datasets: tuple[str, ...]
    groups: Groups
    small_groups: Groups | None = None
    reported: Reported = _ACCURACY
    flags: tuple[str, ...] = ("datasets", "methods", "scale", "estimate")
    settings: tuple[str, ...] = ("published",)

    def run(self, options: Options, console: Console) -> None:
        """See :meth:`Reproduction.run`."""
        with alone(options):
            found, title = [], f"{self.title}, {options.scale} scale"
            path = options.out / f"{options.target}-{options.scale}"
            for dataset in self._datasets(options):
                planned = self._planned(dataset, options, console)
                announce(
                    [each for _, of_group in planned for _, each in of_group], title,
                    options.out / "runs", console,
                )  # fmt: skip
                if options.estimate:
                    continue
                for group in self._trained(dataset, planned, options, console):
                    found.append(group)
                    where = f"{title}, {group.dataset}, {group.encoder}"
                    console.print(rich_table(group.rows, where, self.reported))
                    write_table(found, title, [_how(options), *_NOTES], path, self.reported)
            if not options.estimate:
                console.print(f"results in {path}.md, .csv, .png")

    def _datasets(self, options: Options) -> tuple[str, ...]:
        """Returns the datasets of ``--datasets``; by default those in the folder.

        Raises:
          ValueError: If a dataset is not in the table, or none is found.
        """
        for name in options.datasets:
            if name not in self.datasets:
                raise ValueError(
                    f"--datasets takes some of {', '.join(self.datasets)}, got {name!r}."
                )
        there = tuple(name for name in self.datasets if (options.data / name).exists())
        if not (options.datasets or there):
            raise ValueError(
                f"{options.data} has none of the folders {', '.join(self.datasets)}; those that "
                "--datasets names are downloaded."
            )
        return options.datasets or there

    def _planned(
        self, dataset: str, options: Options, console: Console
    ) -> list[tuple[str, list[tuple[Line, Training]]]]:
        """Returns the name suffix of each group of rows, and the trainings of its rows."""
        folder = options.data / dataset
        source = str(folder) if folder.exists() else dataset

        def of(loss: str) -> Config:
            config = (small if options.scale == "small" else published)(dataset, loss)
            config = _with(config, "source", data=source)
            config = _with(config, "protocol", seeds=options.seeds)
            return _with(config, "training", epochs=options.epochs or config.training.epochs)

        problems: dict[Any, Problem] = {}
        planned = []
        few = self.small_groups if options.scale == "small" else None
        for apart, lines in (few or self.groups)(of):
            chosen = [
                line for line in lines if not options.methods or line.label in options.methods
            ]
            if not chosen:
                labels = ", ".join(f'"{line.label}"' for line in lines)
                raise ValueError(f"--methods takes some of {labels}.")
            trainings = []
            for line in chosen:
                if line.config.source not in problems:
                    problems[line.config.source] = load_problem(line.config.source, console.print)
                problem = problems[line.config.source]
                config = Images().prepare(line.config, problem)
                training = Training(dataset + apart, line.label, config, problem)
                trainings.append((line, training))
            planned.append((apart, trainings))
        return planned

    def _trained(
        self, dataset: str, planned: list[tuple[str, list[tuple[Line, Training]]]],
        options: Options, console: Console,
    ) -> Iterator[Group]:  # fmt: skip
        known = published_numbers(self.number, dataset, "resnet50")
        for apart, trainings in planned:
            outcomes = [_outcome(each, options, console) for _, each in trainings]
            encoder = f"{trainings[0][1].config.encoding.encoder}{apart}"
            rows = compare(outcomes, [known.get(line.published, {}) for line, _ in trainings],
                           self.reported)  # fmt: skip
            yield Group(dataset, encoder, rows)


def _outcome(training: Training, options: Options, console: Console) -> Outcome:
    name, epochs = f"{training.of}, {training.label}", training.config.training.epochs
    n = len(training.problem.train)
    with display(console) as shown:
        statuses = TrainingStatus(("train_knn",), {"final": n}, "images")

        def see(run: Run, entry: dict[str, Any]) -> None:
            status = statuses.of("final", entry, run.index)
            shown.advance(f"{name}, seed {run.seed}", entry["epoch"], epochs, status)

        return run_once(
            training.label, training.config, training.problem, options.out / "runs", see
        )


def _how(options: Options) -> str:
    config = small("cifar10", "simclr") if options.scale == "small" else published(
        "cifar10", "simclr"
    )  # fmt: skip
    training, images = config.training, config.source.train_images
    of = f"{images:,} images of each dataset" if images else "all training images"
    return (
        f"{options.seeds} seeds: mean ± standard deviation (published). "
        f"{config.encoding.encoder} on {of}, {options.epochs or training.epochs} epochs of Adam, "
        f"t = {training.temperature:g}, batches of {training.batch_size} where N does not say "
        "otherwise."
    )


_ALL = tuple(DATASETS)
TABLE_6_4 = ImageTarget(
    title="Table 6.4: contrastive losses on images", number="6.4", datasets=_ALL, groups=_losses
)
TABLE_6_5 = ImageTarget(
    title="Table 6.5: the number of negatives", number="6.5", datasets=("cifar10", "stl10"),
    groups=_negatives(30, 62, 126, 254, 510), small_groups=_negatives(62, 254),
)  # fmt: skip
TABLE_6_6 = ImageTarget(
    title="Table 6.6: the hardness of BCL", number="6.6", datasets=("cifar10", "stl10"),
    groups=_hardness,
)  # fmt: skip
TABLE_6_7 = ImageTarget(
    title="Table 6.7: the prior of BCL", number="6.7", datasets=("tiny-imagenet",), groups=_priors,
    reported=Reported(("linear", "linear_top5", "knn"), "linear", "images"),
)  # fmt: skip
TABLE_6_8 = ImageTarget(
    title="Table 6.8: seconds of an epoch", number="6.8", datasets=_ALL, groups=_cost,
    reported=Reported(("seconds_per_epoch",), "seconds_per_epoch", None),
)  # fmt: skip
