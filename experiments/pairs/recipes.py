"""Settings by name, for ``python -m experiments.pairs --recipe NAME``.

``flickr8k-small-LOSS`` and ``pictograms-small-LOSS`` are comparisons of losses that two cores can
do. They share everything but the loss. ``--data`` names the folder.

All images are shrunk to 32 pixels. Photographs are cropped and flipped, and pictograms cropped
alone: a name may tell left from right. Their variants by skin tone, and the drawings of one by two
hands, are equal: α of the Bayesian loss is measured by that. Of photographs nobody knows which are
equal, and it is given.
"""

from typing import Any

from ._config import (
    Config,
    DataOptions,
    EncoderOptions,
    LossOptions,
    TextOptions,
    TrainOptions,
    ViewOptions,
)

LOSSES = ("clip", "siglip", "debiased", "hard", "bayesian")
"""Those that are compared."""
_ENCODER: dict[str, Any] = {"encoder": "resnet10", "width": 32, "stem": "imagenet"}
_TRAINING: dict[str, Any] = {"schedule": "cosine", "warm_up": 0.1, "eval_every": 5}


def _photographs(loss: str) -> Config:
    return Config(
        source=DataOptions(data="flickr8k", image_size=32),
        views=ViewOptions(crop=0.6, flip=0.5),
        objective=LossOptions(loss=loss),
        encoding=EncoderOptions(**_ENCODER),
        text=TextOptions(length=20),
        training=TrainOptions(lr=2e-3, epochs=25, **_TRAINING),
    )


def _pictograms(loss: str) -> Config:
    own: dict[str, Any] = {"alpha_from": "labels"} if loss == "bayesian" else {}
    return Config(
        source=DataOptions(data="emoji", image_size=32),
        views=ViewOptions(crop=0.6),
        objective=LossOptions(loss=loss, **own),
        encoding=EncoderOptions(**_ENCODER),
        training=TrainOptions(epochs=20, **_TRAINING),
    )


RECIPES: dict[str, Config] = {
    **{f"flickr8k-small-{loss}": _photographs(loss) for loss in LOSSES},
    **{f"pictograms-small-{loss}": _pictograms(loss) for loss in LOSSES},
}
