"""Rules and schedules by the names of ``--optimizer`` and ``--schedule``."""

from collections.abc import Callable
from typing import Any

from crl_jax import train

RULES: dict[str, train.Rule] = {
    "adam": train.adam_l2,
    "adamw": train.adamw,
    "adagrad": train.adagrad_l2,
    "rowwise-adagrad": train.rowwise_adagrad_l2,
    "lars": train.lars,
    "sgd": train.sgd_l2,
}
SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "constant": train.constant,
    "step": train.step_decay,
    "linear": train.linear,
    "cosine": train.cosine,
}
