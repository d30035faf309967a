"""Random image views: images per second compared with torchvision and Kornia, and accuracy.

Two tables. *Speed*: the published views of CIFAR-10 (crop, flip, jitter, grey, blur, normalise) of
a batch of 256 images of 32 × 32 and of 64 × 64. torchvision draws parameters for each image
separately, in a loop over tensors as its documentation recommends, or over Pillow images as the
published code does. Kornia draws for the whole batch at once. Each contestant runs in its own
process, on one core or on all, and the contestants are timed alternately. torchvision's
single-process loop is measured on one core; a worker per core multiplies its speed by at most the
number of cores. *Differences*: the largest difference of each function from torchvision's with
given parameters, in floats, on real images of CIFAR-10 if available.

    CRL_DATA=<folder> python -m benchmarks.augment --out benchmarks/results/augment.json

CRL_DATA names a folder with ``cifar10/cifar10-jpeg.zip``; without it the images are random.
"""

import argparse
import io
import os
import statistics
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import _common as common
from ._worker import Worker

BATCH = 256
SIZES = (32, 64)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
JITTER = (0.4, 0.4, 0.4, 0.1)
CONTESTANTS = ("crl_jax", "torchvision, tensors", "torchvision, Pillow", "kornia, batch")
TURN_SECONDS = 1.0


