"""Published configurations by name, for ``python -m experiments.text --recipe NAME``.

All recipes require ``--weights``, such as those of ``bert-base-chinese``.

``conbert`` is the supervised pre-training of Shi (2021, Table 2): 140,000 texts sampled with one
text of the same class and one of another, a batch size of 64, t = 0.07, one epoch, and then one
epoch of fine-tuning with the same settings. ``--epochs`` 3 and 5 give the other rows of Table 3.
``bert`` is the baseline, fine-tuning only. The paper uses a dropout of 0.5 without specifying the
layers; here it is the dropout of the encoder. The paper's classifier is not linear, and its
optimiser is not specified.

``simcse`` is unsupervised SimCSE of BERT-base (Gao et al., 2021, Appendix A), without fine-tuning:
set ``--pairs`` to evaluate it. The original head has one hidden layer with tanh; here it has ReLU.
"""

from dataclasses import replace
from typing import Any

from .._bert import BertOptions
from ._config import Config, DataOptions, MethodOptions, TrainOptions

_PAPER = Config(
    source=DataOptions(length=64),
    encoding=BertOptions(pooling="cls", dropout=0.5),
    training=TrainOptions(
        lr=5e-5, fine_tune_lr=5e-5, weight_decay=0.1, schedule="constant", warm_up=0.0,
        batch_size=64, epochs=1, fine_tune_epochs=1,
    ),
)  # fmt: skip


def _method(name: str, **numbers: Any) -> Any:
    return MethodOptions(method=name, **numbers)


RECIPES: dict[str, Config] = {
    "bert": replace(_PAPER, method=_method("none"), training=replace(_PAPER.training, lr=None)),
    "conbert": replace(_PAPER, method=_method("triplets", temperature=0.07, draws=140_000)),
    "simcse": Config(
        encoding=BertOptions(pooling="cls", dropout=0.1),
        method=_method("dropout", temperature=0.05),
        training=TrainOptions(
            lr=3e-5,
            weight_decay=0.0,
            warm_up=0.0,
            batch_size=64,
            epochs=1,
            fine_tune_epochs=0,
            head=(768, 768),
        ),
    ),
}
