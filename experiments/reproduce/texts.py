"""Table 3 and figures 4 and 5 on texts: epochs of contrastive pre-training before fine-tuning.

Their source is Shi, 2021, whose data are not public; ``--data`` is any set of labelled texts.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from crl_jax import data

from .._bert import BertOptions
from .._progress import display
from .._study import Run
from ..configs.conbert import CONFIGS
from ..text._config import Config
from ..text._problem import load_problem
from ..text._study import FINE_TUNING, TextStudy
from .figures import finish
from .outcomes import Outcome, ReportedMetrics
from .store import run_once, text_path
from .tables import Group, choose, make_table, note_on_seeds, published
from .targets import Job, Options, Target
from .training import train_study

EPOCHS = {"bert": 0, "conbert-1": 1, "conbert-3": 3, "conbert-5": 5}
"""Epochs of contrastive pre-training, by row of the table."""
_PUBLISHED = published("text-3", "digix2021-article-type", "bert")
_REPORTED = ReportedMetrics(("precision", "recall", "f1", "accuracy"), "f1", None)
_BINS = 30


def configure(options: Options, name: str) -> Config:
    """Returns the configuration of a row: that of the recipe, changed at small scale.

    The small scale is for two CPU cores. Published weights are fine-tuned on few, short texts;
    an encoder from scratch learns from more.
    """
    epochs = EPOCHS[name]
    config = CONFIGS["conbert" if epochs else "bert"]
    encoding = replace(config.encoding, weights=options.weights, heads=options.heads)
    training = replace(config.training, epochs=epochs or None)
    source = replace(config.source, data=str(options.data), test_fraction=options.test_fraction)
    method = config.method
    if options.scale == "small":
        pretrained = options.weights is not None
        encoding = replace(encoding, dropout=BertOptions().dropout)
        n_train, length = (300, 16) if pretrained else (5000, 32)
        source = replace(source, n_train=n_train, length=length)
        training = replace(
            training, lr=None, fine_tune_lr=1e-3, fine_tune_epochs=5,
            batch_size=32 if pretrained else 64, fine_tune_hidden=128,
        )  # fmt: skip
        method = replace(method, draws=None) if epochs else method
    protocol = replace(config.protocol, seeds=options.seeds)
    return replace(
        config, source=source, encoding=encoding, method=method, training=training,
        protocol=protocol,
    )  # fmt: skip


def _train_all(job: Job) -> list[Outcome]:
    """Trains the rows, or reads the outcomes of an earlier command."""
    study, problem, outcomes = TextStudy(), None, []
    for name in choose({name: name for name in EPOCHS}, job.options.methods):
        config = configure(job.options, name)
        problem = problem or load_problem(config.source, config.encoding, job.console.print)
        config = study.prepare(config, problem)
        path = text_path(config, job.options.out / "runs")
        outcomes.append(run_once(path, name, partial(_train, job, config, problem, name)))
    return outcomes


def _train(job: Job, config: Config, problem: Any, name: str, checkpoints: Path) -> Outcome:
    """Trains and evaluates all seeds of a row; its history is that of fine-tuning."""
    study = TextStudy()
    history: list[dict[str, Any]] = []
    with display(job.console) as screen:

        def on_entry(run: Run, entry: dict[str, Any]) -> None:
            stage = entry["stage"]
            loss = entry["fine_tune_loss" if stage == FINE_TUNING else "loss"]
            epochs = study.epochs(config, stage)
            shown = f"{name}, seed {run.seed}, {stage}"
            screen.advance(shown, entry["epoch"], epochs, f"loss {np.mean(loss):.4f}")
            if stage == FINE_TUNING:
                history.append({"run": run.index, **entry})

        return train_study(study, config, problem, name, checkpoints, on_entry, history)


def make_comparison(job: Job) -> None:
    """Table 3: precision, recall and F1, averaged over classes, by epochs of pre-training."""
    options = job.options
    names = choose({name: name for name in EPOCHS}, options.methods)
    dataset = options.data.name
    encoder = "from scratch" if options.weights is None else Path(options.weights).stem
    group = Group(
        dataset, encoder, title=f"{job.title}, {dataset}",
        published=[_PUBLISHED[name] for name in names], times=(),
        train=partial(_train_all, job),
    )  # fmt: skip
    make_table(
        [[group]],
        job,
        path=options.out / f"text-table-3-{options.scale}",
        title=lambda _: f"{job.title}, {options.scale} scale",
        notes=lambda _: [_note(options)],
        reported=_REPORTED,
    )


def _note(options: Options) -> str:
    config = configure(options, "bert")
    t, n = config.training, config.source.n_train
    return (
        f"{note_on_seeds(options.seeds)} Precision, recall and F1 "
        f"are means of classes. {f'{n:,} texts' if n else 'All training texts'}, "
        f"{config.source.length} tokens, batches of {t.batch_size}; fine-tuning for "
        f"{t.fine_tune_epochs} epochs with a hidden layer of {t.fine_tune_hidden}. The published "
        "numbers come from other data, titles of articles of 10 types, and from BERT."
    )


def draw_distributions(job: Job) -> None:
    """Figure 4: number of texts of each class, and distribution of their lengths."""
    options = job.options
    split = data.load_texts(str(options.data), test=options.test_fraction)
    parts = [part for _, part in split.parts()]
    lengths = np.array([len(text) for part in parts for text in part.texts])
    labels = np.concatenate([part.labels for part in parts])
    counts = np.bincount(labels[labels >= 0], minlength=len(split.train.classes))
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.barh(range(len(counts)), counts)
    left.set_yticks(range(len(counts)), split.train.classes)
    left.set_xlabel("texts")
    left.invert_yaxis()
    bins, edges, _ = right.hist(lengths, _BINS)
    right.set_xlabel("length, characters")
    right.set_ylabel("texts")
    rows: list[list[Any]] = [["class", *pair] for pair in zip(split.train.classes, counts)]
    rows += [["length", f"{edge:g}", int(n)] for edge, n in zip(edges, np.asarray(bins))]
    header = ["distribution", "value", "texts"]
    finish(job, figure, header, rows, about=f": {options.data.name}")


def draw_losses(job: Job) -> None:
    """Figure 5: loss of fine-tuning after each number of epochs of pre-training."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    rows: list[list[Any]] = []
    for outcome in _train_all(job):
        losses: dict[int, list[float]] = {}
        for entry in outcome.history:
            losses.setdefault(entry["epoch"], []).append(float(np.mean(entry["fine_tune_loss"])))
        means = [np.mean(seed_losses) for seed_losses in losses.values()]
        axes.plot(list(losses), means, "o-", label=outcome.label)
        rows += [
            [outcome.label, epoch, seed, loss]
            for epoch, seed_losses in losses.items()
            for seed, loss in enumerate(seed_losses)
        ]
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch of fine-tuning")
    axes.set_ylabel("loss, mean of seeds")
    axes.legend()
    about = f": {job.options.data.name}, {job.options.scale} scale"
    finish(job, figure, ["method", "epoch", "seed", "loss"], rows, about=about)


def _check(options: Options) -> None:
    if options.epochs is not None:
        raise ValueError(f"{options.target} compares epochs; omit --epochs.")
    if options.scale == "published" and options.weights is None:
        raise ValueError("--scale published needs --weights, such as bert-base-chinese.")


def _target(title: str, make: Any, flags: Sequence[str] = (), **kwargs: Any) -> Target:
    return Target(
        title=title,
        load=lambda options, console: [],
        make=make,
        data="a folder or file of labelled texts, as for the command text; no download",
        flags=("test_fraction", *flags),
        settings=("published",),
        **kwargs,
    )


_TRAINED = ("weights", "heads", "methods", "scale")
TARGETS = {
    "text-table-3": _target(
        "fine-tuning after contrastive pre-training", make_comparison, _TRAINED, check=_check
    ),
    "text-figure-4": _target("labels and lengths of texts", draw_distributions),
    "text-figure-5": _target("loss of fine-tuning", draw_losses, _TRAINED, check=_check),
}
