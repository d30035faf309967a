"""Graph propagation: one product with the user-item graph, and three-layer LightGCN gradients.

The product is D^{-1/2} A D^{-1/2} E, width 64, in float32. Forward and backward is the gradient of
half the squared norm of the mean of the layers 0 to 3: three products forward and three backward,
since every contestant exploits the symmetry of the matrix. Ours are the layouts of
:class:`crl_jax.models.InteractionGraph`; they are compared with JAX's own ``segment_sum`` and
``BCSR``, SciPy's CSR on one thread, and PyTorch's CSR on one thread and on all.

Each contestant is a separate process, and the processes run alternately, so that a busy moment of
the machine affects all of them. Wall time and CPU time of all cores are reported: on a shared
machine, CPU time is the more informative. Memory is the size of the graph's arrays, and the growth
of the process during the first forward and backward pass, after compilation (``VmHWM`` of Linux,
reset before the call).

    python -m benchmarks.propagation --data $CRL_DATA --out benchmarks/results/propagation.csv
"""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ._processes import Worker, growth_mb
from ._report import (
    THREADS,
    Report,
    Row,
    Timing,
    add_ratio,
    alternate,
    count,
    one_line_errors,
    parser,
    summarize,
    timed,
)

DIM, N_LAYERS = 64, 3
DATASETS = {"ml-100k": "ml-100k/train.csv", "gowalla": "gowalla/train.txt"}
LARGEST_DENSE = 2**26
"""Number of entries of the largest matrix that is measured by default."""
OURS = ("rows", "dense", "bits")
REFERENCES = ("segment_sum", "BCSR", "SciPy")
KINDS = ("product", "gradient")


class Contestant(NamedTuple):
    """Propagation method.

    Attributes:
      calls: For each of :data:`KINDS` a function that waits for its result.
      graph: Arrays that hold the graph.
    """

    calls: dict[str, Callable[[], Any]]
    graph: Any


def load(data: Path, name: str) -> Any:
    """Loads the training interactions of a dataset."""
    from crl_jax.data import read

    return read(data / DATASETS[name])


def start_table(interactions: Any) -> np.ndarray:
    """Returns the embeddings that all contestants propagate, ``[n_users + n_items, DIM]``."""
    rows = interactions.n_users + interactions.n_items
    return np.random.default_rng(0).normal(size=(rows, DIM)).astype(np.float32)


def normalise_graph(
    users: np.ndarray, items: np.ndarray, n_users: int, n_items: int, dtype: Any
) -> Any:
    """Returns D^{-1/2} A D^{-1/2} as SciPy's CSR, users first."""
    import scipy.sparse as sp

    n, items = n_users + n_items, items + n_users
    ends = np.concatenate([users, items]), np.concatenate([items, users])
    degrees = np.bincount(ends[0], minlength=n).astype(np.float64)
    values = 1 / np.sqrt(degrees[ends[0]] * degrees[ends[1]])
    matrix = sp.csr_array((values.astype(dtype), ends), shape=(n, n))
    matrix.sort_indices()
    return matrix


def interaction_matrix(interactions: Any, dtype: Any) -> Any:
    """Returns the normalised matrix of interactions."""
    log = interactions
    return normalise_graph(log.users, log.items, log.n_users, log.n_items, dtype)


def mean_of_layers(product: Callable[[Any], Any], table: Any) -> Any:
    """Returns the mean of the layers 0 to :data:`N_LAYERS`."""
    total = table
    for _ in range(N_LAYERS):
        table = product(table)
        total = total + table
    return total / (N_LAYERS + 1)


def ours(interactions: Any, layout: str) -> Contestant:
    """Returns a layout of ``crl_jax``."""
    import jax
    import jax.numpy as jnp

    from crl_jax.models import InteractionGraph, Tables, propagate

    graph = InteractionGraph.from_interactions(interactions, layout=layout)  # pyright: ignore[reportArgumentType]
    table = start_table(interactions)
    n_users = interactions.n_users
    tables = Tables(jnp.asarray(table[:n_users]), jnp.asarray(table[n_users:]))
    weights = (1 / (N_LAYERS + 1),) * (N_LAYERS + 1)

    def loss(tables: Any, graph: Any) -> Any:
        propagated = propagate(graph, tables, weights)
        return 0.5 * sum(jnp.vdot(x, x) for x in propagated)

    return compile_contestant(
        {
            "product": lambda tables, graph: propagate(graph, tables),
            "gradient": jax.grad(loss),
        },
        tables,
        graph,
    )


