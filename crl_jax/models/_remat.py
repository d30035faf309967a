"""Rematerialization of the blocks of a network."""

from collections.abc import Callable
from typing import Any, Literal

import jax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

Remat = Literal["none", "dots", "full"]
"""Rematerialization of a network's blocks in the backward pass: ``"none"`` stores all activations;
``"dots"`` stores the inputs of blocks and the results of products and convolutions, and recomputes
the rest; ``"full"`` stores the inputs of blocks only."""

_PRODUCT = "product"


def product(x: Array) -> Array:
    """Marks the result of a product for ``"dots"``, where a custom gradient hides the operation."""
    return checkpoint_name(x, _PRODUCT)


def rematerialize(block: Callable[..., Any], remat: Remat, module: Any, *args: Any) -> Any:
    """Returns ``block(module, *args)``, whose activations are rematerialized.

    Args:
      block: Function of a module and arrays, whose other variables it may update.
      remat: See :data:`Remat`.
      module: Module of Flax NNX.
      *args: Arrays or None.
    """
    if remat == "none":
        return block(module, *args)
    from flax import nnx

    policies = jax.checkpoint_policies
    dots = policies.save_from_both_policies(
        policies.dots_saveable, policies.save_only_these_names(_PRODUCT)
    )
    # The keywords of a partial function are not resolved.
    apply = nnx.remat(lambda *inputs: block(*inputs), policy=dots if remat == "dots" else None)
    return apply(module, *args)
