"""A training step of residual networks, forward, backward and Adam, against PyTorch.

Both views of 128 images of 32 × 32 pass through a ResNet with a 3 × 3 stem and through the head of
BCL, InfoNCE compares them, and Adam takes a step. Ours is the step of :func:`crl_jax.train.fit` in
its compiled loop; on all cores it is also measured with one device per core, which share the batch.
PyTorch has fused Adam, with channels last and first. Each contestant has a separate process, on one
core and on all, and they run alternately. A turn is an epoch of 10,000 images, which is one call of
ours, or fewer where a step takes seconds. Wall time and CPU time of all cores are reported per
step. Memory is the peak memory of a process; for ours this includes compilation.

Views are drawn again in each step, as in training: the published ones of CIFAR-10, which PyTorch
draws by Kornia, the fastest method in ``benchmarks.augment``. Alternatively they are given, to
compare the networks alone.

With ``--check`` nothing is timed: the weights of ResNet-18 and -50 in PyTorch are copied into ours,
and features and running averages compared. ``--way xla`` adds JAX's own gradients, which take
minutes.

    python -m benchmarks.resnet --views drawn given --out benchmarks/results/resnet.csv
"""

import itertools
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from ._processes import Worker, memory_mb
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
    print_table,
    summarize,
    timed,
)

BATCH, SIZE, WIDTHS, TEMPERATURE, LEARNING_RATE = 128, 32, (512, 128), 0.5, 1e-3
SHARDED = "crl_jax, a device for each core"
STEPS = {"10:16": 78, "18:16": 78, "18:32": 8, "18:64": 4}
"""Steps per turn, by network. Each call of ours allocates its memory from the system again, so in
short turns our steps may appear slower than in training.
"""
MAX_ERROR = 1e-3
"""Largest permitted error of features and running averages, relative to the largest entry."""


def parse_network(network: str, way: Any = "auto") -> Any:
    """Parses ``"18:32"`` as depth and width."""
    from crl_jax import models

    depth, width = map(int, network.split(":"))
    return models.ResNet(depth, width=width, convolution=way)


def random_views() -> np.ndarray:
    """Returns both views of a batch, ``[batch, 2, rows, columns, channels]``."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(BATCH, 1, SIZE, SIZE, 3))
    return (images + 0.3 * rng.normal(size=(BATCH, 2, SIZE, SIZE, 3))).astype(np.float32)


def random_images() -> np.ndarray:
    """Returns a batch from which views are drawn, ``[batch, rows, columns, channels]``."""
    return np.random.default_rng(0).integers(0, 256, (BATCH, SIZE, SIZE, 3), np.uint8)


def ours(network: str, way: str, devices: int, views: str, steps: int) -> Callable[[], float]:
    """Returns a call that takes some steps on all images and returns their mean loss."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from crl_jax import augment, losses, models, tasks, train
    from experiments._compiler import tune_compiler

    tune_compiler()

    module = models.BackboneWithHead(parse_network(network, way), models.Projection(WIDTHS))

    def pick(key: Any, pair: Any) -> Any:
        return pair[jax.random.randint(key, (), 0, 2)]

    examples, view = random_views(), pick
    if views == "drawn":
        examples, view = random_images(), augment.ImageAugmentation.cifar10(size=SIZE)
    task = tasks.SimCLR(models.Network(module), view, {"temperature": TEMPERATURE}, losses.info_nce)
    optimizer = train.Optimizer(jnp.float32(LEARNING_RATE))
    data, indices = jnp.asarray(examples), jnp.tile(jnp.arange(BATCH), (steps, 1))
    mesh = Mesh(np.array(jax.devices()), ("data",)) if devices > 1 else None
    config = train.TrainConfig(BATCH, mesh=mesh)
    start = jax.jit(lambda: train.initial_state(task, optimizer, 0))
    state, turn_index = start(), 0
    if mesh is not None:
        task = task.shard(mesh)
        state, data = jax.device_put((state, data), NamedSharding(mesh, PartitionSpec()))

    def run(state: Any, turn_index: Any, data: Any) -> Any:
        keys = jax.random.split(jax.random.fold_in(state.key, turn_index), steps)
        order = train.Steps(keys, indices, indices >= 0, jnp.full((steps, 1), float(BATCH)))
        return train.run_steps(task, optimizer, state, order, config=config, data=data)

    compiled = train.jit(run, donate_argnums=0)

    def turn() -> float:
        nonlocal state, turn_index
        state, report = compiled(state, np.int32(turn_index), data)
        turn_index += 1
        return float(report["loss"])

    return turn


def theirs(network: str, layout: str, threads: int, views: str, steps: int) -> Callable[[], float]:
    """Returns the same call in PyTorch."""
    import torch

    from ._torch_resnet import Trainer

    torch.set_num_threads(threads)
    images = torch.from_numpy(np.concatenate(np.split(random_views(), 2, axis=1)).squeeze(1))
    images = images.permute(0, 3, 1, 2)
    view = None
    if views == "drawn":
        from .augment import kornia_view

        images, view = torch.from_numpy(random_images()).permute(0, 3, 1, 2), kornia_view(SIZE)
        images = torch.cat([images, images])
    trainer = Trainer(
        parse_network(network), images, view, WIDTHS, temperature=TEMPERATURE,
        learning_rate=LEARNING_RATE, channels_last=layout == "channels last",
    )  # fmt: skip
    return lambda: statistics.mean(trainer.step() for _ in range(steps))


