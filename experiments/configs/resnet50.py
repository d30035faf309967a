"""Published comparison of contrastive losses on images: ResNet-50, 510 negatives, 400 epochs.

    python -m experiments.images --recipe DATA-resnet50-LOSS --out runs/LOSS

DATA is one of cifar10, stl10, cifar100 and tiny-imagenet; LOSS is one of simclr, dcl, hcl and bcl,
which are compared in table 6.4 of the dissertation. For other numbers of negatives (table 6.5), set
``--batch-size`` to 16, 32, 64 or 128; for tables 6.6 and 6.7, set ``--beta`` or ``--tau-plus``. τ⁺,
the false-negative rate, is one over the number of classes, and β is the best published value. The
linear evaluation is the published one. For STL-10, training uses crops of 32 pixels and evaluation
whole images of 96, as in published code.

Expected results and minutes: not run here.
"""

from typing import Any

from ..images import _config as images

LOSSES = {"simclr": "info_nce", "dcl": "debiased", "hcl": "hard", "bcl": "bayesian"}
"""Loss names by published method."""
DATASETS: dict[str, tuple[float, float]] = {
    "cifar10": (0.1, 0.9),
    "stl10": (0.1, 1.0),
    "cifar100": (0.01, 1.0),
    "tiny-imagenet": (0.005, 1.0),
}
"""τ⁺ and β of each dataset."""


def loss_options(data: str, loss: str) -> Any:
    """Returns the options of a published method on a dataset."""
    tau_plus, beta = DATASETS[data]
    own: dict[str, Any] = {
        "simclr": {},
        "dcl": {"tau_plus": tau_plus},
        "hcl": {"tau_plus": tau_plus, "beta": 1.0},
        "bcl": {"tau_plus": tau_plus, "beta": beta, "alpha_from": "labels"},
    }[loss]
    return images.LossOptions(loss=LOSSES[loss], **own)


def published(data: str, loss: str) -> images.Config:
    """Returns the published setting."""
    sizes: dict[str, Any] = {"view_size": 32, "eval_size": 96} if data == "stl10" else {}
    return images.Config(
        source=images.DataOptions(data=data),
        views=images.ViewOptions(**sizes),
        objective=loss_options(data, loss),
        encoding=images.EncoderOptions(encoder="resnet50"),
        training=images.TrainOptions(batch_size=256, epochs=400, eval_every=20),
        protocol=images.ProtocolOptions(probe="both"),
    )


CONFIGS = {f"{data}-resnet50-{loss}": published(data, loss) for data in DATASETS for loss in LOSSES}
