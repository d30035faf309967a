"""Unsupervised SimCSE of BERT-base (Gao et al., 2021, Appendix A), without fine-tuning.

    python -m experiments.text --recipe simcse --weights WEIGHTS --data TEXTS --pairs PAIRS

``--pairs`` evaluates it. The original head has one hidden layer with tanh; here it has ReLU.

Expected results and minutes: not run here.
"""

from typing import Any

from .._bert import BertOptions
from ..text._config import Config, MethodOptions, TrainOptions

_DROPOUT: dict[str, Any] = {"method": "dropout", "temperature": 0.05}
CONFIGS = {
    "simcse": Config(
        encoding=BertOptions(pooling="cls", dropout=0.1),
        method=MethodOptions(**_DROPOUT),
        training=TrainOptions(
            lr=3e-5, weight_decay=0.0, warm_up=0.0, batch_size=64, epochs=1, fine_tune_epochs=0,
            head=(768, 768),
        ),
    ),
}  # fmt: skip
