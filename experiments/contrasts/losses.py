"""What a contrast minimises: a row in one view against its own and the others in the other."""

from dataclasses import replace

from crl_jax import losses

from .._registry import Hyperparam
from ..objectives import OBJECTIVES, Objective
from ._entry import LossEntry

# Where a default for the scores of items is none for cosines of two views: the rows of the others
# are seldom the own one, and -1 is the least cosine.
_OF_VIEWS = {"tau_plus": 0.01, "min_score": -1.0}


def _of_views(name: str, of: Hyperparam) -> Hyperparam:
    default = _OF_VIEWS.get(name, of.default)
    return replace(of, default=default, help=f"{of.help}; of the contrast", field=name)


def _entry(objective: Objective) -> LossEntry:
    flags = objective.hyperparams.items()
    return LossEntry(
        help=objective.help,
        hyperparams={f"contrast_{name}": _of_views(name, of) for name, of in flags},
        loss=objective.loss,
    )


INFO_NCE, DEBIASED, HARD, BAYESIAN = (
    _entry(OBJECTIVES[name]) for name in ("info_nce", "debiased", "hard", "bayesian")
)
DECOUPLED = LossEntry(
    help="InfoNCE without the positive in the denominator (DCL of Yeh et al.)",
    loss=losses.decoupled_contrastive,
)
