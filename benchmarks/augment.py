"""Random image views: images per second compared with torchvision and Kornia, and accuracy.

Two tables. *Speed*: the published views of CIFAR-10 (crop, flip, jitter, grey, blur, normalise) of
a batch of 256 images of 32 × 32 and of 64 × 64. torchvision draws parameters for each image
separately, in a loop over tensors as its documentation recommends, or over Pillow images as the
published code does. Kornia draws for the whole batch at once. Each contestant runs in its own
process, on one core or on all, and the contestants are timed alternately. torchvision's
single-process loop is measured on one core; a worker per core multiplies its speed by at most the
number of cores. *Differences*: the largest difference of each function from torchvision's with
given parameters, in floats, on real images of CIFAR-10 if available.

    CRL_DATA=<folder> python -m benchmarks.augment --out benchmarks/results/augment.csv

CRL_DATA names a folder with ``cifar10/cifar10-jpeg.zip``; without it the images are random.
"""

import io
import itertools
import os
import statistics
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ._processes import Worker
from ._report import THREADS, Report, Row, alternate, count, one_line_errors, parser, timed

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
        sampled_names = names[:: max(1, len(names) // n)][:n]
        pictures = [
            np.asarray(Image.open(io.BytesIO(archive.read(name)))) for name in sampled_names
        ]
    return "CIFAR-10", np.stack(pictures)


def upscale(images: np.ndarray, size: int) -> np.ndarray:
    """Upscales the images to a size by repeating each pixel."""
    repeats = size // images.shape[1]
    return images.repeat(repeats, axis=1).repeat(repeats, axis=2)


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
    final_steps = [*to_floats, v2.Normalize(MEAN, STD)]
    if pillow:
        from PIL import Image

        inputs = [Image.fromarray(image) for image in images]
    else:
        inputs = list(torch.from_numpy(images).movedim(-1, 1).contiguous())
    view = v2.Compose([*steps, *final_steps])
    return lambda: torch.stack([view(image) for image in inputs])


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


def make(name: str, size: int, cores: int) -> tuple[float, Callable[[], list[float]]]:
    """Returns the seconds of a contestant's first batch, and a turn that returns seconds."""
    images = upscale(real_images(BATCH)[1], size)
    if name == "crl_jax":
        call = ours(images)
    else:
        import torch

        torch.set_num_threads(cores)
        if name == "kornia, batch":
            call = kornia_views(images)
        else:
            call = torchvision_views(images, pillow=name == "torchvision, Pillow")
    first_seconds = timed(call).seconds

    def turn() -> list[float]:
        call()  # wakes this library's threads
        seconds: list[float] = []
        while sum(seconds) < TURN_SECONDS or len(seconds) < 2:
            seconds.append(timed(call).seconds)
        return seconds

    return first_seconds, turn


def measure_speed(size: int, rounds: int) -> list[Row]:
    """Times all contestants alternately."""
    workers = {
        (name, cores): Worker(make, name, size, cores, cores=cores)
        for name in CONTESTANTS
        for cores in THREADS
        if cores == 1 or not name.startswith("torchvision")
    }
    turns = alternate(workers, rounds)
    rows = []
    for (name, cores), worker in workers.items():
        worker.end()
        seconds = list(itertools.chain(*turns[name, cores]))
        rows.append(
            {
                "name": name,
                "size": size,
                "cores": cores,
                "images_per_second": BATCH / statistics.median(seconds),
                "images_per_second_max": BATCH / min(seconds),
                "first_call_seconds": worker.first,
            }
        )
    return rows


def measure_differences(images: np.ndarray) -> list[Row]:
    """Computes each function's largest difference from torchvision's, for values in [0, 1]."""
    import torch

    from crl_jax import augment

    transforms()
    from torchvision.transforms.v2 import functional as F

    tensors = torch.from_numpy(images).movedim(-1, 1).float() / 255
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
    for name, (function, reference, argument_lists) in pairs.items():
        largest = 0.0
        for parameters in argument_lists:
            expected = reference(tensors, *parameters).movedim(1, -1).numpy()
            largest = max(
                largest, float(np.abs(np.asarray(function(floats, *parameters)) - expected).max())
            )
        rows.append({"function": name, "largest_difference": largest})
    return rows


@one_line_errors
def main() -> None:
    """Measures differences and speed."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=count, default=6, help="turns of each contestant")
    args = arguments.parse_args()
    source, images = real_images(1024)
    packages = "jax", "jaxlib", "torch", "torchvision", "kornia", "pillow", "numpy"
    report = Report(args.out, *packages, images=source, batch=BATCH)
    report.add(measure_differences(images), "differences")
    for size in SIZES:
        report.add(measure_speed(size, args.rounds))


if __name__ == "__main__":
    main()
