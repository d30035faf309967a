"""The arguments of a training, judged as numbers before any of them is traced."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._checks import check_range
from ..data import Interactions
from ..models import Functional
from ..samplers import Sampler
from ._optimizers import KnobSchedule, Optimizer

VALID = "valid_"
"""What the name of a validation score in a history begins with, and no other name does."""
_RESERVED = ("epoch", "loss", "tnr", "inf", "misfit", "score", "seconds")


class _Range(NamedTuple):
    """What a number of a run may be, and the argument of :func:`fit` that holds it."""

    argument: str
    low: float
    low_open: bool = False
    high: float = math.inf
    dtype: type = np.float32


_RANGES = {
    "init_scale": _Range("init_scale", 0, low_open=True),
    "learning_rate": _Range("learning_rate", 0, low_open=True),
    "weight_decay": _Range("weight_decay", 0),
    "decay": _Range("decay", 0),
    "epochs": _Range("epochs", 1, high=2**31, dtype=np.int32),
    "seed": _Range("seeds", 0, high=2**32, dtype=np.uint32),
}
_COUNTS = {
    "n_neg": 1, "n_pos": 0, "n_group": 0, "batch_size": 1, "draw_batches": 1, "eval_every": 1,
    "patience": 1, "k": 1,
}  # fmt: skip
"""The least value of each argument that counts something."""


def check_counts(counts: Mapping[str, int]) -> None:
    """Raises ``ValueError`` unless all of :data:`_COUNTS` are there, whole and large enough."""
    for name, least in _COUNTS.items():
        count = counts[name]
        if not isinstance(count, (int, np.integer)):
            raise ValueError(f"`{name}` must be a whole number, got {count!r}.")
        if count < least:
            raise ValueError(f"`{name}` must be at least {least}, got {count}.")
    if counts["n_pos"] and counts["n_group"]:
        raise ValueError(
            "`n_group` must be 0 with extra positives, "
            f"got {counts['n_group']} and {counts['n_pos']}."
        )


def broadcast_runs(numbers: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Checks the numbers of runs and gives each as an array ``[runs]``.

    Args:
      numbers: Numbers or arrays of one length; those that :data:`_RANGES` does not have are
        hyper-parameters of the loss or the sampler, ``"loss.NAME"`` and ``"sampler.NAME"``.

    Raises:
      ValueError: If one is out of range or no number, or the lengths differ.
    """
    arrays = {name: _numbers(name, value) for name, value in numbers.items()}
    sizes = {name: a.shape for name, a in arrays.items() if a.ndim}
    if len(set(sizes.values())) > 1 or any(len(shape) > 1 for shape in sizes.values()):
        raise ValueError(f"Arrays over runs must all have one length, got the shapes {sizes}.")
    runs = next(iter(sizes.values()), (1,))
    return {name: np.broadcast_to(a, runs).copy() for name, a in arrays.items()}


def _numbers(name: str, value: Any) -> np.ndarray:
    of = _RANGES.get(name)
    argument = of.argument if of is not None else name.partition(".")[2]
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" and array.dtype != jnp.bfloat16:
        raise ValueError(f"`{argument}` must be a number or an array of numbers, got {value!r}.")
    if of is None:
        return array.astype(np.float32)
    if of.dtype is not np.float32 and np.any(array != np.floor(array)):
        raise ValueError(f"`{argument}` must be a whole number, got {value}.")
    # Counts are exact; other numbers are met in float32.
    met = np.float32 if of.dtype is np.float32 else float
    low, high, low_open = of.low, of.high, of.low_open
    check_range(argument, value, low, high, low_open=low_open, high_open=True, dtype=met)
    return array.astype(of.dtype)


def section(runs: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The numbers of one part, ``"loss"`` or ``"sampler"``, by their own names."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): v for key, v in runs.items() if key.startswith(prefix)}


def check_knobs(
    loss: Callable[..., Array],
    schedule: KnobSchedule | None,
    runs: dict[str, np.ndarray],
    n_neg: int,
    n_pos: int,
) -> None:
    """Lets the loss judge its hyper-parameters as numbers, which it cannot while training.

    With a schedule those of the start and of the end. No loss is computed: the scores have shapes
    alone.
    """
    pos = jax.ShapeDtypeStruct((1, 1 + n_pos) if n_pos else (1,), jnp.float32)
    neg = jax.ShapeDtypeStruct((1, n_neg), jnp.float32)
    knobs = section(runs, "loss")
    for values in set(zip(*(array.tolist() for array in knobs.values()), strict=True)):
        settled = dict(zip(knobs, values, strict=True))
        ends = [settled]
        if schedule is not None:
            numbers = {name: jnp.float32(value) for name, value in settled.items()}
            ends = [schedule(jnp.float32(progress), numbers) for progress in (0, 1)]
            ends = [{name: float(value) for name, value in end.items()} for end in ends]
        for end in ends:
            jax.eval_shape(partial(loss, reduce_fn=None, **end), pos, neg)


def check_sampler(sampler: Sampler, knobs: Iterable[str], runs: dict[str, np.ndarray]) -> None:
    """Lets the sampler judge the numbers that replace its own."""
    numbers = {f.name for f in dataclasses.fields(sampler) if not f.metadata.get("static")}
    if unknown := set(knobs) - numbers:
        raise ValueError(
            f"`sampler_knobs` must name numbers of {type(sampler).__name__}, which are "
            f"{sorted(numbers)}, got {sorted(unknown)}."
        )
    values = section(runs, "sampler")
    for i in range(len(runs["seed"])):
        dataclasses.replace(sampler, **{name: array[i] for name, array in values.items()})


def check_row_wise(model: Functional, optimizer: Optimizer, name: str) -> None:
    """Raises ``ValueError`` unless rows can be trained by themselves."""
    if model.row_ids is None:
        raise ValueError("`row_wise` needs an encoder with `row_ids` and `row_scores`.")
    if jax.tree.leaves(optimizer(1.0, 0.0).init({"rows": jnp.zeros(1)})):
        raise ValueError(
            f"`row_wise` needs an optimizer without state, such as sgd_l2, got {name}."
        )


def check_same_ids(name: str, part: Interactions | None, train: Interactions) -> None:
    """Raises ``ValueError`` unless ``part`` is of the users and items of ``train``."""
    for ids in ("user_ids", "item_ids"):
        if part is not None and not np.array_equal(getattr(part, ids), getattr(train, ids)):
            raise ValueError(
                f"`{name}` must have the `{ids}` of `train`, {len(getattr(train, ids))} of them, "
                f"got {len(getattr(part, ids))}, not the same."
            )


def check_probe(probe: Callable[[Any], Mapping[str, Array]], params: Any) -> None:
    """Raises ``ValueError`` if a probe names something that a history has of its own."""
    for name in jax.eval_shape(probe, params):
        if name in _RESERVED or name.startswith(VALID):
            raise ValueError(
                f"`probe` must not use the names {', '.join(_RESERVED)} or {VALID}…, got {name!r}."
            )
