"""One call that trains a recommender: a task, hooks and the engine put together."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import optax
from jaxtyping import Array

from .. import train as engine
from .._checks import check_registered
from .._mesh import DATA, axis_size
from ..data import Interactions
from ..losses import accepts_where
from ..metrics import eval_layout
from ..models import Encoder, MatrixFactorization, Similarity, Tables
from ..samplers import Sampler, SharedSampler
from ..train import (
    ArrayBatches,
    Callback,
    FitResult,
    Hook,
    HostBatches,
    Optimizer,
    RowOptimizer,
    ScheduledOptimizer,
    State,
    TrainConfig,
)
from ._auxiliary import AuxiliaryLoss
from ._batch import UniformUserBatches
from ._confidence import Confidence, LackOfFitWarning
from ._interactions import has_unseen, scatter_to_interactions, user_rows
from ._ranking import HyperparamSchedule, L2Target, Ranking
from ._ranking_validation import RankingValidation
from ._validation import (
    check_counts,
    check_hyperparams,
    check_kinds,
    check_same_ids,
    check_term,
)


@dataclass(frozen=True)
class RankingResult(FitResult):
    """What :func:`fit_ranking` returns: a :class:`FitResult` that knows its encoder.

    Attributes:
      encoder: The encoder, with the similarity that ranks.
      confidence: With ``confidence``, what the losses of the interactions were multiplied with in
        each run's last epoch, ``[runs, n]``, in the order of the training interactions, NaN for
        those of users who took everything; else None.
    """

    encoder: Encoder
    confidence: np.ndarray | None = None

    def tables(self, run: int = 0) -> Tables:
        """Vectors of all users and items of one run; their inner products rank."""
        return self.encoder.serving_tables(self.run(run))


def fit_ranking(
    train: Interactions,
    valid: Interactions | None = None,
    *,
    loss: Callable[..., Array],
    hyperparams: Mapping[str, Any] | None = None,
    hyperparam_schedule: HyperparamSchedule | None = None,
    encoder: Encoder | Callable[[Interactions], Encoder] | None = None,
    serve_similarity: Similarity | None = None,
    sampler: Sampler | None = None,
    n_neg: int = 1,
    n_pos: int = 0,
    n_group: int = 0,
    confidence: Confidence | None = None,
    auxiliary_loss: AuxiliaryLoss | None = None,
    anchors: Literal["interactions", "users"] = "interactions",
    batches: HostBatches | None = None,
    held_out: Interactions | None = None,
    init_scale: Any = 1.0,
    l2_target: L2Target = "tables",
    optimizer: ScheduledOptimizer | optax.GradientTransformation | None = None,
    config: TrainConfig | None = None,
    epochs: Any = 200,
    stop_at: int | None = None,
    patience: int = 50,
    eval_every: int = 1,
    k: int = 20,
    seeds: Any = 0,
    sweep: Mapping[str, Any] | None = None,
    hooks: Sequence[Hook | Callback] = (),
) -> RankingResult:
    """Trains an encoder on implicit feedback, one run or many at once.

    Each epoch goes through every interaction once, in a fresh order, and draws for each anchor
    ``n_neg`` items that the user has not taken in ``train``, as ``sampler`` chooses them, and
    ``n_pos`` more of the items the user has. After every ``eval_every`` epochs NDCG@k on ``valid``
    decides what is kept and when to stop.

    Args:
      train: Interactions to learn from.
      valid: Interactions to choose the stopping epoch on, over the same users and items; never
        the test set. ``None`` trains to the end.
      loss: ``loss(pos, neg, *, reduce_fn, **hyperparams)``, for instance ``crl_jax.losses.bpr``;
        ``pos`` is ``[B]``, or ``[B, 1 + n_group + n_pos]`` if more than the own positive is scored.
        One that looks across the batch must take ``where``, ``[B, N]``: it masks anchors that
        only fill the last batch up.
      hyperparams: The loss's own hyper-parameters.
      hyperparam_schedule: What they are at each epoch, see :data:`HyperparamSchedule`; by default
        the same throughout.
      encoder: The encoder, or what makes it from ``train``, such as
        ``LightGCN.from_interactions``; by default
        ``MatrixFactorization`` of width 32.
      serve_similarity: What a score is in validation and recommendation; by default what it is in
        training.
      sampler: Chooses the negatives, see :class:`crl_jax.samplers.Sampler`; by default uniformly
        (``RNS()``). ``InBatch()`` takes the items of the batch, whatever ``n_neg`` is, and
        ``SharedRNS()`` draws ``n_neg`` items for many anchors at once.
      n_neg: Unlabelled items per anchor, N >= 1.
      n_pos: Extra positives per anchor, M >= 0.
      n_group: Users per anchor, drawn with replacement from all who took the same item, >= 0, for
        losses of groups. Not together with ``n_pos``.
      confidence: Weights the losses of the interactions by how credible they are, see
        :class:`Confidence`; by default all by 1. A law that the scores at the start or at the end
        cannot be of is a warning.
      contrast: A further term of the loss, see :class:`AuxiliaryLoss`: two views of the users
        and items of
        a batch contrasted (:class:`ContrastiveAuxiliaryLoss`), or :class:`Uniformity`; by
        default none.
      anchors: Whether an epoch goes through the interactions, each once, or draws as many: a user
        uniformly, then one of its interactions, so that users with few of them count as much as
        those with many.
      batches: Where the anchors come from, if not from arrays on the device: batches of
        :class:`PairBatch` of ``config.batch_size``, such as those of :func:`host_interactions` for
        data that do not fit there. Not together with ``confidence`` or ``anchors`` of users.
      held_out: Positives that training must not see, such as the test set: they count among the
        negatives drawn as false ones, and show in the history (``tnr``, ``inf``) how good the
        sampler is. Nothing else depends on them.
      init_scale: Factor on all initial values of the encoder, > 0.
      l2_target: What the optimiser's ``weight_decay`` acts on, see :data:`L2Target`.
      optimizer: By default Adam with learning rate 1e-3 and L2 of 1e-5. A
        :class:`crl_jax.train.RowOptimizer` changes the rows that a batch reads, for encoders whose
        ``by_rows`` is true.
      plan: How steps are taken; by default with batches of 1,024 anchors.
      epochs: Length of the training, which the schedule spans.
      stop_at: Ends all runs after this many epochs without changing the schedule; for training
        again, on more data, as long as validation found best.
      patience: A run stops after this many epochs without a better validation score.
      eval_every: Epochs between two validations.
      k: Cut-off of the validation NDCG, which the history has as ``valid_ndcg@k``.
      seeds: Seed or seeds; each fixes a run's initial values, orders and draws.
      sweep: Arrays ``[runs]`` by name: ``learning_rate``, ``weight_decay``, ``decay``,
        ``warm_up``, ``init_scale``, ``loss.NAME``, ``sampler.NAME`` and ``auxiliary_loss.NAME``.
        The
        runs, ``epochs`` and ``seeds`` among them, train side by side under ``vmap``.
      hooks: See :func:`crl_jax.train.fit`: checkpoints, progress, measures of one's own.

    Returns:
      The :class:`RankingResult` runs.

    Raises:
      ValueError: If an argument or a hyper-parameter is out of range, the number of runs is not
        the same everywhere, a part is of other users or items, or a checkpoint holds another
        training's state.
      TrainingDiverged: If every run's loss became infinite or NaN.
    """
    check_kinds(
        train=train, valid=valid, loss=loss, encoder=encoder, sampler=sampler,
        auxiliary_loss=auxiliary_loss,
        config=config,
    )  # fmt: skip
    counts = {"n_neg": n_neg, "n_pos": n_pos, "n_group": n_group, "patience": patience, "k": k}
    check_counts(counts)
    if anchors not in ("interactions", "users"):
        raise ValueError(f"`anchors` must be interactions or users, got {anchors!r}.")
    if batches is not None and (confidence is not None or anchors == "users"):
        raise ValueError(
            "`batches` from the host must go without `confidence` and with `anchors` of "
            f"interactions, got {'`confidence`' if confidence is not None else anchors}."
        )
    check_same_ids("valid", valid, train)
    check_same_ids("held_out", held_out, train)
    config = config or TrainConfig(1024)
    task = Ranking.from_interactions(
        train,
        encoder=_encoder(encoder, train),
        loss=loss,
        hyperparams={**dict.fromkeys(_of_part("loss", sweep or {}), 0.0), **(hyperparams or {})},
        sampler=sampler,
        held_out=held_out,
        n_group=n_group,
        n_neg=n_neg,
        n_pos=n_pos,
        hyperparam_schedule=hyperparam_schedule,
        init_scale=init_scale,
        confidence=_fitting(confidence, train),
        auxiliary_loss=auxiliary_loss,
        l2_target=l2_target,
        serve_similarity=serve_similarity,
        streamed=batches is not None,
    )
    task, updates = _place_l2(task, optimizer)
    numbers = {_path(name, task): value for name, value in (sweep or {}).items()}
    check_hyperparams(task, engine.broadcast_run_params(_of_part("loss", sweep or {})))
    check_term(task, engine.broadcast_run_params(_of_part("auxiliary_loss", sweep or {})))
    _check_sampler(task, updates)
    examples = batches or ArrayBatches(task.seen)
    if anchors == "users":
        examples = UniformUserBatches(task.seen, user_rows(train))
    quality = None if valid is None else RankingValidation(eval_layout(train, valid), k)
    kept = engine.EarlyStopping(None if quality is None else quality.name, patience)
    if batches is None:
        devices = axis_size(config.mesh, DATA)
        size = min(config.batch_size, -(-len(task.seen.users) // devices) * devices)
        config = dataclasses.replace(config, batch_size=size)
    fitted = engine.fit(
        task,
        updates,
        examples,
        config,
        epochs=epochs,
        seeds=seeds,
        sweep=numbers,
        hooks=[*_confidence_hooks(task), *([] if quality is None else [quality]), kept, *hooks],
        eval_every=eval_every,
        stop_at=stop_at,
    )
    names = {_path(name, task): name for name in sweep or {}}
    return _result(fitted, task, train, names)


def _result(
    fitted: FitResult, task: Ranking, train: Interactions, names: Mapping[str, str]
) -> RankingResult:
    """What was trained, its numbers by the names that they were given."""
    fields = {f.name: getattr(fitted, f.name) for f in dataclasses.fields(fitted)}
    fields["run_params"] = {names.get(path, path): x for path, x in fitted.run_params.items()}
    confidence = None
    if task.confidence is not None:
        confidence = scatter_to_interactions(np.asarray(fitted.hook_states[0]), train)
    return RankingResult(**fields, encoder=task.serving, confidence=confidence)


def _check_sampler(task: Ranking, optimizer: Any) -> None:
    """Raises ``ValueError`` unless loss, encoder and optimizer can do with the sampler."""
    shared = type(task.sampler).__name__ if isinstance(task.sampler, SharedSampler) else None
    if shared and not accepts_where(task.loss_fn):
        raise ValueError(
            f"`loss` must take `where` with {shared}: it says which items to leave out."
        )
    if isinstance(optimizer, RowOptimizer):
        _check_by_rows(task, optimizer)


def _check_by_rows(task: Ranking, optimizer: RowOptimizer) -> None:
    """Raises ``ValueError`` unless some rows can be trained without the others."""
    if not task.encoder.by_rows:
        raise ValueError(
            "`optimizer` of rows needs an encoder whose vectors are made of a row each, got "
            f"{type(task.encoder).__name__}."
        )
    if task.auxiliary_loss is not None and not task.auxiliary_loss.by_rows:
        raise ValueError(
            "`optimizer` of rows goes with no `auxiliary_loss` that looks at more than the vectors "
            f"of the batch, got {type(task.auxiliary_loss).__name__}."
        )
    if task.sampler.uses_scores and optimizer.row_rule.flush is not None:
        raise ValueError(
            f"`sampler` {type(task.sampler).__name__} looks at the scores of other rows, which "
            "sleep: take rows.adagrad or rows.sgd, or an optimizer of whole tables."
        )


def _encoder(
    encoder: Encoder | Callable[[Interactions], Encoder] | None, train: Interactions
) -> Encoder:
    if encoder is None:
        return MatrixFactorization(train.n_users, train.n_items)
    made = encoder if isinstance(encoder, Encoder) else encoder(train)
    check_registered("encoder", made)
    if (made.n_users, made.n_items) != (train.n_users, train.n_items):
        raise ValueError(
            f"`encoder` must be of {train.n_users} users and {train.n_items} items, "
            f"got {made.n_users} and {made.n_items}."
        )
    return made


def _confidence_of(state: State) -> Array:
    return state.model_state.confidence


def _confidence_hooks(task: Ranking) -> list[Hook | Callback]:
    if task.confidence is None:
        return []
    kept = engine.FinalValue(_confidence_of)
    if not task.confidence.may_lack_fit:
        return [kept]
    return [kept, LackOfFitWarning(task.confidence, task.encoder, *task.seen)]


def _fitting(confidence: Confidence | None, train: Interactions) -> Confidence | None:
    if confidence is None:
        return None
    confidence.check(train.n_users, train.n_items, len(train))
    return confidence.select(has_unseen(train), train.n_items)


def _place_l2(
    task: Ranking, optimizer: ScheduledOptimizer | optax.GradientTransformation | None
) -> tuple[Ranking, Any]:
    """L2 of whole tables is the optimiser's; that of rows is a term of the loss."""
    if task.l2_target not in ("tables", "rows", "encoded"):
        raise ValueError(f"`l2_target` must be tables, rows or encoded, got {task.l2_target!r}.")
    if optimizer is None:
        optimizer = Optimizer(1e-3, 1e-5)
    if task.l2_target == "tables":
        if isinstance(optimizer, RowOptimizer) and optimizer.weight_decay is not None:
            raise ValueError(
                "`l2_target` must be rows with an optimizer of rows and its `weight_decay`: L2 of "
                f"the tables would change every row, got {task.l2_target!r}."
            )
        return task, optimizer
    if not isinstance(optimizer, ScheduledOptimizer):
        raise ValueError(
            f"`l2_target` {task.l2_target} needs a train.Optimizer with its `weight_decay`."
        )
    l2 = 0.0 if optimizer.weight_decay is None else optimizer.weight_decay
    return dataclasses.replace(task, l2=l2), dataclasses.replace(optimizer, weight_decay=None)


def _of_part(part: str, sweep: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of the loss, or of the term, among those of a sweep, by their own names."""
    prefix = f"{part}."
    return {k.removeprefix(prefix): v for k, v in sweep.items() if k.startswith(prefix)}


def _path(name: str, task: Ranking) -> str:
    """Where a number of the sweep belongs."""
    if name == "weight_decay" and task.l2_target != "tables":
        return "task.l2"
    if name in ("learning_rate", "weight_decay", "decay", "warm_up"):
        return f"optimizer.{name}"
    if name.startswith("loss."):
        return f"task.hyperparams.{name.removeprefix('loss.')}"
    if name == "init_scale" or name.startswith("sampler."):
        return f"task.{name}"
    if name.startswith("auxiliary_loss.") and task.auxiliary_loss is not None:
        return (
            f"task.auxiliary_loss.{task.auxiliary_loss.place(name.removeprefix('auxiliary_loss.'))}"
        )
    raise ValueError(
        "`sweep` must name learning_rate, weight_decay, decay, warm_up, init_scale, loss.NAME, "
        f"sampler.NAME or, with a `auxiliary_loss`, auxiliary_loss.NAME, got {name!r}."
    )
