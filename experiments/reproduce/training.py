"""Training and evaluation of ranking methods, and of the studies of other commands."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, metrics, models, tasks, train

from .._study import OnEntry
from .._task_study import TaskStudy, learn
from ..recommend._config import EncoderOptions
from ..recommend.encoders import default_encoder, resolve_encoder
from .methods import Method, Problem
from .outcomes import Outcome, roc_curve

OnEpoch = Callable[[dict[str, Any]], None]

_DIGITS = 6
"""Decimals of the per-user metric, as stored for possibly many users."""


def train_published(
    method: Method,
    problem: Problem,
    seeds: tuple[int, ...],
    epochs: int,
    *,
    probe: train.Hook | None = None,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> Outcome:
    """Trains in the published setting, without validation; evaluated after the last epoch.

    Width, learning rate, L2 and batch size are those of the recipe. With one triplet per step: SGD,
    L2 on the rows of each triplet, and negatives sampled for ``method.draw`` triplets at a time,
    from the parameters before them. With larger batches: Adam, L2 on whole tables, and a tenth of
    the learning rate after each fifth of the epochs.
    """
    recipe = method.recipe
    rates = recipe.learning_rate * method.rate, recipe.weight_decay
    settings: dict[str, Any]
    if recipe.batch_size == 1:
        settings = {
            **_arguments(method, problem, held_out=problem.test, l2_target="rows"),
            "encoder": default_encoder(
                recipe.encoder, problem.train, recipe.dim, models.normal(recipe.deviation)
            ),
            "optimizer": train.RowOptimizer(*rates, rule=train.rows.sgd),
            "config": train.TrainConfig(1, draw_batches=method.draw),
        }
    else:
        flags: dict[str, Any] = {"encoder": recipe.encoder, "layers": recipe.layers}
        settings = {
            **_arguments(method, problem, held_out=problem.test),
            "encoder": resolve_encoder(EncoderOptions(**flags), problem.train, recipe.dim),
            "optimizer": train.Optimizer(*rates, 0.1, schedule=_decay_in_fifths),
            "config": train.TrainConfig(recipe.batch_size),
        }
    fitted = tasks.fit_ranking(
        problem.train,
        **settings,
        epochs=epochs,
        seeds=np.asarray(seeds),
        hooks=[*([] if probe is None else [probe]), *_callbacks(checkpoint, on_epoch)],
    )
    return _evaluate(method, problem, [fitted], {})


def train_study(
    study: TaskStudy[Any, Any], config: Any, problem: Any, label: str, checkpoints: Path,
    on_entry: OnEntry, history: list[dict[str, Any]],
) -> Outcome:  # fmt: skip
    """Trains and evaluates all seeds of a study; ``on_entry`` adds to the outcome's ``history``."""
    evaluations = []
    for index in range(config.protocol.seeds):
        learned = learn(study, config, problem, {}, index, checkpoints, on_entry)
        seed = config.protocol.seed + index
        evaluations.append(study.evaluate(config, problem, learned, seed, lambda _: None))
    cases = np.mean([each.cases for each in evaluations], axis=0).tolist()
    return Outcome(label, [each.metrics for each in evaluations], cases, history, {})


def _decay_in_fifths(progress: Any, decay: Any) -> Any:
    """Step schedule: times ``decay`` after each fifth of the steps."""
    return decay ** jnp.floor(5 * progress)


