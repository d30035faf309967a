"""Figures of DPL: effect of its hyper-parameters, and time per epoch compared with baselines."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .contrastive import ENCODERS, tuned
from .cost import speed_of
from .data import check_datasets, load_datasets, load_parts
from .methods import SAMPLING, Method, Minibatch
from .sampling import BNS, DPL, RNS
from .targets import Job, Target, draw_values, finish, train_all

SIZES = (1, 3, 5, 10, 15)
"""Numbers of extra positives M, or of negatives N."""
TAUS = (0.0, 0.02, 0.07, 0.15, 0.3)
"""Priors; at 0 the loss is not debiased."""
_TIMED = {"bpr": RNS, "dpl": DPL, "bns": BNS}
_PLAIN = Minibatch(axes=())


def variants(encoder: str) -> dict[str, tuple[Method, ...]]:
    """Returns DPL as tuned for the encoder, with other values of each of its hyper-parameters."""
    dpl = tuned("dpl", encoder)

    def named(value: float, **changes: Any) -> Method:
        return dataclasses.replace(dpl, label=f"{value:g}", **changes)

    taus = (named(tau, hyperparams={**dpl.hyperparams, "tau_plus": tau}) for tau in TAUS)
    return {
        "extra positives M": tuple(named(size, n_pos=size) for size in SIZES),
        "negatives N": tuple(named(size, n_neg=size) for size in SIZES),
        "prior τ⁺": tuple(taus),
    }


def influence(job: Job) -> None:
    """Figure 5.3: effect of the hyper-parameters of DPL."""
    encoders = tuple(dict.fromkeys(job.options.encoders or ENCODERS))
    rows, main = [], SAMPLING.main
    figure = Figure(figsize=(12, 3.5 * len(encoders)), layout="constrained")
    panels = figure.subplots(len(encoders), 3, sharey="row", squeeze=False)
    for across, encoder in zip(panels, encoders, strict=True):
        for axes, (name, methods) in zip(across, variants(encoder).items(), strict=True):
            outcomes = train_all(methods, job)
            scores = np.array([[m[main] for m in outcome.per_seed] for outcome in outcomes])
            draw_values(axes, scores, [m.label for m in methods], f"{encoder}: {name}")
            rows += [
                [encoder, name, method.label, seed, score]
                for method, of_seeds in zip(methods, scores, strict=True)
                for seed, score in enumerate(of_seeds)
            ]
        across[0].set_ylabel(main.upper())
    finish(job, figure, ["encoder", "parameter", "value", "seed", main], rows)


def epoch_times(job: Job) -> None:
    """Figure 5.4: time per epoch, measured on some steps of each method, in batches of 1,024."""
    names, rows = [Path(world.folder).name for world in job.worlds], []
    figure = Figure(figsize=(max(6, 2 * len(names)), 4), layout="constrained")
    axes = figure.subplots()
    for place, (label, method) in enumerate(_TIMED.items()):
        plain = dataclasses.replace(method, minibatch=_PLAIN)
        seconds = [
            -(-len(world.train) // _PLAIN.batch_size)
            * speed_of(plain, world, job.options.out / "speeds").step
            for world in job.worlds
        ]
        axes.bar(np.arange(len(names)) + 0.25 * (place - 1), seconds, 0.25, label=label)
        rows += [[name, label, each] for name, each in zip(names, seconds, strict=True)]
    axes.set_xticks(range(len(names)), names)
    axes.set_yscale("log")
    axes.set_ylabel("seconds per epoch")
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    finish(job, figure, ["dataset", "method", "seconds"], rows)


FIGURE_5_3 = Target(
    title="Figure 5.3: the numbers of DPL",
    load=load_parts, make=influence, flags=("encoders",), settings=("minibatch",),
)  # fmt: skip
FIGURE_5_4 = Target(
    title="Figure 5.4: time of an epoch",
    load=load_datasets, make=epoch_times, flags=("datasets",), settings=("minibatch",),
    check=check_datasets,
)  # fmt: skip
