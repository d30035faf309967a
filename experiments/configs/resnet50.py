"""Published comparison of contrastive losses on images: ResNet-50, 510 negatives, 400 epochs.

    python -m experiments.images --recipe DATA-resnet50-LOSS --out runs/LOSS

DATA is one of cifar10, stl10, cifar100 and tiny-imagenet; LOSS is one of simclr, dcl, hcl and bcl,
which are compared in table 6.4 of the dissertation. For other numbers of negatives (table 6.5), set
``--batch-size`` to 16, 32, 64 or 128; for tables 6.6 and 6.7, set ``--beta`` or ``--tau-plus``. τ⁺,
the false-negative rate, is one over the number of classes, and β is the best published value. α is
measured from the labels of each batch on CIFAR-10, and fixed on the other datasets (section
6.6.3.2, which names STL-10 twice; the second value is taken as that of CIFAR-100).
``DATA-resnet50-bcl-measured`` measures it on those as well. The linear evaluation is the published
one. For STL-10, training uses crops of 32 pixels and evaluation whole images of 96, as in published
code.

Expected results and minutes: not run here.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from ..images import _config as images

LOSSES = {"simclr": "info_nce", "dcl": "debiased", "hcl": "hard", "bcl": "bayesian"}
"""Loss names by published method."""
_MEASURED: dict[str, Any] = {"alpha_from": "labels"}


class Bayesian(NamedTuple):
    """Published hyper-parameters of the Bayesian loss on a dataset.

    Attributes:
      tau_plus: Prior probability of a false negative.
      beta: Hardness.
      alpha: Encoder quality; None if it is measured from labels.
    """

    tau_plus: float
    beta: float
    alpha: float | None = None


DATASETS = {
    "cifar10": Bayesian(0.1, 0.9),
    "stl10": Bayesian(0.1, 1.0, 0.75),
    "cifar100": Bayesian(0.01, 1.0, 0.7),
    "tiny-imagenet": Bayesian(0.005, 1.0, 0.8),
}


def loss_options(data: str, loss: str) -> Any:
    """Returns the options of a published method on a dataset."""
    tau_plus, beta, alpha = DATASETS[data]
    quality = _MEASURED if alpha is None else {"alpha": alpha}
    own: dict[str, Any] = {
        "simclr": {},
        "dcl": {"tau_plus": tau_plus},
        "hcl": {"tau_plus": tau_plus, "beta": 1.0},
        "bcl": {"tau_plus": tau_plus, "beta": beta, **quality},
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


def _measured(data: str) -> images.Config:
    """Returns the published setting of the Bayesian loss with α measured from labels."""
    config = published(data, "bcl")
    return replace(config, objective=replace(config.objective, alpha=None, **_MEASURED))


CONFIGS = {
    **{f"{data}-resnet50-{loss}": published(data, loss) for data in DATASETS for loss in LOSSES},
    **{
        f"{data}-resnet50-bcl-measured": _measured(data)
        for data, dataset in DATASETS.items()
        if dataset.alpha is not None
    },
}
