"""Study of ``python -m experiments.text``, see :mod:`experiments._study`."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from crl_jax import models, tasks, train

from .. import _truth as truth
from .._bert import layers, resolve_bert
from .._registry import filled, resolve_flags
from .._rundir import write_arrays
from .._schema import absolute
from .._study import Evaluation, OnStage, Run
from .._study_options import OMIT_ADVICE, refuse_labels
from .._task_study import OnLine, TaskStudy
from .._trained_model import TrainedModel
from ..configs import conbert, simcse
from ..view_losses import TEXT_LOSSES, check_tile, default_tau_plus, describe_loss, loss_arguments
from ._config import SCHEMA, Config
from ._embed import save_encoder
from ._evaluate import (
    Stages,
    TrainedTextModel,
    evaluate_texts,
    evaluate_weights,
    measure_accuracy,
    measure_features,
)
from ._host import TokenRows, TripletRows
from ._problem import Problem, load_problem
from .methods import METHODS, Parts

RECIPES: dict[str, Config] = {**conbert.CONFIGS, **simcse.CONFIGS}
"""All require ``--weights``, such as those of ``bert-base-chinese``."""
EMBEDDING, FEATURES = "embedding.png", "features.npz"
PRE_TRAINING, FINE_TUNING = "pre-training", "fine-tuning"
_FINE_TUNING_NAMES = {"loss": "fine_tune_loss", "accuracy": "train_accuracy"}
"""History names of fine-tuning metrics, to distinguish them from those of pre-training."""
_LR, _PRETRAINED_LR = 1e-3, 5e-5
_EPOCHS = 6
_DESCRIPTION = """Pre-train an encoder of texts by contrast, with pairs of one class or without
labels (SimCSE), fine-tune it, and evaluate it on a test part.

  {program}                                   sentences of docstrings, a small encoder
  {program} --data FOLDER --weights FOLDER    your own texts, published weights
  {program} --method none                     fine-tuning alone, to compare with
  {program} --recipe NAME [flags]             a published configuration:
      {recipes}
  {program} --config FILE [flags]             a configuration in JSON, TOML or YAML
  {program} embed --run DIR --texts FILE      features of texts
      (embed --help for more)