def other_jax(interactions: Any, name: str) -> Contestant:
    """Returns one of JAX's own methods, with the same symmetric gradient as ours."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import sparse

    matrix = interaction_matrix(interactions, np.float32)
    n = matrix.shape[0]
    table = jnp.asarray(start_table(interactions))
    columns = jnp.asarray(matrix.indices.astype(np.int32))
    values = jnp.asarray(matrix.data)
    if name == "BCSR":
        starts = jnp.asarray(matrix.indptr.astype(np.int32))
        graph: Any = sparse.BCSR((values, columns, starts), shape=(n, n))

        def product(graph: Any, table: Any) -> Any:
            return graph @ table

    else:
        rows = np.repeat(np.arange(n, dtype=np.int32), np.diff(matrix.indptr))
        graph = (jnp.asarray(rows), columns, values)

        def product(graph: Any, table: Any) -> Any:
            rows, columns, values = graph
            messages = values[:, None] * table[columns]
            return jax.ops.segment_sum(messages, rows, n, indices_are_sorted=True)

    @jax.custom_vjp
    def mean_layers(table: Any, graph: Any) -> Any:
        return mean_of_layers(partial(product, graph), table)

    mean_layers.defvjp(
        lambda table, graph: (mean_layers(table, graph), graph),
        lambda graph, cotangent: (mean_layers(cotangent, graph), None),
    )

    def loss(table: Any, graph: Any) -> Any:
        propagated = mean_layers(table, graph)
        return 0.5 * jnp.vdot(propagated, propagated)

    return compile_contestant(
        {"product": lambda table, graph: product(graph, table), "gradient": jax.grad(loss)},
        table,
        graph,
    )


def compile_contestant(functions: dict[str, Any], tables: Any, graph: Any) -> Contestant:
    """Returns a contestant that calls compiled JAX functions on the given arguments."""
    import jax

    programs = {
        kind: jax.jit(function).lower(tables, graph).compile()
        for kind, function in functions.items()
    }
    calls: dict[str, Callable[[], Any]] = {
        kind: lambda program=program: jax.block_until_ready(program(tables, graph))
        for kind, program in programs.items()
    }
    return Contestant(calls, jax.tree.leaves(graph))


def scipy_csr(interactions: Any) -> Contestant:
    """Returns SciPy's product, on one thread."""
    matrix = interaction_matrix(interactions, np.float32)
    table = start_table(interactions)

    def gradient() -> np.ndarray:
        propagated = mean_of_layers(matrix.__matmul__, table)
        return mean_of_layers(matrix.__matmul__, propagated)

    graph = matrix.data, matrix.indices, matrix.indptr
    return Contestant({"product": lambda: matrix @ table, "gradient": gradient}, graph)


def torch_csr(interactions: Any, threads: int) -> Contestant:
    """Returns PyTorch's product with a symmetric backward."""
    import torch

    from . import _torch_lightgcn as lightgcn

    torch.set_num_threads(threads)
    matrix = lightgcn.normalised_adjacency(
        interactions.users, interactions.items, interactions.n_users, interactions.n_items
    )
    table = torch.from_numpy(start_table(interactions)).requires_grad_()

    def product() -> np.ndarray:
        with torch.inference_mode():
            return (matrix @ table).numpy()

    def gradient() -> np.ndarray:
        propagated = lightgcn.propagate(matrix, table, N_LAYERS)
        (table_gradient,) = torch.autograd.grad(0.5 * propagated.square().sum(), table)
        return table_gradient.numpy()

    graph = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    return Contestant({"product": product, "gradient": gradient}, graph)


