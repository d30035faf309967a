"""Training with early stopping: many runs at once, exact to resume."""

import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from ..data import Interactions
from ..metrics import RankingPlan, evaluate, ranking_plan
from ..models import Functional, MatrixFactorization, functional
from ..samplers import RNS, Positives, Sampler
from ._arguments import (
    VALID,
    broadcast_runs,
    check_counts,
    check_knobs,
    check_probe,
    check_row_wise,
    check_same_ids,
    check_sampler,
    section,
)
from ._checkpoint import load_checkpoint, save_checkpoint
from ._credence import Credence
from ._epoch import Anchors, EpochState, Step, run_epoch
from ._fingerprint import check_same, describe, name_of, program
from ._optimizers import KnobSchedule, Optimizer, Schedule, adam_l2, constant

_STREAMS = {"init": 0, "epochs": 1, "sampler": 2}
"""Purposes of randomness; each run's seed is split by them, so that no stream depends on how
much of another was used."""


# A law in closed form never fits exactly; beyond this, density and scores part.
_TOLERATED_MISFIT = 0.1


class TrainingDiverged(RuntimeError):
    """Every run's loss became infinite or NaN."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "params", "opt_state", "sampler_state", "confidence", "best_params", "best_score",
        "best_epoch", "stopped",
    ],
    meta_fields=[],
)  # fmt: skip
@dataclass(frozen=True)
class TrainState:
    """All that changes while runs train; every leaf has the leading axis ``runs``.

    Attributes:
      params: Parameters after the last epoch.
      opt_state: State of the optimiser.
      sampler_state: State of the sampler.
      confidence: What multiplies the loss of each interaction, ``[runs, n]``; None for 1.
      best_params: Parameters at the best validation score so far; without validation data, those
        of the run's last epoch.
      best_score: Best validation NDCG so far; NaN before the first.
      best_epoch: Epochs trained when it was reached.
      stopped: Whether the run has ended: patience spent, length reached, or diverged.
    """

    params: Any
    opt_state: Any
    sampler_state: Any
    confidence: Float[Array, "runs n"] | None
    best_params: Any
    best_score: Float[Array, "runs"]
    best_epoch: Int[Array, "runs"]
    stopped: Bool[Array, "runs"]


@dataclass(frozen=True)
class Fitted:
    """What :func:`fit` returns.

    Attributes:
      model: The encoder's pure functions.
      params: Best parameters of every run, leading axis ``runs``.
      knobs: The numbers each run trained with, arrays of length ``runs``.
      best_epoch: Epochs after which the best parameters were taken, ``[runs]``.
      best_score: Validation NDCG there, ``[runs]``; NaN without validation data.
      history: One dictionary per evaluation: ``epoch``; ``loss`` and ``valid_ndcg@K``, with a
        ``held_out`` part ``tnr`` and ``inf``, and what the ``probe`` gave (lists over runs);
        ``seconds``.
      confidence: With ``credence``, what the losses of the interactions were multiplied with in
        each run's last epoch, ``[runs, n]``, in the order of the training interactions, NaN for
        those of users who took everything; else None.
    """

    model: Functional
    params: Any
    knobs: dict[str, np.ndarray]
    best_epoch: np.ndarray
    best_score: np.ndarray
    history: list[dict[str, Any]]
    confidence: np.ndarray | None = None

    @property
    def n_runs(self) -> int:
        """Number of runs trained together."""
        return len(self.best_epoch)

    def run(self, index: int = 0) -> Any:
        """Parameters of one run, without the leading axis."""
        return jax.tree.map(lambda leaf: leaf[index], self.params)


def fit(
    train: Interactions,
    valid: Interactions | None = None,
    *,
    loss: Callable[..., Array],
    knobs: Mapping[str, Any] | None = None,
    knob_schedule: KnobSchedule | None = None,
    build: Callable[[nnx.Rngs], Any] | None = None,
    n_neg: int = 1,
    n_pos: int = 0,
    n_group: int = 0,
    credence: Credence | None = None,
    anchors: Literal["interactions", "users"] = "interactions",
    sampler: Sampler | None = None,
    sampler_knobs: Mapping[str, Any] | None = None,
    held_out: Interactions | None = None,
    probe: Callable[[Any], Mapping[str, Array]] | None = None,
    init_scale: Any = 1.0,
    learning_rate: Any = 1e-3,
    weight_decay: Any = 1e-5,
    optimizer: Optimizer = adam_l2,
    schedule: Schedule = constant,
    decay: Any = 0.1,
    batch_size: int = 1024,
    draw_batches: int = 1,
    row_wise: bool = False,
    epochs: Any = 200,
    stop_at: int | None = None,
    patience: int = 50,
    eval_every: int = 1,
    k: int = 20,
    seeds: Any = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 5.0,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
) -> Fitted:
    """Trains an encoder on implicit feedback, one run or many at once.

    Each epoch goes through every interaction once, in a fresh order, and draws for each anchor
    ``n_neg`` items that the user has not taken in ``train``, as ``sampler`` chooses them, and
    ``n_pos`` more of the items the user has. After every ``eval_every`` epochs NDCG@k on ``valid``
    decides what is kept and when to stop. Everything between two such reports is one compiled
    call.

    The numbers ``init_scale``, ``learning_rate``, ``weight_decay``, ``decay``, ``epochs``,
    ``seeds`` and those in ``knobs`` and ``sampler_knobs`` may each be an array of length ``runs``:
    the runs then train side by side under ``vmap``.
    The same call on the same machine gives the same bits, resumed or not.

    Args:
      train: Interactions to learn from.
      valid: Interactions to choose the stopping epoch on, over the same users and items; never
        the test set. ``None`` trains to the end.
      loss: ``loss(pos, neg, *, reduce_fn, **knobs)``, for instance ``crl_jax.losses.bpr``. One
        that looks across the batch must take ``where``, see :class:`Step`.
      knobs: The loss's own hyper-parameters, numbers or arrays ``[runs]``.
      knob_schedule: What they are at each epoch, see :data:`KnobSchedule`; by default the same
        throughout.
      build: Makes the encoder, see :func:`crl_jax.models.functional`; by default
        ``MatrixFactorization`` of width 32.
      n_neg: Unlabelled items per anchor, N >= 1.
      n_pos: Extra positives per anchor, M >= 0.
      n_group: Users per anchor, drawn with replacement from all who took the same item, >= 0, for
        losses of groups: the loss gets ``pos`` as ``[B, 1 + n_group]``. Not together with
        ``n_pos``.
      credence: Weights the losses of the interactions by how credible they are, see
        :class:`Credence`; by default all by 1. A law that the scores at the start or at the end
        cannot be of is a warning.
      anchors: Whether an epoch goes through the interactions, each once, or draws as many: a user
        uniformly, then one of its interactions, so that users with few of them count as much as
        those with many.
      sampler: Chooses the negatives, see :class:`crl_jax.samplers.Sampler`; by default uniformly
        (``RNS()``).
      sampler_knobs: Numbers in place of those of ``sampler``, by field, or arrays ``[runs]``.
      held_out: Positives that training must not see, such as the test set: they count among the
        negatives drawn as false ones, and show in the history how good the sampler is. Nothing
        else depends on them.
      probe: A pure function of one run's parameters that gives arrays by name; they are computed
        with every report and stand in the history, so that names a history has of its own are
        refused. ``jax.tree_util.Partial`` passes it data.
      init_scale: Factor on all initial values of the encoder, > 0.
      learning_rate: Learning rate before the schedule, > 0.
      weight_decay: L2 coefficient, >= 0.
      optimizer: See :data:`Optimizer`.
      schedule: See :data:`Schedule`.
      decay: Factor on the learning rate that the schedule comes down to, >= 0.
      batch_size: Anchors per step.
      draw_batches: Batches whose negatives are drawn together, from the parameters before the
        first of them. With tiny batches, drawing for each alone costs many times the step.
      row_wise: A step changes only the rows of the encoder's tables that its batch reads, and
        costs no more than they do: L2 then acts on these rows alone, as in the published code of
        one triplet a step. For encoders that are :class:`crl_jax.models.RowScores` and optimisers
        without state (``sgd_l2``); runs are trained one after another.
      epochs: Length of the training, which the schedule spans.
      stop_at: Ends all runs after this many epochs without changing the schedule; for training
        again, on more data, as long as validation found best.
      patience: A run stops after this many epochs without a better validation score.
      eval_every: Epochs between two validations.
      k: Cut-off of the validation NDCG.
      seeds: Seed or seeds; each fixes a run's initial values, orders and draws.
      checkpoint: A file that holds the state and is written at most every
        ``checkpoint_seconds``, and at the end. If it exists, training goes on from it.
      checkpoint_seconds: See ``checkpoint``.
      on_epoch: Called on the host with each entry of the history as it is made, those restored
        from ``checkpoint`` first.

    Returns:
      The :class:`Fitted` runs.

    Raises:
      ValueError: If an argument or a knob is out of range, the number of runs is not the same
        everywhere, a part is of other users or items, or ``checkpoint`` holds another training's
        state: of other data, numbers or functions, by what these compute.
      TrainingDiverged: If every run's loss became infinite or NaN.
    """
    numbers = {
        "init_scale": init_scale,
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "decay": decay,
        "epochs": epochs,
        "seed": seeds,
        **{f"loss.{name}": value for name, value in (knobs or {}).items()},
        **{f"sampler.{name}": value for name, value in (sampler_knobs or {}).items()},
    }
    runs = broadcast_runs(numbers)
    check_counts({
        "n_neg": n_neg, "n_pos": n_pos, "n_group": n_group, "batch_size": batch_size,
        "draw_batches": draw_batches, "eval_every": eval_every, "patience": patience, "k": k,
    })  # fmt: skip
    check_same_ids("valid", valid, train)
    check_same_ids("held_out", held_out, train)
    check_knobs(loss, knob_schedule, runs, n_neg, n_pos + n_group)
    model = functional(build or partial(_default_model, train.n_users, train.n_items))
    sampler = RNS() if sampler is None else sampler
    check_sampler(sampler, sampler_knobs or {}, runs)
    if row_wise:
        check_row_wise(model, optimizer, name_of(optimizer))
    keep = _comparable(train)
    if anchors not in ("interactions", "users"):
        raise ValueError(f"`anchors` must be interactions or users, got {anchors!r}.")
    seen = _anchors(
        train, keep, held_out,
        bitmap=sampler.reads_bitmap, takers=n_group > 0, by_user=anchors == "users",
    )  # fmt: skip
    if credence is not None:
        credence.check(train.n_users, train.n_items, len(train))
        credence = credence.select(keep, train.n_items)
    step = Step(
        model, loss, optimizer, min(batch_size, len(train)), n_neg, n_pos, draw_batches, n_group,
        row_wise,
    )  # fmt: skip
    work = _Plan(
        step=step,
        schedule=schedule,
        knob_schedule=knob_schedule,
        k=k,
        patience=patience,
        last_epoch=int(min(stop_at or np.inf, runs["epochs"].max())),
    )
    probe = None if probe is None else jax.tree_util.Partial(probe)
    plan = None if valid is None else ranking_plan(train, valid)
    device_runs = {name: jnp.asarray(value) for name, value in runs.items()}
    fixed = seen, plan, sampler, probe, credence
    state = _initial_state(
        device_runs, seen, sampler, model=model, optimizer=optimizer, weighted=bool(credence)
    )
    if probe is not None:
        check_probe(probe, jax.tree.map(lambda leaf: leaf[0], state.params))
    epoch, history, seconds = 0, [], 0.0
    fingerprint = {
        "train": train.fingerprint(),
        "valid": None if valid is None else valid.fingerprint(),
        "runs": {name: value.tolist() for name, value in runs.items()},
        "step": [name_of(loss), name_of(optimizer), name_of(schedule), batch_size, n_neg, n_pos],
        "sampler": [*describe(sampler), draw_batches, row_wise],
        "weights": [
            n_group,
            *describe(credence),
            name_of(knob_schedule) if knob_schedule else None,
        ],
        "held_out": None if held_out is None else held_out.fingerprint(),
        "choice": [stop_at, patience, eval_every, k],
    }
    if checkpoint is not None:
        fingerprint["program"] = program(
            _advance.trace(
                state, device_runs, fixed, jnp.int32(0),
                work=work, n_epochs=min(eval_every, work.last_epoch),
            )
        )  # fmt: skip
    if checkpoint is not None and os.path.exists(checkpoint):
        state, meta = load_checkpoint(checkpoint, jax.eval_shape(lambda s: s, state))
        check_same(checkpoint, meta["fingerprint"], fingerprint)
        epoch, history, seconds = meta["epoch"], meta["history"], meta["seconds"]
        for entry in history:
            if on_epoch is not None:
                on_epoch(entry)
    state = jax.tree.map(jnp.array, state)  # own buffers: the loop donates them
    judged = credence if credence is not None and credence.may_misfit else None
    fits = judged is None or epoch > 0 or _law_fits(judged, model, state.params, seen)

    started = saved = time.monotonic()
    while epoch < work.last_epoch and not np.all(state.stopped):
        n_epochs = min(eval_every, work.last_epoch - epoch)
        state, report = _advance(
            state, device_runs, fixed, jnp.int32(epoch), work=work, n_epochs=n_epochs
        )
        report = jax.device_get(report)
        epoch += n_epochs
        score = report.pop("score")
        entry = {"epoch": epoch, **{name: values.tolist() for name, values in report.items()}}
        if valid is not None:
            entry[f"{VALID}ndcg@{k}"] = score.tolist()
        entry["seconds"] = round(seconds + time.monotonic() - started, 3)
        history.append(entry)
        if not np.isfinite(report["loss"]).any():
            raise TrainingDiverged(
                f"The loss of every run is infinite or NaN at epoch {epoch}: "
                "try a smaller learning rate or a larger temperature."
            )
        if on_epoch is not None:
            on_epoch(entry)
        if checkpoint is not None and time.monotonic() - saved >= checkpoint_seconds:
            _save(checkpoint, state, fingerprint, epoch, history)
            saved = time.monotonic()
    if checkpoint is not None:
        _save(checkpoint, state, fingerprint, epoch, history)
    if lost := int(np.sum(~np.isfinite(np.asarray(history[-1]["loss"])))):
        warnings.warn(f"{lost} of {len(runs['seed'])} runs diverged.", stacklevel=2)
    if judged is not None and fits:
        _law_fits(judged, model, state.params, seen, "after the last epoch")
    return Fitted(
        model=model,
        params=state.best_params,
        knobs=runs,
        best_epoch=np.asarray(state.best_epoch),
        best_score=np.asarray(state.best_score),
        history=history,
        confidence=None if credence is None else _spread(np.asarray(state.confidence), keep),
    )


@dataclass(frozen=True)
class _Plan:
    """The static side of :func:`_advance`."""

    step: Step
    schedule: Schedule
    knob_schedule: KnobSchedule | None
    k: int
    patience: int
    last_epoch: int


@partial(jax.jit, static_argnames=("model", "optimizer", "weighted"))
def _initial_state(
    runs: dict[str, Array],
    anchors: Anchors,
    sampler: Sampler,
    *,
    model: Functional,
    optimizer: Optimizer,
    weighted: bool,
) -> TrainState:
    def one(run: dict[str, Array]) -> TrainState:
        params = model.init(_stream(run["seed"], "init"))
        params = jax.tree.map(lambda table: run["init_scale"].astype(table.dtype) * table, params)
        sampler_key = _stream(run["seed"], "sampler")
        return TrainState(
            params=params,
            opt_state=optimizer(run["learning_rate"], run["weight_decay"]).init(params),
            sampler_state=sampler.init(sampler_key, anchors.positives, model, params),
            confidence=jnp.ones(anchors.users.shape, jnp.float32) if weighted else None,
            best_params=params,
            best_score=jnp.float32(jnp.nan),
            best_epoch=jnp.int32(0),
            stopped=jnp.bool_(False),
        )

    return jax.vmap(one)(runs)


@partial(jax.jit, static_argnames=("work", "n_epochs"), donate_argnames="state")
def _advance(
    state: TrainState,
    runs: dict[str, Array],
    fixed: tuple[Anchors, RankingPlan | None, Sampler, Any, Credence | None],
    epoch: Int[Array, ""],
    *,
    work: _Plan,
    n_epochs: int,
) -> tuple[TrainState, dict[str, Array]]:
    """``n_epochs`` epochs of every run, then validation and the bookkeeping of early stopping."""
    anchors, plan, sampler, probe, credence = fixed

    def one(state: TrainState, run: dict[str, Array]) -> tuple[TrainState, dict[str, Array]]:
        key = _stream(run["seed"], "epochs")
        own_sampler = dataclasses.replace(sampler, **section(run, "sampler"))

        def body(carry: EpochState, epoch: Array) -> tuple[EpochState, dict[str, Array]]:
            progress = epoch.astype(jnp.float32) / run["epochs"].astype(jnp.float32)
            of_loss = section(run, "loss")
            if work.knob_schedule is not None:
                of_loss = work.knob_schedule(progress, of_loss)
            knobs = {
                "learning_rate": run["learning_rate"] * work.schedule(progress, run["decay"]),
                "weight_decay": run["weight_decay"],
                "loss": of_loss,
            }
            key_now = jax.random.fold_in(key, epoch)
            return run_epoch(
                work.step, carry, key_now, anchors, own_sampler, knobs, epoch, credence
            )

        carry, reports = jax.lax.scan(
            body,
            EpochState(state.params, state.opt_state, state.sampler_state, state.confidence),
            epoch + jnp.arange(n_epochs, dtype=jnp.int32),
        )
        params = carry.params
        report = jax.tree.map(jnp.mean, reports)
        now, loss = epoch + n_epochs, report["loss"]
        if plan is None:
            score, better = jnp.float32(jnp.nan), ~state.stopped
        else:
            values = evaluate(work.step.model.score_all, params, plan, ks=(work.k,), auc=False)
            score = jnp.mean(values[f"ndcg@{work.k}"])
            # Written so that the first score beats NaN and a NaN beats nothing.
            better = ~state.stopped & (score >= 0) & ~(score <= state.best_score)
        best_epoch = jnp.where(better, now, state.best_epoch)
        waited = now - best_epoch if plan is not None else jnp.int32(0)
        ended = (now >= run["epochs"]) | (waited >= work.patience) | ~jnp.isfinite(loss)
        return TrainState(
            params=params,
            opt_state=carry.opt_state,
            sampler_state=carry.sampler_state,
            confidence=jax.tree.map(
                partial(jnp.where, state.stopped), state.confidence, carry.confidence
            ),
            best_params=jax.tree.map(partial(jnp.where, better), params, state.best_params),
            best_score=jnp.where(better, score, state.best_score),
            best_epoch=best_epoch,
            stopped=state.stopped | ended,
        ), {**report, "score": score, **(probe(params) if probe is not None else {})}

    return _over_runs(one, state, runs, in_turn=work.step.row_wise)


def _over_runs(
    one: Callable[..., Any], state: TrainState, runs: dict[str, Array], *, in_turn: bool
) -> Any:
    """``vmap`` over runs, save that a single run is not batched: batched gathers cost more.

    Updates of single rows gain nothing from being batched, and lose their place in the cache.
    """
    if len(runs["seed"]) > 1:
        return (
            jax.lax.map(lambda x: one(*x), (state, runs)) if in_turn else jax.vmap(one)(state, runs)
        )
    only = jax.tree.map(lambda leaf: leaf[0], (state, runs))
    return jax.tree.map(lambda leaf: leaf[None], one(*only))


def _stream(seed: Int[Array, ""], purpose: str) -> Array:
    return jax.random.fold_in(jax.random.key(seed), _STREAMS[purpose])


def _default_model(n_users: int, n_items: int, rngs: nnx.Rngs) -> MatrixFactorization:
    return MatrixFactorization(n_users, n_items, rngs=rngs)


def _comparable(train: Interactions) -> np.ndarray:
    """Marks the interactions of users who left something in the catalogue to compare with."""
    keep = np.diff(train.indptr)[train.users] < train.n_items
    if not keep.any():
        raise ValueError("`train` must leave some item of the catalogue unseen by some user.")
    if lost := len(keep) - int(keep.sum()):
        warnings.warn(
            f"{lost} interactions are of users who took the whole catalogue: "
            "there is nothing to compare them with, and training passes over them.",
            stacklevel=3,
        )
    return keep


def _anchors(
    train: Interactions,
    keep: np.ndarray,
    held_out: Interactions | None,
    *,
    bitmap: bool,
    takers: bool,
    by_user: bool,
) -> Anchors:
    kept_before = np.concatenate(([0], np.cumsum(keep)))[train.indptr]
    rows = np.stack([kept_before[:-1], kept_before[1:]], axis=1)
    rows = rows[rows[:, 1] > rows[:, 0]]  # of users with something to draw
    return Anchors(
        users=jnp.asarray(train.users[keep], jnp.int32),
        items=jnp.asarray(train.items[keep], jnp.int32),
        positives=Positives.of(train, bitmap=bitmap),
        held_out=None if held_out is None else Positives.of(held_out),
        takers=Positives.of(_turned(train)) if takers else None,
        rows=jnp.asarray(rows, jnp.int32) if by_user else None,
    )


def _law_fits(
    credence: Credence,
    model: Functional,
    params: Any,
    seen: Anchors,
    when: str = "before the first epoch",
) -> bool:
    """Warns where the scores of some run cannot be of the law, and confidence misleads."""

    @jax.jit
    def of_runs(params: Any) -> Array:
        key = jax.random.key(0)
        return jax.vmap(lambda own: credence.misfit(key, model, own, seen.users, seen.items))(
            params
        )

    worst = float(np.nanmax(of_runs(params), initial=0))
    if worst <= _TOLERATED_MISFIT:
        return True
    warnings.warn(
        f"The law of `credence` does not fit the scores {when}: they leave it by {worst:.2f}, "
        f"where {_TOLERATED_MISFIT} is tolerated (stats.misfit, 0 to 1). The confidence may tell "
        "less than its prior alone. Scale the initial values and the law alike, or let "
        "stats.Smoothed() read the law off the scores.",
        stacklevel=3,
    )
    return False


def _spread(values: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Puts the values of what was kept back in their places, and NaN in the others."""
    out = np.full((*values.shape[:-1], len(keep)), np.nan, values.dtype)
    out[..., keep] = values
    return out


def _turned(data: Interactions) -> Interactions:
    """Items that took users."""
    return Interactions.from_arrays(
        data.items, data.users, user_ids=data.item_ids, item_ids=data.user_ids
    )


def _save(
    path: str | os.PathLike[str],
    state: TrainState,
    fingerprint: dict[str, Any],
    epoch: int,
    history: Sequence[dict[str, Any]],
) -> None:
    meta = {
        "fingerprint": fingerprint,
        "epoch": epoch,
        "history": list(history),
        "seconds": history[-1]["seconds"] if history else 0.0,
    }
    save_checkpoint(path, jax.device_get(state), meta)
