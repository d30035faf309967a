"""Pictograms and their names for two CPU cores: contrastive losses.

    python -m experiments.pairs --recipe pictograms-small-LOSS --data emoji --seeds 5

All images are resized to 32 pixels; training only crops them, because a name may mention left or
right. Skin-tone variants of a pictogram, and its drawings by two artists, form groups of equal
images, from which α of the Bayesian loss is estimated.

Expected text-to-image recall@10, mean ± standard deviation of 5 seeds, and minutes of all 5 on one
CPU core (``benchmarks/results/representations/pairs.csv``):

    clip       0.5643 ± 0.0146   20
    siglip     0.5685 ± 0.0067   30
    debiased   0.5664 ± 0.0124   27
    hard       0.5568 ± 0.0171   20
    bayesian   0.5672 ± 0.0135   19
"""

from typing import Any

from ..pairs import _config as pairs
from .flickr8k import ENCODER, LOSSES, TRAINING


def _pictograms(loss: Any) -> pairs.Config:
    own: dict[str, Any] = {"alpha_from": "labels"} if loss == "bayesian" else {}
    return pairs.Config(
        source=pairs.DataOptions(data="emoji", image_size=32),
        views=pairs.ViewOptions(crop=0.6),
        objective=pairs.LossOptions(loss=loss, **own),
        encoding=pairs.EncoderOptions(**ENCODER),
        training=pairs.TrainOptions(epochs=20, **TRAINING),
    )


CONFIGS = {f"pictograms-small-{loss}": _pictograms(loss) for loss in LOSSES}
