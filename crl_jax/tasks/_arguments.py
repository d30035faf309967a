"""What :func:`fit_ranking` is given, judged and laid out before anything is traced."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..data import Interactions
from ..train import check_count
from ._ranking import Ranking


def check_counts(counts: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` unless all are whole and large enough, and go together."""
    for name, count in counts.items():
        check_count(name, count, 0 if name in ("n_pos", "n_group") else 1)
    if counts["n_pos"] and counts["n_group"]:
        raise ValueError(
            "`n_group` must be 0 with extra positives, "
            f"got {counts['n_group']} and {counts['n_pos']}."
        )


def check_same_ids(name: str, part: Interactions | None, train: Interactions) -> None:
    """Raises ``ValueError`` unless ``part`` is of the users and items of ``train``."""
    for ids in ("user_ids", "item_ids"):
        if part is not None and not np.array_equal(getattr(part, ids), getattr(train, ids)):
            raise ValueError(
                f"`{name}` must have the `{ids}` of `train`, {len(getattr(train, ids))} of them, "
                f"got {len(getattr(part, ids))}, not the same."
            )


def check_hyperparams(task: Ranking, numbers: Mapping[str, np.ndarray]) -> None:
    """Lets the loss judge its hyper-parameters as numbers, which it cannot while training.

    With a schedule those of the start and of the end. No loss is computed: the scores have shapes
    alone.

    Args:
      task: The task.
      numbers: Hyper-parameters that differ between runs, by name, ``[runs]``.
    """
    n_ahead = 1 + task.n_pos + task.n_group
    pos = jax.ShapeDtypeStruct((1, n_ahead) if n_ahead > 1 else (1,), np.float32)
    neg = jax.ShapeDtypeStruct((1, task.n_neg), np.float32)
    fixed = {name: value for name, value in task.hyperparams.items() if name not in numbers}
    runs = set(zip(*(np.asarray(a).tolist() for a in numbers.values()), strict=True)) or {()}
    for values in runs:
        given = {**fixed, **dict(zip(numbers, values, strict=True))}
        # Counted as training counts them.
        ends = [{name: float(np.float32(value)) for name, value in given.items()}]
        if task.hyperparam_schedule is not None:
            traced = {name: jnp.float32(value) for name, value in given.items()}
            ends = [task.hyperparam_schedule(jnp.float32(at), traced) for at in (0, 1)]
            ends = [{name: float(value) for name, value in end.items()} for end in ends]
        for end in ends:
            jax.eval_shape(partial(task.loss_fn, reduce_fn=None, **end), pos, neg)
