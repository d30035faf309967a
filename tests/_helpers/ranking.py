"""Helpers to train ranking models, so that tests specify only the relevant arguments."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import losses, models, tasks, train
from crl_jax.data import Interactions, simulate, with_validation

OF_OPTIMIZER = ("learning_rate", "weight_decay", "decay", "warm_up", "rule", "schedule")
OF_PLAN = ("batch_size", "draw_batches", "accumulate", "compute_dtype", "mesh")


def fit_ranking(log, valid=None, **flat):
    """Calls ``fit_ranking`` with the fields of ``options`` and ``stopping`` as arguments."""
    for kind, name in ((tasks.RankingOptions, "options"), (tasks.Stopping, "stopping")):
        known = {f.name for f in dataclasses.fields(kind)} & flat.keys()
        flat[name] = kind(**{field: flat.pop(field) for field in known})
    return tasks.fit_ranking(log, valid, **flat)


def fit(
    log, valid=None, *, loss=losses.bpr, checkpoint=None, seconds=5.0, see=None, by_rows=False,
    **flat,
):  # fmt: skip
    """Calls ``fit_ranking`` with the fields of optimizer and config as arguments; sweeps arrays."""
    kind = train.RowOptimizer if by_rows else train.Optimizer
    sweep, optimizer = dict(flat.pop("sweep", {})), {"learning_rate": 1e-3, "weight_decay": 1e-5}
    for name in (*OF_OPTIMIZER, "init_scale"):
        if name not in flat:
            continue
        value = flat.pop(name) if name != "init_scale" else flat[name]
        if name not in ("rule", "schedule") and np.ndim(value):
            part = "task" if name == "init_scale" else "optimizer"
            sweep[f"{part}.{name}"] = value
            flat.pop(name, None)
        elif name != "init_scale":
            optimizer[name] = value
    hyperparams = dict(flat.pop("hyperparams", {}))
    sweep |= {
        f"task.hyperparams.{name}": value for name, value in hyperparams.items() if np.ndim(value)
    }
    plan = {"batch_size": 1024, **{name: flat.pop(name) for name in OF_PLAN if name in flat}}
    hooks = list(flat.pop("hooks", ()))
    hooks += [] if checkpoint is None else [train.Checkpoint(checkpoint, seconds)]
    hooks += [] if see is None else [train.Progress(see)]
    return fit_ranking(
        log, valid, loss=loss, sweep=sweep, hooks=hooks, config=train.TrainConfig(**plan),
        hyperparams={n: v for n, v in hyperparams.items() if not np.ndim(v)},
        optimizer=kind(**optimizer), **flat,
    )  # fmt: skip


@functools.cache
def split():
    """Returns simulated interactions, split into training and validation sets."""
    small = simulate(n_users=60, n_items=80, n_exposed=50, seed=1).interactions
    return with_validation(small, valid=0.2)


def quick_fit():
    """Returns :func:`fit` bound to :func:`split` and a few epochs."""
    return functools.partial(
        fit, split().train, split().valid,
        loss=losses.bpr, epochs=6, batch_size=64, learning_rate=1e-2,
    )  # fmt: skip


def curve(fitted):
    """Returns the validation scores, ``[reports, runs]``."""
    return np.array([entry["valid_ndcg@20"] for entry in fitted.history])


def taken_by_all_but_one(n_users=6, n_items=5):
    """Returns each user's only item without interaction, and interactions with all others."""
    missing = np.resize([0, 1, 2, 3, 4, 2], n_users)
    users, items = np.nonzero(np.arange(n_items) != missing[:, None])
    ids = {"user_ids": np.arange(n_users), "item_ids": np.arange(n_items)}
    return missing, Interactions.from_arrays(users, items, **ids)


def bpr_gradients(params, users, items, missing, weight=1.0):
    """Mean weighted BPR loss against each user's missing item, and its gradients, in float64."""
    w, h = (np.asarray(params[name], np.float64) for name in ("users", "items"))
    grads = {"users": np.zeros_like(w), "items": np.zeros_like(h)}
    loss, weight = 0.0, np.broadcast_to(weight, len(users)) / len(users)
    for u, i, c in zip(users, items, weight, strict=True):
        ahead = w[u] @ (h[i] - h[missing[u]])
        loss += c * np.log1p(np.exp(-ahead))
        slope = -c / (1 + np.exp(ahead))
        grads["users"][u] += slope * (h[i] - h[missing[u]])
        grads["items"][i] += slope * w[u]
        grads["items"][missing[u]] -= slope * w[u]
    return loss, grads


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Watched(models.MatrixFactorization):
    """Records the tables and ids of its scoring calls, in order."""

    see: Callable = dataclasses.field(default=print, metadata={"static": True})

    def score(self, tables, users, items):
        jax.debug.callback(self.see, tables.users, tables.items, users, items, ordered=True)
        return super().score(tables, users, items)


def epoch_of(
    log, *, key=None, params=None, weight=None, number=0, learning_rate=1e-30, weight_decay=0.0,
    rule=None, encoder=None, dim=3, loss=losses.bpr, by_user=None, by_rows=False, **flat,
):  # fmt: skip
    """Runs one epoch, by default with a negligible step; returns the states and the report."""
    encoder = encoder or models.MatrixFactorization(log.n_users, log.n_items, dim)
    plan = {"batch_size": 24, **{name: flat.pop(name) for name in OF_PLAN if name in flat}}
    plan = train.TrainConfig(**plan)
    rate, l2 = jnp.float32(learning_rate), jnp.float32(weight_decay)
    if by_rows:
        flat |= {"l2": l2, "l2_target": "rows"}
        optimizer = train.RowOptimizer(rate, rule=rule or train.rows.sgd)
    else:
        optimizer = train.Optimizer(rate, l2, rule=rule or train.sgd_l2)
    task = tasks.Ranking.from_interactions(log, encoder=encoder, loss=loss, **flat)
    before = train.initial_state(task, optimizer, 0)
    if params is not None:
        before = before._replace(params=params, opt_state=optimizer.init(params))
    if weight is not None:
        before = before._replace(model_state=before.model_state._replace(confidence=weight))
    batches = train.ArrayBatches(task.seen)
    if by_user is not None:
        batches = tasks.UniformUserBatches(task.seen, by_user)
    key = jax.random.key(4) if key is None else key
    model_state = task.start_epoch(key, before.params, before.model_state, jnp.int32(number))
    after, report = train.run_steps(
        task, optimizer, before._replace(model_state=model_state), batches.epoch(key, plan),
        config=plan, data=batches.data, epoch=number,
    )  # fmt: skip
    return before, after, report
