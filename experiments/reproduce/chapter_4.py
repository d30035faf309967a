"""Tables and figures of chapter 4, and table 5.3: negative samplers."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from crl_jax import losses, samplers, stats, tasks, train

from .._progress import display
from ..recommend._occupations import occupations
from .comparisons import RankingTable
from .contrastive import on_dataset
from .data import load_parts
from .figures import Panel, draw_panels, finish
from .methods import Method, Problem
from .targets import Job, Options, Target, progress_callback, train_all
from .training import train_published

_DKW_SAMPLES = 64
_NOTES = (
    "BNS uses the exact distribution of a user's scores over all items without interactions, "
    f"except in the rows that name a sample: with {_DKW_SAMPLES} items the error is at most "
    f"{stats.dkw_error(_DKW_SAMPLES):.2f} with 95 % confidence, and slightly larger where the user "
    "has interacted with some of them. The eCDF of the batch is that of a user's candidates in it.",
)


def _bns(**changes: Any) -> Callable[[Problem], samplers.Sampler]:
    return lambda problem: samplers.BNS(samplers.popularity_prior(problem.train), **changes)


def _oracle(candidates: int | None, true: float = 0.04) -> Method:
    size = "all" if candidates is None else str(candidates)
    sharp = "" if true == 0.04 else f"sharp ({true:g}) "
    return Method(
        f"{sharp}oracle, |M| = {size}",
        lambda problem: samplers.BNS(
            samplers.oracle_prior(problem.test, true=true), candidates=candidates
        ),
        # All items are ranked once per draw for every user, regardless of the number of triplets.
        draw=8192 if (candidates or 1000) >= 100 else 1024,
        published=f"bns-oracle-prior|M|={size}",
    )


RNS = Method("rns", lambda _: samplers.RNS())
PNS = Method("pns", lambda problem: samplers.PNS.from_interactions(problem.train))
AOBPR = Method("aobpr", lambda _: samplers.AOBPR())
# The dissertation's DNS draws with a probability linear in the rank: two candidates.
DNS = Method("dns", lambda _: samplers.DNS(2))
SRNS = Method("srns", lambda _: samplers.SRNS(memory=8, fresh=8))  # as in the published code
BNS = Method("bns", _bns())
POSTERIOR = Method("posterior only", _bns(criterion="posterior"))
SAMPLED = Method("bns, eCDF of 64", _bns(ecdf_samples=64), published="bns")
IN_BATCH = Method("bns, eCDF of the batch", _bns(ecdf="batch"), published="bns")
DPL = Method(
    "dpl", lambda _: samplers.RNS(), losses.debiased_pairwise, {"tau_plus": 0.15}, n_neg=5, n_pos=10
)
_HARD = dataclasses.replace(
    DPL, label="dpl+hard", sampler=lambda _: samplers.DNS(2), hyperparams={"tau_plus": 0.3}
)
# Published for DPL with hard samples; 0.3 on MovieLens 100K.
_HARD_TAU_PLUS = {"ml-1m": 0.25}


TABLES: dict[str, tuple[Method, ...]] = {
    "4.2": (RNS, PNS, AOBPR, DNS, SRNS, BNS, SAMPLED, IN_BATCH),
    "4.3": (
        RNS,
        BNS,
        Method("bns-1", _bns(risk_lambda=10.0, risk_lambda_slope=0.1, risk_lambda_min=2.0)),
        Method("bns-2", lambda p: samplers.StagedSampler(samplers.RNS(), _bns()(p), 10)),
        Method(
            "bns-3", lambda problem: samplers.BNS(samplers.uniform_prior(problem.train.n_items))
        ),
        Method(
            "bns-4",
            lambda problem: samplers.BNS(
                samplers.group_prior(problem.train, occupations(problem.folder, problem.train))
            ),
        ),
    ),
    "4.4": tuple(
        dataclasses.replace(method, label=f"{name}+{method.label}", loss=loss, n_neg=n_neg)
        for name, loss, n_neg in (
            ("bpr", losses.bpr, 1), ("bce", losses.bce, 1), ("info_nce", losses.info_nce, 2),
        )
        for method in (RNS, BNS)
    ),
    # The published prior of a true negative, 0.04, and one that is closer to the truth.
    "4.5": (
        *(_oracle(size) for size in (1, 3, 5, 10, 20, 50, 100, 500, None)),
        *(_oracle(size, true=0.001) for size in (5, 20, 100, None)),
    ),
    "5.3": (dataclasses.replace(RNS, label="bpr"), BNS, DPL, _HARD),
}  # fmt: skip
QUALITY = (RNS, PNS, AOBPR, DNS, SRNS, POSTERIOR, BNS)
LAMBDAS = {x: Method(f"λ = {x:g}", _bns(risk_lambda=x)) for x in (0.1, 1.0, 5.0, 10.0, 15.0)}
SIZES = {x: Method(f"|M| = {x}", _bns(candidates=x)) for x in (1, 3, 5, 10, 15)}


def score_histogram(problem: Problem, edges: np.ndarray) -> train.ValidationMetrics:
    """Returns a hook that counts the scores of true and false negatives in bins with ``edges``.

    False negatives are the test items; true negatives are all other items that a user has not
    interacted with. Scores beyond the edges count in the outermost bins.
    """
    shape = problem.train.n_users, problem.train.n_items
    kind = np.zeros(shape, np.int8)  # 0 for a true negative, 1 for a false one, 2 for a positive
    kind[problem.test.users, problem.test.items] = 1
    kind[problem.train.users, problem.train.items] = 2
    count_scores = jax.tree_util.Partial(
        _count_scores, jnp.asarray(kind), jnp.asarray(edges, jnp.float32)
    )
    return train.ValidationMetrics(count_scores)


def _count_scores(
    kind: jax.Array, edges: jax.Array, task: tasks.Ranking, params: Any, model_state: Any
) -> dict[str, jax.Array]:
    del model_state
    tables = task.serving.serving_tables(params)
    scores = jnp.matmul(tables.users, tables.items.T, precision=jax.lax.Precision.HIGHEST)
    n = edges.size - 1
    bins = jnp.clip(jnp.searchsorted(edges, scores.ravel(), side="right") - 1, 0, n - 1)
    cells = kind.ravel().astype(jnp.int32) * n + bins
    counts = jnp.zeros(3 * n, jnp.int32).at[cells].add(1).reshape(3, n)
    return {"true_negatives": counts[0], "false_negatives": counts[1]}


def draw_scores(job: Job) -> None:
    """Figure 4.2: scores of true and false negatives."""
    epochs, edges = job.options.epochs or 100, np.linspace(-4, 6, 101)
    probe = score_histogram(job.problem, edges)
    with display(job.console) as screen:
        on_epoch = progress_callback(screen, "rns", epochs)
        outcome = train_published(RNS, job.problem, (0,), epochs, probe=probe, on_epoch=on_epoch)
    entries = [outcome.history[i] for i in _geometric_indices(len(outcome.history), 6)]
    figure = Figure(figsize=(12, 6), layout="constrained")
    rows = []
    for axes, entry in zip(figure.subplots(2, 3, sharex=True).flat, entries, strict=False):
        counts = {name: entry[name][0] for name in ("true_negatives", "false_negatives")}
        for (name, values), colour in zip(counts.items(), ("#1f77b4", "#d95f02"), strict=True):
            bin_counts = np.array(values, float)
            density = bin_counts / bin_counts.sum() / np.diff(edges)
            label = name.replace("_", " ")
            axes.stairs(density, edges, fill=True, alpha=0.45, color=colour, label=label)
        axes.set_title(f"epoch {entry['epoch']}", fontsize=10)
        bins = zip(edges[:-1], edges[1:], *counts.values(), strict=True)
        rows += [[entry["epoch"], *cells] for cells in bins]
    figure.axes[0].legend()
    figure.supxlabel("score")
    figure.supylabel("density")
    header = ["epoch", "from", "to", "true_negatives", "false_negatives"]
    finish(job, figure, header, rows, about=", RNS")


def _geometric_indices(n: int, k: int) -> list[int]:
    """Returns up to ``k`` geometrically spaced indices between a tenth of ``n`` and its end.

    They are denser early on, where more changes.
    """
    return sorted({round(i) for i in np.geomspace(max(1, n / 10), n, k) - 1})


def draw_quality(job: Job) -> None:
    """Figure 4.4: quality of the negatives."""
    outcomes = train_all(QUALITY, job)
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    labels = {
        "tnr": "share of true negatives (TNR)",
        "inf": "informativeness minus that of false negatives (INF)",
        "risk": "empirical sampling risk, λ = 5",
    }
    panels = figure.subplots(1, 3)
    for axes, (name, label) in zip(panels, labels.items(), strict=True):
        for outcome in outcomes:
            epochs = [entry["epoch"] for entry in outcome.history]
            axes.plot(epochs, [np.mean(e[name]) for e in outcome.history], label=outcome.label)
        axes.set(xlabel="epoch", ylabel=label)
    panels[-1].legend()
    rows = [
        [outcome.label, entry["epoch"], *(np.mean(entry[name]) for name in labels)]
        for outcome in outcomes
        for entry in outcome.history
    ]
    finish(job, figure, ["method", "epoch", *labels], rows)


def draw_hyperparameters(job: Job) -> None:
    """Figure 4.5: the λ of the risk and the number of candidates."""
    panels = [Panel(("risk_lambda",), "λ", LAMBDAS), Panel(("size",), "candidates |M|", SIZES)]
    draw_panels(job, [panels], ["parameter"], figsize=(10, 4), sharey=True)


def sampling_table(title: str, number: str, **kwargs: Any) -> Target:
    """Returns a table of samplers, on matrix factorisation and LightGCN."""

    def rows(options: Options, encoder: str, dataset: str, problem: Problem) -> tuple[Method, ...]:
        dataset = options.dataset or dataset
        adapt = _published_graph if options.setting == "published" else on_dataset
        methods = (_with_prior(method, dataset) for method in TABLES[number])
        return tuple(adapt(method, encoder, dataset, problem) for method in methods)

    return Target(
        title=title,
        load=load_parts,
        make=RankingTable(rows, lambda _: _NOTES),
        flags=("methods", "encoders", "sweep", "estimate"),
        **kwargs,
    )


def _with_prior(method: Method, dataset: str) -> Method:
    """Returns DPL with hard samples with the published prior of a dataset; others as they are."""
    if method is not _HARD or dataset not in _HARD_TAU_PLUS:
        return method
    return dataclasses.replace(method, hyperparams={"tau_plus": _HARD_TAU_PLUS[dataset]})


def _published_graph(method: Method, encoder: str, dataset: str, problem: Problem) -> Method:
    """Returns a method with the published setting of an encoder, section 4.5.1.2."""
    del problem
    if encoder == "mf":
        return method
    batch_size = 1024 if dataset == "ml-1m" else 128
    recipe = dataclasses.replace(
        method.recipe, encoder=encoder, weight_decay=1e-5, batch_size=batch_size
    )
    return dataclasses.replace(method, recipe=recipe)


def _training_time(minutes: str) -> str:
    return f"{minutes} min, estimated from the speeds in samplers/cost.csv, without compilation"


_figure = partial(Target, load=load_parts, settings=("published",))
TARGETS: Mapping[str, Target] = {
    "table-4.2": sampling_table("negative samplers", "4.2", time=_training_time("about 9")),
    "table-4.3": sampling_table(
        "variants of BNS",
        "4.3",
        time=_training_time("about 6"),
        data="an ml-100k folder with a training and a test part, u.user and u.data; no download",
    ),
    "table-4.4": sampling_table("BNS with other losses", "4.4"),
    "table-4.5": sampling_table("BNS with an oracle prior", "4.5"),
    "figure-4.2": _figure(
        title="scores of true and false negatives",
        make=draw_scores,
        time=_training_time("under 1"),
    ),
    "figure-4.4": _figure(
        title="quality of the negatives",
        make=draw_quality,
        time=_training_time("about 9"),
    ),
    "figure-4.5": _figure(
        title="the λ of the risk and the number of candidates |M|",
        make=draw_hyperparameters,
    ),
}