"""


NAMES = {
    "accuracy": "accuracy",
    "precision": "precision, mean of classes",
    "recall": "recall, mean of classes",
    "f1": "F1, mean of classes",
    "knn": "accuracy, kNN before fine-tuning",
    "alignment": "alignment of classes",
    "dropout_alignment": "alignment of two dropouts",
    "uniformity": "uniformity",
    "spearman": "Spearman's correlation of pairs",
    **truth.NAMES,
}
"""Display names of the test metrics."""
_CURVES = {
    "loss": "loss of pre-training",
    "valid_knn": "accuracy of kNN on the validation part",
    "train_knn": "accuracy of kNN among training texts",
    "train_dropout_alignment": "alignment of two dropouts of training texts",
    "train_uniformity": "uniformity of training texts",
    "auc": "AUC of the scores, by labels",
    "alpha": "α of the loss",
    "fine_tune_loss": "loss of fine-tuning",
    "train_accuracy": "accuracy on the training part, with dropout",
    "valid_accuracy": "accuracy on the validation part",
}


class TextStudy(TaskStudy[Config, Problem]):
    """Text encoders with contrastive pre-training and fine-tuning."""

    schema, recipes, description = SCHEMA, RECIPES, _DESCRIPTION
    unit, scores, score = "texts", ("valid_accuracy", "valid_knn", "train_knn"), "accuracy"
    names, curves = NAMES, _CURVES
    stages = (PRE_TRAINING, FINE_TUNING)

    def check(self, config: Config) -> None:
        """See :meth:`Study.check`."""
        super().check(config)
        name = config.method.method
        check_tile(config, TEXT_LOSSES, None if METHODS[name].takes_tile else f"--method {name}")

    def folder_name(self, config: Config) -> str:
        """See :meth:`Study.folder_name`."""
        name = f"text-{config.method.method}"
        return f"{name}-{config.objective.loss}" if _pretrains(config) else name

    def load(self, config: Config, on_stage: OnStage) -> Problem:
        """See :meth:`Study.load`."""
        on_host = config.training.batches == "host"
        return load_problem(config.source, config.encoding, on_stage, on_host)

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        axes, n_classes = SCHEMA.axes(config), len(problem.train.classes)
        encoding = absolute(config.encoding, "weights")
        config = replace(
            config,
            source=absolute(config.source, "data", "pairs", but=("docstrings",)),
            encoding=replace(encoding, **resolve_bert(encoding, problem.encoder)),
            training=filled(config.training, _training_defaults(config, problem), tuple(axes)),
        )
        if not n_classes:
            _refuse_labels(config)
        if axes and (not len(problem.valid) or len(np.unique(problem.learn.labelled.labels)) < 2):
            raise ValueError(
                "--valid-fraction leaves no validation part for a --sweep, or fewer than two "
                "training classes."
            )
        but = "" if _pretrains(config) else "loss"
        return self.complete_entries(config, but=but, tau_plus=default_tau_plus(n_classes))

    def task(self, config: Config, problem: Problem, phase: str, numbers: dict[str, float]) -> Any:
        """Returns the task of pre-training."""
        method = METHODS[config.method.method]
        assert method.make is not None
        values: dict[str, Any] = (
            resolve_flags("method", config.method, METHODS, tuple(numbers)) | numbers
        )
        loss = loss_arguments(config.objective, values["temperature"], numbers, TEXT_LOSSES)
        params, labelled = problem.encoder.params, problem.part(phase).labelled.data
        pretrained = None if params is None else {"backbone": params}
        network = _with_head(config, problem)
        return method.make(
            Parts(network, problem.table, labelled, loss, pretrained, config.training.tile)
        )

    def batches(self, config: Config, problem: Problem, phase: str) -> train.ArrayBatches:
        """Returns the batches of pre-training, with each text once per epoch or resampled."""
        part = problem.part(phase)
        if METHODS[config.method.method].needs_labels:
            part = part.labelled
        # Without classes, omit the labels so that the history has no label-based metrics.
        examples = part.data if part.classes else part.inputs
        draws = resolve_flags("method", config.method, METHODS).get("draws")
        if METHODS[config.method.method].needs_labels and isinstance(problem.table, TokenRows):
            return train.ArrayBatches(TripletRows(part.data, draws))
        if draws is None:
            return train.ArrayBatches(examples)
        return tasks.ResampledBatches(examples, n_draws=draws)

    def measure(self, config: Config, problem: Problem, phase: str) -> Any:
        """Returns the measurement for reports of pre-training."""
        return measure_features(config, problem, phase)

    def check_step(self, config: Config, problem: Problem) -> None:
        """See :meth:`Study.check_step`; checks pre-training only."""
        if _pretrains(config):
            super().check_step(config, problem)

    def count(self, config: Config, problem: Problem, phase: str, stage: str) -> int:
        """See :meth:`Study.count`."""
        if stage == FINE_TUNING:
            return len(problem.part(phase).labelled)
        return self.batches(config, problem, phase).n

    def epochs(self, config: Config, stage: str) -> int:
        """See :meth:`Study.epochs`."""
        options = config.training
        return options.fine_tune_epochs if stage == FINE_TUNING else options.epochs or 0

    def selection_score(self, config: Config) -> str:
        """See :meth:`Study.selection_score`."""
        return "valid_accuracy" if config.training.fine_tune_epochs else "valid_knn"

    def describe_training(self, config: Config) -> str:
        """See :meth:`Study.describe_training`."""
        swept = tuple(SCHEMA.axes(config))
        method_flags = resolve_flags("method", config.method, METHODS, swept)
        parts = ["no pre-training"]
        if _pretrains(config):
            parts = [config.method.method, describe_loss(config.objective, swept, TEXT_LOSSES)]
            if "temperature" not in swept:
                parts.append(f"temperature={method_flags['temperature']:g}")
        if n := config.training.fine_tune_epochs:
            parts.append(f"fine-tuned for {n} epoch{'s' if n > 1 else ''}")
        return ", ".join(parts)

    def describe_data(self, config: Config, problem: Problem) -> Iterable[str]:
        """See :meth:`Study.describe_data`."""
        n, n_known = len(problem.train), len(problem.train.labelled)
        n_classes = len(problem.train.classes)
        label_note = f" ({n_known:,} with a label)" if n_classes and n_known < n else ""
        yield (
            f"{n:,} training{label_note} and {len(problem.test):,} test texts, "
            f"{f'{n_classes} classes' if n_classes else 'no labels'}; "
            f"{problem.n_cut / n:.1%} are cut at {config.source.length} tokens"
        )
        settings = problem.encoder.settings
        weights = "random weights"
        if config.encoding.weights is not None:
            weights = f"weights of {Path(config.encoding.weights).name}"
        yield (
            f"encoder of {layers(settings.n_layers)}, width {settings.width}, "
            f"{len(problem.encoder.tokenizer):,} pieces of words; {weights}"
        )

    def fit(
        self, config: Config, problem: Problem, run: Run, checkpoints: Path, on_entry: OnLine
    ) -> Stages:
        """Pre-trains and fine-tunes; each stage resumes from its checkpoint if there is one."""
        options, contrast, classifier = config.training, None, None
        history: list[dict[str, Any]] = []

        def add(stage: str, renamed: dict[str, str], entry: dict[str, Any]) -> None:
            entry = {renamed.get(key, key): value for key, value in entry.items()}
            history.append(entry)
            on_entry({"stage": stage, **entry})

        if _pretrains(config):
            task = self.task(config, problem, run.phase, run.numbers)
            fitted = self.fit_stage(
                config, run, checkpoints, partial(add, PRE_TRAINING, {}), task=task,
                batches=self.batches(config, problem, run.phase),
                measure=self.measure(config, problem, run.phase), stage=PRE_TRAINING,
            )  # fmt: skip
            contrast = TrainedModel.from_fit(task, fitted)
        start = _initial_encoder(config, problem, run.seed, contrast)
        if options.fine_tune_epochs:
            history.clear()
            rate: Any = run.numbers.get("fine_tune_lr", options.fine_tune_lr)
            task = _classification_task(problem, start, options.fine_tune_hidden)
            fitted = self.fit_stage(
                config, run, checkpoints, partial(add, FINE_TUNING, _FINE_TUNING_NAMES), task=task,
                batches=train.ArrayBatches(problem.part(run.phase).labelled.data),
                measure=measure_accuracy(problem) if run.phase == "search" else None,
                stage=FINE_TUNING, numbers={**run.numbers, "lr": rate},
            )  # fmt: skip
            classifier = TrainedModel.from_fit(task, fitted)
        return Stages(contrast, start, classifier, history)

    def trained(
        self, config: Config, problem: Problem, run: Run, fitted: Stages
    ) -> TrainedTextModel:
        """See :meth:`TaskStudy.trained`."""
        return TrainedTextModel.from_stages(problem, fitted)

    def evaluate(
        self,
        config: Config,
        problem: Problem,
        learned: TrainedTextModel,
        seed: int,
        on_stage: OnStage,
    ) -> Evaluation:
        """Evaluates the classifier, the features, and the weights of the loss."""
        result, entry = evaluate_texts(config, learned, seed), TEXT_LOSSES[config.objective.loss]
        if learned.contrast is None or entry.weigh is None or not problem.train.classes:
            return result
        truth = evaluate_weights(entry, learned.contrast, learned.test, seed)
        return Evaluation(result.metrics | truth.metrics, result.cases, truth.calibration)

    def save(self, learned: TrainedTextModel, folder: Path) -> None:
        """Writes the encoder, and features of the test texts before and after fine-tuning."""
        save_encoder(folder, learned)
        write_arrays(
            folder / FEATURES,
            features=np.asarray(learned.features), before=np.asarray(learned.features_before),
            labels=learned.test.labels, classes=np.array(learned.test.classes, np.str_),
        )  # fmt: skip

    def draw(
        self, config: Config, problem: Problem, learned: TrainedTextModel, evaluation: Evaluation,
        title: str, folder: Path,
    ) -> None:  # fmt: skip
        """Draws a t-SNE plot of test texts."""
        from .._plots import draw_embedding, plotted_slice  # Matplotlib is slow to import

        subset = plotted_slice(len(learned.test))
        draw_embedding(
            folder / EMBEDDING, np.asarray(learned.features)[subset], learned.test.labels[subset],
            learned.test.classes, f"{title}: test texts by t-SNE", config.protocol.seed,
        )  # fmt: skip


def _pretrains(config: Config) -> bool:
    """Whether the method has a pre-training stage."""
    return METHODS[config.method.method].make is not None


def _with_head(config: Config, problem: Problem) -> models.Network:
    """Returns the network of pre-training, with its projection head."""
    head = models.Projection(config.training.head, norm=False)
    return models.Network(models.BackboneWithHead(problem.encoder.settings, head))


def _initial_encoder(
    config: Config, problem: Problem, seed: int, contrast: TrainedModel | None
) -> tuple[Any, Any]:
    """Returns the encoder before fine-tuning: pre-trained, or freshly initialized."""
    if contrast is not None:
        params, rest = contrast.task.network_variables(contrast.params, contrast.model_state)
    else:
        pretrained = problem.encoder.params
        task = tasks.SimCLR(
            _with_head(config, problem), problem.table,
            pretrained=None if pretrained is None else {"backbone": pretrained},
        )  # fmt: skip
        params, rest = task.init(jax.random.key(seed))
    return params["backbone"], rest["backbone"]


def _classification_task(
    problem: Problem, start: tuple[Any, Any], hidden: int | None
) -> tasks.Classification:
    """Returns the task of fine-tuning: the encoder, and a classifier of its features."""
    settings = problem.encoder.settings
    return tasks.Classification(
        models.Network(settings), problem.table, start, dim=settings.width,
        n_classes=len(problem.train.classes), finetune=True, hidden=hidden,
    )  # fmt: skip


def _training_defaults(config: Config, problem: Problem) -> dict[str, float]:
    """Returns the defaults of the stages that run: learning rates, and epochs of pre-training."""
    options = config.training
    rate = _LR if problem.encoder.params is None else _PRETRAINED_LR
    defaults = {"lr": rate, "epochs": _EPOCHS} if _pretrains(config) else {}
    if options.fine_tune_epochs:
        defaults["fine_tune_lr"] = rate
    return {name: value for name, value in defaults.items() if getattr(options, name) is None}


def _refuse_labels(config: Config) -> None:
    """Rejects flags that need labels, for texts without labels."""
    method, epochs = METHODS[config.method.method], config.training.fine_tune_epochs
    advice = "--method dropout with --fine-tune-epochs 0 needs none"
    learns_alone = method.make is not None and not method.needs_labels
    label_flags = {
        f"--method {config.method.method}": (not learns_alone, advice),
        f"--fine-tune-epochs {epochs}": (epochs > 0, advice),
        "--n-labels": (config.source.n_labels is not None, OMIT_ADVICE),
    }
    refuse_labels(config, "texts", label_flags)
