"""Choice between dense and row-wise updates: whole tables, or only the rows a batch reads."""

from typing import Literal

import jax

from crl_jax import samplers, tasks, train

from .._study_options import RULES, SCHEDULES
from ._config import Config
from ._options import TrainOptions
from .encoders import ENCODERS
from .objectives import ResolvedObjective

ROW_RULES: dict[str, train.RowRule] = {
    "adam": train.rows.adam,
    "adagrad": train.rows.adagrad,
    "rowwise-adagrad": train.rows.rowwise_adagrad,
    "sgd": train.rows.sgd,
}
"""Row-wise counterparts of the optimisers in :data:`RULES`, where there are any."""


def choose_optimizer_mode(
    config: Config, objective: ResolvedObjective, sampler: samplers.Sampler, n_rows: int
) -> tuple[Literal["dense", "rows"], str]:
    """Resolves ``--optimizer-mode`` for this number of users and items, with a description.

    Raises:
      ValueError: If row updates are requested but not supported.
    """
    options, hindrance = config.training, _reason_against_rows(config, sampler)
    n_read = tasks.count_row_reads(
        sampler, int(options.batch_size), objective.count("n_neg"), objective.count("n_pos"),
        objective.count("n_group"),
    )  # fmt: skip
    if options.optimizer_mode == "rows" and hindrance:
        raise ValueError(f"--optimizer-mode rows {hindrance}.")
    mode = options.optimizer_mode
    if mode == "auto":
        pays = train.prefer_row_updates(n_rows, n_read, jax.default_backend())
        mode = "rows" if pays and not hindrance else "dense"
    target = "the rows that its batch reads" if mode == "rows" else "whole tables"
    return mode, f"a step updates {target}: {n_rows:,} rows, at most {n_read:,} are read"


def _reason_against_rows(config: Config, sampler: samplers.Sampler) -> str:
    """Returns the reason why row updates are not equivalent to dense ones; empty if they are."""
    optimizer, encoder = config.training.optimizer, config.encoding.encoder
    if config.training.l2_target == "tables":
        return "needs --l2-target rows, got tables"
    rule = ROW_RULES.get(optimizer)
    if rule is None:
        return f"does not support --optimizer {optimizer}"
    if not ENCODERS[encoder].by_rows:
        return f"does not support --encoder {encoder}, whose vectors depend on many rows"
    if config.contrasting.contrast != "none":
        return f"does not support --contrast {config.contrasting.contrast}"
    if rule is train.rows.adam and sampler.uses_scores:
        return "with --optimizer adam needs a --sampler that does not use scores"
    return ""


def make_optimizer(options: TrainOptions) -> train.ScheduledOptimizer:
    """Returns the optimiser of options whose ``optimizer_mode`` is resolved."""
    numbers = options.lr * options.lr_scale, options.weight_decay, options.decay
    schedule = SCHEDULES[options.schedule]
    if options.optimizer_mode == "rows":
        return train.RowOptimizer(*numbers, rule=ROW_RULES[options.optimizer], schedule=schedule)
    return train.Optimizer(*numbers, rule=RULES[options.optimizer], schedule=schedule)
