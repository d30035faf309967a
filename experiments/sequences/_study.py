"""Study of ``python -m experiments.sequences``, see :mod:`experiments._study`."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, metrics, models, tasks, train

from .._encoder_file import save_encoder
from .._program import flag, rename_arguments
from .._registry import resolve_flags
from .._rundir import write_arrays
from .._schema import absolute
from .._study import Evaluation, OnStage
from .._task_study import TaskStudy
from .._trained_model import TrainedModel
from ..backbones import SEQUENCE_ENCODERS, make_backbone
from ..view_losses import UNKNOWN_SHARE, describe_loss
from ._config import SCHEMA, Config, DataOptions
from .losses import LOSSES, task_arguments

ITEMS = "items.npz"
"""File of the item ids, in the order of the encoder's vectors."""
KS = (5, 10, 20)
_REPORTED = 10
"""Cut-off of the reports."""
_DESCRIPTION = """Predict the next item of a user from the sequence of items so far, by a causal
Transformer (SASRec). The last item of each user is the test, the last but one the validation part.

  {program}                                   simulated sequences
  {program} --data ratings.csv                your own interactions, with timestamps
  {program} --config FILE [flags]             a configuration in JSON, TOML or YAML
  {program} recommend --run DIR --data FILE   the next items of users of another file
      (recommend --help for more)
"""
POPULARITY = "popularity_"
"""Prefix of the metrics of the most popular items."""
_RANKED = {
    f"{name}@{k}": f"{label}@{k}"
    for name, label in (("ndcg", "NDCG"), ("recall", "recall (hit rate)"), ("mrr", "MRR"))
    for k in KS
}
NAMES = _RANKED | {
    f"{POPULARITY}{name}@{_REPORTED}": f"{_RANKED[f'{name}@{_REPORTED}']}, most popular items"
    for name in ("ndcg", "recall")
}
"""Display names of the test metrics."""
_CURVES = {
    "loss": "loss",
    f"valid_ndcg@{_REPORTED}": f"NDCG@{_REPORTED} on the validation part",
    f"valid_recall@{_REPORTED}": f"recall@{_REPORTED} on the validation part",
}


