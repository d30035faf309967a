"""How the methods of a study are trained and scored, whatever it compares."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, metrics, models, train

from ..encoders import ENCODERS, default_encoder
from .methods import Method, World
from .outcomes import Outcome, judge

OnEpoch = Callable[[dict[str, Any]], None]


def train_published(
    method: Method,
    world: World,
    seeds: tuple[int, ...],
    epochs: int,
    *,
    probe: Callable[[Any], Any] | None = None,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> Outcome:
    """The published setting: SGD, one triplet a step, no validation, scored after the last epoch.

    Width, learning rate, L2 on the rows of each triplet and initial values are those of the recipe.
    Negatives are drawn for ``method.draw`` triplets at a time, from the parameters before them.
    """
    recipe = method.recipe
    fitted = train.fit(
        world.train,
        loss=method.loss,
        knobs=method.hyperparams,
        knob_schedule=method.schedule,
        build=default_encoder(recipe.encoder, world.train, recipe.dim, recipe.deviation),
        n_neg=method.n_neg,
        n_pos=method.n_pos,
        n_group=method.n_group,
        credence=method.estimator(world),
        anchors=method.anchors,
        sampler=method.sampler(world),
        held_out=world.test,
        probe=probe,
        learning_rate=recipe.learning_rate * method.rate,
        weight_decay=recipe.weight_decay,
        optimizer=train.sgd_l2,
        batch_size=1,
        draw_batches=method.draw,
        row_wise=True,
        epochs=epochs,
        seeds=np.asarray(seeds),
        checkpoint=checkpoint,
        on_epoch=on_epoch,
    )  # fmt: skip
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
    fit: Callable[..., train.Fitted] = partial(
        train.fit,
        loss=method.loss,
        knob_schedule=method.schedule,
        build=default_encoder(method.recipe.encoder, world.train, method.recipe.dim),
        n_neg=method.n_neg,
        n_pos=method.n_pos,
        n_group=method.n_group,
        anchors=method.anchors,
        schedule=train.halfway,
        decay=0.3,
        epochs=epochs,
        on_epoch=on_epoch,
    )
    own, values = method.axis or ("", ())
    runs = train.grid({**GRID, **({own: values} if own else {})}, seeds[:1])
    swept = {own: runs.pop(own)} if own else {}
    search: dict[str, Any] = {**runs, "eval_every": 5, "knobs": {**method.hyperparams, **swept}}
    search["checkpoint"] = checkpoint and checkpoint.with_suffix(".search.npz")
    searched = fit(
        part.train, cut.valid, sampler=method.sampler(part), credence=method.estimator(part),
        **search,
    )  # fmt: skip
    choice = train.choose(searched)
    point = {name: float(runs[name][choice.point]) for name in GRID}
    found = {name: float(array[choice.point]) for name, array in swept.items()}
    final: dict[str, Any] = {name: np.float32(value) for name, value in point.items()}
    final |= {"stop_at": choice.epochs, "seeds": np.asarray(seeds), "checkpoint": checkpoint}
    final["knobs"] = {**method.hyperparams, **found}
    fitted = fit(
        world.train, sampler=method.sampler(world), credence=method.estimator(world),
        held_out=world.test, **final,
    )  # fmt: skip
    chosen = {**point, **found, "epochs": choice.epochs, "valid_ndcg@20": choice.score}
    return _score(method, world, fitted, chosen)


def _score(method: Method, world: World, fitted: train.Fitted, chosen: dict[str, float]) -> Outcome:
    plan = metrics.ranking_plan(world.masked or world.train, world.test)
    recipe, estimator, ratings = method.recipe, method.estimator(world), world.train.ratings
    serve = ENCODERS[recipe.encoder].serve
    per_seed, users, curves = [], [], []
    for run in range(fitted.n_runs):
        params = fitted.run(run)
        values = metrics.evaluate(
            models.inner_scores, serve(params), plan, ks=recipe.ks, auc="auc" in recipe.metrics
        )
        per_seed.append(metrics.summarize(values))
        everyone = np.full(world.train.n_users, np.nan)
        everyone[np.asarray(plan.users)] = values[recipe.main]
        users.append(everyone)
        if estimator is not None and ratings is not None:
            confidence = estimate_confidence(estimator, fitted.model, params, world.train)
            auc, curve = judge(confidence, ratings > 1)
            per_seed[-1]["confidence_auc"] = auc
            curves.append(curve)
    mean = np.mean(users, axis=0).tolist()
    roc = np.mean(curves, axis=0).tolist() if curves else []
    return Outcome(method.label, per_seed, mean, fitted.history, chosen, roc)


def estimate_confidence(
    estimator: train.Credence, model: models.Functional, params: Any, log: data.Interactions
) -> np.ndarray:
    """The confidence of every interaction of ``log``."""
    users, items = (jnp.asarray(x, jnp.int32) for x in (log.users, log.items))
    key = jax.random.key(0)
    return np.asarray(estimator.estimate(key, model, params, users, items, log.n_items))
