"""What every table and figure is given, and what all of them do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from .._locks import hold
from .._plots import save_figure
from .._progress import Display, display
from .._ranges import COUNT, POSITIVE, Range
from .._rundir import write_csv
from .kept import run_once
from .methods import Method, World, by_folder
from .outcomes import Outcome, pool
from .training import OnEpoch


@dataclass(frozen=True)
class Options:
    """What to reproduce and how."""

    target: Annotated[str, tyro.conf.Positional]
    """The table or figure."""
    data: Path
    """A dataset folder with a training and a test part; for tables 5.2 and 6.3 and figure 5.4 a
    folder of dataset folders, whose parts are put together and cut anew; for tables 6.4 to 6.8 a
    folder of sets of images."""
    out: Path = Path("runs/reproduce")
    """Where results go. Trainings that several targets share are done once per folder."""
    seeds: Annotated[int, Range(1, 10_000)] = 5
    """Number of seeds, from 0."""
    setting: Literal["published", "minibatch"] | None = None
    """One triplet a step as published, or Adam on minibatches with a search for each method. By
    default as published, where the target knows both."""
    datasets: tuple[str, ...] = ()
    """Tables 5.2 and 6.3, figure 5.4: which of the datasets in the folder --data; by default
    ml-100k, ml-1m, gowalla and yelp2018, as far as they are there. Tables 6.4 to 6.8: which sets of
    images; one that is not in the folder is downloaded. By default those in the folder."""
    encoders: tuple[Literal["mf", "lightgcn"], ...] = ()
    """With which encoders; by default both in tables 5.2 and 6.3 and figure 5.3, and mf in the
    others. lightgcn takes --setting minibatch."""
    scale: Literal["published", "small"] = "published"
    """Tables 6.4 to 6.8: small is what two cores can do: 10,000 images, a ResNet of 10 layers and
    width 16, 30 epochs."""
    estimate: bool = False
    """Only measure how long the trainings will take here at most, in the minibatch setting."""
    test_rating: Annotated[float | None, Range()] = None
    """Chapter 3: test on the folder's test part, where it is rated at least this, such as a
    random-exposure set, in place of half of the interactions with the top rating."""
    splits: Annotated[int, COUNT] = 1
    """Tables 3.x: number of cuts of the data, each with all seeds; tests are then paired over
    splits."""
    law_scale: Annotated[float, POSITIVE] = 0.6
    """Chapter 3: variance of the initial values and of the law of scores (lambda), 0.6 for
    MovieLens and 0.2 for Yahoo!-R3 as published."""
    ablation: bool = False
    """Table 3.3: what the published numbers are made of, in place of its rows."""
    epochs: Annotated[int | None, COUNT] = None
    """Length of the training; by default that of the published setting (in chapter 3 by the
    published number of triplets), or what the search has for minibatch: 200 in most tables."""
    methods: tuple[str, ...] = ()
    """Rows of the table to make, by name; all by default. The first is what the others are
    compared with."""
    dataset: str | None = None
    """Whose published numbers to show, such as ml-1m; by default the folder's name."""


class Job(NamedTuple):
    """A target at work.

    Attributes:
      title: What the table or figure shows.
      options: The flags.
      worlds: The data; several are splits of the same.
      console: Where it prints.
    """

    title: str
    options: Options
    worlds: list[World]
    console: Console

    @property
    def world(self) -> World:
        """The data of a target that takes one split."""
        return self.worlds[0]


@dataclass(frozen=True, kw_only=True)
class Reproduction(ABC):
    """A table or a figure.

    Attributes:
      title: What it shows.
      flags: Those of the flags in :data:`OWN_FLAGS` that it takes.
      settings: The settings that it knows.
      check: Raises ``ValueError`` where flags contradict each other.
    """

    title: str
    flags: tuple[str, ...] = ()
    settings: tuple[str, ...] = ("published", "minibatch")
    check: Callable[[Options], None] = lambda options: None

    @abstractmethod
    def run(self, options: Options, console: Console) -> None:
        """Trains, prints and writes."""


