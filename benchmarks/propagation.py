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

    python -m benchmarks.propagation --data $CRL_DATA --out benchmarks/results/propagation.json
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import _common as common
from ._worker import Worker

DIM, N_LAYERS = 64, 3
DATASETS = {"ml-100k": "ml-100k/train.csv", "gowalla": "gowalla/train.txt"}
LARGEST_DENSE = 2**26
"""Number of entries of the largest dense matrix that is measured."""
OURS = ("rows", "dense")
REFERENCES = ("segment_sum", "BCSR", "SciPy")
KINDS = ("product", "gradient")


@dataclass
class Contestant:
    """Propagation method.

    Attributes:
      prepare: Compiles the calls, if they need compilation.
      calls: For each of :data:`KINDS` a function that waits for its result, users first.
      graph_bytes: Size of the arrays that hold the graph.
    """

    prepare: Callable[[], Any]
    calls: dict[str, Callable[[], np.ndarray]]
    graph_bytes: int


def load(data: Path, name: str) -> Any:
    """Loads the training interactions of a dataset."""
    from crl_jax.data import read

    return read(data / DATASETS[name])


def start_table(interactions: Any) -> np.ndarray:
    """Returns the embeddings that all contestants propagate, ``[n_users + n_items, DIM]``."""
    rows = interactions.n_users + interactions.n_items
    return np.random.default_rng(0).normal(size=(rows, DIM)).astype(np.float32)


