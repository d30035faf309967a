"""Section 6.6.3.1: weights of HCL and BCL where a graph encoder smooths the embeddings."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crl_jax import data, losses, models, train, weights

from .._progress import display
from .contrastive import tuned
from .data import load_parts
from .figures import finish
from .targets import Job, Target, progress_callback
from .training import fit_minibatch

LAYERS = (1, 2, 4, 8)
_USERS = 256
_EPOCHS = 10
_VECTORS = {"mean of layers": "-", "last layer": "--"}
"""Vectors whose scores are weighted, with their line styles: those of LightGCN, and the smoothest
of those that it averages."""
_WEIGHTS = {"hcl": "#0072B2", "bcl": "#D55E00"}


def draw_weights(job: Job) -> None:
    """Trains LightGCN with each number of layers and HCL, and weights the unseen items of users."""
    epochs, seeds = job.options.epochs or _EPOCHS, np.arange(job.options.seeds)
    log, rows = job.problem.train, []
    with display(job.console) as screen:
        for layers in LAYERS:
            method = tuned("hcl", "lightgcn")
            minibatch = dataclasses.replace(method.minibatch, layers=layers)
            method = dataclasses.replace(method, minibatch=minibatch)
            on_epoch = progress_callback(screen, f"{layers} layers", epochs)
            fitted = fit_minibatch(
                method, job.problem, epochs=epochs, seeds=seeds, hooks=[train.Progress(on_epoch)]
            )
            for seed in seeds:
                for name, encoder in _encoders(fitted.encoder, layers).items():
                    tables = encoder.serving_tables(fitted.get_params(int(seed)))
                    rows.append(
                        {"layers": layers, "vectors": name, "seed": int(seed)}
                        | measure(tables, log)
                    )
    _draw_all(job, rows, f": LightGCN, {epochs} epochs of HCL")


def _draw_all(job: Job, rows: list[dict[str, Any]], about: str) -> None:
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw(left, rows, {"spread": "0.3"}, "standard deviation of a user's scores")
    weight_columns = {f"{name}_deviation": colour for name, colour in _WEIGHTS.items()}
    _draw(right, rows, weight_columns, "standard deviation of the weights")
    left.legend()
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    finish(job, figure, list(rows[0]), [list(row.values()) for row in rows], about=about)


def _encoders(encoder: Any, layers: int) -> dict[str, models.LightGCN]:
    last = dataclasses.replace(encoder, layer_weights=(*[0.0] * layers, 1.0))
    return dict(zip(_VECTORS, (encoder, last), strict=True))


def measure(tables: models.Tables, log: data.Interactions) -> dict[str, float]:
    """Measures scores of unseen items and their weights, averaged over users.

    Args:
      tables: Vectors of users and items.
      log: Interactions, whose items are seen.

    Returns:
      ``cosine``, the mean cosine similarity of users and unseen items, and ``cosine_spread``, its
      standard deviation within users; ``spread``, the standard deviation of a user's scores; for
      both weights the standard deviation ``_deviation``, at mean 1, and the effective number of
      samples as a share of all, ``_share``.
    """
    users = np.unique(log.users)
    users = users[:: -(-len(users) // _USERS)]
    unseen = np.ones((log.n_users, log.n_items), bool)
    unseen[log.users, log.items] = False
    where = jnp.asarray(unseen[users])
    scores = models.inner_scores(tables, jnp.asarray(users))
    unit = models.Tables(*map(losses.normalize, tables))
    cosines = models.inner_scores(unit, jnp.asarray(users))
    results = {
        "cosine": jnp.mean(cosines, where=where),
        "cosine_spread": _deviation(cosines, where),
        "spread": _deviation(scores, where),
    }
    n = jnp.sum(where, axis=1)
    for name, user_weights in weigh(scores, where).items():
        results[f"{name}_deviation"] = _deviation(user_weights, where)
        results[f"{name}_share"] = jnp.mean(
            weights.effective_sample_size(user_weights, where=where) / n
        )
    return {name: float(value) for name, value in results.items()}


def weigh(
    scores: Float[Array, "n_users n_items"], where: Bool[Array, "n_users n_items"]
) -> dict[str, Float[Array, "n_users n_items"]]:
    """Returns the weights of HCL and BCL, with the hyper-parameters of the tables."""
    hcl, bcl = (tuned(name, "lightgcn").hyperparams for name in _WEIGHTS)
    own: Mapping[str, Any] = {name: bcl[name] for name in ("tau_plus", "alpha", "beta")}
    return {
        "hcl": weights.hard_weights(
            scores, beta=hcl["beta"], temperature=hcl["temperature"], where=where
        ),
        "bcl": weights.bayesian_weights(scores, **own, where=where),
    }


def _deviation(x: Array, where: Array) -> Array:
    return jnp.mean(jnp.std(x, axis=1, where=where))


def _draw(axes: Axes, rows: list[dict[str, Any]], columns: Mapping[str, str], label: str) -> None:
    for column, colour in columns.items():
        for name, style in _VECTORS.items():
            means = [
                np.mean([r[column] for r in rows if (r["layers"], r["vectors"]) == (n, name)])
                for n in LAYERS
            ]
            text = f"{column.partition('_')[0].upper()}, {name}" if len(columns) > 1 else name
            axes.plot(LAYERS, means, f"o{style}", color=colour, label=text)
    axes.set_xscale("log", base=2)
    axes.set_xticks(LAYERS, map(str, LAYERS))
    axes.set_xlabel("layers of LightGCN")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)


TARGETS = {
    "section-6.6.3.1": Target(
        title="weights under over-smoothing",
        load=load_parts,
        make=draw_weights,
        settings=("minibatch",),
    )
}