def make(
    network: str, name: str, layout: str, cores: int, views: str, steps: int
) -> tuple[Timing, Callable[..., Any]]:
    """Returns the timing of a contestant's first turn, and the function of a turn.

    The function returns the peak memory instead, if ``last`` is true.
    """
    if name == "PyTorch":
        turn = theirs(network, layout, cores, views, steps)
    else:
        turn = ours(network, layout, cores if name == SHARDED else 1, views, steps)

    def call(last: bool = False) -> Any:
        return memory_mb() if last else timed(turn)

    return call(), call


def measure(network: str, views: str, rounds: int, ways: list[str], steps: int | None) -> list[Row]:
    """Times the contestants with equal cores alternately, for each number of cores."""
    rows, steps = [], steps or STEPS.get(network, 8)
    for cores in THREADS:
        our_names = ["crl_jax"] if cores == 1 else ["crl_jax", SHARDED]
        names = [*itertools.product(our_names, ways), ("PyTorch", "channels last"),
                 ("PyTorch", "channels first")]  # fmt: skip
        workers = {
            name: Worker(make, network, *name, cores, views, steps, cores=cores) for name in names
        }
        core_rows = []
        for (name, layout), turns in alternate(workers, rounds).items():
            worker = workers[name, layout]
            core_rows.append(
                {
                    "network": network,
                    "views": views,
                    "cores": cores,
                    "name": name,
                    "layout": layout,
                    "steps": steps,
                    **summarize("step_ms", [1e3 * turn.seconds / steps for turn in turns]),
                    "step_cpu_ms": 1e3 * statistics.median(t.cpu_seconds for t in turns) / steps,
                    "turns": len(turns),
                    "first_seconds": worker.first.seconds,
                    "last_loss": turns[-1].value,
                    "peak_mb": worker(True),
                }
            )
            worker.end()
        best = min(row["step_ms"] for row in core_rows if row["name"] == "PyTorch")
        add_ratio(core_rows, "times_best_pytorch", "step_ms", best)
        rows += core_rows
    return rows


def check() -> None:
    """Compares features and running averages for PyTorch's weights in both libraries.

    Raises:
      SystemExit: If an error exceeds floating-point tolerance.
    """
    import jax
    import torch

    from crl_jax import models

    from ._torch_resnet import ResNet, convert_variables

    rows = []
    cases: Any = (18, "imagenet", 64), (50, "imagenet", 64), (18, "cifar", 32)
    for depth, stem, size in cases:
        settings = models.ResNet(depth, stem=stem)
        torch.manual_seed(0)
        reference = ResNet(settings)
        x = np.random.default_rng(1).normal(size=(8, size, size, 3)).astype(np.float32)
        images = torch.from_numpy(x).permute(0, 3, 1, 2)
        for mode in ("train", "eval"):
            reference.train(mode == "train")
            variables = jax.tree.map(np.copy, convert_variables(reference, settings))
            with torch.no_grad():
                expected = reference(images).numpy()
            apply = jax.jit(models.Network(settings).apply, static_argnames="train")
            features, batch_stats = apply(*variables, x, train=mode == "train")
            row = {
                "network": depth,
                "stem": stem,
                "mode": mode,
                "features_off": relative_error(features, expected),
            }
            expected_stats = convert_variables(reference, settings)[1]
            errors = map(
                relative_error, jax.tree.leaves(batch_stats), jax.tree.leaves(expected_stats)
            )
            rows.append({**row, "averages_off": max(errors)})
    print_table(rows)
    if not all(max(row["features_off"], row["averages_off"]) <= MAX_ERROR for row in rows):
        raise SystemExit("features or running averages are not those of PyTorch.")


def relative_error(value: Any, expected: np.ndarray) -> float:
    """Returns the largest error, relative to the largest entry."""
    return float(np.abs(np.asarray(value) - expected).max() / np.abs(expected).max())


@one_line_errors
def main() -> None:
    """Measures all networks, or compares features with PyTorch."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--networks", nargs="+", default=[*STEPS], metavar="DEPTH:WIDTH", help="networks to train"
    )
    arguments.add_argument(
        "--views", nargs="+", default=["drawn"], choices=["given", "drawn"],
        help="drawn in each step, as in training, or given, to compare the networks alone",
    )  # fmt: skip
    arguments.add_argument("--rounds", type=count, default=3, help="timed turns after the first")
    arguments.add_argument("--steps", type=count, help="steps per turn, by default by network")
    arguments.add_argument(
        "--way", nargs="+", default=["auto"], choices=["auto", "cpu", "xla"],
        help="implementations of our convolutions",
    )  # fmt: skip
    arguments.add_argument(
        "--check", action="store_true", help="compare features with PyTorch and time nothing"
    )
    args = arguments.parse_args()
    if args.check:
        check()
        return
    packages = "jax", "jaxlib", "flax", "torch", "kornia", "numpy"
    if args.views == ["given"]:
        packages = tuple(name for name in packages if name != "kornia")
    report = Report(args.out, *packages, batch=BATCH, size=SIZE)
    for network, views in itertools.product(args.networks, args.views):
        report.add(measure(network, views, args.rounds, args.way, args.steps))


if __name__ == "__main__":
    main()
