"""Command-line options and shared behaviour of all tables and figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro
from rich.console import Console
from tyro.conf import UseAppendAction

from .._progress import Display, display
from .._ranges import COUNT, POSITIVE, Range, option_group
from .._rundir import check_out, lock_file, make_out
from .methods import Method, Problem
from .outcomes import Outcome, pool
from .store import ranking_path, run_once
from .training import OnEpoch, train_minibatch, train_published


@option_group
class Options:
    """Options of the reproduction command."""

    target: Annotated[str, tyro.conf.Positional]
    """Name of the table or figure."""
    data: Path
    """A dataset folder with a training and a test part; for tables 3.1, 4.1, 5.1, 5.2
    and 6.3 and figure 5.4 a folder of dataset folders, whose parts are merged and split again; for
    tables 6.2 and 6.4 to 6.8 a folder of image datasets."""
    out: Path = Path("runs/reproduce")
    """Output folder. Trainings that several targets share are run once per folder."""
    seeds: Annotated[int, Range(1, 10_000)] = 5
    """Number of seeds, starting from 0."""
    setting: Literal["published", "minibatch"] | None = None
    """One triplet per step as published, or Adam on minibatches with a search for each method. By
    default published, where the target supports both."""
    datasets: tuple[str, ...] = ()
    """Tables 3.1, 4.1, 5.1, 5.2 and 6.3, figure 5.4: names of the datasets in the folder --data; by
    default those of ml-100k, ml-1m, yahoo-r3, gowalla and yelp2018 that it contains. Tables 6.2 and
    6.4 to 6.8: names of the image datasets; one that is not in the folder is downloaded. By default
    those in the folder."""
    encoders: tuple[Literal["mf", "lightgcn"], ...] = ()
    """Encoders to train; by default both in tables 5.2 and 6.3 and figure 5.3, and mf in the
    others."""
    scale: Literal["published", "small"] = "published"
    """Tables 6.4 to 6.8: small is for two CPU cores: 10,000 images, a ResNet of 10 layers and width
    16, 20 epochs. text-table-3 and text-figure-5: 5,000 texts, or 300 with --weights, and 5 epochs
    of fine-tuning."""
    weights: str | None = None
    """text-table-3 and text-figure-5: published weights of the encoder, as for the command text; at
    small scale by default none."""
    heads: Annotated[int | None, COUNT] = None
    """text-table-3 and text-figure-5: number of attention heads, if the weights do not state it."""
    test_fraction: Annotated[float | None, Range(0, 1, low_open=True, high_open=True)] = None
    """Targets on texts: fraction of each class for the test part if the data have none; by default
    0.2, in the paper 0.15."""
    estimate: bool = False
    """Only estimate an upper bound on the training time here, in the minibatch setting."""
    test_rating: Annotated[float | None, Range()] = None
    """Chapter 3: minimum rating of test interactions from the folder's test part, such as a
    random-exposure set, instead of half of the interactions with the top rating."""
    splits: Annotated[int, COUNT] = 1
    """Tables 3.x: number of splits of the data, each with all seeds; tests are then paired over
    splits."""
    distribution_scale: Annotated[float, POSITIVE] = 0.6
    """Chapter 3: variance of the initial values and of the score distribution (lambda), 0.6 for
    MovieLens and 0.2 for Yahoo!-R3 as published."""
    ablation: bool = False
    """Table 3.3: show the factors that explain the published results instead of its rows."""
    epochs: Annotated[int | None, COUNT] = None
    """Number of training epochs; by default that of the published setting (in chapter 3 by the
    published number of triplets), or that of the minibatch search: 200 in most tables."""
    methods: tuple[str, ...] = ()
    """Names of the table rows to train; all by default. The first is the baseline of the others."""
    sweep: UseAppendAction[tuple[str, ...]] = ()
    """Values that the searches of the minibatch setting try, such as lr=1e-3,3e-3 for all methods,
    or info_nce.temperature=0.1,0.2 for one; they replace those of the method. Repeat the flag."""
    dataset: str | None = None
    """Dataset whose published results to show, such as ml-1m; by default the folder's name."""


