"""Published configurations by name, for ``python -m experiments.images --recipe NAME``.

``DATA-resnet50-LOSS`` is the setting of the published comparison: SimCLR with one of four losses,
a batch size of 256 (510 negatives), 400 epochs of Adam, t = 0.5, and the published linear
evaluation. DATA is one of cifar10, stl10, cifar100 and tiny-imagenet. The losses are compared in
table 6.4 of the dissertation. To reproduce other numbers of negatives (table 6.5), set
``--batch-size`` to 16, 32, 64 or 128; for tables 6.6 and 6.7, set ``--beta`` or ``--tau-plus``.
τ⁺, the false-negative rate, is one over the number of classes, and β is the best published value.

For STL-10, training uses crops of 32 pixels and evaluation whole images of 96, as in published
code.

``cifar10-small-LOSS`` is the same comparison for two CPU cores: 10,000 images, a ResNet of 10
layers and width 16, a batch size of 128 and 20 epochs. Training uses crops of 24 pixels and
evaluation images of 32: objects then have the same size as in training (Touvron et al., NeurIPS
2019), and a step takes about half the time.
"""

from typing import Any

from ._config import (
    Config,
    DataOptions,
    EncoderOptions,
    LossOptions,
    ProtocolOptions,
    TrainOptions,
    ViewOptions,
)

LOSSES = {"simclr": "info_nce", "dcl": "debiased", "hcl": "hard", "bcl": "bayesian"}
"""Loss names by published method."""
DATASETS: dict[str, tuple[float, float]] = {
    "cifar10": (0.1, 0.9),
    "stl10": (0.1, 1.0),
    "cifar100": (0.01, 1.0),
    "tiny-imagenet": (0.005, 1.0),
}
"""τ⁺ and β of each dataset."""


def _loss(name: str, tau_plus: float, beta: float) -> Any:
    own: dict[str, Any] = {
        "simclr": {},
        "dcl": {"tau_plus": tau_plus},
        "hcl": {"tau_plus": tau_plus, "beta": 1.0},
        "bcl": {"tau_plus": tau_plus, "beta": beta, "alpha_from": "labels"},
    }[name]
    return LossOptions(loss=LOSSES[name], **own)


def published(data: str, loss: str) -> Config:
    """Returns the published setting."""
    return Config(
        source=DataOptions(data=data),
        views=ViewOptions(view_size=32, judged_size=96) if data == "stl10" else ViewOptions(),
        objective=_loss(loss, *DATASETS[data]),
        encoding=EncoderOptions(encoder="resnet50"),
        training=TrainOptions(batch_size=256, epochs=400, eval_every=20),
        protocol=ProtocolOptions(probe="both"),
    )


_SMALL: dict[str, Any] = {"encoder": "resnet10", "width": 16}


def small(data: str, loss: str) -> Config:
    """Returns the small setting, for two CPU cores."""
    return Config(
        source=DataOptions(data=data, train_images=10_000),
        views=ViewOptions(view_size=24, judged_size=32),
        objective=_loss(loss, *DATASETS[data]),
        encoding=EncoderOptions(**_SMALL),
        training=TrainOptions(batch_size=128, epochs=20, eval_every=5),
        protocol=ProtocolOptions(seeds=3),
    )


RECIPES: dict[str, Config] = {
    **{f"{data}-resnet50-{loss}": published(data, loss) for data in DATASETS for loss in LOSSES},
    **{f"cifar10-small-{loss}": small("cifar10", loss) for loss in LOSSES},
}
