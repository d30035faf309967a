"""Optimisers and learning-rate schedules whose numbers may be traced."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

Scalar = float | Float[Array, ""]
Optimizer = Callable[[Scalar, Scalar], optax.GradientTransformation]
"""``optimizer(learning_rate, weight_decay)``: an Optax transformation. It is called while
tracing, so both numbers can be swept by ``vmap`` and changed without recompiling."""

Schedule = Callable[[Any, Any], Any]
"""``schedule(progress, decay)``: the factor on the learning rate when the share ``progress`` in
``[0, 1)`` of the training is done; ``decay`` is the factor that it comes down to."""

KnobSchedule = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""``knob_schedule(progress, knobs)``: the hyper-parameters of a loss when the share ``progress``
of the training is done, from those given. A pure function; it is called while tracing."""


def adam_l2(learning_rate: Scalar, weight_decay: Scalar) -> optax.GradientTransformation:
    """Adam with L2 regularisation added to the gradient, as the published comparisons use it."""
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.adam(learning_rate))


def adamw(learning_rate: Scalar, weight_decay: Scalar) -> optax.GradientTransformation:
    """Adam with decoupled weight decay."""
    return optax.adamw(learning_rate, weight_decay=weight_decay)


def sgd_l2(learning_rate: Scalar, weight_decay: Scalar) -> optax.GradientTransformation:
    """Stochastic gradient descent with L2 regularisation added to the gradient."""
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.sgd(learning_rate))


def constant(progress: Any, decay: Any) -> Any:
    """The factor 1 throughout, whatever ``decay`` is."""
    del decay
    return jnp.ones_like(progress)


def halfway(progress: Any, decay: Any) -> Any:
    """1 in the first half, ``decay`` in the second: the step of the published recipes."""
    return jnp.where(progress < 0.5, 1.0, decay)


def cosine(progress: Any, decay: Any) -> Any:
    """From 1 to ``decay`` along half a cosine."""
    return decay + (1 - decay) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
