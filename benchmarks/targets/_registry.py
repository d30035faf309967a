"""Programs to compile, their arguments as shapes or as arrays, and trainings as programs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from crl_jax import pytree_dataclass, train
from crl_jax.train._epoch import Inputs, StaticInputs, run_epochs, start_runs
from crl_jax.train._sharding import Sharding


@dataclass(frozen=True)
class Deferred:
    """Result of a function: :func:`abstractify` computes shapes, :func:`draw_arrays` its arrays.

    Attributes:
      make: The function.
      args: Its arguments: arrays and shapes.
    """

    make: Callable[..., Any]
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Case:
    """Function to compile, with its arguments.

    Attributes:
      function: A result of ``jax.jit``, or of :func:`crl_jax.train.jit`.
      args: Positional arguments: arrays, shapes and :class:`Deferred`.
      kwargs: Keyword arguments.
      static: Static keyword arguments, which are no arguments of the compiled program.
      n_steps: Number of steps that one call computes.
      carries: Whether the first argument is donated and comes first in the result.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    static: dict[str, Any] = field(default_factory=dict)
    n_steps: int = 1
    carries: bool = False


@dataclass(frozen=True)
class Program:
    """Entry of the table.

    Attributes:
      name: Name with its group, such as ``"loss/bcl/1024"``.
      make: Builds the case for a mesh, or for a single device if it is None.
      quick: Whether it belongs to the quick part.
      axes: Axes of the mesh that share its devices evenly; empty for programs of a single device.
      targets: Targets that it is compiled for; empty for all that fit ``axes``.
      family: Programs of one family differ only in ``batch``, which determines the largest batch.
      batch: Batch size.
      growth: Exponent of the batch size in the temporary memory: 2 if all scores are in memory.
    """

    name: str
    make: Callable[[Mesh | None], Case]
    quick: bool = False
    axes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    family: str = ""
    batch: int = 0
    growth: int = 1


PROGRAMS: dict[str, Program] = {}


def program(name: str, make: Callable[[Mesh | None], Case], **fields: Any) -> None:
    """Adds a program.

    Raises:
      ValueError: If the name is taken.
    """
    if name in PROGRAMS:
        raise ValueError(f"`name` must be new, got {name!r}.")
    PROGRAMS[name] = Program(name, make, **fields)


def shape(*sizes: int, dtype: Any = jnp.float32, sharding: Any = None) -> Any:
    """Returns an array argument by its shape."""
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)


def function_case(function: Callable[..., Any], *args: Any) -> Case:
    """Returns a case of a function without donated arguments."""
    return Case(jax.jit(function), args)


def abstractify(tree: Any, sharding: Any) -> Any:
    """Replaces arrays by shapes on a device; shapes keep a sharding that they have."""

    def abstract_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Deferred):
            return abstractify(
                jax.eval_shape(leaf.make, *abstractify(leaf.args, sharding)), sharding
            )
        if not hasattr(leaf, "dtype"):
            return leaf
        leaf_sharding = leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else None
        dtype = jax.eval_shape(lambda x: x, leaf).dtype  # int32 for int64 without x64
        return jax.ShapeDtypeStruct(jnp.shape(leaf), dtype, sharding=leaf_sharding or sharding)

    return jax.tree.map(abstract_leaf, tree)


def draw_arrays(tree: Any) -> Any:
    """Replaces shapes by random arrays on the default device: normal, or uniform bytes."""

    def draw_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Deferred):
            return jax.jit(leaf.make)(*draw_arrays(leaf.args))
        if isinstance(leaf, np.ndarray):
            return jnp.asarray(leaf)
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        draw = jax.random.normal if jnp.issubdtype(leaf.dtype, jnp.floating) else jax.random.bits
        return jax.jit(draw, static_argnums=(1, 2))(jax.random.key(0), leaf.shape, leaf.dtype)

    return jax.tree.map(draw_leaf, tree)


@pytree_dataclass
class FirstBatches(train.ArrayBatches):
    """The first batches of each epoch, as a sample of the steps of a long epoch.

    Attributes:
      n_steps: Number of batches. Static.
    """

    n_steps: int = field(metadata={"static": True}, kw_only=True)

    def epoch(self, key: Any, config: train.TrainConfig) -> train.Steps:
        """Returns the first steps of an epoch."""
        return jax.tree.map(lambda leaf: leaf[: self.n_steps], super().epoch(key, config))


def training_case(
    task: Any,
    optimizer: Any,
    batches: Any,
    batch_size: int,
    mesh: Mesh | None = None,
    compute_dtype: str | None = None,
    sweep: Mapping[str, np.ndarray] | None = None,
) -> Case:
    """Returns the program of an epoch that :func:`crl_jax.train.fit` compiles.

    For one run, or one for each value of ``sweep``.
    """
    sweep = dict(sweep or {})
    config = train.TrainConfig(batch_size, compute_dtype=compute_dtype, mesh=mesh)
    n_updates = -(-batches.n // batch_size)
    sharding = None if mesh is None else Sharding.from_task(mesh, task, optimizer)
    static = StaticInputs(config, tuple(sweep), n_updates, sharding)
    task = task if mesh is None else task.shard(mesh)
    n_runs = max(map(len, sweep.values()), default=1)
    seeds = np.arange(n_runs, dtype=np.uint32)
    runs = {"seed": seeds, "epochs": np.ones(n_runs, np.int32), **sweep}
    inputs = Inputs(task, optimizer, batches, ())
    state: Any = Deferred(partial(start_runs, static=static), (runs, inputs))
    if mesh is not None:
        # Only the compiler knows how the initial state is sharded.
        replicated = NamedSharding(mesh, PartitionSpec())
        lowered = start_runs.lower(*abstractify((runs, inputs), replicated), static=static)
        state = jax.tree.map(
            lambda x, x_sharding: shape(*x.shape, dtype=x.dtype, sharding=x_sharding),
            lowered.out_info, lowered.compile().output_shardings,
        )  # fmt: skip
    return Case(
        run_epochs,
        (state,),
        {"runs": runs, "inputs": inputs, "epoch": np.int32(0)},
        {"static": static, "n_epochs": 1},
        n_steps=getattr(batches, "n_steps", n_updates),
        carries=True,
    )
