"""How the methods of a study are trained and scored, whatever it compares."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, metrics, models, tasks, train

from ..encoders import default_encoder
from .methods import Method, World
from .outcomes import Outcome, judge

OnEpoch = Callable[[dict[str, Any]], None]


def train_published(
    method: Method,
    world: World,
    seeds: tuple[int, ...],
    epochs: int,
    *,
    probe: train.Hook | None = None,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> Outcome:
    """The published setting: SGD, one triplet a step, no validation, scored after the last epoch.

    Width, learning rate, L2 on the rows of each triplet and initial values are those of the recipe.
    Negatives are drawn for ``method.draw`` triplets at a time, from the parameters before them.
    """
    recipe = method.recipe
    fitted = tasks.fit_ranking(
        world.train,
        **_of_method(method, world),
        encoder=default_encoder(
            recipe.encoder, world.train, recipe.dim, models.normal(recipe.deviation)
        ),
        held_out=world.test,
        optimizer=train.Optimizer(
            recipe.learning_rate * method.rate, recipe.weight_decay, rule=train.sgd_l2
        ),
        plan=train.StepPlan(1, draw_batches=method.draw, row_wise=True),
        epochs=epochs,
        seeds=np.asarray(seeds),
        hooks=[*([] if probe is None else [probe]), *_callbacks(checkpoint, on_epoch)],
    )
    return _score(method, world, fitted, {})


# Eight points for every method, times its own axis; decided on a fifth of the training
# interactions, one seed.
GRID = {
    "learning_rate": (1e-3, 2e-3),
    "weight_decay": (1e-5, 3e-5),
    "init_scale": (0.1, 1.0),
}


def train_minibatch(
    method: Method,
    world: World,
    seeds: tuple[int, ...],
    epochs: int,
    *,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> Outcome:
    """A minibatch setting: Adam, batches of 1,024, and a search for every method.

    Eight points (:data:`GRID`), times the values of the method's own axis, are trained on four
    fifths of the training interactions; the best point and its epoch, by NDCG@20 on the rest, then
    train on all of them with every seed.
    """
    cut = data.with_validation(world.train, valid=0.2)
    assert cut.valid is not None
    part = dataclasses.replace(world, train=cut.train)
    fit: Callable[..., tasks.FittedRanking] = partial(
        tasks.fit_ranking,
        encoder=lambda log: default_encoder(method.recipe.encoder, log, method.recipe.dim),
        epochs=epochs,
    )
    own, values = method.axis or ("", ())
    runs = train.grid({**GRID, **({f"loss.{own}": values} if own else {})}, seeds[:1])
    optimizer = train.Optimizer(1e-3, 1e-5, 0.3, schedule=train.step_decay)
    searched = fit(
        part.train, cut.valid, **_of_method(method, part), optimizer=optimizer, eval_every=5,
        seeds=runs.pop("seeds"), sweep=runs,
        hooks=_callbacks(checkpoint and checkpoint.with_suffix(".search.npz"), on_epoch),
    )  # fmt: skip
    choice = train.choose(searched)
    found = {name: float(array[choice.point]) for name, array in runs.items()}
    fitted = fit(
        world.train, **_of_method(method, world), optimizer=optimizer, held_out=world.test,
        seeds=np.asarray(seeds), sweep=found, stop_at=choice.epochs,
        hooks=_callbacks(checkpoint, on_epoch),
    )  # fmt: skip
    point = {name.removeprefix("loss."): value for name, value in found.items()}
    chosen = {**point, "epochs": choice.epochs, "valid_ndcg@20": choice.score}
    return _score(method, world, fitted, chosen)


def _of_method(method: Method, world: World) -> dict[str, Any]:
    """What a method says of its training on a part of the data."""
    return {
        "loss": method.loss,
        "hyperparams": method.hyperparams,
        "hyperparam_schedule": method.schedule,
        "n_neg": method.n_neg,
        "n_pos": method.n_pos,
        "n_group": method.n_group,
        "confidence": method.estimator(world),
        "anchors": method.anchors,
        "sampler": method.sampler(world),
    }


def _callbacks(checkpoint: Path | None, on_epoch: OnEpoch | None) -> list[train.Callback]:
    saved = [] if checkpoint is None else [train.Checkpoint(checkpoint)]
    return [*saved, *([] if on_epoch is None else [train.Progress(on_epoch)])]


def _score(
    method: Method, world: World, fitted: tasks.FittedRanking, chosen: dict[str, float]
) -> Outcome:
    plan = metrics.ranking_plan(world.masked or world.train, world.test)
    recipe, estimator, ratings = method.recipe, method.estimator(world), world.train.ratings
    per_seed, users, curves = [], [], []
    for run in range(fitted.n_runs):
        tables = fitted.tables(run)
        values = metrics.evaluate(
            models.inner_scores, tables, plan, ks=recipe.ks, auc="auc" in recipe.metrics
        )
        per_seed.append(metrics.summarize(values))
        everyone = np.full(world.train.n_users, np.nan)
        everyone[np.asarray(plan.users)] = values[recipe.main]
        users.append(everyone)
        if estimator is not None and ratings is not None:
            confidence = estimate_confidence(estimator, fitted.encoder, tables, world.train)
            auc, curve = judge(confidence, ratings > 1)
            per_seed[-1]["confidence_auc"] = auc
            curves.append(curve)
    mean = np.mean(users, axis=0).tolist()
    roc = np.mean(curves, axis=0).tolist() if curves else []
    return Outcome(method.label, per_seed, mean, fitted.history, chosen, roc)


def estimate_confidence(
    estimator: tasks.Confidence,
    encoder: models.Encoder,
    tables: models.Tables,
    log: data.Interactions,
) -> np.ndarray:
    """The confidence of every interaction of ``log``."""
    users, items = (jnp.asarray(x, jnp.int32) for x in (log.users, log.items))
    key = jax.random.key(0)
    return np.asarray(estimator.estimate(key, encoder, tables, users, items, log.n_items))