def build(interactions: Any, name: str) -> Contestant:
    """Returns the contestant with a given name."""
    if name in OURS:
        return ours(interactions, name)
    if name == "SciPy":
        return scipy_csr(interactions)
    if name.startswith("PyTorch"):
        return torch_csr(interactions, int(name.split()[-1]))
    return other_jax(interactions, name)


def make(data: Path, dataset: str, name: str) -> tuple[Row, Callable[[str], Timing]]:
    """Returns memory and errors of a contestant, and a timed call of either kind."""
    interactions = load(data, dataset)
    preparation = timed(build, interactions, name)
    calls, graph = preparation.value
    matrix, table = interaction_matrix(interactions, np.float64), start_table(interactions)
    mean = partial(mean_of_layers, matrix.__matmul__)
    expected = {"product": matrix @ table.astype(np.float64), "gradient": mean(mean(table))}

    def error(kind: str) -> float:
        result = calls[kind]()
        parts = result if isinstance(result, tuple) else (result,)  # tables of users and items
        values = np.concatenate(list(map(np.asarray, parts)))
        return float(np.abs(values - expected[kind]).max())

    first = {
        "prepare_cpu_seconds": preparation.cpu_seconds,
        "graph_mb": sum(x.nbytes for x in graph) / 1e6,
        "gradient_mb": growth_mb(calls["gradient"])[0],
        **{f"{kind}_error": error(kind) for kind in KINDS},
    }
    return first, lambda kind: timed(calls[kind])._replace(value=None)


def measure(data: Path, dataset: str, repeats: int, layouts: list[str] | None) -> list[Row]:
    """Times all contestants alternately on one dataset.

    ``layouts`` are those next to rows; by default all of at most :data:`LARGEST_DENSE` entries.
    """
    interactions = load(data, dataset)
    if layouts is None:
        is_large = interactions.n_users * interactions.n_items > LARGEST_DENSE
        layouts = list(OURS[:1] if is_large else OURS)
    names = [
        *dict.fromkeys(["rows", *layouts]),
        *REFERENCES,
        *(f"PyTorch, threads: {n}" for n in THREADS),
    ]
    workers = {name: Worker(make, data, dataset, name) for name in names}
    rows = [{"data": dataset, "name": name, **worker.first} for name, worker in workers.items()]
    for kind in KINDS:
        calls = {name: partial(worker, kind) for name, worker in workers.items()}
        for row, timings in zip(rows, alternate(calls, repeats, 3).values(), strict=True):
            row |= summarize(f"{kind}_ms", [1e3 * timing.seconds for timing in timings])
            row[f"{kind}_cpu_ms"] = 1e3 * statistics.median(t.cpu_seconds for t in timings)
        add_ratio(rows, f"{kind}_times_rows", f"{kind}_ms")
    for worker in workers.values():
        worker.end()
    return rows


def check(rows: list[Row]) -> None:
    """Checks every contestant against SciPy's float64.

    Raises:
      SystemExit: If an error exceeds floating-point tolerance.
    """
    for row in rows:
        if not max(row["product_error"], row["gradient_error"]) <= 1e-5:
            raise SystemExit(f"{row['data']}: {row['name']} is wrong: {row}")


@one_line_errors
def main() -> None:
    """Measures all datasets, and checks the results of all contestants."""
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    arguments.add_argument(
        "--datasets", nargs="+", choices=DATASETS, default=list(DATASETS), help="by default all"
    )
    arguments.add_argument(
        "--layouts", nargs="+", choices=OURS, help="next to rows; by default all if small"
    )
    arguments.add_argument("--repeats", type=count, default=10, help="turns of 3 calls each")
    args = arguments.parse_args()
    report = Report(args.out, "jax", "jaxlib", "torch", "numpy", "scipy", dim=DIM, layers=N_LAYERS)
    for dataset in args.datasets:
        report.add(
            measure(args.data, dataset, args.repeats, args.layouts),
            hide=(
                "product_error", "gradient_error", "product_times_rows", "product_ms_min",
                "gradient_ms_min",
            ),
        )  # fmt: skip
    check(report.rows[""])


if __name__ == "__main__":
    main()
