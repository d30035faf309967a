"""CIFAR-10 for two CPU cores: 10,000 images, a ResNet of 10 layers and width 16, 20 epochs.

    python -m experiments.images --recipe cifar10-small-LOSS --out runs/LOSS

The comparison of :mod:`experiments.configs.resnet50` with a batch size of 128. Training uses crops
of 24 pixels and evaluation images of 32: objects then have the same size as in training (Touvron et
al., NeurIPS 2019), and a step takes about half the time.

Expected accuracy of a linear classifier, mean ± standard deviation of 3 seeds
(``benchmarks/results/images/table-6.4-small.csv``):

    simclr   0.5147 ± 0.0109
    dcl      0.5183 ± 0.0096
    hcl      0.5438 ± 0.0082
    bcl      0.5313 ± 0.0036

Minutes: not measured.
"""

from typing import Any

from ..images import _config as images
from .resnet50 import LOSSES, loss_options

_ENCODER: dict[str, Any] = {"encoder": "resnet10", "width": 16}


def small(data: str, loss: str) -> images.Config:
    """Returns the small setting of a dataset."""
    return images.Config(
        source=images.DataOptions(data=data, train_images=10_000),
        views=images.ViewOptions(view_size=24, eval_size=32),
        objective=loss_options(data, loss),
        encoding=images.EncoderOptions(**_ENCODER),
        training=images.TrainOptions(batch_size=128, epochs=20, eval_every=5),
        protocol=images.ProtocolOptions(seeds=3),
    )


CONFIGS = {f"cifar10-small-{loss}": small("cifar10", loss) for loss in LOSSES}
