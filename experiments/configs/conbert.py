"""ConBERT (Shi, 2021, Table 2): supervised contrastive pre-training and fine-tuning.

    python -m experiments.text --recipe conbert --weights bert-base-chinese --data TEXTS
    python -m experiments.text --recipe bert --weights bert-base-chinese --data TEXTS

``conbert`` samples 140,000 texts, each with one text of the same class and one of another, with a
batch size of 64 and t = 0.07, for one epoch; then it fine-tunes for one epoch with the same
settings. ``--epochs`` 3 and 5 give the other rows of Table 3. ``bert`` is the baseline, fine-tuning
only. The paper uses a dropout of 0.5 without specifying the layers; here it is the dropout of the
encoder. The classifier has a hidden layer, as in the paper, which specifies neither its width nor
the optimiser; 768 is the width of BERT.

Expected results and minutes: not run here.
"""

from dataclasses import replace
from typing import Any

from .._bert import BertOptions
from ..text._config import Config, DataOptions, MethodOptions, TrainOptions

_PAPER = Config(
    source=DataOptions(length=64),
    encoding=BertOptions(pooling="cls", dropout=0.5),
    training=TrainOptions(
        lr=5e-5, fine_tune_lr=5e-5, weight_decay=0.1, schedule="constant", warm_up=0.0,
        batch_size=64, epochs=1, fine_tune_epochs=1, fine_tune_hidden=768,
    ),
)  # fmt: skip
_TRIPLETS: dict[str, Any] = {"method": "triplets", "temperature": 0.07, "draws": 140_000}
_NONE: dict[str, Any] = {"method": "none"}
CONFIGS = {
    "bert": replace(
        _PAPER,
        method=MethodOptions(**_NONE),
        training=replace(_PAPER.training, lr=None, epochs=None),
    ),
    "conbert": replace(_PAPER, method=MethodOptions(**_TRIPLETS)),
}