def real_images(n: int) -> tuple[str, np.ndarray]:
    """Returns the source of the images, and n of them, uint8 ``[n, 32, 32, 3]``."""
    path = Path(os.environ.get("CRL_DATA", "")) / "cifar10" / "cifar10-jpeg.zip"
    if not path.is_file():
        rng = np.random.default_rng(0)
        return "random", rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    from PIL import Image

    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".jpg")]
        chosen = names[:: max(1, len(names) // n)][:n]
        pictures = [np.asarray(Image.open(io.BytesIO(archive.read(name)))) for name in chosen]
    return "CIFAR-10", np.stack(pictures)


def sized(images: np.ndarray, size: int) -> np.ndarray:
    """Upscales the images to a size by repeating each pixel."""
    times = size // images.shape[1]
    return images.repeat(times, axis=1).repeat(times, axis=2)


def transforms() -> Any:
    """Returns torchvision's transforms, which are pure Python.

    A torchvision built for another version of PyTorch cannot load its detection operators, but
    requires their names to be registered. No transform calls them.
    """
    import torch

    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(
                f"torchvision::{name}",
                "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            )
    from torchvision.transforms import v2

    return v2


def ours(images: np.ndarray) -> Callable[[], Any]:
    """Returns a call that draws a batch of views as training does."""
    import jax
    import jax.numpy as jnp

    from crl_jax import augment

    views = augment.ImageAugmentation.cifar10(size=images.shape[1])

    @jax.jit
    def draw(views: Any, key: Any, images: Any) -> Any:
        return jax.vmap(views)(jax.random.split(key, len(images)), images)

    keys = iter(jax.random.split(jax.random.key(0), 100_000))
    on_device = jnp.asarray(images)
    return lambda: jax.block_until_ready(draw(views, next(keys), on_device))


def torchvision_views(images: np.ndarray, *, pillow: bool) -> Callable[[], Any]:
    """Returns a call that processes the images sequentially."""
    import torch

    v2 = transforms()
    steps = [
        v2.RandomResizedCrop(images.shape[1], antialias=True),
        v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(*JITTER)], 0.8),
        v2.RandomGrayscale(0.2),
        v2.RandomApply([v2.GaussianBlur(3, (0.1, 2.0))], 0.5),
    ]
    to_floats = [v2.ToImage()] if pillow else []
    to_floats.append(v2.ToDtype(torch.float32, scale=True))
    end = [*to_floats, v2.Normalize(MEAN, STD)]
    if pillow:
        from PIL import Image

        each = [Image.fromarray(image) for image in images]
    else:
        each = list(torch.from_numpy(images).movedim(-1, 1).contiguous())
    view = v2.Compose([*steps, *end])
    return lambda: torch.stack([view(image) for image in each])


def kornia_view(size: int) -> Any:
    """Returns a module that draws views of a batch of floats in [0, 1], with per-image values."""
    import kornia.augmentation as K
    import torch

    return torch.nn.Sequential(
        K.RandomResizedCrop((size, size), scale=(0.08, 1.0)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(*JITTER, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.RandomGaussianBlur((3, 3), (0.1, 2.0), p=0.5),
        K.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
    )


def kornia_views(images: np.ndarray) -> Callable[[], Any]:
    """Returns a call that processes the whole batch at once."""
    import torch

    view = kornia_view(images.shape[1])
    batch = torch.from_numpy(images).movedim(-1, 1).float() / 255
    return lambda: view(batch)


def entry(name: str, images: np.ndarray) -> Callable[[], Any]:
    """Returns a contestant's call for one batch."""
    if name == "crl_jax":
        return ours(images)
    if name.startswith("kornia"):
        return kornia_views(images)
    return torchvision_views(images, pillow=name.endswith("Pillow"))


def work(name: str, size: int, cores: int) -> None:
    """Prints the seconds of the first batch, then those of one turn for each input line."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    call = entry(name, sized(real_images(BATCH)[1], size))
    if name != "crl_jax":
        import torch

        torch.set_num_threads(cores)
    start = time.perf_counter()
    call()
    print(time.perf_counter() - start, flush=True)
    for _ in sys.stdin:
        call()  # wakes this library's threads
        seconds = []
        while sum(seconds) < TURN_SECONDS or len(seconds) < 2:
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        print(*seconds, flush=True)


def measure_speed(size: int, rounds: int) -> list[dict[str, Any]]:
    """Times all contestants alternately."""
    all_cores = common.machine()["cores"]
    runs = [
        (name, cores)
        for name in CONTESTANTS
        for cores in sorted({1, all_cores})
        if cores == 1 or not name.startswith("torchvision")
    ]
    workers = [
        Worker("augment", "--worker", name, "--size", size, "--cores", cores)
        for name, cores in runs
    ]
    first = [float(worker.answer()) for worker in workers]
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for worker, times in zip(workers, seconds):
            times += worker.times()
    for worker in workers:
        worker.end()
    return [
        {
            "name": name,
            "size": size,
            "cores": cores,
            "images_per_second_median": BATCH / statistics.median(times),
            "images_per_second_best": BATCH / min(times),
            "first_call_seconds": once,
        }
        for (name, cores), times, once in zip(runs, seconds, first)
    ]


def measure_differences(images: np.ndarray) -> list[dict[str, Any]]:
    """Computes each function's largest difference from torchvision's, for values in [0, 1]."""
    import torch

    from crl_jax import augment

    transforms()
    from torchvision.transforms.v2 import functional as F

    theirs = torch.from_numpy(images).movedim(-1, 1).float() / 255
    floats = images.astype(np.float32) / 255
    pairs: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[Any, ...]]]] = {
        "adjust_brightness": (augment.adjust_brightness, F.adjust_brightness, [(0.6,), (1.4,)]),
        "adjust_contrast": (augment.adjust_contrast, F.adjust_contrast, [(0.6,), (1.4,)]),
        "adjust_saturation": (augment.adjust_saturation, F.adjust_saturation, [(0.6,), (1.4,)]),
        "adjust_hue": (augment.adjust_hue, F.adjust_hue, [(-0.1,), (0.07,), (0.5,)]),
        "to_grayscale": (augment.to_grayscale, lambda x: F.rgb_to_grayscale(x, 3), [()]),
        "flip": (augment.flip, F.horizontal_flip, [()]),
        "gaussian_blur": (
            lambda x, sigma, kernel: augment.gaussian_blur(x, sigma, kernel),
            lambda x, sigma, kernel: F.gaussian_blur(x, [kernel, kernel], [sigma, sigma]),
            [(0.1, 3), (1.3, 3), (2.0, 9)],
        ),
        "crop_resize": (
            lambda x, box, size: augment.crop_resize(x, np.array(box), size),
            lambda x, box, size: F.resized_crop(x, *box, [size, size], antialias=True),
            [((3, 5, 20, 14), 32), ((0, 0, 32, 32), 32), ((1, 2, 29, 30), 12), ((9, 9, 2, 3), 24)],
        ),
    }  # fmt: skip
    rows = []
    for name, (own, other, settings) in pairs.items():
        largest = 0.0
        for numbers in settings:
            want = other(theirs, *numbers).movedim(1, -1).numpy()
            largest = max(largest, float(np.abs(np.asarray(own(floats, *numbers)) - want).max()))
        rows.append({"function": name, "largest_difference": largest})
    return rows


def main() -> None:
    """Parses the command line, measures, prints the tables and writes the JSON."""
    parser = argparse.ArgumentParser(description="Random views of images.")
    default = Path(__file__).parent / "results" / "augment.json"
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--rounds", type=common.count, default=6, help="turns of each contestant")
    parser.add_argument("--worker", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.size, args.cores)
        return
    versions = common.versions("jax", "jaxlib", "torch", "torchvision", "kornia", "pillow", "numpy")
    import jax

    source, images = real_images(1024)
    result: dict[str, Any] = {
        "benchmark": "augment",
        "images": source,
        "batch": BATCH,
        "device": jax.devices()[0].device_kind,
        "machine": common.machine(),
        "versions": versions,
    }

    def keep(name: str, rows: list[dict[str, Any]]) -> None:
        result[name] = rows
        common.print_table(rows)
        common.write_json(args.out, result)

    keep("differences", measure_differences(images))
    keep("speed", [row for size in SIZES for row in measure_speed(size, args.rounds)])


if __name__ == "__main__":
    main()
