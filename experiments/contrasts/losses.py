"""What a contrast minimises: a row in one view against its own and the others in the other."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crl_jax import losses, summary

from .._registry import declared
from ._entry import LossEntry

# The rows of the others are seldom the own one.
_TAU_PLUS = 0.01


def _entry(loss: Callable[..., Any]) -> LossEntry:
    own = declared(loss)
    own.pop("temperature")  # every contrast has one, with a default of its own
    if "tau_plus" in own:
        own["tau_plus"] = replace(own["tau_plus"], default=_TAU_PLUS)
    hyperparams = {
        f"contrast_{name}": replace(of, help=f"{of.help}; of the contrast", field=name)
        for name, of in own.items()
    }
    return LossEntry(help=summary(loss), hyperparams=hyperparams, loss=loss)


INFO_NCE = _entry(losses.info_nce)
DEBIASED = _entry(losses.debiased_contrastive)
HARD = _entry(losses.hard_contrastive)
BAYESIAN = _entry(losses.bayesian_contrastive)
DECOUPLED = _entry(losses.decoupled_contrastive)