def train_minibatch(
    method: Method,
    problem: Problem,
    seeds: tuple[int, ...],
    epochs: int,
    *,
    checkpoint: Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> Outcome:
    """Trains in the minibatch setting: Adam, and a search for every method, see :class:`Minibatch`.

    Each point is trained on the training interactions without a validation part; the best point and
    its best epoch, by NDCG@20 on that part, are then used to train on all of them with every seed.
    """
    fit = partial(fit_minibatch, method, epochs=epochs)
    choice, values = _search(method, problem, seeds[:1], fit, checkpoint, on_epoch)
    fitted = [
        fit(
            problem, held_out=problem.test, seeds=runs["seeds"], sweep=values,
            stopping=tasks.Stopping(stop_at=choice.epochs),
            hooks=_callbacks(_checkpoint_path(checkpoint, part), on_epoch),
        )
        for part, runs in _parts({"seeds": np.asarray(seeds)}, method.minibatch.at_once)
    ]  # fmt: skip
    point = {name.rpartition(".")[2]: value for name, value in values.items()}
    chosen = {**point, "epochs": choice.epochs, "valid_ndcg@20": choice.score}
    return _evaluate(method, problem, fitted, chosen)


def _search(
    method: Method,
    problem: Problem,
    seed: tuple[int, ...],
    fit: Callable[..., tasks.RankingResult],
    checkpoint: Path | None,
    on_epoch: OnEpoch | None,
) -> tuple[train.Selection, dict[str, float]]:
    """Returns the best point and its values; diverged points are skipped unless all diverge."""
    minibatch = method.minibatch
    split = data.with_validation(problem.train, valid=minibatch.valid)
    reduced = dataclasses.replace(problem, train=split.train)
    selections, diverged = [], None
    for part, runs in _parts(train.grid(method.axes, seed), minibatch.at_once):
        hooks = _callbacks(_checkpoint_path(checkpoint, "search", part), on_epoch)
        seeds, stopping = runs.pop("seeds"), tasks.Stopping(eval_every=minibatch.eval_every)
        try:
            fitted = fit(
                reduced, split.valid, seeds=seeds, sweep=runs, stopping=stopping, hooks=hooks
            )
        except train.TrainingDiverged as error:
            diverged = error
            continue
        choice = train.select_best(fitted)
        selections.append((choice, {name: float(x[choice.point]) for name, x in runs.items()}))
    if not selections:
        assert diverged is not None
        raise diverged
    return max(selections, key=lambda each: np.nan_to_num(each[0].score, nan=-np.inf))


def fit_minibatch(
    method: Method,
    problem: Problem,
    valid: data.Interactions | None = None,
    *,
    graph: data.Interactions | None = None,
    held_out: data.Interactions | None = None,
    **kwargs: Any,
) -> tasks.RankingResult:
    """Trains once in the minibatch setting.

    Args:
      method: The method.
      problem: The data, whose training part is used.
      valid: See :func:`crl_jax.tasks.fit_ranking`.
      graph: Interactions from which the encoder is constructed; by default the training part.
      held_out: See :class:`crl_jax.tasks.RankingOptions`.
      **kwargs: Further arguments of :func:`crl_jax.tasks.fit_ranking`.
    """
    minibatch, recipe = method.minibatch, method.recipe
    log = problem.train if graph is None else graph
    flags: dict[str, Any] = {"encoder": recipe.encoder, "layers": minibatch.layers}
    return tasks.fit_ranking(
        problem.train,
        valid,
        **_arguments(
            method,
            problem,
            held_out=held_out,
            init_scale=minibatch.init_scale,
            l2_target=minibatch.l2_target,
        ),
        encoder=resolve_encoder(EncoderOptions(**flags), log, recipe.dim),
        optimizer=train.Optimizer(
            minibatch.learning_rate, minibatch.weight_decay, 0.3, schedule=train.step_decay
        ),
        config=train.TrainConfig(minibatch.batch_size),
        **kwargs,
    )


def _checkpoint_path(checkpoint: Path | None, *names: str) -> Path | None:
    """Returns the checkpoint of one of the trainings of a method."""
    return checkpoint and checkpoint.with_suffix(".".join(("", *filter(None, names), "npz")))


def _parts(runs: dict[str, np.ndarray], at_once: bool) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Returns all runs, together or one at a time, each with a name for its checkpoint."""
    if at_once:
        return [("", runs)]
    n = len(runs["seeds"])
    return [(str(i), {name: x[i : i + 1] for name, x in runs.items()}) for i in range(n)]


def _arguments(method: Method, problem: Problem, **options: Any) -> dict[str, Any]:
    """Returns the training arguments of a method for a part of the data."""
    return {
        "loss": method.loss,
        "hyperparams": method.hyperparams,
        "n_neg": method.n_neg,
        "sampler": method.sampler(problem),
        "options": tasks.RankingOptions(
            hyperparam_schedule=method.schedule,
            n_pos=method.n_pos,
            n_group=method.n_group,
            confidence=method.estimator(problem),
            anchors=method.anchors,
            **options,
        ),
    }


def _callbacks(checkpoint: Path | None, on_epoch: OnEpoch | None) -> list[train.Callback]:
    saved = [] if checkpoint is None else [train.Checkpoint(checkpoint)]
    return [*saved, *([] if on_epoch is None else [train.Progress(on_epoch)])]


def _evaluate(
    method: Method, problem: Problem, trained: list[tasks.RankingResult], chosen: dict[str, float]
) -> Outcome:
    layout = metrics.eval_layout(problem.masked or problem.train, problem.test)
    recipe, estimator, ratings = method.recipe, method.estimator(problem), problem.train.ratings
    per_seed, users, curves = [], [], []
    for fitted, run in [(each, run) for each in trained for run in range(each.n_runs)]:
        tables = fitted.tables(run)
        values = metrics.evaluate(
            models.inner_scores, tables, layout, ks=recipe.ks, auc="auc" in recipe.metrics
        )
        per_seed.append(metrics.summarize(values))
        user_values = np.full(problem.train.n_users, np.nan)
        user_values[np.asarray(layout.users)] = values[recipe.main]
        users.append(user_values)
        if estimator is not None and ratings is not None:
            ids = (jnp.asarray(x, jnp.int32) for x in (problem.train.users, problem.train.items))
            confidence = estimator.estimate(jax.random.key(0), fitted.encoder, tables, *ids)
            auc, curve = roc_curve(np.asarray(confidence), ratings > 1)
            per_seed[-1]["confidence_auc"] = auc
            curves.append(curve)
    mean = np.mean(users, axis=0).round(_DIGITS).tolist()
    roc = np.mean(curves, axis=0).tolist() if curves else []
    history = [entry for fitted in trained for entry in fitted.history]
    return Outcome(method.label, per_seed, mean, history, chosen, roc)
