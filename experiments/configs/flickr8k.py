"""Flickr8k for two CPU cores: contrastive losses of photographs and their captions.

    python -m experiments.pairs --recipe flickr8k-small-LOSS --data flickr8k --seeds 5

All images are resized to 32 pixels; training crops and flips them. The configurations differ only
in the loss. α of the Bayesian loss is a fixed value, because there are no groups of equal images.

Expected text-to-image recall@10, mean ± standard deviation of 5 seeds, and minutes of all 5 on two
CPU cores (``benchmarks/results/representations/pairs.csv``):

    clip       0.1451 ± 0.0056   20
    siglip     0.1414 ± 0.0036   33
    debiased   0.1511 ± 0.0009   42
    hard       0.1239 ± 0.0027   77
    bayesian   0.1414 ± 0.0019   26
"""

from typing import Any

from ..pairs import _config as pairs

LOSSES = ("clip", "siglip", "debiased", "hard", "bayesian")
"""Names of the compared losses."""
ENCODER: dict[str, Any] = {"encoder": "resnet10", "width": 32, "stem": "imagenet"}
"""The image encoder."""
TRAINING: dict[str, Any] = {"schedule": "cosine", "warm_up": 0.1, "eval_every": 5}
"""Settings of the training, except its length and learning rate."""


def _photographs(loss: Any) -> pairs.Config:
    return pairs.Config(
        source=pairs.DataOptions(data="flickr8k", image_size=32),
        views=pairs.ViewOptions(crop=0.6, flip=0.5),
        objective=pairs.LossOptions(loss=loss),
        encoding=pairs.EncoderOptions(**ENCODER),
        text=pairs.TextOptions(length=20),
        training=pairs.TrainOptions(lr=2e-3, epochs=25, **TRAINING),
    )


CONFIGS = {f"flickr8k-small-{loss}": _photographs(loss) for loss in LOSSES}
