"""Loss functions for contrasts.

The positive of a row is the same row in the other view; all other rows there are negatives.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crl_jax import losses

from .._registry import declared
from ._entry import LossEntry

# The other rows are rarely false negatives.
_TAU_PLUS = 0.01


def _entry(loss: Callable[..., Any]) -> LossEntry:
    own = declared(loss, defaults={"tau_plus": _TAU_PLUS})
    own.pop("temperature")  # set by the contrast, which has its own default
    hyperparams = {
        f"contrast_{name}": replace(of, help=f"{of.help}; of the contrast", field=name)
        for name, of in own.items()
    }
    return LossEntry(source=loss, hyperparams=hyperparams, loss=loss)


INFO_NCE = _entry(losses.info_nce)
DEBIASED = _entry(losses.debiased_contrastive)
HARD = _entry(losses.hard_contrastive)
BAYESIAN = _entry(losses.bayesian_contrastive)
DECOUPLED = _entry(losses.decoupled_contrastive)
