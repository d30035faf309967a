"""The numbers of a training: judged before any is traced, and put into their places."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from .._checks import check_count, check_range, check_registered
from .._mesh import DATA, TABLE
from ._batches import ArrayBatches, HostBatches
from ._optimizers import AnyOptimizer, RowOptimizer, Updates
from ._scan import TrainConfig
from ._task import RowTask, Task


class _Range(NamedTuple):
    """What a number of a run may be, and the argument that holds it."""

    argument: str
    low: float
    low_open: bool = False
    high: float = math.inf
    dtype: type = np.float32


_RANGES = {
    "epochs": _Range("epochs", 1, high=2**31, dtype=np.int32),
    "seed": _Range("seeds", 0, high=2**32, dtype=np.uint32),
}


def broadcast_run_params(numbers: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Checks the numbers of runs and gives each as an array ``[runs]``.

    Args:
      numbers: Numbers or arrays of one length, by the path of what they replace.

    Raises:
      ValueError: If one is out of range or no number, or the lengths differ.
    """
    arrays = {path: _settle(path, value) for path, value in numbers.items()}
    sizes = {path: a.shape for path, a in arrays.items() if a.ndim}
    if len(set(sizes.values())) > 1 or any(len(shape) > 1 for shape in sizes.values()):
        raise ValueError(f"Arrays over runs must all have one length, got the shapes {sizes}.")
    runs = next(iter(sizes.values()), (1,))
    return {path: np.broadcast_to(a, runs).copy() for path, a in arrays.items()}


def check_run_params(tree: Any, numbers: Mapping[str, np.ndarray]) -> None:
    """Lets the parts of a training judge the numbers of each run, which they cannot while tracing.

    Raises:
      ValueError: If a number is out of range, or there is no such leaf.
    """
    for run in set(zip(*(array.tolist() for array in numbers.values()), strict=True)):
        own = tree
        for path, value in zip(numbers, run, strict=True):
            own = put(own, path, np.float32(value))


def _settle(path: str, value: Any) -> np.ndarray:
    of = _RANGES.get(path)
    argument = of.argument if of is not None else path.rpartition(".")[2]
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


def put(tree: Any, path: str, value: Any) -> Any:
    """The tree with another leaf at a path of field names and keys, joined by dots.

    Raises:
      ValueError: If there is no such place.
    """
    head, _, rest = path.partition(".")
    names = list(tree) if isinstance(tree, Mapping) else [
        f.name for f in dataclasses.fields(tree) if not f.metadata.get("static")
    ]  # fmt: skip
    if head not in names:
        raise ValueError(f"`sweep` must name leaves, which are {sorted(names)}, got {head!r}.")
    now = tree[head] if isinstance(tree, Mapping) else getattr(tree, head)
    new = put(now, rest, value) if rest else value
    if isinstance(tree, Mapping):
        return {**tree, head: new}
    return dataclasses.replace(tree, **{head: new})


def check_fit(
    config: TrainConfig,
    task: Task,
    optimizer: AnyOptimizer,
    batches: ArrayBatches | HostBatches,
    *,
    eval_every: int,
    stop_at: int | None,
) -> None:
    """Raises ``ValueError`` unless the parts of a training are such, and fit together."""
    parts = {
        "task": (task, (Task,)), "optimizer": (optimizer, (Updates, RowOptimizer)),
        "config": (config, (TrainConfig,)),
    }  # fmt: skip
    for name, (value, kinds) in parts.items():
        if isinstance(value, type) or not isinstance(value, kinds):
            wanted = " or ".join(f"train.{kind.__name__}" for kind in kinds)
            raise ValueError(f"`{name}` must be a {wanted}, got {value!r}.")
        if name != "config":
            check_registered(name, value)
    if isinstance(batches, ArrayBatches):
        task.check_data(batches.data)
    counts = {name: getattr(config, name) for name in ("batch_size", "draw_batches", "accumulate")}
    counts |= {"eval_every": eval_every}
    if stop_at is not None:
        counts["stop_at"] = stop_at
    for name, count in counts.items():
        check_count(name, count)
    if config.accumulate > 1 and config.draw_batches > 1:
        raise ValueError(
            f"`draw_batches` must be 1 with `accumulate` {config.accumulate}, "
            f"got {config.draw_batches}."
        )
    if isinstance(batches, HostBatches) and config.drawn > config.batch_size:
        raise ValueError(
            "`batches` from the host are taken one by one: leave `accumulate` and "
            "`draw_batches` at 1."
        )
    if isinstance(optimizer, RowOptimizer):
        _check_by_rows(config, task, optimizer)
    if config.mesh is not None:
        _check_mesh(config.mesh, config.batch_size)


def _check_mesh(mesh: Mesh, batch_size: int) -> None:
    if DATA not in mesh.shape or set(mesh.shape) - {DATA, TABLE}:
        raise ValueError(
            f"`mesh` must have an axis {DATA}, and may have one called {TABLE}, "
            f"got {tuple(mesh.shape)}."
        )
    if any(of != AxisType.Auto for of in mesh.axis_types):
        raise ValueError(
            "`mesh` must leave layouts to the compiler, as jax.sharding.Mesh(devices, names) does, "
            f"got axes {', '.join(of.name for of in mesh.axis_types)}: give jax.make_mesh "
            "axis_types of jax.sharding.AxisType.Auto."
        )
    if batch_size % mesh.shape[DATA]:
        raise ValueError(
            f"`batch_size` must be a multiple of the {mesh.shape[DATA]} devices along the axis "
            f"{DATA} of `mesh`, got {batch_size}."
        )


def _check_by_rows(config: TrainConfig, task: Task, optimizer: RowOptimizer) -> None:
    if not isinstance(task, RowTask):
        raise ValueError(f"`optimizer` of rows needs a train.RowTask, got {type(task).__name__}.")
    if config.compute_dtype is not None or config.accumulate > 1:
        raise ValueError("`optimizer` of rows goes with neither `compute_dtype` nor `accumulate`.")
    if optimizer.weight_decay is not None:
        raise ValueError(
            "`optimizer` of rows has no `weight_decay`, which would change every row: the L2 of "
            f"the rows of a batch is a term of the loss, got {optimizer.weight_decay}."
        )


def check_names(measured: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` if a hook measures what the report has already."""
    for name in measured:
        if name in before or name in ("epoch", "seconds"):
            raise ValueError(f"A hook must use a name of its own, got {name!r}, which is taken.")
