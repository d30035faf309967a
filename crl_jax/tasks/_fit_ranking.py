"""Training of a recommender in one call."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool

from .. import train as engine
from .._checks import check_count, check_registered
from .._hyperparams import Range, check_fields, check_hyperparams
from .._mesh import DATA, axis_size
from .._pytree import STATIC, pytree_dataclass
from ..data import Interactions
from ..losses import accepts_where
from ..metrics import EvalLayout, eval_layout, evaluate
from ..models import Encoder, Similarity, Tables, inner_scores
from ..samplers import Sampler
from ..train import (
    ArrayBatches,
    Callback,
    EpochReport,
    FitResult,
    Hook,
    HostBatches,
    Optimizer,
    RowOptimizer,
    ScheduledOptimizer,
    State,
    TrainConfig,
)
from ._auxiliary import AuxiliaryLoss, ContrastiveAuxiliaryLoss
from ._batch import UniformUserBatches, has_unseen, scatter_to_interactions, user_rows
from ._confidence import ConfidenceEM, LackOfFitWarning
from ._ranking import HyperparamEstimator, HyperparamSchedule, L2Target, Ranking
from ._tune import Tuning, TuningResult, tune_runs

_N_ANCHORS = 2  # distinguishes a loss per anchor from its mean
# Options that are attributes of the task, or arguments of its constructor.
_TASK_OPTIONS = (
    "held_out", "n_group", "n_pos", "hyperparam_schedule", "hyperparam_estimator", "init_scale",
    "auxiliary_loss", "l2_target", "serve_similarity",
)  # fmt: skip


@dataclass(frozen=True)
class Stopping:
    """Validation and stopping of :func:`fit_ranking`.

    Attributes:
      patience: A run stops after this number of epochs without a better validation score.
      eval_every: Epochs between validations.
      k: Cut-off of the validation NDCG, ``valid_ndcg@k`` in the history.
      stop_at: Stops all runs after this number of epochs without changing the learning-rate
        schedule, for a final training with the epochs that validation selected; None for no limit.
    """

    patience: Annotated[int, Range(1)] = 50
    eval_every: Annotated[int, Range(1)] = 1
    k: Annotated[int, Range(1)] = 20
    stop_at: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class RankingOptions:
    """Less common methods of :func:`fit_ranking`, all disabled by default.

    Attributes:
      n_pos: Extra positives per anchor, >= 0, sampled from its user's positives.
      n_group: Users per anchor, >= 0, sampled with replacement among those of its item, for losses
        of groups. Requires ``n_pos=0``.
      hyperparam_schedule: Schedule of the loss's hyper-parameters, see :data:`HyperparamSchedule`.
      hyperparam_estimator: Estimates hyper-parameters of the loss from the scores of each step, see
        :data:`HyperparamEstimator`; :func:`alpha_from_batch` estimates the encoder quality.
      confidence: Weights the losses of interactions by their credibility, see
        :class:`ConfidenceEM`. Warns if scores do not follow its distribution.
      auxiliary_loss: Additional loss term: a :class:`ContrastiveAuxiliaryLoss`, which contrasts two
        views of a batch, or :class:`Uniformity`.
      anchors: ``"interactions"`` visits each once per epoch; ``"users"`` draws as many, each a
        uniform user and one of its interactions (:class:`UniformUserBatches`).
      batches: Batches of :class:`PairBatch` of ``config.batch_size`` from the host, such as those
        of :func:`host_interactions`, for data that exceed device memory. Requires
        ``confidence=None`` and ``anchors="interactions"``.
      held_out: Positives excluded from training, such as the test set. Negatives among them count
        as false in the metrics ``tnr`` and ``inf`` of the history; training is unaffected.
      init_scale: Factor on the initial parameters, > 0.
      l2_target: Arrays that the optimizer's ``weight_decay`` applies to, see :data:`L2Target`.
      serve_similarity: Similarity for validation and recommendation; by default the encoder's.
    """

    n_pos: Annotated[int, Range(0)] = 0
    n_group: Annotated[int, Range(0)] = 0
    hyperparam_schedule: HyperparamSchedule | None = None
    hyperparam_estimator: HyperparamEstimator | None = None
    confidence: ConfidenceEM | None = None
    auxiliary_loss: AuxiliaryLoss | None = None
    anchors: Literal["interactions", "users"] = "interactions"
    batches: HostBatches | None = None
    held_out: Interactions | None = None
    init_scale: Any = 1.0
    l2_target: L2Target = "tables"
    serve_similarity: Similarity | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.n_pos and self.n_group:
            raise ValueError(
                f"`n_group` must be 0 with extra positives, got {self.n_group} and {self.n_pos}."
            )
        if self.batches is not None and (self.confidence is not None or self.anchors == "users"):
            conflict = "`confidence`" if self.confidence is not None else self.anchors
            raise ValueError(
                "`batches` from the host must go without `confidence` and with `anchors` of "
                f"interactions, got {conflict}."
            )
        _check_kinds(auxiliary_loss=self.auxiliary_loss)


@pytree_dataclass
class RankingValidation(Hook):
    """Hook that computes the NDCG of a validation set.

    Attributes:
      layout: Layout from :func:`crl_jax.metrics.eval_layout`.
      k: Cut-off of the NDCG. Static.
    """

    layout: EvalLayout
    k: int = field(default=20, metadata=STATIC)

    @property
    def name(self) -> str:
        """Name of the metric in the history."""
        return f"valid_ndcg@{self.k}"

    def measure(
        self, task: Any, state: State, hook_state: Any, report: EpochReport
    ) -> tuple[Any, dict[str, Array], Bool[Array, ""]]:
        """Returns the mean NDCG over users; never stops."""
        tables = task.serving.serving_tables(state.params)
        values = evaluate(
            inner_scores, tables, self.layout, ks=(self.k,), auc=False, mesh=report.mesh
        )
        return hook_state, {self.name: jnp.mean(values[f"ndcg@{self.k}"])}, jnp.bool_(False)


@dataclass(frozen=True)
class RankingResult(FitResult):
    """Result of :func:`fit_ranking`.

    Attributes:
      encoder: Encoder with the similarity for recommendation.
      confidence: Weights of the training interactions in the last epoch of each run,
        ``[runs, n]``, NaN for users who have seen the whole catalogue; None without
        ``confidence``.
      tuning: The search that ``tune`` asked for.
    """

    encoder: Encoder
    confidence: np.ndarray | None = None
    tuning: TuningResult | None = None

    def tables(self, run: int = 0) -> Tables:
        """Returns embeddings of all users and items whose inner products are the scores.

        Raises:
          IndexError: If there is no such run.
        """
        return self.encoder.serving_tables(self.get_params(run))


def fit_ranking(
    train: Interactions,
    valid: Interactions | None = None,
    *,
    loss: Callable[..., Array],
    hyperparams: Mapping[str, Any] | None = None,
    encoder: Encoder | Callable[[Interactions], Encoder] | None = None,
    sampler: Sampler | None = None,
    n_neg: int = 1,
    optimizer: ScheduledOptimizer | optax.GradientTransformation | None = None,
    config: TrainConfig | None = None,
    epochs: Any = 200,
    stopping: Stopping | None = None,
    seeds: Any = 0,
    sweep: Mapping[str, Any] | None = None,
    tune: Tuning | None = None,
    options: RankingOptions | None = None,
    hooks: Sequence[Hook | Callback] = (),
) -> RankingResult:
    """Trains an encoder on implicit feedback, in one run or several at once.

    An epoch visits each interaction once in random order, with ``n_neg`` unseen items per anchor
    from ``sampler``. Early stopping by NDCG@k on ``valid`` selects the parameters.

    Args:
      train: Training interactions.
      valid: Validation interactions of the same users and items, never the test set; None trains
        to the end.
      loss: ``loss(pos, neg, *, reduce_fn, **hyperparams)``, such as ``crl_jax.losses.bpr``, with
        ``pos [B]``, or ``[B, 1 + n_group + n_pos]`` with groups or extra positives. A loss across
        anchors must accept a mask ``where [B, N]``, which excludes padding.
      hyperparams: Hyper-parameters of the loss.
      encoder: Encoder, or a function that creates it from ``train``, such as
        ``LightGCN.from_interactions``; by default ``MatrixFactorization`` of width 32.
      sampler: Negative sampler, see :class:`crl_jax.samplers.Sampler`; by default ``RNS()``.
      n_neg: Negatives per anchor, N >= 1; ``InBatch()`` ignores it.
      optimizer: By default Adam with learning rate 1e-3 and L2 of 1e-5. A
        :class:`crl_jax.train.RowOptimizer` updates only the rows of a batch, for encoders with
        ``by_rows``.
      config: Batch size and other settings of a step; by default batches of 1,024 anchors.
      epochs: Number of epochs, the length of the learning-rate schedule.
      stopping: Validation and early stopping.
      seeds: Seed or seeds of initialisation, order and sampling.
      sweep: Arrays ``[runs]`` by path, as in :func:`crl_jax.train.fit`:
        ``"optimizer.learning_rate"``, ``"optimizer.weight_decay"``, ``"task.hyperparams.NAME"``,
        ``"task.sampler.NAME"``, ``"task.init_scale"``, ``"task.auxiliary_loss.weight"``,
        ``"task.auxiliary_loss.hyperparams.NAME"``, where ``task`` is the :class:`Ranking`. All
        runs, including those of ``epochs`` and ``seeds``, train together under ``vmap``.
      tune: Searches hyper-parameters by successive halving on ``valid``. The result has the runs of
        the best candidate, one per seed, and the search in ``tuning``. Excludes ``sweep``, arrays
        of ``epochs``, and ``hooks``.
      options: Less common methods.
      hooks: Hooks and callbacks, see :func:`crl_jax.train.fit`. An ``EarlyStopping`` among them
        replaces that of ``stopping``.

    Returns:
      The trained runs.

    Raises:
      ValueError: If an argument or hyper-parameter is out of range, numbers of runs differ, data
        have different users or items, or a checkpoint belongs to another training.
      TrainingDiverged: If the loss of every run is infinite or NaN.
    """
    if tune is not None:
        _check_tuning(tune, valid, epochs, sweep, hooks)
        fit = partial(
            fit_ranking, train, valid, loss=loss, hyperparams=hyperparams, encoder=encoder,
            sampler=sampler, n_neg=n_neg, optimizer=optimizer, config=config, stopping=stopping,
            options=options,
        )  # fmt: skip
        best, tuning = tune_runs(fit, tune, epochs, seeds)
        return dataclasses.replace(cast(RankingResult, best), tuning=tuning)
    options, stopping = options or RankingOptions(), stopping or Stopping()
    _check_kinds(
        train=train, valid=valid, loss=loss, encoder=encoder, sampler=sampler, config=config,
        options=options, stopping=stopping,
    )  # fmt: skip
    check_count("n_neg", n_neg)
    _check_ids(train, valid=valid, held_out=options.held_out)
    sweep, confidence = dict(sweep or {}), options.confidence
    if confidence is not None:
        confidence.check(train.n_users, train.n_items, len(train))
        confidence = confidence.select(has_unseen(train))
    for path in sweep:
        if path.startswith("task.auxiliary_loss.") and options.auxiliary_loss is None:
            raise ValueError(f"`sweep` must name existing leaves, got {path!r} without the term.")
    # Swept hyper-parameters need a leaf, which `fit` replaces.
    swept = _swept_hyperparams(sweep, "task")
    leaves = {name: np.ravel(values)[0] for name, values in swept.items() if np.size(values)}
    task = Ranking.from_interactions(
        train,
        encoder=encoder,
        loss=loss,
        hyperparams={**leaves, **(hyperparams or {})},
        sampler=sampler,
        n_neg=n_neg,
        confidence=confidence,
        streamed=options.batches is not None,
        **{name: getattr(options, name) for name in _TASK_OPTIONS},
    )
    task, updates = _place_l2(task, optimizer)
    _check_losses(task, sweep)
    _check_sampler(task, updates)
    batches, config = _choose_batches(task, train, options, config or TrainConfig(1024))
    placed = {} if task.l2_target == "tables" else {"optimizer.weight_decay": "task.l2"}
    fitted = engine.fit(
        task,
        updates,
        batches,
        config,
        epochs=epochs,
        seeds=seeds,
        sweep={placed.get(path, path): values for path, values in sweep.items()},
        hooks=[*_own_hooks(task, train, valid, stopping, hooks), *hooks],
        eval_every=stopping.eval_every,
        stop_at=stopping.stop_at,
    )
    original_paths = {path: name for name, path in placed.items()}
    run_params = {
        original_paths.get(path, path): values for path, values in fitted.run_params.items()
    }
    fields = {**vars(fitted), "run_params": run_params}
    weights = None
    if task.confidence is not None:
        weights = scatter_to_interactions(np.asarray(fitted.hook_states[0]), train)
    return RankingResult(**fields, encoder=task.serving, confidence=weights)


def _check_tuning(
    tune: Tuning, valid: Interactions | None, epochs: Any, sweep: Any, hooks: Any
) -> None:
    """Raises ``ValueError`` if arguments contradict a search."""
    if not isinstance(tune, Tuning):
        raise ValueError(f"`tune` must be a tasks.Tuning, got {tune!r}.")
    if valid is None:
        raise ValueError("`valid` must be given with `tune`, got None.")
    check_count("epochs", epochs)
    for name, value in (("sweep", sweep), ("hooks", hooks)):
        if value:
            raise ValueError(f"`{name}` must be empty with `tune`, got {value!r}.")


def _check_ids(train: Interactions, **parts: Interactions | None) -> None:
    """Raises ``ValueError`` unless all parts have the users and items of ``train``."""
    for name, part in parts.items():
        for ids in ("user_ids", "item_ids"):
            if part is not None and not np.array_equal(getattr(part, ids), getattr(train, ids)):
                raise ValueError(
                    f"`{name}` must have the {len(getattr(train, ids))} `{ids}` of `train`, "
                    f"got {len(getattr(part, ids))} different ones."
                )


def _swept_hyperparams(sweep: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Returns the swept hyper-parameters of the loss of ``owner`` by name."""
    prefix = f"{owner}.hyperparams."
    return {
        path.removeprefix(prefix): values
        for path, values in sweep.items()
        if path.startswith(prefix)
    }


