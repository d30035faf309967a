"""Settings by kind of device: batch sizes, floating dtype and embedding size.

``--batch-size auto`` of ``recommend`` and the notebook for Colab use them. The batch size of a
recommender grows until an epoch no longer becomes faster: at 8,192 (InfoNCE) to 32,768 (BPR) on an
H100 with an epoch of 810,128 interactions. That is the only device that was measured; the limits of
the others are in proportion to their memory bandwidth.

The learning rate grows with the square root of the batch size: ``benchmarks.batch_size`` compares
rules by the NDCG@20 on validation data.
"""

from dataclasses import dataclass
from typing import Any

import jax

from .._compiler import keep_compiled as keep_compiled

MIN_STEPS = 320
"""Smallest number of steps of a training with an automatic batch size."""
_MEMORY_SHARE = 0.25
"""Fraction of the device memory that the arrays of a step may take."""
_COPIES = 4
"""Arrays of the size of the embeddings that a step gathers: forward, backward, optimiser."""


@dataclass(frozen=True)
class Preset:
    """Settings for one kind of device.

    Attributes:
      name: Name of the device.
      memory: Device memory, GiB.
      growth: Largest factor on the default batch size of a recommender: the power of two closest to
        the memory bandwidth over 0.1 TB/s. Small steps are dominated by the launch of kernels.
      compute_dtype: ``TrainConfig.compute_dtype`` of networks; None for float32, where the device
        has no fast bfloat16.
      image_batch: Images per step of SimCLR with a ResNet-18 on images of 32 pixels.
      dim: Embedding size of a recommender. TPUs pad rows to 128 numbers, so that a smaller size
        saves no memory.
    """

    name: str
    memory: float
    growth: int
    compute_dtype: str | None
    image_batch: int
    dim: int

    def __str__(self) -> str:
        dtype = self.compute_dtype or "float32"
        return (
            f"preset {self.name}: networks in {dtype}, {self.image_batch} images per step, width "
            f"{self.dim}, recommender batches up to {self.growth} × the default"
        )


_CPU = Preset("CPU", 8, 1, None, 256, 64)
_PRESETS = {
    "T4": Preset("T4", 15, 4, None, 256, 64),
    "L4": Preset("L4", 22, 4, "bfloat16", 512, 64),
    "A100": Preset("A100", 40, 16, "bfloat16", 1024, 64),
    "H100": Preset("H100", 80, 32, "bfloat16", 1024, 64),
    "TPU v5 lite": Preset("TPU v5e", 16, 8, "bfloat16", 512, 128),
    "TPU v6 lite": Preset("TPU v6e", 32, 16, "bfloat16", 1024, 128),
}
"""Presets by a word of ``device_kind``, such as ``"Tesla T4"`` or ``"NVIDIA L4"``."""
_FALLBACKS = {
    "cpu": _CPU,
    "gpu": Preset("other GPU", 8, 4, None, 256, 64),
    "tpu": Preset("other TPU", 16, 8, "bfloat16", 512, 128),
}


def device_preset(device: Any = None) -> Preset:
    """Returns the preset of a ``jax.Device``; by default of the first one."""
    device = device or jax.devices()[0]
    words = f" {device.device_kind.replace('-', ' ')} "
    if device.platform == "cpu":
        return _CPU
    matches = (preset for kind, preset in _PRESETS.items() if f" {kind} " in words)
    return next(matches, _FALLBACKS.get(device.platform, _FALLBACKS["gpu"]))


def auto_batch_size(
    preset: Preset, base: int, n_examples: int, epochs: int, bytes_per_example: float
) -> int:
    """Returns the largest ``base * 2**k`` within the limits of a preset, at least ``base``.

    A larger batch must leave :data:`MIN_STEPS` steps, and its arrays a quarter of the memory.

    Args:
      preset: The preset.
      base: Batch size that the learning rate was tuned for.
      n_examples: Number of examples per epoch.
      epochs: Number of epochs.
      bytes_per_example: Bytes of the embeddings and scores of an example.
    """
    size, room = base, _MEMORY_SHARE * preset.memory * 2**30 / (_COPIES * bytes_per_example)
    while 2 * size <= min(preset.growth * base, room) and (
        epochs * -(-n_examples // (2 * size)) >= MIN_STEPS
    ):
        size *= 2
    return size
