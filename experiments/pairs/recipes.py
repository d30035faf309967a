"""Configurations by name, for ``python -m experiments.pairs --recipe NAME``.

``flickr8k-small-LOSS`` and ``pictograms-small-LOSS`` compare losses within the compute of two CPU
cores. The recipes of a dataset share everything but the loss. ``--data`` selects the folder.

All images are resized to 32 pixels. Photographs are cropped and flipped; pictograms are only
cropped, because a name may mention left or right. Skin-tone variants of a pictogram, and its
drawings by two artists, form groups of equal images, from which α of the Bayesian loss is
estimated. Photographs have no such groups, so α is a fixed value.
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
"""Names of the compared losses."""
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
