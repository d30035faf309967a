"""Validation of the arguments of :func:`crl_jax.train.fit`, before anything is traced."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from .._checks import check_count, check_range, check_registered
from .._mesh import DATA, TABLE
from ._batches import ArrayBatches, HostBatches
from ._optimizers import AnyOptimizer, RowOptimizer, Updates
from ._scan import TrainConfig
from ._task import RowTask, Task

# Argument, range and dtype of the integer run parameters.
_INTEGERS = {"epochs": ("epochs", 1, 2**31, np.int32), "seed": ("seeds", 0, 2**32, np.uint32)}


def broadcast_run_params(run_params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Broadcasts scalars and arrays over runs to arrays ``[runs]``.

    Args:
      run_params: Scalars or arrays of equal length by path.

    Raises:
      ValueError: If a value is not a number, is out of range, or the lengths differ.
    """
    arrays = {path: _as_array(path, value) for path, value in run_params.items()}
    shapes = {path: a.shape for path, a in arrays.items() if a.ndim}
    if len(set(shapes.values())) > 1 or any(len(shape) > 1 for shape in shapes.values()):
        raise ValueError(f"Arrays over runs must all have one length, got the shapes {shapes}.")
    shape = next(iter(shapes.values()), (1,))
    return {path: np.broadcast_to(a, shape).copy() for path, a in arrays.items()}


def check_run_params(parts: Any, swept: Mapping[str, np.ndarray]) -> None:
    """Constructs task and optimizer with the values of each run, which checks their ranges."""
    for values in set(zip(*(array.tolist() for array in swept.values()), strict=True)):
        replaced = parts
        for path, value in zip(swept, values, strict=True):
            replaced = replace_leaf(replaced, path, np.float32(value))


def _as_array(path: str, value: Any) -> np.ndarray:
    default = path.rpartition(".")[2], None, None, np.float32
    argument, low, high, dtype = _INTEGERS.get(path, default)
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" and array.dtype != jnp.bfloat16:
        raise ValueError(f"`{argument}` must be a number or an array of numbers, got {value!r}.")
    if low is not None and high is not None:
        if np.any(array != np.floor(array)):
            raise ValueError(f"`{argument}` must be a whole number, got {value}.")
        check_range(argument, value, low, high, high_open=True, dtype=float)
    return array.astype(dtype)


def replace_leaf(tree: Any, path: str, value: Any) -> Any:
    """Returns the tree with the leaf at a path of names, joined by dots, replaced."""
    head, _, rest = path.partition(".")
    names = list(tree) if isinstance(tree, Mapping) else [
        f.name for f in dataclasses.fields(tree) if not f.metadata.get("static")
    ]  # fmt: skip
    if head not in names:
        raise ValueError(f"`sweep` must name leaves, which are {sorted(names)}, got {head!r}.")
    child = tree[head] if isinstance(tree, Mapping) else getattr(tree, head)
    new = replace_leaf(child, rest, value) if rest else value
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
    """Raises ``ValueError`` if an argument is invalid or incompatible with the others."""
    parts = {
        "task": (task, (Task,)), "optimizer": (optimizer, (Updates, RowOptimizer)),
        "config": (config, (TrainConfig,)),
    }  # fmt: skip
    for name, (value, types) in parts.items():
        if isinstance(value, type) or not isinstance(value, types):
            expected = " or ".join(f"train.{each.__name__}" for each in types)
            raise ValueError(f"`{name}` must be a {expected}, got {value!r}.")
        if name != "config":
            check_registered(name, value)
    if isinstance(batches, ArrayBatches):
        task.check_data(batches.data)
    for name in ("batch_size", "draw_batches", "accumulate"):
        check_count(name, getattr(config, name))
    check_count("eval_every", eval_every)
    if stop_at is not None:
        check_count("stop_at", stop_at)
    if config.accumulate > 1 and config.draw_batches > 1:
        raise ValueError(
            f"`draw_batches` must be 1 with `accumulate` {config.accumulate}, "
            f"got {config.draw_batches}."
        )
    if isinstance(batches, HostBatches) and config.draw_size > config.batch_size:
        raise ValueError(
            "`accumulate` and `draw_batches` must be 1 with HostBatches, "
            f"got {config.accumulate} and {config.draw_batches}."
        )
    if isinstance(optimizer, RowOptimizer):
        _check_row_optimizer(config, task, optimizer)
    if config.mesh is not None:
        _check_mesh(config.mesh, config.batch_size)


def _check_mesh(mesh: Mesh, batch_size: int) -> None:
    if DATA not in mesh.shape or set(mesh.shape) - {DATA, TABLE}:
        raise ValueError(
            f"`mesh` must have an axis {DATA}, and may have one called {TABLE}, "
            f"got {tuple(mesh.shape)}."
        )
    if any(axis_type != AxisType.Auto for axis_type in mesh.axis_types):
        raise ValueError(
            "`mesh` must have axes of type Auto, as jax.sharding.Mesh(devices, names) has, "
            f"got axes {', '.join(each.name for each in mesh.axis_types)}: give jax.make_mesh "
            "axis_types of jax.sharding.AxisType.Auto."
        )
    if batch_size % mesh.shape[DATA]:
        raise ValueError(
            f"`batch_size` must be a multiple of the {mesh.shape[DATA]} devices along the axis "
            f"{DATA} of `mesh`, got {batch_size}."
        )


def _check_row_optimizer(config: TrainConfig, task: Task, optimizer: RowOptimizer) -> None:
    if not isinstance(task, RowTask):
        raise ValueError(
            f"`task` must be a train.RowTask with a RowOptimizer, got {type(task).__name__}."
        )
    if config.compute_dtype is not None or config.accumulate > 1:
        raise ValueError(
            "`compute_dtype` must be None and `accumulate` 1 with a RowOptimizer, "
            f"got {config.compute_dtype} and {config.accumulate}."
        )
    if optimizer.weight_decay is not None:
        raise ValueError(
            "`weight_decay` must be None with a RowOptimizer, since it would update every row: use "
            f"an L2 term on the batch's rows in the loss, got {optimizer.weight_decay}."
        )
