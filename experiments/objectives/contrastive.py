"""Contrastive losses: a positive against many negatives."""

from crl_jax import losses

from .._ranges import NOT_NEGATIVE, Range
from .._registry import Hyperparam
from ._objective import Objective
from .pairwise import TAU_PLUS

_MIN_SCORE = Hyperparam(
    -5.0, "Least score that the floor of the estimated denominator allows for", Range()
)


def _beta(default: float, limits: Range) -> Hyperparam:
    return Hyperparam(default, "Hardness: how much hard negatives count", limits)


INFO_NCE = Objective(help="one positive against many negatives", loss=losses.info_nce)
DEBIASED = Objective(
    help="InfoNCE without the bias of false negatives (DCL)",
    loss=losses.debiased_contrastive,
    hyperparams={"tau_plus": TAU_PLUS, "min_score": _MIN_SCORE},
    n_pos=5,
)
HARD = Objective(
    help="the same with weight on hard negatives (HCL)",
    loss=losses.hard_contrastive,
    hyperparams={
        "tau_plus": TAU_PLUS,
        "beta": _beta(0.5, NOT_NEGATIVE),
        "min_score": _MIN_SCORE,
    },
    n_pos=5,
)
BAYESIAN = Objective(
    help="InfoNCE with weights by rank, for noise and hardness at once (BCL)",
    loss=losses.bayesian_contrastive,
    hyperparams={
        "tau_plus": TAU_PLUS,
        "alpha": Hyperparam(0.9, "Assumed AUC of the encoder", Range(0.5, 1)),
        "beta": _beta(0.7, Range(0.5, 1)),
    },
)
_REPULSION = Hyperparam(1.0, "How much the negatives count beside the positive", NOT_NEGATIVE)
BSL = Objective(
    help="softmax loss that is robust to noise on either side (BSL); for cosines",
    loss=losses.bilateral_softmax,
    hyperparams={"repulsion": _REPULSION},
    n_neg=50,
    n_pos=0,
)
CCL = Objective(
    help="negatives count from a margin on (CCL); for cosines",
    loss=losses.cosine_contrastive,
    hyperparams={
        "margin": Hyperparam(0.4, "Score from which on a negative counts", NOT_NEGATIVE),
        "repulsion": _REPULSION,
    },
    n_neg=50,
)