@dataclass(frozen=True, kw_only=True)
class Target(Reproduction):
    """A table or a figure about recommendation.

    Attributes:
      load: Reads the data.
      make: Trains, prints and writes.
    """

    load: Callable[[Options, Console], list[World]]
    make: Callable[[Job], None]

    def run(self, options: Options, console: Console) -> None:
        """See :meth:`Reproduction.run`."""
        worlds = self.load(options, console)
        with alone(options):
            for folder, (world, *_) in by_folder(worlds).items():
                train, test = world.train, world.test
                console.print(
                    f"{self.title}: {folder}, {train.n_users:,} users, {train.n_items:,} items, "
                    f"{len(train):,} + {len(test):,} interactions"
                )
            self.make(Job(self.title, options, worlds, console))


@contextmanager
def alone(options: Options) -> Iterator[None]:
    """Makes the folder of the results, and keeps other processes from making the same target there.

    Trainings that several targets share are held one by one, where they are trained.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    busy = f"another process is making {options.target} in {options.out}; let it end first."
    with hold(options.out / f".{options.target}.lock", busy=busy):
        yield


OWN_FLAGS = (
    "test_rating", "splits", "law_scale", "ablation", "methods", "datasets", "encoders", "estimate",
    "scale",
)  # fmt: skip
"""Flags that not every target takes."""


def train_all(
    methods: Sequence[Method], job: Job, worlds: Sequence[World] | None = None
) -> list[Outcome]:
    """Trains and scores the methods on each world, or finds what an earlier command made of them.

    The worlds, by default those of the job, are splits of the same data; the outcomes of a method
    on all of them are pooled.
    """
    options, worlds = job.options, job.worlds if worlds is None else worlds
    seeds, setting = tuple(range(options.seeds)), str(options.setting)
    outcomes = []
    with display(job.console) as screen:
        for method in methods:
            main, of_splits = method.recipe.main, []
            for number, world in enumerate(worlds, 1):
                epochs = length(method, options, world)
                of = f" {number}/{len(worlds)}" if len(worlds) > 1 else ""
                of_splits.append(
                    run_once(
                        method, world, setting, seeds, epochs, options.out / "runs",
                        partial(shown, screen, method.label + of, epochs),
                    )
                )  # fmt: skip
                last = np.mean([m[main] for m in of_splits[-1].per_seed])
                screen.advance(method.label + of, epochs, epochs, f"{main.upper()} {last:.4f}")
            outcomes.append(pool(of_splits))
    return outcomes


def length(method: Method, options: Options, world: World) -> int:
    """Epochs of a training."""
    if options.epochs:
        return options.epochs
    return method.epochs(world) if options.setting == "published" else method.minibatch.epochs


def shown(screen: Display, label: str, epochs: int) -> OnEpoch:
    """Names the training, and shows how far it is with every entry of its history."""
    screen.stage(f"{label}: compiling and first epoch")

    def on_epoch(entry: dict[str, Any]) -> None:
        loss = f"loss {np.nanmean(entry['loss']):.4f}"
        screen.advance(label, entry["epoch"], epochs, loss)

    return on_epoch


def draw_values(axes: Axes, scores: np.ndarray, ticks: Sequence[str], name: str) -> None:
    """Means and deviations of ``scores [values, seeds]`` over the values of one number."""
    deviation = scores.std(axis=1, ddof=1) if scores.shape[1] > 1 else None
    axes.errorbar(range(len(ticks)), scores.mean(axis=1), deviation, fmt="o-", capsize=4)
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlabel(name)
    axes.grid(alpha=0.3)


def finish(
    job: Job, figure: Figure, header: list[str], rows: list[list[Any]], *, about: str = ""
) -> None:
    """Writes the figure, under its title and what to add to it, as PNG and its numbers as CSV."""
    figure.suptitle(job.title + about, wrap=True)
    path = job.options.out / f"{job.options.target}.png"
    save_figure(figure, path)
    write_csv(path.with_suffix(".csv"), header, rows)
    job.console.print(f"results in {path.with_suffix('')}.png, .csv")