def normalised(interactions: Any, dtype: Any) -> Any:
    """Returns D^{-1/2} A D^{-1/2} as SciPy's CSR, users first."""
    import scipy.sparse as sp

    users, items = interactions.users, interactions.items + interactions.n_users
    ends = np.concatenate([users, items]), np.concatenate([items, users])
    n = interactions.n_users + interactions.n_items
    degrees = np.bincount(ends[0], minlength=n).astype(np.float64)
    values = 1 / np.sqrt(degrees[ends[0]] * degrees[ends[1]])
    matrix = sp.csr_array((values.astype(dtype), ends), shape=(n, n))
    matrix.sort_indices()
    return matrix


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
        made = propagate(graph, tables, weights)
        return 0.5 * sum(jnp.vdot(x, x) for x in made)

    return compiled(
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

    matrix = normalised(interactions, np.float32)
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
            taken = values[:, None] * table[columns]
            return jax.ops.segment_sum(taken, rows, n, indices_are_sorted=True)

    @jax.custom_vjp
    def mixed(table: Any, graph: Any) -> Any:
        return mean_of_layers(partial(product, graph), table)

    mixed.defvjp(
        lambda table, graph: (mixed(table, graph), graph),
        lambda graph, slope: (mixed(slope, graph), None),
    )

    def loss(table: Any, graph: Any) -> Any:
        made = mixed(table, graph)
        return 0.5 * jnp.vdot(made, made)

    return compiled(
        {"product": lambda table, graph: product(graph, table), "gradient": jax.grad(loss)},
        table,
        graph,
    )


def compiled(functions: dict[str, Any], tables: Any, graph: Any) -> Contestant:
    """Returns a contestant that compiles JAX functions and calls them on the given arguments."""
    import jax

    programs: dict[str, Any] = {}

    def prepare() -> None:
        for kind, function in functions.items():
            programs[kind] = jax.jit(function).lower(tables, graph).compile()

    def call(kind: str) -> np.ndarray:
        made = jax.block_until_ready(programs[kind](tables, graph))
        return np.concatenate([np.asarray(x) for x in jax.tree.leaves(made)]) if wanted else made

    wanted: list[bool] = []

    def checked(kind: str) -> np.ndarray:
        wanted.append(True)
        try:
            return call(kind)
        finally:
            wanted.clear()

    calls = {kind: partial(call, kind) for kind in KINDS}
    calls |= {f"{kind} checked": partial(checked, kind) for kind in KINDS}
    return Contestant(prepare, calls, sum(leaf.nbytes for leaf in jax.tree.leaves(graph)))


def scipy_csr(interactions: Any) -> Contestant:
    """Returns SciPy's product, on one thread."""
    matrix = normalised(interactions, np.float32)
    table = start_table(interactions)

    def gradient() -> np.ndarray:
        made = mean_of_layers(matrix.__matmul__, table)
        return mean_of_layers(matrix.__matmul__, made)

    held = matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes
    return Contestant(lambda: None, {"product": lambda: matrix @ table, "gradient": gradient}, held)


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
        made = lightgcn.propagate(matrix, table, N_LAYERS)
        (slope,) = torch.autograd.grad(0.5 * made.square().sum(), table)
        return slope.numpy()

    parts = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    return Contestant(
        lambda: None, {"product": product, "gradient": gradient}, sum(x.nbytes for x in parts)
    )


def build(interactions: Any, name: str) -> Contestant:
    """Returns the contestant with a given name."""
    if name in OURS:
        return ours(interactions, name)
    if name == "SciPy":
        return scipy_csr(interactions)
    if name.startswith("PyTorch"):
        return torch_csr(interactions, int(name.split()[-1]))
    return other_jax(interactions, name)


def resident(field: str) -> int:
    """Returns the bytes of ``VmRSS``, the resident memory, or ``VmHWM``, its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def work(data: Path, dataset: str, name: str) -> None:
    """Prints a description of the contestant, then its seconds for each kind on the input."""
    interactions = load(data, dataset)
    contestant = build(interactions, name)
    start = time.process_time()
    contestant.prepare()
    about: dict[str, Any] = {
        "prepare_cpu_seconds": time.process_time() - start,
        "graph_mb": contestant.graph_bytes / 1e6,
    }
    calls = contestant.calls
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    calls["gradient"]()
    about["gradient_mb"] = (resident("VmHWM") - before) / 1e6
    matrix, table = normalised(interactions, np.float64), start_table(interactions)
    mean = partial(mean_of_layers, matrix.__matmul__)
    wanted = {"product": matrix @ table.astype(np.float64), "gradient": mean(mean(table))}
    for kind in KINDS:
        got = calls.get(f"{kind} checked", calls[kind])()
        about[f"{kind}_error"] = float(np.abs(got - wanted[kind]).max())
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        call = calls[line.strip()]
        wall, cores = time.perf_counter(), time.process_time()
        call()
        print(time.perf_counter() - wall, time.process_time() - cores, flush=True)


def measure(data: Path, dataset: str, repeats: int) -> dict[str, Any]:
    """Times all contestants alternately on one dataset."""
    interactions = load(data, dataset)
    threads = sorted({1, common.machine()["cores"]})
    names = [*OURS, *REFERENCES, *(f"PyTorch, threads: {n}" for n in threads)]
    if interactions.n_users * interactions.n_items > LARGEST_DENSE:
        names.remove("dense")
    workers, rows = [], []
    for name in names:
        worker = Worker("propagation", "--data", data, "--worker", dataset, name)
        rows.append({"name": name, **json.loads(worker.answer())})
        workers.append(worker)
    for kind in KINDS:
        times: list[list[list[float]]] = [[] for _ in workers]
        for _ in range(repeats):
            for worker, run in zip(workers, times, strict=True):
                run += [worker.times(kind) for _ in range(3)]
        for row, run in zip(rows, times, strict=True):
            wall, cores = zip(*run, strict=True)
            row[f"{kind}_ms"] = 1e3 * statistics.median(wall)
            row[f"{kind}_ms_min"] = 1e3 * min(wall)
            row[f"{kind}_cpu_ms"] = 1e3 * statistics.median(cores)
    for worker in workers:
        worker.end()
    ours_ = rows[0]
    for row in rows:
        row["times_rows"] = {kind: row[f"{kind}_ms"] / ours_[f"{kind}_ms"] for kind in KINDS}
    shape = {
        "users": interactions.n_users,
        "items": interactions.n_items,
        "interactions": len(interactions),
        "dim": DIM,
        "layers": N_LAYERS,
    }
    return {"data": dataset, "shape": shape, "rows": rows}


def judge(results: list[dict[str, Any]]) -> None:
    """Checks every contestant against SciPy's float64.

    Raises:
      SystemExit: If an error exceeds floating-point tolerance.
    """
    for result in results:
        for row in result["rows"]:
            if not max(row["product_error"], row["gradient_error"]) <= 1e-5:
                raise SystemExit(f"{result['data']}: {row['name']} is wrong: {row}")


def main() -> None:
    """Parses the command line, measures, prints tables and writes the JSON."""
    parser = argparse.ArgumentParser(description="Propagation over the graph of interactions.")
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--repeats", type=common.count, default=10, help="turns of 3 calls")
    parser.add_argument("--out", type=Path, help="JSON of the figures")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.data, *args.worker)
        return
    about = {
        "benchmark": "propagation",
        "machine": common.machine(),
        "versions": common.versions("jax", "jaxlib", "torch", "numpy", "scipy"),
    }
    results = []
    for dataset in args.datasets:
        results.append(result := measure(args.data, dataset, args.repeats))
        print(f"\n{dataset}: {result['shape']}")
        hidden = ("times_rows", "product_error", "gradient_error")
        common.print_table(
            [{k: v for k, v in row.items() if k not in hidden} for row in result["rows"]]
        )
        if args.out:
            common.write_json(args.out, {**about, "datasets": results})
    judge(results)


if __name__ == "__main__":
    main()
