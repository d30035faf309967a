"""Softmax losses with other surrogates than the exponential."""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .._hyperparams import Temperature, check_arguments
from .._reduce import ReduceFn, masked_mean
from ._common import finish, per_anchor_loss, prepare
from ._logspace import log_sum_exp, softplus


@per_anchor_loss
@check_arguments
def pairwise_softmax(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    surrogate: Literal["tanh", "relu", "atan"] = "tanh",
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Pairwise softmax loss (PSL): InfoNCE with another surrogate than the exponential.

    .. math:: \ell = \log\Bigl(1 + \sum_j \sigma(s_j - s^+)^{1/t}\Bigr)

    For :math:`\sigma(d) = e^d` it is :func:`info_nce`. The surrogates approximate it near 0 and
    grow more slowly, so that false negatives with high scores have less influence, and the loss is
    a tighter bound of DCG. The temperature is an exponent: scores are not divided by it. The paper
    uses half the cosine similarity as the score.

    Args:
      surrogate: Function :math:`\sigma` of the difference :math:`d`: ``"tanh"`` is
        :math:`1 + \tanh d`, ``"relu"`` is :math:`\max(1 + d, 0)` and ``"atan"`` is
        :math:`\max(1 + \arctan d, 0)`. A negative for which it is 0 has no effect. Static.
      temperature: Temperature :math:`t > 0`, the reciprocal of the exponent.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Yang et al., `PSL: Rethinking and Improving Softmax Loss from Pairwise Perspective for
      Recommendation <https://arxiv.org/abs/2411.00163>`_, 2024. The maximum with 0 of ``"atan"``
      only matters for scores that differ by more than 1.55, as halved cosines do not.

    >>> pos, neg = jnp.array([0.4]), jnp.array([[0.3, -0.2]])
    >>> print(f"{pairwise_softmax(pos, neg, temperature=0.5):.4f}")
    0.7055
    """
    a = prepare(pos, neg, temperature, where, weights)
    difference = a.neg - a.pos[..., None]
    if surrogate == "tanh":  # 1 + tanh(d) = 2 σ(2d)
        log_value, keep = float(np.log(2)) - softplus(-2 * difference), a.where
    else:
        excess = difference if surrogate == "relu" else jnp.arctan(difference)
        positive = ~(excess <= -1)  # NaN is kept
        log_value = jnp.log1p(jnp.where(positive, excess, 0))
        keep = positive if a.where is None else positive & a.where
    log_sum = log_sum_exp(log_value / a.temperature, where=keep)
    return finish(softplus(log_sum), a, reduce_fn)