@dataclass(frozen=True)
class Problem:
    """The sequences of a run.

    Attributes:
      log: All interactions.
      split: Training sequences, and held-out items of each user.
      n_ties: Number of interactions with the timestamp of another one of their user.
    """

    log: data.Interactions
    split: data.SequenceSplit
    n_ties: int

    @cached_property
    def popularity(self) -> np.ndarray:
        """Number of training interactions of each item, ``[n_items]``."""
        items = self.split.train[self.split.train >= 0]
        return np.bincount(items, minlength=self.log.n_items).astype(np.float32)

    def layout(self, part: str, exclude_seen: bool) -> metrics.EvalLayout:
        """Returns the layout of the evaluation; row i of the users is ``split.users[i]``.

        Args:
          part: ``"valid"`` or ``"test"``.
          exclude_seen: Whether items of the histories are excluded.
        """
        histories, targets = self.held_out(part)
        ids = {"user_ids": np.arange(len(targets)), "item_ids": self.log.item_ids}
        test = data.Interactions.from_arrays(np.arange(len(targets)), targets, **ids)
        users, columns = np.nonzero(histories >= 0)
        if not exclude_seen:
            users, columns = users[:0], columns[:0]
        seen = data.Interactions.from_arrays(users, histories[users, columns], **ids)
        return metrics.eval_layout(seen, test)

    def held_out(self, part: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the histories of a part, ``[n, width]``, and the item that follows each."""
        split = self.split
        if part == "valid":
            return split.valid_histories, split.valid_items
        return split.test_histories, split.test_items


def read_log(source: str, arguments: dict[str, Any]) -> data.Interactions:
    """Reads or simulates the interactions of ``--data``.

    Args:
      source: File or folder, or ``simulated``.
      arguments: Arguments of :func:`crl_jax.data.load` that flags set.

    Raises:
      ValueError: If there are no timestamps, or a flag has no effect.
      DataError: If the data are invalid.
    """
    if source == "simulated":
        if arguments:
            raise ValueError(
                f"--data simulated does not use {flag(next(iter(arguments)))}; omit it."
            )
        return data.simulate_sequences()
    log = data.load(source, merge=True, **arguments)
    if log.timestamps is None:
        raise ValueError(
            f"--data {source} has no timestamps, which order the items of a user; name their "
            "column by --time-col."
        )
    return log


def load_problem(options: DataOptions, on_stage: OnStage) -> Problem:
    """Reads the interactions and splits off the last two items of each user.

    Raises:
      ValueError: If there are no timestamps, or too few interactions.
      DataError: If the data are invalid.
    """
    if options.data != "simulated":
        on_stage(f"reading {Path(options.data).name}")
    log = read_log(options.data, options.arguments())
    with rename_arguments(
        k=f"--core {options.core}", item_k="its items", sequences=f"--data {options.data}"
    ):
        if options.core > 1:
            log = data.k_core(log, options.core)
        split = data.leave_one_out(data.item_sequences(log, seed=options.order_seed))
    if not (split.train[:, :-1] >= 0).any():  # padded on the left
        raise ValueError(
            f"--data {options.data} must have a user with two interactions or more for training, "
            f"got at most {int(log.degrees.max())} of a user, of which up to two are held out."
        )
    assert log.timestamps is not None
    order = np.lexsort((log.timestamps, log.users))
    users, times = log.users[order], log.timestamps[order]
    is_tie = (users[1:] == users[:-1]) & (times[1:] == times[:-1])  # with the one before
    has_tie = np.append(is_tie, False) | np.append(False, is_tie)
    return Problem(log, split, int(has_tie.sum()))


class Sequences(TaskStudy[Config, Problem]):
    """Sequential recommendation, evaluated on the last item of each user."""

    schema, description = SCHEMA, _DESCRIPTION
    unit, score = "users", f"NDCG@{_REPORTED}"
    scores = (f"valid_ndcg@{_REPORTED}", f"valid_recall@{_REPORTED}")
    names, curves = NAMES, _CURVES

    def check(self, config: Config) -> None:
        """See :meth:`Study.check`."""
        super().check(config)
        values = resolve_flags("loss", config.objective, LOSSES, tuple(SCHEMA.axes(config)))
        if config.training.tile is not None and values.get("negatives", "all") != "all":
            raise ValueError(
                "--tile is for the scores of all items: add --negatives all, or omit it."
            )

    def load(self, config: Config, on_stage: OnStage) -> Problem:
        """See :meth:`Study.load`."""
        return load_problem(config.source, on_stage)

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        source = config.source
        if Path(source.data).exists():  # otherwise the name of a dataset
            source = absolute(source, "data", but=("simulated",))
        return self.complete_entries(replace(config, source=source), tau_plus=UNKNOWN_SHARE)

    def task(
        self, config: Config, problem: Problem, phase: str, numbers: dict[str, float]
    ) -> tasks.NextItem:
        """See :meth:`TaskStudy.task`."""
        options, n_items = config.training, problem.log.n_items
        return tasks.NextItem(
            make_network(config, n_items), n_items, options.window, tile=options.tile,
            **task_arguments(config.objective, options.temperature, numbers, n_items),
        )  # fmt: skip

    def batches(self, config: Config, problem: Problem, phase: str) -> train.ArrayBatches:
        """See :meth:`TaskStudy.batches`."""
        return train.ArrayBatches(problem.split.train)

    def measure(self, config: Config, problem: Problem, phase: str) -> Any:
        """Returns the measurement of validation metrics, see :func:`measure_valid`."""
        histories, _ = problem.held_out("valid")
        layout = problem.layout("valid", config.protocol.exclude_seen)
        return jax.tree_util.Partial(measure_valid, jnp.asarray(histories), layout)

    def describe_training(self, config: Config) -> str:
        """See :meth:`Study.describe_training`."""
        swept = tuple(SCHEMA.axes(config))
        parts = [describe_loss(config.objective, swept, LOSSES)]
        if "temperature" not in swept:
            parts.append(f"temperature={config.training.temperature:g}")
        encoder_flags = resolve_flags("encoder", config.encoding, SEQUENCE_ENCODERS)
        values = " ".join(f"{name}={value:g}" for name, value in encoder_flags.items())
        parts.append(f"{config.encoding.encoder} {values} window={config.training.window}")
        return ", ".join(parts)

    def describe_data(self, config: Config, problem: Problem) -> Iterable[str]:
        """See :meth:`Study.describe_data`."""
        log, split = problem.log, problem.split
        lengths = (split.train >= 0).sum(axis=1)
        yield (
            f"{log.n_users:,} users, {log.n_items:,} items, {len(log):,} interactions; "
            f"{len(split.users):,} users for validation and test"
        )
        window = config.training.window
        yield (
            f"training sequences of {lengths.mean():.1f} items, of which "
            f"{np.mean(lengths > window + 1):.1%} are longer than the window and its target"
        )
        if problem.n_ties:
            yield (
                f"{problem.n_ties / len(log):.1%} of the interactions have the timestamp of "
                "another one of their user; these are in random order"
            )
        if not config.protocol.exclude_seen:
            yield "items of the history are ranked, too"

    def evaluate(
        self, config: Config, problem: Problem, learned: TrainedModel, seed: int, on_stage: OnStage
    ) -> Evaluation:
        """Ranks all items for each user, with the NDCG of the users as cases."""
        layout = problem.layout("test", config.protocol.exclude_seen)
        histories = jnp.asarray(problem.held_out("test")[0])
        per_user = rank(
            compute_tables(learned.task, learned.params, learned.model_state, histories), layout
        )
        popular = models.Tables(
            jnp.ones((layout.n_users, 1)), jnp.asarray(problem.popularity)[:, None]
        )
        popularity_metrics = {f"{POPULARITY}{name}": x for name, x in rank(popular, layout).items()}
        means = metrics.summarize({**per_user, **popularity_metrics})
        return Evaluation(
            {name: means[name] for name in NAMES}, np.asarray(per_user[f"ndcg@{_REPORTED}"])
        )

    def save(self, learned: TrainedModel, folder: Path) -> None:
        """Writes the encoder."""
        save_encoder(folder, learned.params, learned.model_state, n_items=learned.task.n_items)

    def save_models(
        self, config: Config, problem: Problem, phase: str, models: list[Any], folder: Path
    ) -> None:
        """Writes the encoder of the first seed, and the ids of its items."""
        super().save_models(config, problem, phase, models, folder)
        write_arrays(folder / ITEMS, item_ids=problem.log.item_ids)


def make_network(config: Config, n_items: int) -> models.Network:
    """Returns the network of a configuration, for this number of items."""
    return models.Network(
        make_backbone(
            config.encoding, SEQUENCE_ENCODERS, n_items=n_items, window=config.training.window
        )
    )


@train.jit
def compute_tables(
    task: tasks.NextItem, params: Any, model_state: Any, histories: Any
) -> models.Tables:
    """Returns the vectors of histories and of items, see :meth:`crl_jax.tasks.NextItem.tables`."""
    return task.tables(params, model_state, histories)


def rank(tables: models.Tables, layout: metrics.EvalLayout) -> dict[str, Any]:
    """Returns the metrics of each user."""
    return metrics.evaluate(models.inner_scores, tables, layout, ks=KS, auc=False)


def measure_valid(
    histories: Any, layout: Any, task: tasks.NextItem, params: Any, model_state: Any
) -> dict[str, Any]:
    """Returns the mean validation metrics of the current parameters."""
    tables = task.tables(params, model_state, histories)
    per_user = metrics.evaluate(models.inner_scores, tables, layout, ks=_REPORTED, auc=False)
    names = (f"ndcg@{_REPORTED}", f"recall@{_REPORTED}")
    return {f"valid_{name}": jnp.mean(per_user[name]) for name in names}