class Job(NamedTuple):
    """A target to be computed.

    Attributes:
      title: Title of the table or figure.
      options: The flags.
      problems: The data; several problems are splits of the same dataset.
      console: Output console.
    """

    title: str
    options: Options
    problems: list[Problem]
    console: Console

    @property
    def problem(self) -> Problem:
        """The data of a target that uses a single split."""
        return self.problems[0]

    @property
    def number(self) -> str:
        """Number of the table or figure, such as ``4.2``."""
        return self.options.target.partition("-")[2]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A table or a figure.

    Attributes:
      title: Its title, without its number.
      load: Loads the data.
      make: Trains the methods, prints the results and writes them.
      data: Data that ``--data`` requires, and whether it is downloaded.
      time: Duration on two CPU cores with default flags, and its source; empty if not measured.
      flags: Supported flags among those that only some targets support.
      settings: Supported settings.
      check: Raises ``ValueError`` if flags contradict each other.
    """

    title: str
    load: Callable[[Options, Console], list[Problem]]
    make: Callable[[Job], None]
    data: str = "a folder with a training and a test part, such as ml-100k; no download"
    time: str = ""
    flags: tuple[str, ...] = ()
    settings: tuple[str, ...] = ("published", "minibatch")
    check: Callable[[Options], None] = lambda options: None

    def numbered_title(self, name: str) -> str:
        """Returns the title after the name, such as ``Table 4.2: negative samplers``."""
        return f"{name.capitalize().replace('-', ' ')}: {self.title}"

    def run(self, options: Options, console: Console) -> None:
        """Loads the data, trains the methods, prints the results and writes them.

        The output folder is locked against other processes with the same target. Trainings that
        several targets share are locked individually, during training.
        """
        check_out(options.out)
        problems, title = self.load(options, console), self.numbered_title(options.target)
        make_out(options.out)  # after the data, which may be invalid
        busy = f"another process is making {options.target} in {options.out}; wait for it to end."
        with lock_file(options.out / f".{options.target}.lock", busy=busy):
            for folder, (problem, *_) in groupby(problems, attrgetter("folder")):
                train, test = problem.train, problem.test
                console.print(
                    f"{title}: {folder}, {train.n_users:,} users, {train.n_items:,} items, "
                    f"{len(train):,} + {len(test):,} interactions"
                )
            self.make(Job(title, options, problems, console))


def train_all(methods: Sequence[Method], job: Job) -> list[Outcome]:
    """Trains and evaluates the methods, or reads outcomes of an earlier command.

    The problems of the job are splits of the same data; the outcomes of a method on all of them are
    pooled.
    """
    problems, outcomes = job.problems, []
    with display(job.console) as screen:
        for method in methods:
            split_outcomes = []
            for number, problem in enumerate(problems, 1):
                suffix = f" {number}/{len(problems)}" if len(problems) > 1 else ""
                label = method.label + suffix
                split_outcomes.append(_train(method, problem, job.options, label, screen))
            outcomes.append(pool(split_outcomes))
    return outcomes


def _train(
    method: Method, problem: Problem, options: Options, name: str, screen: Display
) -> Outcome:
    epochs, main = training_epochs(method, options, problem), method.recipe.main

    def train(checkpoints: Path) -> Outcome:
        runner = train_published if options.setting == "published" else train_minibatch
        on_epoch = progress_callback(screen, name, epochs)
        seeds, checkpoint = tuple(range(options.seeds)), checkpoints / "run.npz"
        return runner(method, problem, seeds, epochs, checkpoint=checkpoint, on_epoch=on_epoch)

    outcome = run_once(outcome_path(method, problem, options), method.label, train)
    last = np.mean([metrics[main] for metrics in outcome.per_seed])
    screen.advance(name, epochs, epochs, f"{main.upper()} {last:.4f}")
    return outcome


def outcome_path(method: Method, problem: Problem, options: Options) -> Path:
    """Returns the path of the outcome of a method."""
    seeds, epochs = tuple(range(options.seeds)), training_epochs(method, options, problem)
    return ranking_path(method, problem, str(options.setting), seeds, epochs, options.out / "runs")


def training_epochs(method: Method, options: Options, problem: Problem) -> int:
    """Returns the number of epochs of a training."""
    if options.epochs:
        return options.epochs
    return method.epochs(problem) if options.setting == "published" else method.minibatch.epochs


def progress_callback(screen: Display, label: str, epochs: int) -> OnEpoch:
    """Displays the name of the training, and returns a callback that displays its progress."""
    screen.stage(f"{label}: compiling and first epoch")

    def on_epoch(entry: dict[str, Any]) -> None:
        loss = f"loss {np.nanmean(entry['loss']):.4f}"
        screen.advance(label, entry["epoch"], epochs, loss)

    return on_epoch