def _choose_batches(
    task: Ranking, train: Interactions, options: RankingOptions, config: TrainConfig
) -> tuple[ArrayBatches | HostBatches, TrainConfig]:
    """Returns the batches; those of few interactions on the device are smaller than configured."""
    if options.batches is not None:
        return options.batches, config
    devices = axis_size(config.mesh, DATA)
    size = min(config.batch_size, -(-len(task.seen.users) // devices) * devices)
    config = dataclasses.replace(config, batch_size=size)
    if options.anchors == "users":
        return UniformUserBatches(task.seen, user_rows(train)), config
    return ArrayBatches(task.seen), config


def _own_hooks(
    task: Ranking,
    train: Interactions,
    valid: Interactions | None,
    stopping: Stopping,
    hooks: Sequence[Hook | Callback],
) -> list[Hook | Callback]:
    """Returns the hooks for confidences, validation and early stopping, which precede ``hooks``."""
    own: list[Hook | Callback] = []
    if task.confidence is not None:
        own.append(engine.FinalValue(_confidence))
        if task.confidence.may_lack_fit:
            own.append(LackOfFitWarning(task.confidence, task.encoder, *task.seen))
    metric = None
    if valid is not None:
        own.append(validation := RankingValidation(eval_layout(train, valid), stopping.k))
        metric = validation.name
    if not any(isinstance(hook, engine.EarlyStopping) for hook in hooks):
        own.append(engine.EarlyStopping(metric, stopping.patience))
    return own


def _confidence(state: State) -> Array:
    return state.model_state.confidence


# Accepted types of each argument, and their description.
_KINDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "train": ((Interactions,), "Interactions, such as the `train` of a split"),
    "valid": ((Interactions,), "Interactions, such as the `valid` of a split"),
    "loss": ((Callable,), "a function of scores, such as losses.bpr"),
    "encoder": (
        (Encoder, Callable),
        "an encoder or a function that creates one, such as LightGCN.from_interactions",
    ),
    "sampler": ((Sampler,), "a sampler, such as samplers.RNS()"),
    "auxiliary_loss": ((AuxiliaryLoss,), "an AuxiliaryLoss, such as tasks.LayerContrast()"),
    "config": ((TrainConfig,), "a train.TrainConfig"),
    "options": ((RankingOptions,), "a tasks.RankingOptions"),
    "stopping": ((Stopping,), "a tasks.Stopping"),
}


def _check_kinds(**arguments: Any) -> None:
    """Raises ``ValueError`` unless each argument has an accepted type; None passes."""
    for name, value in arguments.items():
        kinds, description = _KINDS[name]
        if isinstance(value, type):
            raise ValueError(f"`{name}` must be {description}, got the class {value.__name__}.")
        if value is not None and not isinstance(value, kinds):
            got = repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
            raise ValueError(f"`{name}` must be {description}, got {got}.")
        if isinstance(value, (Sampler, Encoder, AuxiliaryLoss)):
            check_registered(name, value)


def _check_losses(task: Ranking, sweep: Mapping[str, Any]) -> None:
    """Checks the loss and the auxiliary loss with the hyper-parameters of all runs."""
    n_pos = 1 + task.n_pos + task.n_group
    shapes = (_N_ANCHORS, n_pos)[: 1 + (n_pos > 1)], (_N_ANCHORS, task.n_neg)
    swept, schedule = _swept_hyperparams(sweep, "task"), task.hyperparam_schedule
    _check_loss("loss", task.loss_fn, task.hyperparams, swept, shapes, schedule)
    if (auxiliary := task.auxiliary_loss) is None:
        return
    auxiliary.check(task.encoder)
    if isinstance(auxiliary, ContrastiveAuxiliaryLoss):
        swept = _swept_hyperparams(sweep, "task.auxiliary_loss")
        swept = {name: x for name, x in swept.items() if name in auxiliary.hyperparams}
        shapes = (_N_ANCHORS,), (_N_ANCHORS, _N_ANCHORS)
        _check_loss("loss_fn", auxiliary.loss_fn, auxiliary.hyperparams, swept, shapes)


def _check_loss(
    name: str,
    loss: Callable[..., Any],
    hyperparams: Mapping[str, Any],
    swept: Mapping[str, Any],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    schedule: HyperparamSchedule | None = None,
) -> None:
    """Evaluates the loss abstractly with the hyper-parameters of all runs, which it checks."""
    check_hyperparams(loss, hyperparams)
    run_params = engine.broadcast_run_params(swept)
    required = {
        p.name
        for p in inspect.signature(loss).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty
    }
    pos, neg = (jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)
    fixed = {name: value for name, value in hyperparams.items() if name not in run_params}
    runs = set(zip(*(np.asarray(a).tolist() for a in run_params.values()), strict=True)) or {()}
    for values in runs:
        run = {**fixed, **dict(zip(run_params, values, strict=True))}
        ends = [{name: float(np.float32(value)) for name, value in run.items()}]
        if schedule is not None:
            arrays = {name: jnp.float32(value) for name, value in run.items()}
            ends = [schedule(jnp.float32(progress), arrays) for progress in (0, 1)]
            ends = [{name: float(value) for name, value in end.items()} for end in ends]
        for end in ends:
            if missing := sorted(required - {"reduce_fn", *end}):
                raise ValueError(
                    f"`hyperparams` must hold {', '.join(missing)}, required by `{name}`, "
                    f"got {sorted(end)}."
                )
            out = jax.eval_shape(partial(loss, reduce_fn=None, **end), pos, neg)
            shape = getattr(out, "shape", None)
            if shape != (_N_ANCHORS,):
                raise ValueError(
                    f"`{name}` must return one number per anchor with `reduce_fn=None`, "
                    f"[{_N_ANCHORS}] of {_N_ANCHORS} anchors, got {shape}."
                )


def _check_sampler(task: Ranking, optimizer: Any) -> None:
    """Raises ``ValueError`` unless loss, encoder and optimizer support the sampler."""
    sampler = type(task.sampler).__name__
    if task.sampler.is_shared and not accepts_where(task.loss_fn):
        raise ValueError(
            f"`loss` must accept a `where` mask with {sampler}, got {task.loss_fn!r:.100}."
        )
    if not isinstance(optimizer, RowOptimizer):
        return
    if not task.encoder.by_rows:
        raise ValueError(
            "`encoder` must compute each embedding from one row with a RowOptimizer, got "
            f"{type(task.encoder).__name__}."
        )
    if task.auxiliary_loss is not None and not task.auxiliary_loss.by_rows:
        raise ValueError(
            "`auxiliary_loss` must read only the embeddings of the batch with a RowOptimizer, got "
            f"{type(task.auxiliary_loss).__name__}."
        )
    if task.sampler.uses_scores and optimizer.row_rule.flush is not None:
        raise ValueError(
            f"`sampler` {sampler} scores rows with pending lazy updates; use rows.adagrad, "
            "rows.sgd or a dense optimizer."
        )


def _place_l2(
    task: Ranking, optimizer: ScheduledOptimizer | optax.GradientTransformation | None
) -> tuple[Ranking, Any]:
    """Moves the weight decay of rows from the optimizer to the loss."""
    if optimizer is None:
        optimizer = Optimizer(1e-3, 1e-5)
    if task.l2_target == "tables":
        if isinstance(optimizer, RowOptimizer) and optimizer.weight_decay is not None:
            raise ValueError(
                "`l2_target` must be rows with the `weight_decay` of a RowOptimizer, since L2 of "
                f"tables updates every row, got {task.l2_target!r}."
            )
        return task, optimizer
    if not isinstance(optimizer, ScheduledOptimizer):
        raise ValueError(
            f"`optimizer` must be a train.Optimizer with `weight_decay` for `l2_target` "
            f"{task.l2_target}, got {type(optimizer).__name__}."
        )
    l2 = 0.0 if optimizer.weight_decay is None else optimizer.weight_decay
    return dataclasses.replace(task, l2=l2), dataclasses.replace(optimizer, weight_decay=None)
