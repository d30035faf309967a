"""Tables and figures of chapter 5, and table 6.3: contrastive losses and DPL."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from . import contrastive
from .chapter_4 import BNS, DPL, IN_BATCH, RNS, sampling_table
from .comparisons import RankingTable
from .cost import measure_speed
from .data import check_datasets, load_datasets, load_parts
from .figures import Panel, draw_panels, finish
from .methods import Method, Minibatch, Problem
from .targets import Job, Options, Target

SIZES = (1, 3, 5, 10, 15)
"""Numbers of extra positives M, or of negatives N."""
TAUS = (0.0, 0.02, 0.07, 0.15, 0.3)
"""Priors; at 0 the loss is not debiased."""
TIMED_SIZES = (1, 4, 16, 32, 64)
"""Numbers of extra positives M, or of negatives N, of which the time is measured."""
_TIMED = {"bpr": RNS, "dpl": DPL, IN_BATCH.label: IN_BATCH, BNS.label: BNS}
"""The published times of BNS are those with the eCDF of the batch; BNS itself is exact."""
_PLAIN = Minibatch(axes=())
_NOTES = (
    "All interactions of a dataset are merged, and a random fifth of them is the test part.",
    "The grids were tuned on MovieLens 100K, with the same number of points for every loss. On "
    "other data, L2 on whole tables is scaled by the inverse number of users and items, like the "
    "gradient of a row. There are fewer epochs, and the learning rates are four times as large on "
    "MovieLens 1M. On Gowalla and Yelp2018 they are eight times as large and L2 is a third with "
    "MF; with LightGCN ten times and a fifth. These two have half of the points.",
)


def draw_hyperparameters(job: Job) -> None:
    """Figure 5.3: DPL as tuned for the encoder, with other values of each hyper-parameter.

    Without extra positives, M = 0, nothing corrects the bias: the prior is 0 as well.
    """
    panels = []
    for encoder in dict.fromkeys(job.options.encoders or contrastive.ENCODERS):
        dpl = contrastive.tuned("dpl", encoder)
        not_debiased = {"n_pos": 0, "hyperparams": {**dpl.hyperparams, "tau_plus": 0.0}}
        values: dict[str, dict[float, dict[str, Any]]] = {
            "extra positives M": {0: not_debiased, **{size: {"n_pos": size} for size in SIZES}},
            "negatives N": {size: {"n_neg": size} for size in SIZES},
            "prior τ⁺": {x: {"hyperparams": {**dpl.hyperparams, "tau_plus": x}} for x in TAUS},
        }
        panels.append([
            Panel((encoder, name), f"{encoder}: {name}", {
                f"{value:g}": dataclasses.replace(dpl, label=f"{value:g}", **changed)
                for value, changed in changes.items()
            })
            for name, changes in values.items()
        ])  # fmt: skip
    size = (12, 3.5 * len(panels))
    draw_panels(job, panels, ["encoder", "parameter"], figsize=size, sharey="row")


def draw_epoch_times(job: Job) -> None:
    """Figure 5.4: time per epoch, measured on some steps of each method, in batches of 1,024."""
    column, ylabel = _choose_time()
    names, rows = [Path(problem.folder).name for problem in job.problems], []
    figure = Figure(figsize=(max(6, 2 * len(names)), 4), layout="constrained")
    axes = figure.subplots()
    for i, (label, method) in enumerate(_TIMED.items()):
        seconds = [_epoch_times(method, problem, job) for problem in job.problems]
        heights = [each[column] for each in seconds]
        axes.bar(np.arange(len(names)) + 0.2 * (i - 1.5), heights, 0.2, label=label)
        rows += [[name, label, *each] for name, each in zip(names, seconds, strict=True)]
    axes.set_xticks(range(len(names)), names)
    axes.set_yscale("log")
    axes.set_ylabel(ylabel)
    axes.margins(y=0.1)
    figure.legend(loc="outside lower center", ncols=len(_TIMED))
    finish(job, figure, ["dataset", "method", "seconds", "cpu_seconds"], rows, grid="y")


def draw_cost(job: Job) -> None:
    """Section 5.4: time per epoch of DPL against M and against N, compared with that of BPR.

    Each is measured as figure 5.4 is. The other number is that of DPL in figure 5.4, N = 5 or
    M = 10.
    """
    changed: dict[tuple[str, int], Method] = {("bpr", 1): RNS}
    for label, name in (("extra positives M", "n_pos"), ("negatives N", "n_neg")):
        for size in TIMED_SIZES:
            changed[label, size] = dataclasses.replace(DPL, **{name: size})
    (problem,) = job.problems
    rows = [[*key, *_epoch_times(method, problem, job)] for key, method in changed.items()]
    column, ylabel = _choose_time()
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.axhline(rows[0][2 + column], color="grey", linestyle="--", label="bpr")
    for label in dict.fromkeys(row[0] for row in rows[1:]):
        times = [row[2 + column] for row in rows if row[0] == label]
        axes.plot(TIMED_SIZES, times, "o-", label=f"dpl, {label}")
    axes.set(xlabel="size", ylabel=ylabel)
    axes.set_ylim(bottom=0)
    axes.legend()
    finish(job, figure, ["parameter", "size", "seconds", "cpu_seconds"], rows)


def _epoch_times(method: Method, problem: Problem, job: Job) -> tuple[float, float]:
    """Returns the seconds and processor seconds of an epoch, measured on some of its steps."""
    plain = dataclasses.replace(method, minibatch=_PLAIN)
    speed = measure_speed(plain, problem, job.options.out / "speeds")
    steps = -(-len(problem.train) // _PLAIN.batch_size)
    return steps * speed.step, steps * speed.cpu_step


def _choose_time() -> tuple[int, str]:
    """Returns which of the time and the processor time to draw, and its label.

    On CPUs it is the processor time, since other processes prolong the other.
    """
    if jax.default_backend() == "cpu":
        return 1, "processor seconds per epoch"
    return 0, "seconds per epoch"


def _contrastive_table(title: str, number: str) -> Target:
    def rows(_: Options, encoder: str, dataset: str, problem: Problem) -> tuple[Method, ...]:
        return contrastive.methods(number, encoder, dataset, problem)

    table = RankingTable(rows, lambda _: _NOTES, encoders=contrastive.ENCODERS, long=True)
    flags = ("methods", "datasets", "encoders", "sweep", "estimate")
    return _dataset_target(title=title, make=table, flags=flags)


_dataset_target = partial(
    Target, load=load_datasets, settings=("minibatch",), check=check_datasets,
    data=f"a folder of datasets: {', '.join(contrastive.BUDGETS)}; no download",
)  # fmt: skip
TARGETS: Mapping[str, Target] = {
    "table-5.2": _contrastive_table("contrastive losses and DPL", "5.2"),
    "table-5.3": sampling_table("DPL and negative samplers", "5.3", settings=("minibatch",)),
    "figure-5.3": Target(
        title="hyper-parameters of DPL",
        load=load_parts, make=draw_hyperparameters, flags=("encoders",), settings=("minibatch",),
    ),
    "figure-5.4": _dataset_target(
        title="time per epoch", make=draw_epoch_times, flags=("datasets",)
    ),
    "section-5.4": Target(
        title="time per epoch of DPL", load=load_parts, make=draw_cost, settings=("minibatch",)
    ),
    "table-6.3": _contrastive_table("contrastive losses and BCL", "6.3"),
}  # fmt: skip
